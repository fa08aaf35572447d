"""``python -m bench.knowing``: what knowing jobs is worth: the mission beside simple rules, under HCloud's load.

Co-located jobs, external load and instance types affect run times there; profiling is measured with noise and is paid
for. Everybody has the same reserved servers. In ``guess`` users request what they guess, in ``know`` what their jobs
need. Each row shows how often its switches fired. With ``--measured`` programs, errors of readings and what the planner
knows at first are those of the shipped library.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hcloud.config import load_policy, package_data
from hcloud.core.errors import ConfigError
from hcloud.core.model import EventKind
from hcloud.report.spending_accounts import Account
from hcloud.report.table import share_pct
from hcloud.simulator.outcome import SimulationResult, outcome_of
from hcloud.simulator.peers import PEERS, PREFIX
from hcloud.simulator.run import simulated
from hcloud.simulator.seeds import mean_of
from hcloud.spec.policy import Policy
from lab.papers.study import Case, RunSize, setting_of

EXPERIMENT = "high-variability"
PEER = "karpenter-like"
SIMPLE = load_policy(package_data.path("policies") / "simple.yaml")


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    result: SimulationResult
    fired: Counter[str]
    """How often each switch acted."""


def simulate(case: Case, seed: int, size: RunSize, reserved: Mapping[str, int]) -> Run:
    """Run one case with one seed; everybody has ``reserved`` servers."""
    setting = setting_of(replace(case, cloud={**case.cloud, "reserved": reserved}), seed, size)
    with tempfile.TemporaryDirectory() as folder, simulated(setting, Path(folder)) as simulation:
        commitments = simulation.commitments()
        simulation.run()
        outcome = outcome_of(
            case.label,
            simulation.events,
            commitments,
            simulation.ideals(),
            setting.workload.span_s,
            simulation.needs_vcpus(),
        )
        fired = Counter[str]()
        for event in simulation.events():
            if event.kind is EventKind.JOB_PROFILED:
                fired["profiled"] += 1
            elif event.kind is EventKind.JOB_CLASSIFIED:
                fired[f"classified {event.fields.get('source')}"] += 1
            elif event.kind is EventKind.CORRECTION:
                fired["corrected"] += 1
            elif event.kind is EventKind.ATTEMPT_PLACED and event.fields.get("diverted") not in (None, "no"):
                fired[f"diverted {event.fields['diverted']}"] += 1
    if outcome.planning_failed:
        raise RuntimeError(f"planning failed: {outcome.planning_failed[0]}")
    return Run(outcome, fired)


def cases(policies: Sequence[Policy], *, guessed: bool, with_peer: bool, measured: bool = False) -> Iterator[Case]:
    """Yield simple rules, the policies, simple rules with right sizes where users guess, then a peer's rules."""
    common = Case(label="", experiment=EXPERIMENT, policy=SIMPLE, guessed=guessed, truth={"measured": measured})
    for policy in (SIMPLE, *policies):
        yield replace(common, label=policy.name, policy=policy)
    if guessed:  # the same jobs, but their vCPUs are set to what they use
        yield replace(common, label=f"{SIMPLE.name}, right-sized", guessed=False)
    if with_peer:
        yield replace(common, label=PREFIX + PEER, planner=PEERS[PEER].plan)


def main() -> int:
    """Simulate and print; means over seeds with 95 % limits."""
    parser = argparse.ArgumentParser(prog="python -m bench.knowing", description=__doc__)
    parser.add_argument(
        "policies",
        nargs="*",
        type=Path,
        help="policy files to compare with simple rules (default: the shipped default)",
    )
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--reserved", type=int, default=2, help="full servers reserved for everybody")
    parser.add_argument("--worlds", nargs="+", choices=("guess", "know"), default=("guess", "know"))
    parser.add_argument("--measured", action="store_true", help="programs and readings of the shipped library")
    given = parser.parse_args()
    if given.seeds < 1 or not 0 < given.share <= 1 or given.hours <= 0 or given.reserved < 0:
        parser.error("--seeds must be at least 1, --share above 0 up to 1, --hours above 0, and --reserved 0 or more")
    try:
        policies = [load_policy(path) for path in given.policies]
    except ConfigError as error:
        parser.error(str(error))
    policies = policies or [load_policy(package_data.path("policies") / "default.yaml")]
    size, seeds = RunSize(share=given.share, hours=given.hours), range(given.first_seed, given.first_seed + given.seeds)
    for world in given.worlds:
        print(
            f"users {world} sizes: {EXPERIMENT} x {given.share:g}, {given.hours:g} h, seeds {seeds[0]} to {seeds[-1]}"
        )
        first: list[Run] = []
        for case in cases(policies, guessed=world == "guess", with_peer=True, measured=given.measured):
            runs = [simulate(case, seed, size, {"n1.16": given.reserved}) for seed in seeds]
            first = first or runs
            print(_line(case.label, runs, first), flush=True)
    return 0


def _line(label: str, runs: Sequence[Run], first: Sequence[Run]) -> str:
    """Return one row: means over seeds with 95 % limits, where the money went, and what fired."""
    cost_pct = [100 * one.result.cost_usd / base.result.cost_usd for one, base in zip(runs, first, strict=True)]
    results = [run.result for run in runs]
    reserved_pct = [share_pct(each.committed_held_vcpu_h, each.committed_vcpu_h) or 0.0 for each in results]
    figures = {
        "cost %": cost_pct,
        "targets met %": [each.target_met_pct or 0.0 for each in results],
        "batch": [each.batch_met_pct or 0.0 for each in results],
        "services": [each.service_met_pct or 0.0 for each in results],
        "reserved used %": reserved_pct,
        "wait p95 s": [each.wait_quantile_s(0.95) or 0.0 for each in results],
    }
    spent_usd = {account: sum(each.spending.usd[account] for each in results) for account in Account}
    whole_usd = sum(spent_usd.values()) or 1.0
    accounts = ", ".join(f"{name} {100 * usd / whole_usd:.1f} %" for name, usd in spent_usd.items())
    fired = sum((run.fired for run in runs), Counter[str]())
    words = [f"{name} {mean_of(values).text()}" for name, values in figures.items()]
    words.append(f"spent on: {accounts}")
    words.append(", ".join(f"{count} {name}" for name, count in sorted(fired.items())) or "nothing fired")
    return f"  {label:20} {'; '.join(words)}"


if __name__ == "__main__":
    sys.exit(main())
