"""``python -m lab.papers``: the papers' experiments by our own decisions, our numbers beside the published ones."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from hcloud.cli.compare import results_folder
from hcloud.cli.main import main
from hcloud.cli.output import FiniteRange, NamedPath, WholeRange, console
from hcloud.cli.signals import exit_on_signal
from hcloud.core.errors import BadInput, NoJobs
from hcloud.simulator.scenarios import LEAST_HOURS, MOST_HOURS
from hcloud.spec.validation import nearest
from lab.papers import CHAPTERS, Figure, RunSize, run_figure
from lab.papers.page import FigureResults, bars_svg, markdown
from lab.papers.study import FinishedRuns, complete_results

DOCUMENTATION_COMMAND = "python -m lab.papers --no-run"
"""What the documentation's page of results is made by."""


@click.command()
@click.argument("chapters", nargs=-1, type=click.Choice(sorted(CHAPTERS)))
@click.option("--figure", "wanted", multiple=True, help="Only this figure (its file's name); several may be named.")
@click.option("--share", type=FiniteRange(0, 1, min_open=True), default=1.0, show_default=True,
              help="Part of each experiment's jobs or load.")  # fmt: skip
@click.option("--hours", type=FiniteRange(LEAST_HOURS, MOST_HOURS), default=2.0, show_default=True,
              help="Length of HCloud's scenarios.")  # fmt: skip
@click.option("--seeds", type=WholeRange(1, 10_000), default=10, show_default=True, help="How often each is run.")
@click.option("--processes", type=WholeRange(1, 1024), help="At the same time; as many as CPUs where not given.")
@click.option("--run/--no-run", default=True, help="Or write the page from what stands in `results/`, of any size.")
@click.option("--out", type=NamedPath(path_type=Path, dir_okay=False), default=Path("results.md"), show_default=True,
              help="The page; pictures and numbers go into `results/` beside it.")  # fmt: skip
def reproduce(
    chapters: tuple[str, ...],
    wanted: tuple[str, ...],
    share: float,
    hours: float,
    seeds: int,
    processes: int | None,
    run: bool,
    out: Path,
) -> None:
    """Run the experiments of HCloud, Paragon, ARQ and Quasar (CHAPTERS: only these) and write one page.

    What was run before with the same size, and stands in `results/` beside the page, is not run again: not a single
    case with a single seed, so that a run that was broken off goes on where it was.
    """
    size = RunSize(share=share, hours=hours, seeds=seeds)
    named = chapters or tuple(CHAPTERS)
    figures = {name: [each for each in CHAPTERS[name][1]() if not wanted or each.name in wanted] for name in named}
    _refuse_unknown(wanted, figures)
    folder = out.parent / "results"
    if not run and not any(folder.glob("*.json")):
        raise BadInput(f"{folder}: there are no results here to write a page from; leave out --no-run to make them")

    def numbers_of(figure: Figure, kept: Path) -> FigureResults | None:
        """Return what came of a figure, run now or long ago; None: nothing yet."""
        return (
            _run_and_store(figure, size, processes or os.cpu_count() or 1, kept)
            if run
            else _stored_results(figure, kept)
        )

    command = _command(named, wanted, size if run else None)
    with results_folder(folder, str(folder)):
        shown, missing = _collect(figures, folder, numbers_of)
    out.write_text(markdown(shown, command, missing, linked=_has_doc_pages(out, command)))
    click.echo(f"wrote {out}")


def _collect(
    figures: Mapping[str, Sequence[Figure]], folder: Path, numbers_of: Callable[[Figure, Path], FigureResults | None]
) -> tuple[dict[str, list[FigureResults]], list[str]]:
    """Return by chapter what came of its figures, each drawn in ``folder``, and the names of those not run."""
    shown, missing = dict[str, list[FigureResults]](), list[str]()
    for name, figure in ((name, figure) for name, mine in figures.items() for figure in mine):
        part = numbers_of(figure, folder / f"{figure.name}.json")
        if part is None:
            missing.append(figure.name)
            continue
        shown.setdefault(CHAPTERS[name][0], []).append(part)
        if figure.drawn:
            (folder / f"{figure.name}.svg").write_text(bars_svg(figure, part[1]))
    return shown, missing


def _refuse_unknown(wanted: Sequence[str], figures: dict[str, list[Figure]]) -> None:
    known = sorted(each.name for name in CHAPTERS for each in CHAPTERS[name][1]())
    for name in wanted:
        if name not in known:
            raise BadInput(f"--figure {name!r}: there is no such figure; {nearest(name, known)}")
    if not any(figures.values()):
        raise BadInput("--figure: none of these figures belongs to the chapters named")


def _command(chapters: Sequence[str], figures: Sequence[str], size: RunSize | None) -> str:
    """Return what makes the page again; ``size`` None: from what is there."""
    names = "" if set(chapters) == set(CHAPTERS) else " " + " ".join(chapters)
    names += "".join(f" --figure {each}" for each in figures)
    sized = f" --share {size.share:g} --hours {size.hours:g} --seeds {size.seeds}" if size else " --no-run"
    return f"python -m lab.papers{names}{sized}"


def _has_doc_pages(out: Path, command: str) -> bool:
    """Return whether the documentation's pages are beside the new one, or it is its own page of results, which a copy
    of these gives again to the last byte."""
    return (out.parent / "simulation.md").exists() or command == DOCUMENTATION_COMMAND


def _read(kept: Path) -> tuple[RunSize, FinishedRuns] | None:
    """Return what an earlier run kept: its size, as far as seeds go the most any case has, and its numbers.

    Raises BadInput where the file is none of ours.
    """
    if not kept.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(kept.read_text())
        done = {
            label: {int(seed): numbers for seed, numbers in runs.items()}
            for label, runs in content.get("runs", {}).items()
        }
        made_of = content.get("size", {})
        share, hours = float(made_of.get("share", 0.0)), float(made_of.get("hours", 0.0))
        _check_numbers(done)
    except (ValueError, AttributeError, TypeError):
        raise BadInput(f"{kept}: is not what an earlier run wrote there; remove it to run this figure anew") from None
    return RunSize(share=share, hours=hours), done


def _check_numbers(done: FinishedRuns) -> None:
    """Raise TypeError where a seed has other things than numbers: page and picture would fail on them."""
    for numbers in (each for runs in done.values() for each in runs.values()):
        for value in numbers.values():
            math.isfinite(value)


def _stored_results(figure: Figure, kept: Path) -> FigureResults | None:
    """Return what stands in ``kept`` of a figure, if any seed was run with all of its cases."""
    size, done = _read(kept) or (RunSize(), {})
    found = complete_results(figure, done)
    seeds = min(len(runs) for runs in found.values())
    return (figure, found, RunSize(share=size.share, hours=size.hours, seeds=seeds)) if seeds else None


def _run_and_store(figure: Figure, size: RunSize, processes: int, kept: Path) -> FigureResults | None:
    """Run what an earlier run of the same size did not, keeping each result at once."""
    before, done = _read(kept) or (RunSize(), {})
    if (before.share, before.hours) != (size.share, size.hours):
        done = {}

    def keep(_: str) -> None:
        """Write all results so far, by a new file that takes the old one's place: a run may be ended at any moment."""
        made_of = {"share": size.share, "hours": size.hours}
        new = kept.with_suffix(".new")
        try:
            new.write_text(json.dumps({"size": made_of, "runs": done}, indent=1) + "\n")
            new.replace(kept)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise BadInput(f"{kept}: cannot be written: {error.strerror}") from error

    try:
        _run(figure, size, processes, done, keep)
    except NoJobs as error:
        raise BadInput(f"--figure {figure.name}: {error}") from error
    return _stored_results(figure, kept)


def _run(figure: Figure, size: RunSize, processes: int, done: FinishedRuns, keep: Callable[[str], None]) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = console(stderr=True)
    drawn = Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal)
    with exit_on_signal(), drawn as bar:
        before = sum(len(runs) for runs in done.values())
        task = bar.add_task(figure.name, total=len(figure.cases) * size.seeds, completed=before)

        def told(label: str) -> None:
            """Keep what is done first, then show it."""
            keep(label)
            bar.update(task, advance=1, description=f"{figure.name}: {label}")

        run_figure(figure, size, processes, done, told)


if __name__ == "__main__":
    main(command=reproduce, prog_name="python -m lab.papers")
