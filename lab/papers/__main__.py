"""``python -m lab.papers``: run the papers' experiments and write our results next to the published ones."""

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
from hcloud.plots import require_matplotlib
from hcloud.simulator.scenarios import LEAST_HOURS, MOST_HOURS
from hcloud.spec.validation import nearest
from lab.papers import CHAPTERS, Figure, RunSize, run_figure
from lab.papers.page import FigureResults, details, markdown, picture_svg
from lab.papers.study import FinishedRuns, complete_results

DOCUMENTATION_COMMAND = "python -m lab.papers --no-run"
"""The command that writes docs/results.md."""


@click.command()
@click.argument("chapters", nargs=-1, type=click.Choice(sorted(CHAPTERS)))
@click.option("--figure", "figure_names", multiple=True, help="Only this figure, by its file name; may be repeated.")
@click.option("--share", type=FiniteRange(0, 1, min_open=True), default=1.0, show_default=True,
              help="Share of each experiment's jobs or load.")  # fmt: skip
@click.option("--hours", type=FiniteRange(LEAST_HOURS, MOST_HOURS), default=2.0, show_default=True,
              help="Length of HCloud's scenarios in hours.")  # fmt: skip
@click.option("--seeds", type=WholeRange(1, 10_000), default=10, show_default=True, help="Seeds per experiment.")
@click.option("--processes", type=WholeRange(1, 1024), help="Simulations in parallel (default: number of CPUs).")
@click.option("--scheduler", metavar="ADDRESS",
              help="Run simulations on the Dask cluster with this scheduler, such as tcp://10.0.0.5:8786.")  # fmt: skip
@click.option("--data", type=NamedPath(path_type=Path, file_okay=False, exists=True),
              help="Folder of measurements: ESP's for esp and mage, lumos or c3o for classification.")  # fmt: skip
@click.option("--run/--no-run", default=True, help="--no-run: only write the page from `results/`, of any size.")
@click.option("--pictures/--no-pictures", default=True, help="--no-pictures: leave the pictures as they are.")
@click.option("--out", type=NamedPath(path_type=Path, dir_okay=False), default=Path("results.md"), show_default=True,
              help="The page; charts, numbers and a page for each figure go to `results/` next to it.")  # fmt: skip
def reproduce(
    chapters: tuple[str, ...],
    figure_names: tuple[str, ...],
    share: float,
    hours: float,
    seeds: int,
    processes: int | None,
    scheduler: str | None,
    data: Path | None,
    run: bool,
    pictures: bool,
    out: Path,
) -> None:
    """Run the experiments of HCloud, Paragon, ARQ, Quasar, iBench, ESP, Mage, Tarcil and 3Sigma and write a page.

    CHAPTERS selects chapters (default: all). Results of the same size in `results/` next to the page are reused, case
    by case and seed by seed, so an interrupted run can be resumed.
    """
    if pictures:
        require_matplotlib()
    size = RunSize(share=share, hours=hours, seeds=seeds, data=data)
    named = chapters or tuple(CHAPTERS)
    figures = {
        name: [each for each in CHAPTERS[name][1]() if not figure_names or each.name in figure_names] for name in named
    }
    _refuse_unknown(figure_names, figures)
    if run:
        _check_data(figures, size)
    folder = out.parent / "results"
    if not run and not any(folder.glob("*.json")):
        raise BadInput(f"{folder}: there are no results to write a page from; leave out --no-run to run experiments")

    def numbers_of(figure: Figure, kept: Path) -> FigureResults | None:
        return (
            _run_and_store(figure, size, scheduler or processes or os.cpu_count() or 1, kept)
            if run and figure.reads(size.data)
            else _stored_results(figure, kept)
        )

    command = _command(named, figure_names, size if run else None)
    with results_folder(folder, str(folder)):
        shown, missing = _collect(figures, folder, numbers_of, pictures=pictures)
    # Links work next to the documentation's pages, and in docs/results.md itself, which a copy must reproduce exactly.
    linked = (out.parent / "simulation.md").exists() or command == DOCUMENTATION_COMMAND
    _write_pages(shown, folder, linked=linked)
    out.write_text(markdown(shown, command, missing, linked=linked))
    click.echo(f"wrote {out}")


def _write_pages(shown: Mapping[str, Sequence[FigureResults]], folder: Path, *, linked: bool) -> None:
    """Write a page for each figure."""
    for part in (part for parts in shown.values() for part in parts):
        (folder / f"{part[0].name}.md").write_text(details(part, linked=linked))


def _collect(
    figures: Mapping[str, Sequence[Figure]],
    folder: Path,
    numbers_of: Callable[[Figure, Path], FigureResults | None],
    *,
    pictures: bool,
) -> tuple[dict[str, list[FigureResults]], list[str]]:
    """Return results by chapter heading, with their charts written to ``folder``, and the names of figures without
    results."""
    shown, missing = dict[str, list[FigureResults]](), list[str]()
    for name, figure in ((name, figure) for name, mine in figures.items() for figure in mine):
        part = numbers_of(figure, folder / f"{figure.name}.json")
        if part is None:
            missing.append(figure.name)
            continue
        shown.setdefault(CHAPTERS[name][0], []).append(part)
        if figure.drawn and pictures:
            (folder / f"{figure.name}.svg").write_text(picture_svg(figure, part[1]))
    return shown, missing


def _refuse_unknown(figure_names: Sequence[str], figures: dict[str, list[Figure]]) -> None:
    known = sorted(each.name for name in CHAPTERS for each in CHAPTERS[name][1]())
    for name in figure_names:
        if name not in known:
            raise BadInput(f"--figure {name!r}: unknown figure; {nearest(name, known)}")
    if not any(figures.values()):
        raise BadInput("--figure: none of these figures belongs to the selected chapters")


def _check_data(figures: Mapping[str, Sequence[Figure]], size: RunSize) -> None:
    """Refuse a selection of figures that all follow from measurements without a folder of them.

    Among others, such figures keep their stored results.
    """
    chosen = [figure for mine in figures.values() for figure in mine]
    readers = [(figure, figure.of_data) for figure in chosen if figure.of_data is not None]
    if size.data is None and len(readers) == len(chosen):
        raise BadInput(f"{chosen[0].name} follows from measurements of others: give their folder with --data")
    if size.data is not None and readers and not any(figure.reads(size.data) for figure, _ in readers):
        readers[0][1](size.data)


def _command(chapters: Sequence[str], figures: Sequence[str], size: RunSize | None) -> str:
    """Return the command that writes this page again; ``size`` None: from stored results."""
    names = "" if set(chapters) == set(CHAPTERS) else " " + " ".join(chapters)
    names += "".join(f" --figure {each}" for each in figures)
    sized = f" --share {size.share:g} --hours {size.hours:g} --seeds {size.seeds}" if size else " --no-run"
    return f"python -m lab.papers{names}{sized}"


def _read(kept: Path) -> tuple[RunSize, FinishedRuns] | None:
    """Return the size (without seeds) and the numbers that an earlier run stored; None if there are none.

    Raises BadInput if the file was not written by this command.
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
        raise BadInput(f"{kept}: not written by this command; remove the file to run this figure again") from None
    return RunSize(share=share, hours=hours), done


def _check_numbers(done: FinishedRuns) -> None:
    """Raise TypeError if a value is not a number; page and charts would fail on it."""
    for numbers in (each for runs in done.values() for each in runs.values()):
        for value in numbers.values():
            math.isfinite(value)


def _stored_results(figure: Figure, kept: Path) -> FigureResults | None:
    """Return a figure's stored results if any seed was run with all of its cases."""
    size, done = _read(kept) or (RunSize(), {})
    found = complete_results(figure, done)
    seeds = min(len(runs) for runs in found.values())
    return (figure, found, RunSize(share=size.share, hours=size.hours, seeds=seeds)) if seeds else None


def _run_and_store(figure: Figure, size: RunSize, workers: int | str, kept: Path) -> FigureResults | None:
    """Run what an earlier run of the same size did not, and store each result at once."""
    before, done = _read(kept) or (RunSize(), {})
    if (before.share, before.hours) != (size.share, size.hours):
        done = {}

    def keep(_: str) -> None:
        # A new file replaces the old one atomically, as the run may be killed at any moment.
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
        _run(figure, size, workers, done, keep)
    except NoJobs as error:
        raise BadInput(f"--figure {figure.name}: {error}") from error
    return _stored_results(figure, kept)


def _run(figure: Figure, size: RunSize, workers: int | str, done: FinishedRuns, keep: Callable[[str], None]) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = console(stderr=True)
    drawn = Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal)
    with exit_on_signal(), drawn as bar:
        before = sum(len(runs) for runs in done.values())
        task = bar.add_task(figure.name, total=len(figure.cases) * size.seeds, completed=before)

        def on_done(label: str) -> None:
            keep(label)
            bar.update(task, advance=1, description=f"{figure.name}: {label}")

        run_figure(figure, size, workers, done, on_done)


if __name__ == "__main__":
    main(command=reproduce, prog_name="python -m lab.papers")
