"""The mix: programs become known and are run alone, then come in a random order under each order of placement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shutil import copy
from statistics import fmean
from tempfile import TemporaryDirectory

import yaml
from numpy.random import Generator, default_rng

from bench.mix.deployment import Deployment, deployed
from hcloud.classifier.library import Question
from hcloud.cli.bootstrap import load_recipes
from hcloud.config import package_data
from hcloud.config.profiles import load_library
from hcloud.profiler.recipes import Recipe, missing_packages, prepared

PROGRAMS = ("gzip", "sort", "sha256sum", "numpy-matmul", "numpy-fft", "memory-random", "memory-triad", "sqlite-insert",
            "redis-get", "disk-write", "python-json", "zstd")  # fmt: skip
TWICE = ("memory-triad", "memory-random", "gzip", "sort")
ORDERS = ("random", "least_loaded", "paragon", "quasar")
ALONE_S = 6.0
VCPUS = 0.5
GAP_S = 2.0
PATIENCE = 2.0
START_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One job: how many times longer its work took than alone, and whether it was done in time."""

    program: str
    slowdown: float
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRun:
    """One repetition under one order."""

    order: str
    seed: int
    jobs: tuple[Ran, ...]


def missing() -> tuple[str, ...]:
    """Return the Debian packages that are wanting."""
    recipes = load_recipes(package_data.path("profiles") / "recipes")
    return missing_packages(recipes[name] for name in PROGRAMS)


def measure(seeds: Iterable[int], say: Callable[[str], None] = print) -> Sequence[MixRun]:
    """Make everything known, then run the mix for every seed under every order."""
    recipes = load_recipes(package_data.path("profiles") / "recipes")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hcloud-mix-jobs-")))
        for name in PROGRAMS:
            _write_job(folder, name, recipes[name], stack.enter_context(prepared(recipes[name])))
        deployment = stack.enter_context(deployed())
        alone = _alone(deployment, folder, say)
        runs = list[MixRun]()
        for seed in seeds:
            for order in default_rng(seed).permutation(ORDERS):
                runs.append(_mixed(deployment, folder, alone, str(order), seed))
                mean = fmean(job.slowdown for job in runs[-1].jobs)
                say(f"  seed {seed} {order}: mean slowdown {mean:.3f}")
    return runs


def _write_job(folder: Path, name: str, recipe: Recipe, workdir: Path) -> None:
    """Write a job file whose amount of work takes about ``ALONE_S`` seconds alone, by the shipped measurements."""
    copy(Path(__file__).with_name("until.py"), workdir / "until.py")
    known = load_library([package_data.path("profiles")]).known[name]
    per_s = known.cells[Question.STEP][f"{VCPUS:g} vCPU"]
    amount = per_s * ALONE_S
    (folder / name).symlink_to(workdir)
    job = {
        "name": name,
        "command": ["python3", "-I", "until.py", f"{amount:.6g}", *recipe.loop_command],
        "resources": {"vcpus": VCPUS, "memory": "300MiB", "disk": "1GiB"},
        "target": {"batch": {"within": f"{PATIENCE * ALONE_S + START_S:g}s"}},
        "workdir": name,
        "progress": {"file": "progress", "total": amount},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(job))


def _alone(deployment: Deployment, folder: Path, say: Callable[[str], None]) -> Mapping[str, float]:
    """Run every program by itself, profiled first, then once more, which is what counts."""
    found = {}
    for name in PROGRAMS:
        deployment.wait([deployment.submit(folder / f"{name}.yaml")])
    deployment.follow("first_fit", profiling=False)
    for name in PROGRAMS:
        job = deployment.submit(folder / f"{name}.yaml")
        deployment.wait([job])
        found[name] = deployment.took_s(job)
        say(f"  {name} alone: {found[name]:.2f} s")
    return found


def _mixed(deployment: Deployment, folder: Path, alone: Mapping[str, float], order: str, seed: int) -> MixRun:
    deployment.follow(order, profiling=False)
    rng = default_rng([seed, 1])
    jobs = dict[str, str]()
    for name, gap_s in _arrivals(rng):
        time.sleep(gap_s)
        jobs[deployment.submit(folder / f"{name}.yaml")] = name
    ended = deployment.wait(list(jobs))
    return MixRun(
        order=order, seed=seed, jobs=tuple(_ran(deployment, job, jobs[str(job["id"])], alone) for job in ended)
    )


def _arrivals(rng: Generator) -> Sequence[tuple[str, float]]:
    """Return the jobs of a mix in their order, each with the seconds since the one before."""
    names = rng.permutation([*PROGRAMS, *TWICE])
    return [(str(name), float(gap)) for name, gap in zip(names, rng.exponential(GAP_S, len(names)), strict=True)]


def _ran(deployment: Deployment, job: Mapping[str, object], name: str, alone: Mapping[str, float]) -> Ran:
    within_s = PATIENCE * ALONE_S + START_S
    took_s = float(str(job["finished_at"])) - float(str(job["submitted_at"]))
    return Ran(program=name, slowdown=deployment.took_s(str(job["id"])) / alone[name], met=took_s <= within_s)
