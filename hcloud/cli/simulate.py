"""``hcloud simulate``: run a workload under policies on a simulated cloud; compare cost, waits and met targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, cast

import click

from hcloud.catalog import CLOUDS
from hcloud.cli.catalog import catalogue_in_force
from hcloud.cli.compare import ComparisonOptions, compare
from hcloud.cli.config import check_provider_settings
from hcloud.cli.history import back_s_of, now_of, offered_clouds, recorded_workload
from hcloud.cli.output import FiniteRange, NamedPath, WholeRange, format_option
from hcloud.cli.report import SINCE_HELP
from hcloud.cli.seeds import Seeds, seeds_options
from hcloud.client.connection import Connection
from hcloud.config import load_policy
from hcloud.config.document import read_document
from hcloud.config.package_data import path as shipped_path
from hcloud.core.clock import SystemClock
from hcloud.core.errors import BadInput, ConfigError
from hcloud.core.gc_tuning import infrequent_gc
from hcloud.core.units import NAME_MOST, shown
from hcloud.provider import MOST_RESERVED
from hcloud.simulator.batsim import read_batsim
from hcloud.simulator.clouds import BOOT, MEASURED, SPOT, cloud_of_catalogue, reserved_for
from hcloud.simulator.clusters import EXPERIMENTS, Experiment, make_experiment
from hcloud.simulator.focus import is_focus_header, read_focus
from hcloud.simulator.input_table import PACKED, moment, open_lines
from hcloud.simulator.peers import PEERS, PREFIX, PeerTool, peer_named
from hcloud.simulator.run import PROVIDER, STEP_S, Setting
from hcloud.simulator.scenario_files import read_scenario
from hcloud.simulator.scenarios import LEAST_HOURS, MOST_HOURS, SCENARIOS, make_scenario
from hcloud.simulator.spot_history import (
    Pools,
    SpotHistory,
    read_spot_history,
    sold_as_spot,
    unsold_note,
    with_recorded_spot,
    with_spot_history,
)
from hcloud.simulator.workload import NODE_VCPUS, LogReading, Workload, read_csv, read_swf
from hcloud.simulator.world import WORLDS, Truth
from hcloud.spec.jobfile import VCPUS_MOST
from hcloud.spec.policy import Policy
from hcloud.spec.validation import nearest

CLOUD: dict[str, object] = {**MEASURED, "zones": ["east-1a"], "reserved_default": 0, "boot": BOOT, "spot": SPOT}
"""Default cloud: the mock provider's types and prices, with boot times and spot behaviour measured on real clouds."""
OF_EXPERIMENT: dict[str, object] = {"keep_terminated_s": 600}
FORMER_WORLDS = {"interference": "today"}
"""Worlds whose name changed in 0.2.0; the old name is accepted for one version."""
SETTINGS_OF = f"providers.{PROVIDER}.settings."
REFUSED = {
    "state_file": "not supported, as a simulated cloud is not kept after the run; remove this key",
    "persist": "not supported, as a simulated cloud is not kept after the run; remove this key",
    "seed": "not supported, as --seed sets the random seed; remove this key",
}
"""Settings of the mock provider that would make runs depend on each other or ignore ``--seed``."""
OFFERED, HISTORY = Path("offers"), "history"
SCENARIO_FILES = (".yaml", ".yml")
SCENARIO_HOURS, SINCE = 2.0, "7d"
PAPERS = "hcloud-"
"""Prefix of a scenario's name to simulate it with the machines and the interference of the paper."""


@click.command()
@click.argument("workload")
@click.argument("further", nargs=-1, metavar="[POLICY]...", type=NamedPath(path_type=Path, dir_okay=False))
@click.option(
    "--policy",
    "--compare",
    "policies",
    multiple=True,
    type=NamedPath(path_type=Path, dir_okay=False),
    help="Policy to simulate: a file, the name of a shipped policy, or peer:NAME (another tool's rules); repeatable.",
)
@click.option(
    "--peers",
    is_flag=True,
    help="Also compare with the rules of other tools, and with the lower bound of the cost.",
)
@click.option(
    "--reserved",
    default="auto",
    show_default=True,
    metavar="TYPE=COUNT|auto|none",
    help="Reserved machines. auto: as the policy's provisioning strategy would reserve for this load.",
)
@click.option(
    "--cloud",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE|REGION|offers",
    help="YAML file with settings of the mock provider; a region of the price catalogue, such as ec2/us-east-1; or "
    "`offers`: the daemon's current offers (default for `history`). Default: the mock provider's types and prices.",
)
@click.option(
    "--spot-history",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Recorded spot prices, placement scores or availability by type and zone (.csv, or .json as AWS returns it; "
    "or .gz). The cloud's spot market follows them.",
)
@click.option(
    "--spot-history-start",
    metavar="TIME",
    help="Moment of --spot-history at which the simulation starts, such as 2026-05-01T18:00Z (default: its first row).",
)
@click.option(
    "--world",
    type=click.Choice(["plain", *WORLDS, *FORMER_WORLDS]),
    default="plain",
    show_default=True,
    help="plain: run times are those of the workload. today: co-located jobs, external load and the machine type "
    "affect run times as measured lately, and jobs are profiled. clouds-of-2014: other tenants of shared servers slow "
    "jobs far more, as in HCloud's chapter. interference: the former name of today. Experiments of papers have a world "
    "of their own, in which clouds-of-2014 changes the other tenants only.",
)
@click.option(
    "--share",
    type=FiniteRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the jobs, or of a scenario's load, to simulate.",
)
@click.option(
    "--hours",
    type=FiniteRange(LEAST_HOURS, MOST_HOURS),
    help=f"Duration of the built-in scenarios (default {SCENARIO_HOURS:g}).",
)
@click.option(
    "--node-vcpus",
    type=WholeRange(1, VCPUS_MOST),
    help=f"For job logs and Batsim workloads: split wider jobs into nodes of at most this size (default {NODE_VCPUS}).",
)
@click.option(
    "--host-flops",
    type=FiniteRange(1.0, 1e18),
    metavar="N",
    help="For a Batsim workload: floating-point operations per second of one of its hosts.",
)
@click.option(
    "--since",
    metavar="7d|TIME",
    help=f"For `history`: replay jobs submitted since then: {SINCE_HELP} (default {SINCE}).",
)
@click.option(
    "--cycle",
    "cycle_s",
    type=FiniteRange(0.1, 600.0),
    default=STEP_S,
    show_default=True,
    help="Seconds between planning cycles (the daemon: 1). Longer cycles simulate faster, but jobs wait longer.",
)
@click.option("--out", type=NamedPath(path_type=Path, file_okay=False), help="Directory for results and charts.")
@seeds_options
@format_option
def simulate(
    workload: str,
    further: tuple[Path, ...],
    policies: tuple[Path, ...],
    peers: bool,
    reserved: str,
    cloud: Path | None,
    spot_history: Path | None,
    spot_history_start: str | None,
    world: str,
    cycle_s: float,
    out: Path | None,
    seeds: Seeds,
    form: str,
    **reading: Any,
) -> int:
    """Run WORKLOAD under each policy on a simulated cloud, with the daemon's own planner, and compare the results.

    \b
    WORKLOAD is one of:
      static, low-variability, high-variability: built-in scenarios;
      FILE.yaml: a scenario of your own;
      FILE.swf, FILE.csv: a job log or a list of arrivals (or .gz);
      FILE.json: a workload of Batsim (or .gz);
      FILE.csv with the columns of FOCUS: the machines of a cost and usage export (or .gz);
      history: the recorded jobs of the daemon;
      experiments of the papers, with their machines and interference:
        hcloud-static, hcloud-low-variability, hcloud-high-variability,
        paragon-small-low, -medium, -phases, -oversubscribed,
        paragon-large-low, -high, -oversubscribed, paragon-day, quasar.

    Experiments start with all their servers running; their policy should allow as many and keep idle ones.

    POLICY: further policies to compare, as in `hcloud simulate static --compare A.yaml B.yaml`. Exits with 1 if one of
    several policies could not run all jobs.
    """
    ours, named_peers = load_policies((*policies, *further))
    compared = ComparedPolicies(
        ours=tuple(ours or [load_policy(shipped_path("policies/default.yaml"))]),
        peers=tuple(PEERS.values() if peers else named_peers),
    )
    recorded = SpotMarket.read(spot_history, spot_history_start)
    workload_for = _workload_by_seed(workload, WorkloadOptions(**reading))
    clouds = _cloud_settings(OFFERED if cloud is None and workload == HISTORY else cloud, recorded)

    def settings(seed: int) -> list[Setting]:
        made = compared.settings(_simulation_input(workload_for(seed), world), seed, cycle_s, clouds, reserved)
        return made if recorded is None else recorded.applied(made)

    shown_as = ComparisonOptions(form=form, out=out, bounds=bool(compared.peers), price_age_s=clouds.price_age_s)
    return compare(seeds, settings, shown_as)


@dataclass(slots=True, kw_only=True)
class SpotMarket:
    """The spot history given on the command line."""

    history: SpotHistory
    start_at: float | None
    """The moment of it at which simulations start; None: its first row."""
    _sold: Pools | None = None

    @classmethod
    def read(cls, file: Path | None, start: str | None) -> SpotMarket | None:
        """Return what ``--spot-history`` and ``--spot-history-start`` name, or None. Raises BadInput."""
        if file is None:
            if start is not None:
                raise BadInput("--spot-history-start needs --spot-history: it is a moment of that file")
            return None
        try:
            start_at = None if start is None else moment(start)
        except ValueError as error:
            raise BadInput(f"--spot-history-start: {error}") from error
        with infrequent_gc():
            return cls(history=read_spot_history(file), start_at=start_at)

    def applied(self, settings: Sequence[Setting]) -> list[Setting]:
        """Return the settings with this spot market; the first time, print what is left out of the history."""
        is_first = self._sold is None
        self._sold = self._sold or sold_as_spot(settings[0])
        made = [with_spot_history(each, self.history, self._sold, self.start_at) for each in settings]
        if is_first:
            notes = [f"{self.history.name}: {note}" for note in self.history.notes]
            for note in filter(None, (*notes, unsold_note(self.history, self._sold))):
                click.echo(note, err=True)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Options for reading or generating a workload. All but ``share`` apply to some workloads only; None: not given."""

    share: float
    hours: float | None = None
    node_vcpus: int | None = None
    host_flops: float | None = None
    since: str | None = None

    def allow_only(self, *names: str) -> None:
        """Raise BadInput if an option other than ``names`` was given, as it would have no effect."""
        for name, subject in _OPTION_SUBJECTS.items():
            if name not in names and getattr(self, name) is not None:
                raise BadInput(f"--{name.replace('_', '-')} applies only to {subject}; remove it")


_OPTION_SUBJECTS = {
    "hours": "built-in scenarios (static, low-variability, high-variability)",
    "node_vcpus": "a job log (.swf) or a Batsim workload (.json)",
    "host_flops": "a Batsim workload (.json)",
    "since": "the workload `history`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationInput:
    """A workload and its environment."""

    workload: Workload
    cloud: Mapping[str, object]
    """Settings of its cloud, unless the command line has others."""
    truth: Truth | None
    """The interference model; None: run times are those of the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    """The clouds given on the command line."""

    clouds: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Settings by provider name; empty: the cloud of the workload, with ``changes``."""
    price_age_s: float | None = None
    """Age of the oldest price of ``clouds``; None: prices are settings, not of a date."""
    changes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPolicies:
    """The policies and the rules of other tools that are compared."""

    ours: tuple[Policy, ...]
    peers: tuple[PeerTool, ...]
    """Other tools; the limits of our first policy apply to them."""

    def settings(
        self, load: SimulationInput, seed: int, cycle_s: float, given: CloudSettings, reserved: str
    ) -> list[Setting]:
        """Return the settings to simulate with one seed, each on clouds with the machines it would have reserved."""

        def clouds(policy: Policy) -> dict[str, dict[str, object]]:
            return _clouds(given, load.cloud, reserved, policy, load.workload)

        first = self.ours[0]
        base = Setting(workload=load.workload, policy=first, seed=seed, truth=load.truth, cycle_s=cycle_s)
        settings = [replace(base, policy=each, clouds=clouds(each)) for each in self.ours]
        for peer in self.peers:
            reserving = replace(first, provisioning=replace(first.provisioning, strategy=peer.commits))
            settings.append(replace(with_peer(base, peer), clouds=clouds(reserving)))
        return settings


def with_peer(setting: Setting, peer: PeerTool) -> Setting:
    """Return the setting with another tool's planner, within the limits of the setting's policy."""
    return replace(setting, policy=replace(setting.policy, name=PREFIX + peer.name), planner=peer.plan)


def _workload_by_seed(name: str, options: WorkloadOptions) -> Callable[[int], Experiment | Workload]:
    """Return a function from a seed to the workload; files and the daemon are read once for all seeds."""
    if name.removeprefix(PAPERS) in SCENARIOS:
        options.allow_only("hours")
        make = make_scenario if name in SCENARIOS else make_experiment
        hours = options.hours or SCENARIO_HOURS
        return lambda seed: make(name.removeprefix(PAPERS), seed, hours=hours, share=options.share)
    if name in EXPERIMENTS:
        options.allow_only()
        return lambda seed: make_experiment(name, seed, share=options.share)
    if Path(name).suffix.lower() in SCENARIO_FILES:
        options.allow_only()
        scenario = read_scenario(Path(name))
        return lambda seed: scenario.make(seed, options.share)
    recorded = _recorded_workload(name, options).scaled(options.share)
    return lambda _: recorded


def _simulation_input(load: Experiment | Workload, world: str) -> SimulationInput:
    truth = WORLDS.get(FORMER_WORLDS.get(world, world))
    if isinstance(load, Workload):
        return SimulationInput(workload=load, cloud=CLOUD, truth=truth)
    of_experiment = load.truth
    if truth is not None:
        of_experiment = replace(of_experiment, external_severity=truth.external_severity)
    return SimulationInput(workload=load.workload, cloud={**OF_EXPERIMENT, **load.cloud}, truth=of_experiment)


def _recorded_workload(source: str, options: WorkloadOptions) -> Workload:
    """Return the workload of a job log, a list of arrivals or the daemon. Raises BadInput for anything else."""
    path = Path(source)
    kind = Path(path.stem if path.suffix.lower() == PACKED else path).suffix.lower()
    if kind == ".csv":
        options.allow_only()
        with infrequent_gc(), open_lines(path) as lines:
            return _csv_workload(lines, source)
    if kind == ".swf":
        # Only the numbers matter, which are ASCII; comments may have any encoding.
        options.allow_only("node_vcpus")
        with infrequent_gc(), open_lines(path, "replace") as lines:
            return read_swf(lines, source, LogReading(node_vcpus=options.node_vcpus or NODE_VCPUS))
    if kind == ".json":
        options.allow_only("node_vcpus", "host_flops")
        reading = LogReading(node_vcpus=options.node_vcpus or NODE_VCPUS, flops_per_s=options.host_flops)
        with infrequent_gc():
            return read_batsim(path, reading)
    if source == HISTORY:
        options.allow_only("since")
        client = Connection()
        since = SINCE if options.since is None else options.since
        return recorded_workload(client, back_s_of(since, lambda: now_of(client)))
    if source and (path.suffix or path.exists()):
        raise BadInput(
            f"{source}: a workload file must be a scenario (.yaml), a job log (.swf), a list of arrivals (.csv) or a "
            "Batsim workload (.json); all but scenarios may be packed (.gz)"
        )
    papers = [PAPERS + each for each in SCENARIOS]
    raise BadInput(f"there is no scenario {source!r}; {nearest(source, [*EXPERIMENTS, *papers, HISTORY])}")


def _csv_workload(lines: Iterator[str], source: str) -> Workload:
    """Return the workload of a list of arrivals, or of a FOCUS export, which its header or its name tells."""
    before = []
    for line in lines:
        before.append(line)
        if line.strip(", \t\r\n") and not line.startswith("#"):
            break
    named = ".focus.csv" in source.lower()
    if not named and not (before and is_focus_header(before[-1])):
        return read_csv(chain(before, lines), source)
    catalogue = cache(catalogue_in_force)

    def size_of(cloud: str, type_name: str) -> tuple[float, int] | None:
        size = catalogue().sizes.get((cloud, type_name))
        return None if size is None else (size.vcpus, size.memory_mib)

    return read_focus(chain(before, lines), source, size_of)


def load_policies(names: Sequence[Path]) -> tuple[list[Policy], list[PeerTool]]:
    """Return the policies (files, or names of shipped ones) and the other tools (``peer:NAME``) in ``names``.

    Policies with the same name are distinguished by their files.

    Raises:
        BadInput: unknown or duplicate name.
        ConfigError: invalid policy file.
    """
    if duplicate := next((each for each in names if names.count(each) > 1), None):
        raise BadInput(f"policy {shown(str(duplicate))} is given twice; give each once")
    peers = [peer_named(str(each)) for each in names if str(each).startswith(PREFIX)]
    files = [each for each in names if not str(each).startswith(PREFIX)]
    policies = [_load_policy(each) for each in files]
    used = [each.name for each in policies]  # a copy of a file keeps the name in it
    distinct = [
        with_suffix(each, str(file)) if used.count(each.name) > 1 else each
        for each, file in zip(policies, files, strict=True)
    ]
    return distinct, peers


def with_suffix(policy: Policy, suffix: str) -> Policy:
    """Return the policy with ``suffix`` in parentheses after its name; a long suffix keeps its end, as in a path."""
    printable = "".join(each if each.isprintable() else "?" for each in suffix)
    room = NAME_MOST // 2 - len(" ()")
    clipped = printable if len(printable) <= room else f"...{printable[3 - room :]}"
    return replace(policy, name=f"{policy.name[: NAME_MOST // 2]} ({clipped})")


def _load_policy(name: Path) -> Policy:
    shipped = {each.stem: each for each in shipped_path("policies").glob("*.yaml")}
    if not name.exists() and not name.suffix and str(name) not in shipped:
        raise BadInput(
            f"policy {shown(str(name))}: there is no such file and no such shipped policy; "
            f"{nearest(str(name), shipped)}"
        )
    policy = load_policy(name if name.exists() else shipped.get(str(name), name))
    if policy.name.startswith(PREFIX):
        raise BadInput(f"{name}: name: {shown(policy.name)} must not start with {PREFIX}, which denotes other tools")
    return policy


def _cloud_settings(file: Path | None, recorded: SpotMarket | None) -> CloudSettings:
    """Return the clouds of ``--cloud``; one of the catalogue sells what has recorded spot prices as spot.

    Raises BadInput or ConfigError if they cannot be read.
    """
    if file == OFFERED:
        offered, age_s = offered_clouds(Connection())
        return CloudSettings(clouds=offered, price_age_s=age_s)
    if (place := _place_in_catalogue(file)) is not None:
        known = catalogue_in_force()
        made = cloud_of_catalogue(known, *place)
        made = made if recorded is None else with_recorded_spot(made, place[1], recorded.history)
        types = cast(Mapping[str, object], made["types"])
        read_at = min(quote.at for key, quote in known.quotes.items() if key[:2] == place and key.type in types)
        return CloudSettings(clouds={place[0]: made}, price_age_s=max(0.0, SystemClock().now() - read_at))
    return CloudSettings(changes=_settings_in(file) if file is not None else {})


def _clouds(
    given: CloudSettings, own: Mapping[str, object], reserved: str, policy: Policy, workload: Workload
) -> dict[str, dict[str, object]]:
    """Return settings of mock providers by name, with their reserved machines."""
    clouds = given.clouds or {PROVIDER: {**own, **given.changes}}
    # Machines are reserved on the clouds that have the type; if none has it, _with_reserved raises BadInput.
    type_name = reserved.partition("=")[0]
    having = [name for name, each in clouds.items() if type_name in cast(Mapping[str, object], each.get("types", {}))]
    return {
        name: _with_reserved("none" if having and name not in having else reserved, policy, workload, each)
        for name, each in clouds.items()
    }


def _place_in_catalogue(file: Path | None) -> tuple[str, str] | None:
    """Return cloud and region if ``file`` is such a pair, else None. Raises BadInput if it is neither pair nor file."""
    if file is None or file.exists() or file.suffix:
        return None
    if len(file.parts) == 2 and file.parts[0] in CLOUDS:
        return file.parts[0], file.parts[1]
    regions = " or ".join(f"{cloud}/REGION" for cloud in CLOUDS)
    raise BadInput(f"--cloud {file}: no such cloud or file; must be {regions}, offers, or a YAML file")


def _settings_in(file: Path) -> Mapping[str, object]:
    document = read_document(file)
    value = document.value
    if not isinstance(value, dict):
        raise BadInput(f"{file}: must be a mapping of settings of the mock provider")
    try:
        check_provider_settings(PROVIDER, PROVIDER, value)
    except ConfigError as error:  # its position is a key of config.yaml; report the position in this file instead
        path = tuple(error.where.removeprefix(SETTINGS_OF).split(".")) if error.where.startswith(SETTINGS_OF) else ()
        text = str(error).removeprefix(f"{error.where}: ")
        raise BadInput(f"{document.where(path)}: {text}") from error
    for key, reason in REFUSED.items():
        if value.get(key) is not None and value[key] is not False:
            raise BadInput(f"{document.where((key,))}: {reason}")
    return value


def _with_reserved(reserved: str, policy: Policy, workload: Workload, cloud: Mapping[str, object]) -> dict[str, object]:
    """Return the cloud with its reserved machines.

    ``reserved`` is ``TYPE=COUNT``, ``none``, or ``auto``: those of the cloud's settings, else as many full servers as
    the policy's strategy reserves for this workload (HCloud §8.4). Raises BadInput.
    """
    own = cloud.get("reserved")
    if reserved == "auto":
        return {**cloud, "reserved": own if isinstance(own, Mapping) else reserved_for(policy, workload, cloud)}
    name, _, count = reserved.partition("=")
    if reserved != "none" and not (name and count.isascii() and count.isdigit()):
        raise BadInput(f"--reserved {shown(reserved)}: must be TYPE=COUNT such as m.2xlarge=14, auto or none")
    if len(count.lstrip("0")) > len(str(MOST_RESERVED)) or int(count or "0") > MOST_RESERVED:
        raise BadInput(f"--reserved {shown(reserved)}: at most {MOST_RESERVED} machines of a type can be reserved")
    settings = {**cloud, "reserved_default": 0, "reserved": {} if reserved == "none" else {name: int(count)}}
    try:
        check_provider_settings(PROVIDER, PROVIDER, settings)
    except ConfigError as error:  # its position is a key of the settings; the user gave an option
        raise BadInput(f"--reserved {shown(reserved)}: {str(error).removeprefix(f'{error.where}: ')}") from error
    return settings
