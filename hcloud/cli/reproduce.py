"""``hcloud reproduce``: the papers' experiments by our own decisions, our numbers beside the published ones."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hcloud.cli.output import console
from hcloud.errors import BadInput
from hcloud.simulator.reproduce import CHAPTERS, Figure, Size, run_figure
from hcloud.simulator.reproduce.page import bars_svg, markdown
from hcloud.simulator.reproduce.study import Found


@click.command()
@click.argument("chapters", nargs=-1, type=click.Choice(sorted(CHAPTERS)))
@click.option("--figure", "wanted", multiple=True, help="Only this figure (its file's name); several may be named.")
@click.option("--share", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
              help="Part of each experiment's jobs or load.")  # fmt: skip
@click.option("--hours", type=click.FloatRange(0, min_open=True), default=2.0, show_default=True,
              help="Length of HCloud's scenarios.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="How often each is run.")
@click.option("--processes", type=click.IntRange(min=1), help="At the same time; as many as CPUs where not given.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("results.md"), show_default=True,
              help="The page; pictures and numbers go into `results/` beside it.")  # fmt: skip
def reproduce(
    chapters: tuple[str, ...],
    wanted: tuple[str, ...],
    share: float,
    hours: float,
    seeds: int,
    processes: int | None,
    out: Path,
) -> None:
    """Run the experiments of HCloud, Paragon, ARQ and Quasar (CHAPTERS: only these) and write one page.

    What was run before with the same size, and stands in `results/` beside the page, is not run again.
    """
    size = Size(share=share, hours=hours, seeds=seeds)
    named = chapters or tuple(CHAPTERS)
    figures = {name: [each for each in CHAPTERS[name][1]() if not wanted or each.name in wanted] for name in named}
    _refuse_unknown(wanted, figures)
    folder = out.parent / "results"
    folder.mkdir(parents=True, exist_ok=True)
    done = {
        CHAPTERS[name][0]: [(each, _found(each, size, processes or os.cpu_count() or 1, folder)) for each in mine]
        for name, mine in figures.items()
        if mine
    }
    for figure, found in (pair for pairs in done.values() for pair in pairs):
        if figure.drawn:
            (folder / f"{figure.name}.svg").write_text(bars_svg(figure, found))
    out.write_text(markdown(done, size, _command(named, share, hours, seeds)))
    click.echo(f"wrote {out}")


def _refuse_unknown(wanted: Sequence[str], figures: dict[str, list[Figure]]) -> None:
    known = sorted(each.name for name in CHAPTERS for each in CHAPTERS[name][1]())
    for name in wanted:
        if name not in known:
            raise BadInput(f"--figure {name!r}: there is no such figure; there are {', '.join(known)}")
    if not any(figures.values()):
        raise BadInput("--figure: none of these figures belongs to the chapters named")


def _command(chapters: Sequence[str], share: float, hours: float, seeds: int) -> str:
    names = "" if set(chapters) == set(CHAPTERS) else " " + " ".join(chapters)
    return f"hcloud reproduce{names} --share {share:g} --hours {hours:g} --seeds {seeds}"


def _found(figure: Figure, size: Size, processes: int, folder: Path) -> Found:
    """Return what an earlier run of the same size kept, else run the figure and keep it."""
    kept, made_of = folder / f"{figure.name}.json", {"share": size.share, "hours": size.hours, "seeds": size.seeds}
    if kept.exists():
        content: dict[str, Any] = json.loads(kept.read_text())
        if content.get("size") == made_of and list(content["found"]) == [case.label for case in figure.cases]:
            found: Found = content["found"]
            return found
    found = _run(figure, size, processes)
    kept.write_text(json.dumps({"size": made_of, "found": found}, indent=1) + "\n")
    return found


def _run(figure: Figure, size: Size, processes: int) -> Found:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(figure.name, total=len(figure.cases) * size.seeds)
        return run_figure(
            figure, size, processes, lambda label: bar.update(task, advance=1, description=f"{figure.name}: {label}")
        )
