"""``hcloud profile``: profiles of reference programs, and the sources of interference used to measure them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hcloud.cli.bootstrap import bootstrap
from hcloud.cli.library import diff, export, import_profiles, list_profiles, show
from hcloud.cli.output import FiniteRange, WholeRange, console, format_option, table, write_csv, write_json, write_rows
from hcloud.cli.progress_bar import progress
from hcloud.engine.host import EngineHost
from hcloud.profiler.source_charts import document, row, sentences, write_files
from hcloud.profiler.sources import SOURCES, InterferenceSource, source_named, stress_ng
from hcloud.profiler.validation import Validation, steps, validate

COLUMNS = ("no.", "name", "resource", "tuned by", "runs on", "stress-ng")


@click.group()
def profile() -> None:
    """Measure and manage profiles of programs and of sources of interference."""


for _command in (list_profiles, show, export, import_profiles, diff, bootstrap):
    profile.add_command(_command)


@profile.command()
@click.argument("names", nargs=-1)
@click.option("--validate", "measure", is_flag=True, help="Measure the effect of each source on this machine.")
@click.option(
    "--seconds", type=FiniteRange(min=1), default=120.0, show_default=True, help="Approximate time of the measurement."
)
@click.option(
    "--repeats", type=WholeRange(min=1, max=100), default=1, show_default=True, help="Repeat, and take medians."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Directory for table and chart.")
@format_option
def sources(names: tuple[str, ...], measure: bool, seconds: float, repeats: int, out: Path | None, form: str) -> None:
    """List the sources of interference (NAMES; default: all), or measure their effect with --validate.

    The measurement loads the first and the last CPU of this machine and the disk of its temporary directory.
    """
    chosen = [source_named(name) for name in dict.fromkeys(names)] or list(SOURCES)
    if not measure:
        if out is not None:
            raise click.UsageError("--out needs --validate")
        write_rows(form, [_source_row(source) for source in chosen], COLUMNS, lambda each: list(each.values()))
        return
    stress_ng()
    with progress(steps(chosen, repeats)) as advance:
        validation = validate(chosen, seconds=seconds, repeats=repeats, host=EngineHost(), advance=advance)
    _write(validation, form)
    if out is not None:
        for path in write_files(validation, out):
            click.echo(f"wrote {path}", err=True)


def _source_row(source: InterferenceSource) -> dict[str, Any]:
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
