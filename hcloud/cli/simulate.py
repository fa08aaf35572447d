"""``hcloud simulate``: what a workload would cost under a policy, and which promises it would break."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import click

from hcloud.catalog import CLOUDS
from hcloud.cli.catalog import catalogue_in_force
from hcloud.cli.client import Client
from hcloud.cli.config import check_provider_settings
from hcloud.cli.measuring import ending_in_order
from hcloud.cli.output import FiniteRange, NamedPath, WholeRange, console, format_option, write_json
from hcloud.cli.past import Recorded, back_s_of, offered_clouds, recorded_workload
from hcloud.cli.textfile import PACKED, text_of
from hcloud.config import load_policy
from hcloud.config.document import read_document
from hcloud.errors import BadInput, ConfigError, Standstill
from hcloud.jobfile import VCPUS_MOST
from hcloud.policy import Policy
from hcloud.provider import MOST_RESERVED
from hcloud.quantity import NAME_MOST, shown
from hcloud.report import ReportTable
from hcloud.report.table import share_pct
from hcloud.sentences import nearest
from hcloud.shipped import path as shipped_path
from hcloud.simulator.bound import Bound
from hcloud.simulator.clouds import BOOT, MEASURED, SPOT, cloud_of_catalogue, reserved_for
from hcloud.simulator.clusters import EXPERIMENTS, Experiment, make_experiment
from hcloud.simulator.compare import PEERS, PREFIX, peer_named
from hcloud.simulator.distance import distance, peer_comparison, run_times_s
from hcloud.simulator.folder import quick_folder
from hcloud.simulator.outcome import Outcome, comparison, outcome_of
from hcloud.simulator.picture import allocation_svg, cost_svg, fullness_svg, performance_svg, waits_svg
from hcloud.simulator.run import PROVIDER, STEP_S, Progress, Setting, simulated
from hcloud.simulator.scenarios import LEAST_HOURS, MOST_HOURS, SCENARIOS, make_scenario
from hcloud.simulator.workload import LogReading, Workload, read_csv, read_swf
from hcloud.simulator.world import Truth

CLOUD: dict[str, object] = {**MEASURED, "zones": ["east-1a"], "reserved_default": 0, "boot": BOOT, "spot": SPOT}
"""Where nothing else is said: the mock provider's types and prices, and what was measured of real clouds."""
OF_EXPERIMENT: dict[str, object] = {"keep_terminated_s": 600}
REFUSED = {
    "state_file": "a simulated cloud is forgotten at its end; leave this out",
    "persist": "a simulated cloud is forgotten at its end; leave this out",
    "seed": "chance is set by --seed; leave this out",
}
"""Settings of a mock cloud that would make two runs alike that should not be, or the other way round."""
OFFERED = Path("offers")
PAPERS = "hcloud-"
"""Goes before a scenario's name where its machines and its world are meant, too."""
EXIT_STUCK = 1
"""One of several policies could not be simulated to its end; the others were."""


@click.command()
@click.argument("workload")
@click.argument("further", nargs=-1, metavar="[POLICY]...", type=NamedPath(path_type=Path, dir_okay=False))
@click.option(
    "--policy",
    "--compare",
    "policies",
    multiple=True,
    type=NamedPath(path_type=Path, dir_okay=False),
    help="A policy file, the name of a shipped one or peer:NAME (another tool's rules); several are compared.",
)
@click.option(
    "--peers",
    is_flag=True,
    help="Beside them, the rules of other tools, and how far each is from the least anybody could pay.",
)
@click.option("--reserved", default="auto", help="TYPE=COUNT, or auto (by strategy, from the load), or none.")
@click.option(
    "--cloud",
    type=NamedPath(path_type=Path, dir_okay=False),
    help="YAML with settings of a mock provider; `offers`: what the daemon is offered now; or a region in the "
    "catalogue of prices, such as ec2/us-east-1.",
)
@click.option(
    "--world",
    type=click.Choice(["plain", "interference"]),
    default="plain",
    show_default=True,
    help="plain: every job runs as long as the workload says. interference: neighbours, machine types and strangers "
    "slow it down, and what it needs is learnt by profiling. An experiment of a paper brings its own world.",
)
@click.option("--seed", type=WholeRange(min=0), default=0, show_default=True, help="Other chances, other jobs.")
@click.option(
    "--share",
    type=FiniteRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Part of the jobs, or of a scenario's load.",
)
@click.option(
    "--hours", type=FiniteRange(LEAST_HOURS, MOST_HOURS), default=2.0, show_default=True, help="Length of a scenario."
)
@click.option(
    "--node-vcpus", type=WholeRange(1, VCPUS_MOST), default=16, show_default=True, help="A job log's widest node."
)
@click.option("--since", default="7d", show_default=True, help="How far back, for the workload `history`.")
@click.option(
    "--cycle",
    "cycle_s",
    type=FiniteRange(0.1, 600.0),
    default=STEP_S,
    show_default=True,
    help="Seconds between decisions. 5 instead of the daemon's 1 is quicker; jobs then wait up to 5 s longer.",
)
@click.option("--out", type=NamedPath(path_type=Path, file_okay=False), help="Write results and pictures there.")
@format_option
def simulate(
    workload: str,
    further: tuple[Path, ...],
    policies: tuple[Path, ...],
    peers: bool,
    reserved: str,
    cloud: Path | None,
    world: str,
    seed: int,
    share: float,
    hours: float,
    node_vcpus: int,
    since: str,
    cycle_s: float,
    out: Path | None,
    form: str,
) -> int:
    """Run WORKLOAD under each policy on a virtual cloud, with the daemon's own decisions, and show what came of it.

    WORKLOAD is a scenario (static, low-variability, high-variability), a job log (FILE.swf), a list of arrivals
    (FILE.csv), either of them packed with gzip (FILE.swf.gz) or not, `history`: what this daemon was given, or an
    experiment of a paper with its machines and its world:
    hcloud-static, -low-variability, -high-variability, paragon-small-low, -medium, -phases, -oversubscribed,
    paragon-large-low, -high, -oversubscribed, paragon-day, quasar. The servers of the last ones are all there at once,
    so a policy for them keeps idle ones and allows as many. POLICY: more to compare, as in
    `hcloud simulate static --compare A.yaml B.yaml`. Ends with 1 where one of several could never run all jobs.
    """
    policies = (*policies, *further)
    experiment = _experiment(workload, seed, share, hours)
    made = experiment.workload if experiment else _workload(workload, seed, share, hours, node_vcpus, since)
    own = {**OF_EXPERIMENT, **experiment.cloud} if experiment else CLOUD
    truth = experiment.truth if experiment else Truth() if world == "interference" else None
    ours = _told_apart([each for each in policies if not str(each).startswith(PREFIX)])
    ours = ours or [load_policy(shipped_path("policies/default.yaml"))]
    rivals = [peer_named(str(each)) for each in policies if str(each).startswith(PREFIX)]
    alike = Setting(workload=made, policy=ours[0], seed=seed, truth=truth, cycle_s=cycle_s)
    settings = [replace(alike, policy=each, clouds=_clouds(cloud, own, reserved, each, made)) for each in ours]
    for peer in PEERS.values() if peers else rivals:
        limits = replace(ours[0], name=PREFIX + peer.name)
        buys = replace(limits, provisioning=replace(limits.provisioning, strategy=peer.commits))
        offered = _clouds(cloud, own, reserved, buys, made)
        settings.append(replace(alike, policy=limits, clouds=offered, planner=peer.plan))
    together = compare_with_peers if len(settings) > len(ours) else compare
    return together(settings, form, out)


def compare(settings: Sequence[Setting], form: str, out: Path | None, recorded: Recorded | None = None) -> int:
    """Simulate each and show what came of them, side by side; with ``out``, write results and pictures there too.
    Below them stands what was ``recorded`` of the same jobs.

    Returns the exit code: 1 where one of several could not be simulated to its end, which a note tells.
    """
    _prepare(out)
    ran = _all_simulated(settings)
    outcomes = [each.outcome for each in ran if isinstance(each, Ran)]
    return _tell(ran, comparison(outcomes), outcomes, form, out, recorded)


def compare_with_peers(settings: Sequence[Setting], form: str, out: Path | None) -> int:
    """Like :func:`compare`, with how far each is from the least that anybody could pay on the same cloud."""
    _prepare(out)
    ran = _all_simulated(settings)
    ended = [each for each in ran if isinstance(each, Ran)]
    outcomes, runs = [each.outcome for each in ended], [each.ran_s for each in ended]
    bounds: dict[str, Bound] = {}
    for setting in (each.setting for each in ended):
        if repr(setting.providers) not in bounds:
            with _folder() as folder:
                bounds[repr(setting.providers)] = distance(setting, folder, outcomes, runs)
    table = peer_comparison(outcomes, [bounds[repr(each.setting.providers)] for each in ended])
    return _tell(ran, table, outcomes, form, out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A setting that was simulated to its end, what came of it, and how long each job ran (s)."""

    setting: Setting
    outcome: Outcome
    ran_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A setting under which jobs could never run, and ``why``."""

    setting: Setting
    why: str


def _all_simulated(settings: Sequence[Setting]) -> list[Ran | Stuck]:
    """Simulate each; one that stands still is no reason not to try the others. Raises Standstill where all do."""
    ran = list[Ran | Stuck]()
    for setting in settings:
        try:
            ran.append(_simulated(setting))
        except Standstill as why:
            ran.append(Stuck(setting=setting, why=str(why)))
            if not any(isinstance(each, Ran) for each in ran) and len(ran) == len(settings):
                raise
    return ran


def _tell(
    ran: Sequence[Ran | Stuck], table: ReportTable, outcomes: Sequence[Outcome], form: str, out: Path | None,
    recorded: Recorded | None = None,
) -> int:  # fmt: skip
    """Show it all; a policy that came to no end is a row without numbers, and a note. Returns the exit code."""
    rows, empty = iter(table.rows), (None,) * (len(table.columns) - 1)
    stuck = [each for each in ran if isinstance(each, Stuck)]
    notes = (*table.notes, *(f"{each.setting.policy.name}: given up: {each.why}" for each in stuck))
    told = tuple(next(rows) if isinstance(each, Ran) else (each.setting.policy.name, *empty) for each in ran)
    whole = replace(table, rows=told, notes=notes)
    whole = whole if recorded is None else _with_recorded(whole, recorded)
    _tell_notes(ran[0].setting.workload)
    _write(whole, outcomes, form)
    if out is not None:
        _write_files(whole, outcomes, out)
    return EXIT_STUCK if stuck else 0


def _with_recorded(table: ReportTable, recorded: Recorded) -> ReportTable:
    names = [column.name for column in table.columns]
    first_usd, usd = table.rows[0][names.index("cost_usd")], recorded.numbers["cost_usd"]
    known = {**recorded.numbers, "cost_pct": share_pct(cast(float, usd), cast(float, first_usd or 0.0))}
    row = tuple(known.get(name) for name in names)
    return replace(table, rows=(*table.rows, row), notes=(*table.notes, *recorded.notes))


def _prepare(folder: Path | None) -> None:
    """Make the folder for results now: whoever cannot write there should not learn it after a long run."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"--out {folder} cannot be written to; name a directory of yours")


def _tell_notes(workload: Workload) -> None:
    for note in workload.notes:
        click.echo(f"{workload.name}: {note}", err=True)


def _experiment(name: str, seed: int, share: float, hours: float) -> Experiment | None:
    """Return the experiment of a paper that has machines of its own, or None: it is another workload."""
    if name.startswith(PAPERS) and name.removeprefix(PAPERS) in SCENARIOS:
        return make_experiment(name.removeprefix(PAPERS), seed, hours=hours, share=share)
    if name not in EXPERIMENTS or name in SCENARIOS:
        return None
    return make_experiment(name, seed, hours=hours, share=share)


def _workload(source: str, seed: int, share: float, hours: float, node_vcpus: int, since: str) -> Workload:
    path = Path(source)
    kind = Path(path.stem if path.suffix.lower() == PACKED else path).suffix.lower()
    if kind == ".csv":
        return read_csv(text_of(path), source).scaled(share)
    if kind == ".swf":
        # Numbers are ASCII; comments name people and places in whatever encoding.
        return read_swf(text_of(path, "replace"), source, LogReading(node_vcpus=node_vcpus)).scaled(share)
    if source == "history":
        return recorded_workload(Client(), back_s_of(since)).scaled(share)
    if source not in SCENARIOS and (path.suffix or path.exists()):
        raise BadInput(
            f"{source}: a workload file is a job log (.swf) or a list of arrivals (.csv), packed (.gz) or not"
        )
    if source not in EXPERIMENTS:
        raise BadInput(f"there is no scenario {source!r}; {nearest(source, EXPERIMENTS)}")
    return make_scenario(source, seed, hours=hours, share=share)


def _told_apart(files: Sequence[Path]) -> list[Policy]:
    """Return their policies; where several have one name, which a copy keeps, each is called by its file, too."""
    found = [_policy(each) for each in files]
    names = [each.name for each in found]
    return [
        called(each, str(file)) if names.count(each.name) > 1 else each for each, file in zip(found, files, strict=True)
    ]


def called(policy: Policy, which: str) -> Policy:
    """Return the policy with ``which`` of its name it is (a file, of which names bear the end, or words) behind it."""
    plain = "".join(each if each.isprintable() else "?" for each in which)
    room = NAME_MOST // 2 - len(" ()")
    clipped = plain if len(plain) <= room else f"...{plain[3 - room :]}"
    return replace(policy, name=f"{policy.name[: NAME_MOST // 2]} ({clipped})")


def _policy(named: Path) -> Policy:
    shipped = {each.stem: each for each in shipped_path("policies").glob("*.yaml")}
    if not named.exists() and not named.suffix and str(named) not in shipped:
        raise BadInput(
            f"--policy {named}: there is no such file and no such shipped policy; {nearest(str(named), shipped)}"
        )
    return load_policy(named if named.exists() else shipped.get(str(named), named))


def _clouds(
    file: Path | None, own: Mapping[str, object], reserved: str, policy: Policy, workload: Workload
) -> dict[str, dict[str, object]]:
    """Return settings of mock providers by name: those of ``file``, over ``own``, with what is reserved."""
    if file == OFFERED:
        found = offered_clouds(Client())
    elif (place := _place_in_catalogue(file)) is not None:
        found = {place[0]: cloud_of_catalogue(catalogue_in_force(), *place)}
    else:
        found = {PROVIDER: {**own, **(_settings_in(file) if file is not None else {})}}
    # Among several, those that have the type are meant; where none has, :func:`_with_reserved` says so.
    named = reserved.partition("=")[0]
    having = [name for name, each in found.items() if named in cast(Mapping[str, object], each.get("types", {}))]
    return {
        name: _with_reserved("none" if having and name not in having else reserved, policy, workload, each)
        for name, each in found.items()
    }


def _place_in_catalogue(file: Path | None) -> tuple[str, str] | None:
    """Return cloud and region, where these are named and no file. Raises BadInput where it can be neither."""
    if file is None or file.exists() or file.suffix:
        return None
    if len(file.parts) == 2 and file.parts[0] in CLOUDS:
        return file.parts[0], file.parts[1]
    regions = " or ".join(f"{cloud}/REGION" for cloud in CLOUDS)
    raise BadInput(f"--cloud {file}: there is no such cloud and no such file; write {regions}, offers, or a YAML file")


def _settings_in(file: Path) -> Mapping[str, object]:
    value = read_document(file).value
    if not isinstance(value, dict):
        raise BadInput(f"{file}: must be a mapping of a mock provider's settings")
    try:
        check_provider_settings(PROVIDER, PROVIDER, value)
    except ConfigError as wrong:
        raise BadInput(f"{file}: {wrong}") from wrong
    for key, why in REFUSED.items():
        if value.get(key) is not None and value[key] is not False:
            raise BadInput(f"{file}: {key}: {why}")
    return value


def _with_reserved(reserved: str, policy: Policy, workload: Workload, cloud: Mapping[str, object]) -> dict[str, object]:
    """Return the cloud with reserved machines: as given, or its own, or what a strategy buys for this very load
    (HCloud §8.4) of full servers.
    """
    own = cloud.get("reserved")
    if reserved == "auto":
        return {**cloud, "reserved": own if isinstance(own, Mapping) else reserved_for(policy, workload, cloud)}
    name, _, count = reserved.partition("=")
    if reserved != "none" and not (name and count.isascii() and count.isdigit()):
        raise BadInput(f"--reserved {shown(reserved)}: write TYPE=COUNT such as m.2xlarge=14, auto or none")
    if len(count.lstrip("0")) > len(str(MOST_RESERVED)) or int(count or "0") > MOST_RESERVED:
        raise BadInput(f"--reserved {shown(reserved)}: at most {MOST_RESERVED} machines of a type can be reserved")
    made = {**cloud, "reserved_default": 0, "reserved": {} if reserved == "none" else {name: int(count)}}
    try:
        check_provider_settings(PROVIDER, PROVIDER, made)
    except ConfigError as wrong:  # it names a key of settings, which nobody wrote
        raise BadInput(f"--reserved {shown(reserved)}: {str(wrong).removeprefix(f'{wrong.where}: ')}") from wrong
    return made


def _simulated(setting: Setting) -> Ran:
    """Run it to its end. Raises Standstill."""
    with _folder() as folder, simulated(setting, folder) as simulation:
        commitments = simulation.commitments()
        with _progress(setting) as watch:
            simulation.run(watch)
        outcome = outcome_of(setting.policy.name, simulation.events, commitments, simulation.ideals())
        return Ran(setting=setting, outcome=outcome, ran_s=run_times_s(setting.workload, simulation.events()))


@contextmanager
def _folder() -> Iterator[Path]:
    with ending_in_order(), quick_folder() as made:
        yield made


@contextmanager
def _progress(setting: Setting) -> Iterator[Callable[[Progress], None]]:
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


def _write(table: ReportTable, outcomes: Sequence[Outcome], form: str) -> None:
    from hcloud.cli.report import show

    if form == "json":
        write_json({**table.to_json(), "series": [_series(each) for each in outcomes]})
    elif form == "csv":
        click.echo(table.to_csv(), nl=False)
    else:
        show(table)


def _series(outcome: Outcome) -> dict[str, Any]:
    series = outcome.series
    return {
        "policy": outcome.name,
        "at_s": list(series.at_s),
        "up_vcpus": {market: list(amounts) for market, amounts in series.up_vcpus.items()},
        "held_vcpus": list(series.held_vcpus),
        "waiting_jobs": list(series.waiting),
        "waited_for": [asdict(each) for each in outcome.waited_for],
    }


def _write_files(table: ReportTable, outcomes: Sequence[Outcome], folder: Path) -> None:
    import json

    contents = {
        "outcome.json": json.dumps({**table.to_json(), "series": [_series(each) for each in outcomes]}, indent=2)
        + "\n",
        "outcome.csv": table.to_csv(),
        "allocation.svg": allocation_svg(outcomes),
        "fullness.svg": fullness_svg(outcomes),
        "cost.svg": cost_svg(outcomes),
        "performance.svg": performance_svg(outcomes),
        "waits.svg": waits_svg(outcomes),
    }
    for name, text in contents.items():
        (folder / name).write_text(text)
        click.echo(f"wrote {folder / name}", err=True)
