"""Event logs of three simulations, to show that a change of names or words changed no decision.

``python -m tests.traces [--without-text] [--out FOLDER]`` prints one SHA-256 hash per simulation: HCloud's HM strategy,
a Paragon cluster, one soak world. Equal hashes at two commits mean byte-equal logs; ``--without-text`` leaves out the
sentences but keeps codes and numbers.
"""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from hcloud.config import load_policy
from hcloud.core.model import Event
from hcloud.simulator.clouds import reserved_for
from hcloud.simulator.clusters import make_experiment
from hcloud.simulator.run import Setting, simulated
from lab.papers.clusters import scheduler
from lab.soak.run import open_soak

TEXT_FIELDS = frozenset({"text", "detail", "error", "why", "message", "outcome"})
"""Event fields, at any depth, that hold sentences for people. Of each of ``candidates`` the last part is one, too."""
SOAK_SEED = 7


def hybrid(folder: Path) -> Iterator[Event]:
    """Yield the events of an hour of high variability at 0.3 of its load, with the policy ``hm.yaml``."""
    made = make_experiment("high-variability", 0, hours=1.0, share=0.3)
    policy = load_policy(Path(__file__).parent.parent / "policies" / "hm.yaml")
    cloud = {"keep_terminated_s": 600, **made.cloud}
    cloud["reserved"] = reserved_for(policy, made.workload, cloud)
    yield from _simulated(Setting(workload=made.workload, policy=policy, cloud=cloud, truth=made.truth), folder)


def cluster(folder: Path) -> Iterator[Event]:
    """Yield the events of Paragon's large cluster at low load, a tenth of it."""
    made = make_experiment("paragon-large-low", 0, share=0.1)
    policy = scheduler("paragon")
    yield from _simulated(Setting(workload=made.workload, policy=policy, cloud=made.cloud, truth=made.truth), folder)


def soak(folder: Path) -> Iterator[Event]:
    """Yield the events of one small world full of faults."""
    with open_soak(SOAK_SEED, place=folder) as world:
        world.run()
        yield from world.monitor.store.iter_events()


def _simulated(setting: Setting, folder: Path) -> Iterator[Event]:
    with simulated(setting, folder) as simulation:
        simulation.run()
        yield from simulation.events()


def lines(events: Iterable[Event], *, without_text: bool = False) -> Iterator[str]:
    """Yield one line of JSON per event, independent of the names of classes."""
    for each in events:
        fields = _filtered(dict(each.fields)) if without_text else dict(each.fields)
        row = [each.seq, each.at, each.kind.value, each.job_id, each.instance_id, each.user, each.actor, fields]
        yield json.dumps(row, sort_keys=True)


def _filtered(value: object) -> object:
    if isinstance(value, dict):
        kept = {key: _filtered(each) for key, each in value.items() if key not in TEXT_FIELDS}
        if isinstance(candidates := kept.get("candidates"), list):
            kept["candidates"] = [str(each).rpartition("|")[0] for each in candidates]
        return kept
    if isinstance(value, list | tuple):
        return [_filtered(each) for each in value]
    return value


def main() -> None:
    """Print a hash per simulation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--without-text", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for name, run in (("hybrid", hybrid), ("cluster", cluster), ("soak", soak)):
        digest, count = hashlib.sha256(), 0
        with tempfile.TemporaryDirectory() as folder:
            written = list(lines(run(Path(folder)), without_text=options.without_text))
        for line in written:
            digest.update(line.encode() + b"\n")
            count += 1
        if options.out is not None:
            (options.out / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in written))
        print(f"{name} {count} events {digest.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
