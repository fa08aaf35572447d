"""Policies simulated side by side, once or with several seeds: tables, JSON, CSV and pictures of what came of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from hcloud.cli.history import Recorded
from hcloud.cli.output import WholeRange, console, write_json
from hcloud.cli.signals import exit_on_signal
from hcloud.core.errors import BadInput, SimulationStalled
from hcloud.report import ReportTable
from hcloud.report.table import Row, Value, share_pct
from hcloud.simulator.bound import Bound
from hcloud.simulator.charts import allocation_svg, cost_svg, fullness_svg, limits_svg, performance_svg, waits_svg
from hcloud.simulator.optimality import distance, peer_comparison, run_times_s
from hcloud.simulator.outcome import SimulationResult, comparison, outcome_of
from hcloud.simulator.pool import in_order, open_pool
from hcloud.simulator.run import Progress, Setting, simulated
from hcloud.simulator.scratch import folder_in, quick_folder
from hcloud.simulator.seeds import Repeated, mean_costs, mean_targets, paired, repeated_table
from hcloud.simulator.workload import Workload


@contextmanager
def results_folder(folder: Path | None, named: str) -> Iterator[None]:
    """Make the folder for results now: whoever cannot write there should not learn it after a long run. Where nothing
    came of that, the folders that were made for it go again. ``None``: no results are kept.

    Raises BadInput, which begins with ``named``, where it cannot be made or written to.
    """
    made = [] if folder is None else [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        if folder is not None:
            _make(folder, named)
        yield
    except BaseException:
        with suppress(OSError):  # somebody put something there meanwhile
            for each in made:
                each.rmdir()
        raise


def _make(folder: Path, named: str) -> None:
    there = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), folder)
    if os.path.lexists(there) and not there.is_dir():
        whose = named if there == folder else f"{named} cannot be made: {there}"
        raise BadInput(f"{whose} is not a directory")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{named} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"{named} cannot be written to; name a directory of yours")


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """With which seeds something is measured, and how many of them at the same time."""

    every: range
    processes: int


_SEED = (
    click.option(
        "--seed",
        type=WholeRange(min=0),
        default=0,
        show_default=True,
        help="Other chances; where jobs are made, other jobs, too.",
    ),
    click.option(
        "--seeds",
        "count",
        type=WholeRange(1, 10_000),
        default=1,
        show_default=True,
        help="With so many seeds, from --seed on: means, their limits, and which differences may be chance.",
    ),
    click.option("--processes", type=WholeRange(1, 1024), help="So many --seeds at the same time (default: CPUs)."),
)


def seeds_options(function: F) -> F:
    """Add ``--seed``, ``--seeds`` and ``--processes``, which the command is given as ``seeds``, a :class:`Seeds`."""

    @wraps(function)
    def told(*args: Any, seed: int, count: int, processes: int | None, **others: Any) -> Any:
        """Put the three together. Raises BadInput where one of them would count for nothing."""
        if processes is not None and count == 1:
            raise BadInput("--processes says how many of --seeds are tried at once; add --seeds, or leave it out")
        seeds = Seeds(every=range(seed, seed + count), processes=processes or os.cpu_count() or 1)
        return function(*args, seeds=seeds, **others)

    made: Any = told
    for option in reversed(_SEED):
        made = option(made)
    return cast(F, made)


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show how far a measurement is, on a terminal only. Drawn from this thread: a load dies with its thread."""
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = console(stderr=True)
    drawn = Bar(*columns, console=shown, transient=True, auto_refresh=False, disable=not shown.is_terminal)
    with exit_on_signal(), drawn as bar:
        task = bar.add_task("", total=total, completed=-1)

        def advance(name: str) -> None:
            """Draw one more of ``total`` steps as done, under what is being measured now."""
            bar.update(task, advance=1, description=name, refresh=True)

        yield advance


EXIT_STUCK = 1
"""One of several policies could not be simulated to its end; the others were."""
TARGETS = "targets.svg"
"""The one picture that not every run draws."""
Watch = Callable[[Progress], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions:
    """How results are shown: ``form``, and ``out``, the directory for tables and pictures.

    ``bounds``: each beside the least possible cost. ``recorded``: what came of the same jobs in truth, which
    stands below.
    """

    form: str
    out: Path | None = None
    bounds: bool = False
    recorded: Recorded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """What came of a policy, by ``name``, that was simulated to its end, and how long each job ran (s)."""

    name: str
    outcome: SimulationResult
    ran_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledPolicy:
    """A policy under which jobs could never run, and ``why``."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of each policy with one seed; ``bounds``: of those that came to an end, where they are wanted."""

    ran: tuple[PolicyRun | StalledPolicy, ...]
    bounds: tuple[Bound, ...]

    @property
    def outcomes(self) -> list[SimulationResult]:
        """Return those of policies that came to an end."""
        return [each.outcome for each in self.ran if isinstance(each, PolicyRun)]

    @property
    def table(self) -> ReportTable:
        """Return a row for each policy that came to an end."""
        return peer_comparison(self.outcomes, self.bounds) if self.bounds else comparison(self.outcomes)


def compare(seeds: Seeds, settings_with: Callable[[int], Sequence[Setting]], wanted: ComparisonOptions) -> int:
    """Simulate the settings with each seed, and show what came of them side by side.

    Returns the exit code: 1 if one of several could not be simulated to its end, with a note.
    """
    first = settings_with(seeds.every[0])
    with results_folder(wanted.out, f"--out {wanted.out}"):
        _tell_notes(first[0].workload)
        if len(seeds.every) == 1:
            return _compare_once(first, wanted)
        # Made when their turn comes: the jobs of a hundred seeds would take a gigabyte, and minutes before one runs.
        return _compare_all(seeds, chain([first], map(settings_with, seeds.every[1:])), wanted)


def _compare_once(settings: Sequence[Setting], wanted: ComparisonOptions) -> int:
    with exit_on_signal(), quick_folder() as folder:
        made = _tried(settings, wanted.bounds, folder, _progress)
    stuck = {place: each.why for place, each in enumerate(made.ran) if isinstance(each, StalledPolicy)}
    table = _with_stuck(made.table, [each.name for each in made.ran], stuck)
    whole = table if wanted.recorded is None else _with_recorded(table, wanted.recorded)
    series = {"series": [_series(each) for each in made.outcomes]}
    _show(_for_people(whole), whole, series, wanted.form)
    if wanted.out is not None:
        _write_files(wanted.out, whole, series, _pictures(made.outcomes))
    return _ended(whole, stuck, wanted.form, [[each] for each in made.outcomes])


def _compare_all(seeds: Seeds, by_seed: Iterable[Sequence[Setting]], wanted: ComparisonOptions) -> int:
    """Report means over the seeds, their limits, and which differences may be chance."""
    trials = _all_tried(seeds, by_seed, wanted.bounds)
    names = [each.name for each in next(iter(trials.values())).ran]
    stuck = _stuck_with(trials)
    ended = [_repeated(place, trials) for place in range(len(names)) if place not in stuck]
    if not ended:
        raise SimulationStalled("no policy came to an end with every seed: " + "; ".join(stuck.values()))
    table = _with_stuck(repeated_table(ended, seeds.every), names, stuck)
    table = table if wanted.recorded is None else _with_recorded(table, wanted.recorded)
    first = next(iter(trials.values())).outcomes
    more = {"seeds": list(seeds.every), "by_seed": _rows_by_seed(trials), "series": [_series(each) for each in first]}
    _show(paired(table, _rounded), table, more, wanted.form)
    if wanted.out is not None:
        _write_files(wanted.out, table, more, _pictures_of_means(ended, first))
    return _ended(table, stuck, wanted.form, [each.outcomes for each in ended])


# ---------------------------------------------------------------------------------------------------------- simulating
def _all_tried(seeds: Seeds, by_seed: Iterable[Sequence[Setting]], bounds: bool) -> dict[int, Trial]:
    """Return what came of all policies with each seed. Raises Standstill where all stand still with one of them."""
    found: dict[int, Trial] = {}
    processes = min(seeds.processes, len(seeds.every))
    with ExitStack() as within:
        within.enter_context(exit_on_signal())
        folder = within.enter_context(quick_folder())
        advance = within.enter_context(progress(len(seeds.every)))
        tried = partial(_tried, bounds=bounds, folder=folder)
        pool = within.enter_context(open_pool(processes)) if processes > 1 else None
        made = map(tried, by_seed) if pool is None else in_order(pool, tried, by_seed, 2 * processes)
        advance(f"{len(seeds.every)} seeds")
        for seed in seeds.every:
            try:
                found[seed] = next(made)
            except SimulationStalled as why:
                raise SimulationStalled(f"with seed {seed}: {why}") from why
            advance(f"seed {seed}")
    return found


def _tried(
    settings: Sequence[Setting], bounds: bool, folder: Path, watched: Callable[[Setting], Any] | None = None
) -> Trial:
    """Simulate each; one that stands still is no reason not to try the others. Raises Standstill where all do."""
    ran = list[PolicyRun | StalledPolicy]()
    for setting in settings:
        try:
            ran.append(_simulated(setting, folder, watched))
        except SimulationStalled as why:
            ran.append(StalledPolicy(name=setting.policy.name, why=str(why)))
            if not any(isinstance(each, PolicyRun) for each in ran) and len(ran) == len(settings):
                raise
    return Trial(ran=tuple(ran), bounds=tuple(_bounds(settings, ran, folder)) if bounds else ())


def _bounds(settings: Sequence[Setting], ran: Sequence[PolicyRun | StalledPolicy], folder: Path) -> Iterator[Bound]:
    """Yield the least that could be paid on the cloud of each policy that came to an end."""
    ended = [(setting, each) for setting, each in zip(settings, ran, strict=True) if isinstance(each, PolicyRun)]
    outcomes, runs = [each.outcome for _, each in ended], [each.ran_s for _, each in ended]
    known: dict[str, Bound] = {}
    for setting, _ in ended:
        cloud = repr(setting.providers)
        if cloud not in known:
            with folder_in(folder) as place:
                known[cloud] = distance(setting, place, outcomes, runs)
        yield known[cloud]


def _simulated(setting: Setting, folder: Path, watched: Callable[[Setting], Any] | None) -> PolicyRun:
    """Run it to its end, in a folder of its own within ``folder``. Raises Standstill."""
    with folder_in(folder) as place, simulated(setting, place) as simulation:
        commitments = simulation.commitments()
        if watched is None:
            simulation.run()
        else:
            with watched(setting) as watch:
                simulation.run(watch)
        outcome = outcome_of(setting.policy.name, simulation.events, commitments, simulation.ideals())
        ran_s = run_times_s(setting.workload, simulation.events())
        return PolicyRun(name=setting.policy.name, outcome=outcome, ran_s=ran_s)


@contextmanager
def _progress(setting: Setting) -> Iterator[Watch]:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:<20}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
    shown = console(stderr=True)
    with Bar(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task(setting.policy.name, total=len(setting.workload.arrivals), now="")

        def watch(progress: Progress) -> None:
            """Redraw after every 50th cycle: how many jobs have ended, and the simulated time in hours."""
            if progress.cycles % 50 == 0:
                bar.update(
                    task, completed=progress.ended, now=f"{progress.now_s / 3600:.2f} h, {progress.ended} jobs ended"
                )

        yield watch


# -------------------------------------------------------------------------------------------------------- several seeds
def _stuck_with(trials: Mapping[int, Trial]) -> dict[int, str]:
    """Return by a policy's place why it came to no end, with the first seed with which it did not."""
    found: dict[int, str] = {}
    for seed, trial in trials.items():
        for place, each in enumerate(trial.ran):
            if isinstance(each, StalledPolicy):
                found.setdefault(place, f"with seed {seed}: {each.why}")
    return found


def _repeated(place: int, trials: Mapping[int, Trial]) -> Repeated:
    """Return what came of the policy in a place, which came to an end with every seed; two may have one name."""
    outcomes, bounds = [], []
    for trial in trials.values():
        at = sum(isinstance(each, PolicyRun) for each in trial.ran[:place])
        outcomes.append(trial.outcomes[at])
        bounds += [trial.bounds[at]] if trial.bounds else []
    return Repeated(name=outcomes[0].name, outcomes=tuple(outcomes), bounds=tuple(bounds))


def _rows_by_seed(trials: Mapping[int, Trial]) -> list[dict[str, Any]]:
    """Return what the table of each seed would say: an object for each seed and policy that came to an end."""
    return [{"seed": seed, **row} for seed, trial in trials.items() for row in trial.table.to_json()["rows"]]


def _pictures_of_means(ended: Sequence[Repeated], first: Sequence[SimulationResult]) -> dict[str, Callable[[], str]]:
    """Return pictures: means of all seeds, and time series of the first."""
    met = mean_targets(ended)
    drawn: dict[str, Callable[[], str]] = {
        "cost.svg": partial(limits_svg, "cost in USD, mean of all seeds", mean_costs(ended)),
    }
    if met:
        drawn[TARGETS] = partial(limits_svg, "targets met in %, mean of all seeds", met)
    return {**_pictures(first), **drawn}


# ------------------------------------------------------------------------------------------------------------- telling
def _ended(
    table: ReportTable, stuck: Mapping[int, str], form: str, by_policy: Sequence[Sequence[SimulationResult]]
) -> int:
    """Return the exit code; if it is not 0, the reason is also on standard error, as CSV has no notes.

    ``by_policy``: of each policy that came to an end its outcomes, with every seed.
    """
    for place, why in stuck.items() if form == "csv" else ():
        click.echo(f"hcloud: {table.rows[place][0]}: given up: {why}", err=True)
    never = [sum(why.jobs for each in some for why in each.failed_by if why.code == "impossible") for some in by_policy]
    jobs = [sum(each.jobs for each in some) for some in by_policy]
    least = min(never, default=0)
    fewer = [at for at, count in enumerate(never) if least < count or 0 < count == jobs[at]]
    for at in fewer:
        told = f"{never[at]} of {jobs[at]} jobs" + (", of all seeds," if len(by_policy[at]) > 1 else "")
        what = f"{told} can never run: what it costs is not to be held beside others"
        click.echo(f"hcloud: {by_policy[at][0].name}: {what}", err=True)
    return EXIT_STUCK if stuck or fewer else 0


def _with_stuck(table: ReportTable, names: Sequence[str], stuck: Mapping[int, str]) -> ReportTable:
    """Return the table with a row for each of ``names``: a policy that did not end is one
    without numbers, and a note."""
    rows, empty = iter(table.rows), (None,) * (len(table.columns) - 1)
    told: tuple[Row, ...] = tuple((n, *empty) if place in stuck else next(rows) for place, n in enumerate(names))
    notes = (*table.notes, *(f"{names[place]}: given up: {why}" for place, why in stuck.items()))
    return replace(table, rows=told, notes=notes)


def _with_recorded(table: ReportTable, recorded: Recorded) -> ReportTable:
    names = [column.name for column in table.columns]
    first_usd, usd = table.rows[0][names.index("cost_usd")], recorded.numbers["cost_usd"]
    known = {**recorded.numbers, "cost_pct": share_pct(cast(float, usd), cast(float, first_usd or 0.0))}
    row = tuple(known.get(name) for name in names)
    return replace(table, rows=(*table.rows, row), notes=(*table.notes, *recorded.notes))


def _tell_notes(workload: Workload) -> None:
    for note in workload.notes:
        click.echo(f"{workload.name}: {note}", err=True)


def _show(shown: ReportTable, table: ReportTable, more: Mapping[str, Any], form: str) -> None:
    """Show results to people (``shown``) or programs (``table``, and in JSON ``more``)."""
    from hcloud.cli.report import show

    if form == "json":
        write_json({**table.to_json(), **more})
    elif form == "csv":
        click.echo(table.to_csv(), nl=False)
    else:
        show(shown)


def _rounded(value: Value, limit: Value, unit: str) -> str:
    """Return a mean with its limit as people write them: with the digits that the mean has."""
    from hcloud.cli.report import cell

    if not isinstance(value, float) or not isinstance(limit, float):
        return ""
    if unit == "usd":
        return f"{cell(value, unit)} ±{limit:.{2 if abs(value) >= 1 or value == limit == 0 else 4}f}"
    if unit:
        return f"{cell(value, unit)} ±{cell(limit, unit)}"
    digits = _digits(value)
    return f"{value:.{digits}f} ±{limit:.{digits}f}"


def _digits(value: float) -> int:
    """Return how many decimals people read of a number without a unit."""
    return 2 if abs(value) < 10 else 0


def _for_people(table: ReportTable) -> ReportTable:
    """Return the table with its plain numbers as people write them; those with a unit are when they are shown."""

    def written(value: Value, unit: str) -> Value:
        """Round what is neither a count nor has a unit."""
        return f"{value:.{_digits(value)}f}" if isinstance(value, float) and not unit else value

    units = [column.unit for column in table.columns]
    rows = (tuple(written(*each) for each in zip(row, units, strict=True)) for row in table.rows)
    return replace(table, rows=tuple(rows))


def _series(outcome: SimulationResult) -> dict[str, Any]:
    series = outcome.series
    return {
        "policy": outcome.name,
        "at_s": list(series.at_s),
        "up_vcpus": {market: list(amounts) for market, amounts in series.up_vcpus.items()},
        "held_vcpus": list(series.held_vcpus),
        "waiting_jobs": list(series.waiting),
        "waited_for": [asdict(each) for each in outcome.waited_for],
    }


def _pictures(outcomes: Sequence[SimulationResult]) -> dict[str, Callable[[], str]]:
    """Return pictures by file."""
    drawn = {
        "allocation.svg": allocation_svg,
        "fullness.svg": fullness_svg,
        "cost.svg": cost_svg,
        "performance.svg": performance_svg,
        "waits.svg": waits_svg,
    }
    return {name: partial(draw, outcomes) for name, draw in drawn.items()}


def _write_files(
    folder: Path, table: ReportTable, more: Mapping[str, Any], pictures: Mapping[str, Callable[[], str]]
) -> None:
    contents = {
        "outcome.json": json.dumps({**table.to_json(), **more}, indent=2) + "\n",
        "outcome.csv": table.to_csv(),
        **{name: draw() for name, draw in pictures.items()},
    }
    if TARGETS not in contents:  # an earlier run's would be taken for this one's
        (folder / TARGETS).unlink(missing_ok=True)
    _write_all({folder / name: text for name, text in contents.items()})
    for name in contents:
        click.echo(f"wrote {folder / name}", err=True)


def _write_all(contents: Mapping[Path, str]) -> None:
    """Write all files, or none. Raises BadInput, which names the file that cannot be."""
    new = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    try:
        for path, text in contents.items():
            if path.is_dir():
                raise BadInput(f"{path}: is a directory, where a file is to be written")
            try:
                new[path].write_text(text)
            except OSError as error:
                raise BadInput(f"{path}: cannot be written: {error.strerror}") from error
        for path in contents:
            new[path].replace(path)
    finally:
        for path in new.values():
            path.unlink(missing_ok=True)
