"""``hcloud profile``: what is known of programs and of the sources of interference they are measured with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hcloud.cli.bootstrap import bootstrap
from hcloud.cli.compare import progress
from hcloud.cli.library import diff, export, import_profiles, list_profiles, show
from hcloud.cli.output import FiniteRange, WholeRange, console, format_option, table, write_csv, write_json, write_rows
from hcloud.engine.host import EngineHost
from hcloud.profiler.source_charts import document, row, sentences, write_files
from hcloud.profiler.sources import SOURCES, InterferenceSource, source_named, stress_ng
from hcloud.profiler.validation import Validation, steps, validate

COLUMNS = ("no.", "name", "resource", "tuned by", "runs on", "stress-ng")


@click.group()
def profile() -> None:
    """Measure programs and sources of interference."""


for _command in (list_profiles, show, export, import_profiles, diff, bootstrap):
    profile.add_command(_command)


@profile.command()
@click.argument("names", nargs=-1)
@click.option("--validate", "measured", is_flag=True, help="Measure on this machine what each source really does.")
@click.option("--seconds", type=FiniteRange(min=1), default=120.0, show_default=True, help="About how long in all.")
@click.option("--repeats", type=WholeRange(min=1, max=100), default=1, show_default=True, help="Take medians.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Write table and picture there.")
@format_option
def sources(names: tuple[str, ...], measured: bool, seconds: float, repeats: int, out: Path | None, form: str) -> None:
    """List the sources of interference (NAMES: only these), or measure them with --validate.

    A measurement loads this machine's first and last CPU, and its temporary directory's disk, for a short time.
    """
    chosen = [source_named(name) for name in dict.fromkeys(names)] or list(SOURCES)
    if not measured:
        if out is not None:
            raise click.UsageError("--out goes with --validate")
        write_rows(form, [_described(source) for source in chosen], COLUMNS, lambda each: list(each.values()))
        return
    stress_ng()
    with progress(steps(chosen, repeats)) as advance:
        validation = validate(chosen, seconds=seconds, repeats=repeats, host=EngineHost(), advance=advance)
    _write(validation, form)
    if out is not None:
        for path in write_files(validation, out):
            click.echo(f"wrote {path}", err=True)


def _described(source: InterferenceSource) -> dict[str, Any]:
    return {
        "number": source.number,
        "name": source.name,
        "resource": source.resource,
        "tuned_by": source.tuned_by,
        "runs_on": "the same core" if source.same_core else "any core",
        "arguments": source.arguments,
    }


def _write(validation: Validation, form: str) -> None:
    rows = [row(each) for each in validation.measured]
    columns = list(rows[0])
    if form == "json":
        write_json(document(validation))
    elif form == "csv":
        write_csv(columns, [list(each.values()) for each in rows])
    else:
        heads = [name.replace("slowdown_", "x ").replace("_", " ") for name in columns]
        console().print(table(heads, [list(each.values()) for each in rows]))
        for sentence in sentences(validation):
            click.echo(sentence)
