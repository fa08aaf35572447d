"""Comparison of simulated policies, with one seed or several: runs them and writes tables, JSON, CSV and charts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import click

from hcloud.cli.history import Recorded
from hcloud.cli.output import console, price_age, write_json
from hcloud.cli.progress_bar import progress
from hcloud.cli.seeds import Seeds
from hcloud.cli.signals import exit_on_signal
from hcloud.core.errors import BadInput, SimulationStalled
from hcloud.plots import require_matplotlib, to_svg
from hcloud.report import ReportTable
from hcloud.report.spending_accounts import with_accounts_below
from hcloud.report.table import Row, Value, share_pct
from hcloud.simulator.bound import Bound
from hcloud.simulator.charts import (
    allocation_figure,
    cost_figure,
    fullness_figure,
    means_figure,
    performance_figure,
    waits_figure,
)
from hcloud.simulator.optimality import distance, peer_comparison, run_times_s
from hcloud.simulator.outcome import SimulationResult, comparison, outcome_of
from hcloud.simulator.pool import in_order, open_pool
from hcloud.simulator.run import Progress, Setting, simulated
from hcloud.simulator.scratch import folder_in, quick_folder
from hcloud.simulator.seeds import Repeated, mean_costs, mean_targets, paired, repeated_table
from hcloud.simulator.workload import Workload


@contextmanager
def results_folder(folder: Path | None, named: str) -> Iterator[None]:
    """Create the directory for results before a long run, and remove it again if the run fails.

    ``None``: no results are kept. Directories that have contents are not removed.

    Raises BadInput, starting with ``named``, if the directory cannot be created or written to.
    """
    created = [] if folder is None else [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        if folder is not None:
            _create(folder, named)
        yield
    except BaseException:
        with suppress(OSError):  # not empty: another process wrote to it
            for each in created:
                each.rmdir()
        raise


def _create(folder: Path, named: str) -> None:
    existing = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), folder)
    if os.path.lexists(existing) and not existing.is_dir():
        subject = named if existing == folder else f"{named} cannot be created: {existing}"
        raise BadInput(f"{subject} is not a directory")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{named} cannot be created: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"{named} is not writable; name another directory")


EXIT_INCOMPLETE = 1
"""Exit code if one of several policies could not be simulated to its end, or could never run some jobs."""
BILLED = "as billed"
"""Name of the row of what was really paid."""
_FORMER_CHART = "targets.svg"
"""Earlier versions drew targets apart from costs; one that is left would be mistaken for a chart of this run."""
Watch = Callable[[Progress], object]
PROGRESS = "HCLOUD_PROGRESS"
"""Environment variable of programs that want to know how far a simulation is, as JSON objects on standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions:
    """What a comparison shows, and where."""

    form: str
    """Output format: table, json or csv."""
    out: Path | None = None
    """Directory for result files and charts."""
    bounds: bool = False
    """Whether to compare each policy with the lower bound of its cost."""
    recorded: Recorded | None = None
    """Recorded results of the same jobs, shown as the last row."""
    price_age_s: float | None = None
    """Age of the oldest price of the simulated clouds; None: their prices are settings, not of a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """Result of a policy that was simulated to its end."""

    name: str
    outcome: SimulationResult
    ran_s: tuple[float, ...]
    """Run time of each job in seconds, in order of arrival; infinite if it did not succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledPolicy:
    """A policy whose simulation stalled, as some jobs could never run."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Results of all policies with one seed."""

    ran: tuple[PolicyRun | StalledPolicy, ...]
    bounds: tuple[Bound, ...]
    """Lower bounds of the cost of the completed policies, in their order; empty if not requested."""

    @property
    def outcomes(self) -> list[SimulationResult]:
        """Return the results of the completed policies."""
        return [each.outcome for each in self.ran if isinstance(each, PolicyRun)]

    @property
    def table(self) -> ReportTable:
        """Return a table with a row for each completed policy."""
        return peer_comparison(self.outcomes, self.bounds) if self.bounds else comparison(self.outcomes)


def compare(seeds: Seeds, settings_with: Callable[[int], Sequence[Setting]], options: ComparisonOptions) -> int:
    """Simulate the settings with each seed and show the results side by side.

    Returns the exit code: ``EXIT_INCOMPLETE`` if one of several policies did not run all jobs that others ran.

    Raises:
        BadInput: the results directory is not writable, or pictures for it cannot be drawn.
        SimulationStalled: no policy could be simulated to its end.
    """
    if options.out is not None:
        require_matplotlib()
    first = settings_with(seeds.every[0])
    with results_folder(options.out, f"--out {options.out}"):
        workload = first[0].workload
        for note in workload.notes:
            click.echo(f"{workload.name}: {note}", err=True)
        if workload.paid_usd is not None:
            options = replace(options, recorded=_as_billed(workload, workload.paid_usd))
        if len(seeds.every) == 1:
            return _compare_once(first, options)
        # Built lazily: the jobs of all seeds would take much memory, and minutes before the first simulation starts.
        return _compare_seeds(seeds, chain([first], map(settings_with, seeds.every[1:])), options)


def _as_billed(workload: Workload, paid_usd: float) -> Recorded:
    """Return a row with what was really paid for a workload."""
    note = f"{BILLED}: what the file says these machines cost (EffectiveCost), idle or not"
    return Recorded(numbers={"policy": BILLED, "cost_usd": paid_usd, "jobs": len(workload.arrivals)}, notes=(note,))


def _compare_once(settings: Sequence[Setting], options: ComparisonOptions) -> int:
    with exit_on_signal(), quick_folder() as folder:
        trial = _run_trial(settings, options.bounds, folder, _progress)
    stalled = {place: each.reason for place, each in enumerate(trial.ran) if isinstance(each, StalledPolicy)}
    table = _with_stalled(trial.table, [each.name for each in trial.ran], stalled)
    whole = _completed(table, options)
    series = {"series": [_series(each) for each in trial.outcomes]}
    _show(with_accounts_below(_for_people(whole)), whole, series, options.form)
    if options.out is not None:
        _write_files(options.out, whole, series, _charts(trial.outcomes))
    return _exit_code(whole, stalled, options.form, [[each] for each in trial.outcomes])


def _compare_seeds(seeds: Seeds, by_seed: Iterable[Sequence[Setting]], options: ComparisonOptions) -> int:
    trials = _run_trials(seeds, by_seed, options.bounds)
    names = [each.name for each in next(iter(trials.values())).ran]
    stalled = _stalled_with(trials)
    completed = [_repeated(place, trials) for place in range(len(names)) if place not in stalled]
    if not completed:
        raise SimulationStalled("no policy could be simulated with every seed: " + "; ".join(stalled.values()))
    table = _with_stalled(repeated_table(completed, seeds.every), names, stalled)
    table = _completed(table, options)
    first = next(iter(trials.values())).outcomes
    more = {
        "seeds": list(seeds.every),
        "by_seed": [{"seed": seed, **row} for seed, each in trials.items() for row in each.table.to_json()["rows"]],
        "series": [_series(each) for each in first],
    }
    _show(with_accounts_below(paired(table, _rounded)), table, more, options.form)
    if options.out is not None:
        _write_files(options.out, table, more, _charts_of_means(completed, first))
    return _exit_code(table, stalled, options.form, [each.outcomes for each in completed])


# ---------------------------------------------------------------------------------------------------------- simulating
def _run_trials(seeds: Seeds, by_seed: Iterable[Sequence[Setting]], bounds: bool) -> dict[int, Trial]:
    """Return the results of all policies by seed. Raises SimulationStalled if all policies stall with one seed."""
    trials: dict[int, Trial] = {}
    processes = min(seeds.processes, len(seeds.every))
    with ExitStack() as stack:
        stack.enter_context(exit_on_signal())
        folder = stack.enter_context(quick_folder())
        advance = stack.enter_context(progress(len(seeds.every)))
        run = partial(_run_trial, bounds=bounds, folder=folder)
        pool = stack.enter_context(open_pool(processes)) if processes > 1 else None
        results = map(run, by_seed) if pool is None else in_order(pool, run, by_seed, 2 * processes)
        advance(f"{len(seeds.every)} seeds")
        for seed in seeds.every:
            try:
                trials[seed] = next(results)
            except SimulationStalled as reason:
                raise SimulationStalled(f"with seed {seed}: {reason}") from reason
            advance(f"seed {seed}")
    return trials


def _run_trial(
    settings: Sequence[Setting], bounds: bool, folder: Path, watched: Callable[[Setting], Any] | None = None
) -> Trial:
    """Simulate each setting; one that stalls does not stop the others. Raises SimulationStalled if all stall."""
    ran: list[PolicyRun | StalledPolicy] = []
    for setting in settings:
        try:
            ran.append(_simulate(setting, folder, watched))
        except SimulationStalled as reason:
            ran.append(StalledPolicy(name=setting.policy.name, reason=str(reason)))
            if not any(isinstance(each, PolicyRun) for each in ran) and len(ran) == len(settings):
                raise
    return Trial(ran=tuple(ran), bounds=tuple(_bounds(settings, ran, folder)) if bounds else ())


def _bounds(settings: Sequence[Setting], ran: Sequence[PolicyRun | StalledPolicy], folder: Path) -> Iterator[Bound]:
    """Yield the lower bound of the cost on the cloud of each completed policy."""
    completed = [(setting, each) for setting, each in zip(settings, ran, strict=True) if isinstance(each, PolicyRun)]
    outcomes, runs = [each.outcome for _, each in completed], [each.ran_s for _, each in completed]
    known: dict[str, Bound] = {}
    for setting, _ in completed:
        cloud = repr(setting.providers)
        if cloud not in known:
            with folder_in(folder) as place:
                known[cloud] = distance(setting, place, outcomes, runs)
        yield known[cloud]


def _simulate(setting: Setting, folder: Path, watched: Callable[[Setting], Any] | None) -> PolicyRun:
    """Run a simulation to its end, in a directory of its own within ``folder``. Raises SimulationStalled."""
    with folder_in(folder) as place, simulated(setting, place) as simulation:
        commitments = simulation.commitments()
        if watched is None:
            simulation.run()
        else:
            with watched(setting) as watch:
                simulation.run(watch)
        outcome = outcome_of(
            setting.policy.name,
            simulation.events,
            commitments,
            simulation.ideals(),
            needs_vcpus=simulation.needs_vcpus(),
        )
        ran_s = run_times_s(setting.workload, simulation.events())
        return PolicyRun(name=setting.policy.name, outcome=outcome, ran_s=ran_s)


@contextmanager
def _progress(setting: Setting) -> Iterator[Watch]:
    if os.environ.get(PROGRESS):
        yield partial(_write_progress, setting)
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:<20}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
    shown = console(stderr=True)
    with Bar(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task(setting.policy.name, total=len(setting.workload.arrivals), now="")

        def watch(progress: Progress) -> None:
            if progress.cycles % 50 == 0:  # redrawing takes longer than many cycles
                bar.update(
                    task, completed=progress.ended, now=f"{progress.now_s / 3600:.2f} h, {progress.ended} jobs ended"
                )

        yield watch


def _write_progress(setting: Setting, progress: Progress) -> None:
    if progress.cycles % 500 == 0:
        done = {"policy": setting.policy.name, "ended": progress.ended, "jobs": len(setting.workload.arrivals)}
        click.echo(json.dumps(done), err=True)


# -------------------------------------------------------------------------------------------------------- several seeds
def _stalled_with(trials: Mapping[int, Trial]) -> dict[int, str]:
    """Return why policies stalled, by their position, each with the first seed with which it did."""
    reasons: dict[int, str] = {}
    for seed, trial in trials.items():
        for place, each in enumerate(trial.ran):
            if isinstance(each, StalledPolicy):
                reasons.setdefault(place, f"with seed {seed}: {each.reason}")
    return reasons


def _repeated(place: int, trials: Mapping[int, Trial]) -> Repeated:
    """Return the results of the policy at a position, which completed with every seed.

    Policies are identified by position, as two may have the same name.
    """
    outcomes, bounds = [], []
    for trial in trials.values():
        at = sum(isinstance(each, PolicyRun) for each in trial.ran[:place])
        outcomes.append(trial.outcomes[at])
        bounds += [trial.bounds[at]] if trial.bounds else []
    return Repeated(name=outcomes[0].name, outcomes=tuple(outcomes), bounds=tuple(bounds))


def _charts_of_means(completed: Sequence[Repeated], first: Sequence[SimulationResult]) -> dict[str, Callable[[], str]]:
    """Return functions that draw charts, by file name: means of all seeds, and time series of the first."""
    means = means_figure(mean_costs(completed), mean_targets(completed))
    return {**_charts(first), "cost.svg": lambda: to_svg(means)}


# -------------------------------------------------------------------------------------------------------------- output
def _exit_code(
    table: ReportTable, stalled: Mapping[int, str], form: str, by_policy: Sequence[Sequence[SimulationResult]]
) -> int:
    """Return the exit code. If it is not 0, print the reason to standard error where the table does not show it.

    ``by_policy`` has the results of each completed policy with every seed.
    """
    for place, reason in stalled.items() if form == "csv" else ():  # CSV has no notes
        click.echo(f"hcloud: {table.rows[place][0]}: not simulated to its end: {reason}", err=True)
    impossible = [
        sum(reason.jobs for each in outcomes for reason in each.failed_by if reason.code == "impossible")
        for outcomes in by_policy
    ]
    jobs = [sum(each.jobs for each in outcomes) for outcomes in by_policy]
    least = min(impossible, default=0)
    incomparable = [at for at, count in enumerate(impossible) if least < count or 0 < count == jobs[at]]
    for at in incomparable:
        count = f"{impossible[at]} of {jobs[at]} jobs" + (" of all seeds" if len(by_policy[at]) > 1 else "")
        click.echo(
            f"hcloud: {by_policy[at][0].name}: {count} can never run; its cost is not comparable with the others",
            err=True,
        )
    return EXIT_INCOMPLETE if stalled or incomparable else 0


def _with_stalled(table: ReportTable, names: Sequence[str], stalled: Mapping[int, str]) -> ReportTable:
    """Return the table with a row for each of ``names``: an empty row and a note for each stalled policy."""
    rows, empty = iter(table.rows), (None,) * (len(table.columns) - 1)
    whole: tuple[Row, ...] = tuple((n, *empty) if place in stalled else next(rows) for place, n in enumerate(names))
    notes = (f"{names[place]}: not simulated to its end: {reason}" for place, reason in stalled.items())
    return replace(table, rows=whole, notes=(*table.notes, *notes))


def _completed(table: ReportTable, options: ComparisonOptions) -> ReportTable:
    """Return the table with the recorded results, and with a note on the age of prices."""
    if options.recorded is not None:
        table = _with_recorded(table, options.recorded)
    if options.price_age_s is None:
        return table
    note = f"the oldest price of the simulated cloud is {price_age(options.price_age_s)}"
    return replace(table, notes=(*table.notes, note))


def _with_recorded(table: ReportTable, recorded: Recorded) -> ReportTable:
    """Return the table with the recorded results as its last row; ``cost_pct`` is relative to the first row."""
    names = [column.name for column in table.columns]
    first_usd, usd = table.rows[0][names.index("cost_usd")], recorded.numbers["cost_usd"]
    known = {**recorded.numbers, "cost_pct": share_pct(cast(float, usd), cast(float, first_usd or 0.0))}
    row = tuple(known.get(name) for name in names)
    return replace(table, rows=(*table.rows, row), notes=(*table.notes, *recorded.notes))


def _show(shown: ReportTable, table: ReportTable, more: Mapping[str, Any], form: str) -> None:
    """Write ``shown`` as a table, or ``table`` as CSV or JSON; JSON also has the fields of ``more``."""
    from hcloud.cli.report import show

    if form == "json":
        write_json({**table.to_json(), **more})
    elif form == "csv":
        click.echo(table.to_csv(), nl=False)
    else:
        show(shown)


def _rounded(value: Value, limit: Value, unit: str) -> str:
    """Return a mean and its confidence limit as text, both with the same number of digits."""
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
    return 2 if abs(value) < 10 else 0


def _for_people(table: ReportTable) -> ReportTable:
    """Return the table with floats without a unit rounded; values with a unit are rounded when they are shown."""

    def rounded(value: Value, unit: str) -> Value:
        return f"{value:.{_digits(value)}f}" if isinstance(value, float) and not unit else value

    units = [column.unit for column in table.columns]
    rows = (tuple(rounded(*each) for each in zip(row, units, strict=True)) for row in table.rows)
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


def _charts(outcomes: Sequence[SimulationResult]) -> dict[str, Callable[[], str]]:
    """Return functions that draw charts, by file name."""
    charts = {
        "allocation.svg": allocation_figure,
        "fullness.svg": fullness_figure,
        "cost.svg": cost_figure,
        "performance.svg": performance_figure,
        "waits.svg": waits_figure,
    }

    def drawn(name: str) -> str:
        return to_svg(charts[name](outcomes))

    return {name: partial(drawn, name) for name in charts}


def _write_files(
    folder: Path, table: ReportTable, more: Mapping[str, Any], charts: Mapping[str, Callable[[], str]]
) -> None:
    contents = {
        "outcome.json": json.dumps({**table.to_json(), **more}, indent=2) + "\n",
        "outcome.csv": table.to_csv(),
        **{name: draw() for name, draw in charts.items()},
    }
    (folder / _FORMER_CHART).unlink(missing_ok=True)
    _write_all({folder / name: text for name, text in contents.items()})
    for name in contents:
        click.echo(f"wrote {folder / name}", err=True)


def _write_all(contents: Mapping[Path, str]) -> None:
    """Write all files or none. Raises BadInput with the file that cannot be written."""
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    try:
        for path, text in contents.items():
            if path.is_dir():
                raise BadInput(f"{path}: is a directory; a file is to be written there")
            try:
                temporary[path].write_text(text)
            except OSError as error:
                raise BadInput(f"{path}: cannot be written: {error.strerror}") from error
        for path in contents:
            temporary[path].replace(path)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
