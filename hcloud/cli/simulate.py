"""``hcloud simulate``: what a workload would cost under a policy, and which promises it would break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import click

from hcloud.catalog import CLOUDS
from hcloud.cli.arguments import PACKED, SINCE_FORMS, text_of
from hcloud.cli.catalog import catalogue_in_force
from hcloud.cli.client import Client
from hcloud.cli.compare import ComparisonOptions, Seeds, compare, seeds_options
from hcloud.cli.config import check_provider_settings
from hcloud.cli.history import back_s_of, now_of, offered_clouds, recorded_workload
from hcloud.cli.output import FiniteRange, NamedPath, WholeRange, format_option
from hcloud.config import load_policy
from hcloud.config.document import read_document
from hcloud.config.package_data import path as shipped_path
from hcloud.core.errors import BadInput, ConfigError
from hcloud.core.units import NAME_MOST, shown
from hcloud.provider import MOST_RESERVED
from hcloud.simulator.clouds import BOOT, MEASURED, SPOT, cloud_of_catalogue, reserved_for
from hcloud.simulator.clusters import EXPERIMENTS, Experiment, make_experiment
from hcloud.simulator.peers import PEERS, PREFIX, PeerTool, peer_named
from hcloud.simulator.run import PROVIDER, STEP_S, Setting
from hcloud.simulator.scenario_files import read_scenario
from hcloud.simulator.scenarios import LEAST_HOURS, MOST_HOURS, SCENARIOS, make_scenario
from hcloud.simulator.workload import NODE_VCPUS, LogReading, Workload, read_csv, read_swf
from hcloud.simulator.world import Truth
from hcloud.spec.jobfile import VCPUS_MOST
from hcloud.spec.policy import Policy
from hcloud.spec.validation import nearest

CLOUD: dict[str, object] = {**MEASURED, "zones": ["east-1a"], "reserved_default": 0, "boot": BOOT, "spot": SPOT}
"""Where nothing else is said: the mock provider's types and prices, and what was measured of real clouds."""
OF_EXPERIMENT: dict[str, object] = {"keep_terminated_s": 600}
SETTINGS_OF = f"providers.{PROVIDER}.settings."
REFUSED = {
    "state_file": "a simulated cloud is forgotten at its end; leave this out",
    "persist": "a simulated cloud is forgotten at its end; leave this out",
    "seed": "chance is set by --seed; leave this out",
}
"""Settings of a mock cloud that would make two runs alike that should not be, or the other way round."""
OFFERED, HISTORY = Path("offers"), "history"
SCENARIO_FILES = (".yaml", ".yml")
SCENARIO_HOURS, SINCE = 2.0, "7d"
PAPERS = "hcloud-"
"""Goes before a scenario's name where its machines and its world are meant, too."""


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
    help="YAML with settings of a mock provider; `offers`: what the daemon is offered now (default for `history`); or "
    "a region in the catalogue of prices, such as ec2/us-east-1. Default: the mock provider's own types and prices.",
)
@click.option(
    "--world",
    type=click.Choice(["plain", "interference"]),
    default="plain",
    show_default=True,
    help="plain: every job runs as long as the workload says. interference: neighbours, machine types and strangers "
    "slow it down, and what it needs is learnt by profiling. An experiment of a paper brings its own world.",
)
@click.option(
    "--share",
    type=FiniteRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Part of the jobs, or of a scenario's load.",
)
@click.option(
    "--hours",
    type=FiniteRange(LEAST_HOURS, MOST_HOURS),
    help=f"Length of HCloud's scenarios (default {SCENARIO_HOURS:g}).",
)
@click.option("--node-vcpus", type=WholeRange(1, VCPUS_MOST), help=f"A job log's widest node (default {NODE_VCPUS}).")
@click.option("--since", metavar="7d|TIME", help=f"For the workload `history`: {SINCE_FORMS} (default {SINCE}).")
@click.option(
    "--cycle",
    "cycle_s",
    type=FiniteRange(0.1, 600.0),
    default=STEP_S,
    show_default=True,
    help="Seconds between decisions. 5 instead of the daemon's 1 is quicker; jobs then wait up to 5 s longer.",
)
@click.option("--out", type=NamedPath(path_type=Path, file_okay=False), help="Write results and pictures there.")
@seeds_options
@format_option
def simulate(
    workload: str,
    further: tuple[Path, ...],
    policies: tuple[Path, ...],
    peers: bool,
    reserved: str,
    cloud: Path | None,
    world: str,
    cycle_s: float,
    out: Path | None,
    seeds: Seeds,
    form: str,
    **reading: Any,
) -> int:
    """Run WORKLOAD under each policy on a virtual cloud, with the daemon's own decisions, and show what came of it.

    WORKLOAD is a scenario (static, low-variability, high-variability, or your own: FILE.yaml), a job log (FILE.swf), a
    list of arrivals (FILE.csv), either of them packed with gzip (FILE.swf.gz) or not, `history`: what this daemon was
    given, or an experiment of a paper with its machines and its world:
    hcloud-static, -low-variability, -high-variability, paragon-small-low, -medium, -phases, -oversubscribed,
    paragon-large-low, -high, -oversubscribed, paragon-day, quasar. The servers of the last ones are all there at once,
    so a policy for them keeps idle ones and allows as many. POLICY: more to compare, as in
    `hcloud simulate static --compare A.yaml B.yaml`. Ends with 1 where one of several could never run all jobs.
    """
    ours, rivals = policies_named((*policies, *further))
    rules = Rules(
        ours=tuple(ours or [load_policy(shipped_path("policies/default.yaml"))]),
        rivals=tuple(PEERS.values() if peers else rivals),
    )
    made = _loads(workload, WorkloadOptions(**reading))
    sold = _sold(OFFERED if cloud is None and workload == HISTORY else cloud)

    def settings(seed: int) -> list[Setting]:
        """Return what is to be simulated with a seed."""
        return rules.settings(_load(made(seed), world), seed, cycle_s, sold, reserved)

    return compare(seeds, settings, ComparisonOptions(form=form, out=out, bounds=bool(rules.rivals)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """How a workload is read or made: ``share`` of it, and what counts for some kinds only (None: nothing was said)."""

    share: float
    hours: float | None = None
    node_vcpus: int | None = None
    since: str | None = None

    def only(self, *counting: str) -> None:
        """Raise BadInput where something else than these was said: it would change nothing."""
        for name, whose in _OF_SOME.items():
            if name not in counting and getattr(self, name) is not None:
                raise BadInput(f"--{name.replace('_', '-')} counts only for {whose}; leave it out here")


_OF_SOME = {
    "hours": "HCloud's scenarios by name (static, low-variability, high-variability)",
    "node_vcpus": "a job log (.swf)",
    "since": "the workload `history`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationInput:
    """A workload, the settings its cloud has where nothing else is said, and the truth of its world (None: plain)."""

    workload: Workload
    cloud: Mapping[str, object]
    truth: Truth | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sold:
    """What was said of clouds: settings of each, by name, or ``changes`` to those that a load has anyway."""

    clouds: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    changes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The planners: our policies, the first of which sets the limits of ``rivals``, too."""

    ours: tuple[Policy, ...]
    rivals: tuple[PeerTool, ...]

    def settings(self, load: SimulationInput, seed: int, cycle_s: float, sold: Sold, reserved: str) -> list[Setting]:
        """Return what is to be simulated with one seed: each of them, on clouds with what it would have reserved."""

        def clouds(policy: Policy) -> dict[str, dict[str, object]]:
            """Return the clouds as a policy finds them."""
            return _clouds(sold, load.cloud, reserved, policy, load.workload)

        first = self.ours[0]
        alike = Setting(workload=load.workload, policy=first, seed=seed, truth=load.truth, cycle_s=cycle_s)
        found = [replace(alike, policy=each, clouds=clouds(each)) for each in self.ours]
        for peer in self.rivals:
            buys = replace(first, provisioning=replace(first.provisioning, strategy=peer.commits))
            found.append(replace(decided_by(peer, alike), clouds=clouds(buys)))
        return found


def decided_by(peer: PeerTool, setting: Setting) -> Setting:
    """Return the setting with another tool's rules, within the limits of its policy."""
    return replace(setting, policy=replace(setting.policy, name=PREFIX + peer.name), planner=peer.plan)


def _loads(name: str, reading: WorkloadOptions) -> Callable[[int], Experiment | Workload]:
    """Return what makes the load with a seed; files and the daemon are read once for all seeds."""
    if name.removeprefix(PAPERS) in SCENARIOS:
        reading.only("hours")
        make = make_scenario if name in SCENARIOS else make_experiment
        hours = reading.hours or SCENARIO_HOURS
        return lambda seed: make(name.removeprefix(PAPERS), seed, hours=hours, share=reading.share)
    if name in EXPERIMENTS:
        reading.only()
        return lambda seed: make_experiment(name, seed, share=reading.share)
    if Path(name).suffix.lower() in SCENARIO_FILES:
        reading.only()
        scenario = read_scenario(Path(name))
        return lambda seed: scenario.make(seed, reading.share)
    read = _workload(name, reading).scaled(reading.share)
    return lambda _: read


def _load(made: Experiment | Workload, world: str) -> SimulationInput:
    if isinstance(made, Workload):
        return SimulationInput(workload=made, cloud=CLOUD, truth=Truth() if world == "interference" else None)
    return SimulationInput(workload=made.workload, cloud={**OF_EXPERIMENT, **made.cloud}, truth=made.truth)


def _workload(source: str, reading: WorkloadOptions) -> Workload:
    """Return a workload that was recorded. Raises BadInput where there is none of that name."""
    path = Path(source)
    kind = Path(path.stem if path.suffix.lower() == PACKED else path).suffix.lower()
    if kind == ".csv":
        reading.only()
        return read_csv(text_of(path), source)
    if kind == ".swf":
        # Numbers are ASCII; comments name people and places in whatever encoding.
        reading.only("node_vcpus")
        return read_swf(text_of(path, "replace"), source, LogReading(node_vcpus=reading.node_vcpus or NODE_VCPUS))
    if source == HISTORY:
        reading.only("since")
        client = Client()
        since = SINCE if reading.since is None else reading.since
        return recorded_workload(client, back_s_of(since, lambda: now_of(client)))
    if source and (path.suffix or path.exists()):
        raise BadInput(
            f"{source}: a workload file is a scenario (.yaml), or a job log (.swf) or a list of arrivals (.csv), "
            "packed (.gz) or not"
        )
    papers = [PAPERS + each for each in SCENARIOS]
    raise BadInput(f"there is no scenario {source!r}; {nearest(source, [*EXPERIMENTS, *papers, HISTORY])}")


def policies_named(named: Sequence[Path]) -> tuple[list[Policy], list[PeerTool]]:
    """Return the policies (files, or names of shipped ones) and other tools (``peer:NAME``) that are meant, in their
    order. Raises BadInput where one is neither or is named twice, and what reading a policy raises."""
    if twice := next((each for each in named if named.count(each) > 1), None):
        raise BadInput(f"policy {shown(str(twice))} is named twice; name each once")
    rivals = [peer_named(str(each)) for each in named if str(each).startswith(PREFIX)]
    return _told_apart([each for each in named if not str(each).startswith(PREFIX)]), rivals


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
            f"policy {shown(str(named))}: there is no such file and no such shipped policy; "
            f"{nearest(str(named), shipped)}"
        )
    found = load_policy(named if named.exists() else shipped.get(str(named), named))
    if found.name.startswith(PREFIX):
        raise BadInput(f"{named}: name: {shown(found.name)} would be another tool's rules here; give it another name")
    return found


def _sold(file: Path | None) -> Sold:
    """Return what was said of clouds. Raises BadInput, ConfigError, what reading it raises."""
    if file == OFFERED:
        return Sold(clouds=offered_clouds(Client()))
    if (place := _place_in_catalogue(file)) is not None:
        return Sold(clouds={place[0]: cloud_of_catalogue(catalogue_in_force(), *place)})
    return Sold(changes=_settings_in(file) if file is not None else {})


def _clouds(
    sold: Sold, own: Mapping[str, object], reserved: str, policy: Policy, workload: Workload
) -> dict[str, dict[str, object]]:
    """Return settings of mock providers by name, with what is reserved."""
    found = sold.clouds or {PROVIDER: {**own, **sold.changes}}
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
    document = read_document(file)
    value = document.value
    if not isinstance(value, dict):
        raise BadInput(f"{file}: must be a mapping of a mock provider's settings")
    try:
        check_provider_settings(PROVIDER, PROVIDER, value)
    except ConfigError as wrong:  # it names a key of a configuration, which nobody wrote
        path = tuple(wrong.where.removeprefix(SETTINGS_OF).split(".")) if wrong.where.startswith(SETTINGS_OF) else ()
        text = str(wrong).removeprefix(f"{wrong.where}: ")
        raise BadInput(f"{document.where(path)}: {text}") from wrong
    for key, why in REFUSED.items():
        if value.get(key) is not None and value[key] is not False:
            raise BadInput(f"{document.where((key,))}: {why}")
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
