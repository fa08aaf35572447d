"""The bootstrap measures everything of every program, keeps partial results, and resumes after a kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hcloud.classifier.profiles import LOCAL_TYPES, ReferenceProfile
from hcloud.config.profiles import load_profiles, write_profile
from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import Measure, Reading
from hcloud.engine.host import EngineHost
from hcloud.profiler.bootstrap import TOTAL, WIDTH_MAX, confidence, measure_recipe, plan_for
from hcloud.profiler.measure import Rate
from hcloud.profiler.recipes import InputFile, Recipe
from hcloud.profiler.reference_runs import MeasurementPlan
from hcloud.profiler.sources import SOURCES, InterferenceSource
from hcloud.profiler.subject import Subject
from providers.local.settings import DEFAULT_TYPES
from tests.machine import needs_stress_ng
from tests.profiler.samples import profile
from tests.waiting import wait_until
from tests.warm import WARM

RECIPE = Recipe(
    group="text",
    packages=("coreutils",),
    files={"input": InputFile(text="some words\n")},
    loop="feed input",
    command=("cat",),
    unit="MiB",
)


@dataclass
class TrueBench:
    """A bench with a known program: linear in vCPUs, with sensitivities equal to its sources' numbers."""

    measure: Measure = Measure.PROGRESS
    unmeasurable: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    least_needed_s: Mapping[str, float] = field(default_factory=dict)
    spent_s: float = 0.0
    width: float = 0.0
    """Width of the limits of the first answer to each question; 0: 10."""
    narrows: bool = False
    """Whether the limits are narrower each time."""
    sure: tuple[str, ...] = ()
    """Sources whose answers have no limits besides them."""

    @contextmanager
    def __call__(self, subject: Subject, host: object, *, run_s: float, deadline_s: float) -> Iterator["TrueBench"]:
        assert (subject.workdir / "input").read_text() == "some words\n"
        assert 0 < run_s < deadline_s
        self.spent_s += run_s
        yield self

    def look(self, vcpus: float) -> object:
        return None

    def rate(self, vcpus: float, *, within_s: float) -> Rate:
        self._spend(f"{vcpus:g}", within_s)
        value = 40 * vcpus / TOTAL
        return Rate(
            value=value, low=0.9 * value, high=1.1 * value, runs=3, measure=self.measure, use=(vcpus, 30.0, 0.0, 0.0)
        )

    def tolerated(self, source: InterferenceSource, vcpus: float, *, within_s: float) -> Reading:
        return self._reading("tolerated", source, within_s, 50.0 if self.width else 120.0)

    def caused(self, source: InterferenceSource, vcpus: float, *, within_s: float) -> Reading:
        return self._reading("caused", source, within_s, 50.0 if self.width else -20.0)

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def _reading(self, question: str, source: InterferenceSource, within_s: float, value: float) -> Reading:
        self._spend(f"{question} {source.name}", within_s)
        if source.name in self.unmeasurable:
            raise Unmeasurable("nothing feels it here")
        often = self.asked.count(f"{question} {source.name}")
        half = self.width / (2 * often if self.narrows else 2) if self.width else 5.0
        half = 0.0 if source.name in self.sure else half
        return Reading(question=question, column=source.name, value=value, low=value - half, high=value + half, runs=4)

    def _spend(self, what: str, within_s: float) -> None:
        assert within_s > 0
        self.asked.append(what)
        self.took_s.append(min(within_s, self.least_needed_s.get(what, within_s)))
        self.spent_s += self.took_s[-1]


def made(bench: TrueBench, plan: MeasurementPlan | None = None) -> object:
    """Measure the recipe with a bench of known results."""
    chosen = plan or plan_for("local", None, 75.0, cpus=2)
    return measure_recipe("copy", RECIPE, chosen, EngineHost(), now=1.8e9, bench_for=bench)


@needs_stress_ng
def test_every_size_and_source_is_asked_and_told_as_progress(tmp_path: Path) -> None:
    bench, told = TrueBench(), list[str]()
    plan = plan_for("local", None, 75.0, cpus=2)
    found = measure_recipe("copy", RECIPE, plan, EngineHost(), now=1.8e9, bench_for=bench, advance=told.append)
    assert len(told) == plan.questions == 3 + 2 * len(SOURCES)
    assert {name: cell.value for name, cell in found.cells.step.items()} == {
        "0.5 vCPU": 20.0, "1 vCPU": 40.0, "2 vCPU": 80.0,
    }  # fmt: skip
    assert set(found.cells.type) == {"local/local.small", "local/local.medium", "local/local.large"}
    assert found.use["local/local.large"] == (2.0, 30.0, 0.0, 0.0)
    assert found.units.performance == "MiB/s"
    assert found.provenance.packages.keys() == {"coreutils"}
    assert load_profiles(write_profile(tmp_path, found)) == (found,)


@needs_stress_ng
def test_time_is_kept_whatever_a_program_is_given() -> None:
    for seconds in (10.0, 75.0, 300.0):
        bench = TrueBench()
        made(bench, plan_for("local", None, seconds, cpus=2))
        assert bench.spent_s <= seconds


@needs_stress_ng
def test_sources_felt_across_cores_have_three_times_the_time_of_others_and_what_those_leave() -> None:
    bench = TrueBench(least_needed_s={"tolerated l2": 0.1})
    made(bench, plan_for("local", None, 200.0, cpus=2))
    used_s = dict(zip(bench.asked, bench.took_s, strict=True))
    assert used_s["caused llc-bandwidth"] == pytest.approx(3 * used_s["caused l1i"])
    assert used_s["tolerated l1i"] > used_s["tolerated memory-bandwidth"] / 3


@needs_stress_ng
@pytest.mark.parametrize("sure", [(), ("network-bandwidth", "memory-capacity", "storage-capacity", "llc-bandwidth")])
@pytest.mark.parametrize(
    ("narrows", "most_s", "spent_s"), [(True, 1000.0, 700.0), (False, 400.0, 420.0), (True, 0.0, 61.0)]
)
def test_wide_answers_across_cores_are_asked_again_until_half_are_sure_or_the_time_is_over(
    narrows: bool, most_s: float, spent_s: float, sure: tuple[str, ...]
) -> None:
    bench = TrueBench(width=80.0, narrows=narrows, sure=sure)
    plan = plan_for("local", None, 60.0, cpus=2, most_s=most_s)
    found = made(bench, plan)
    again = bench.asked[plan.questions :]
    across = {f"{word} {each.name}" for word in ("tolerated", "caused") for each in SOURCES if each.cross_core}
    assert set(again) <= across and bench.spent_s <= spent_s
    assert bool(again) is (most_s > 0)
    assert isinstance(found, ReferenceProfile)
    widths = sorted(
        cells[each.name].high - cells[each.name].low
        for cells in (found.cells.tolerated, found.cells.caused)
        for each in SOURCES
        if each.cross_core and each.name not in sure
    )
    assert (widths[len(widths) // 2] <= WIDTH_MAX) is (narrows and most_s > 0)


@needs_stress_ng
def test_pressures_beyond_the_scale_are_held_on_it() -> None:
    found = measure_recipe(
        "copy", RECIPE, plan_for("local", None, 60.0, cpus=2), EngineHost(), now=1.8e9, bench_for=TrueBench()
    )
    assert {cell.value for cell in found.cells.tolerated.values()} == {100.0}
    assert {(cell.low, cell.value, cell.high) for cell in found.cells.caused.values()} == {(0.0, 0.0, 0.0)}


@needs_stress_ng
def test_source_that_cannot_be_measured_is_left_out_and_noted() -> None:
    found = measure_recipe(
        "copy",
        RECIPE,
        plan_for("local", None, 60.0, cpus=2),
        EngineHost(),
        now=1.8e9,
        bench_for=TrueBench(unmeasurable=("tlb",)),
    )
    assert "tlb" not in found.cells.tolerated
    assert len(found.cells.tolerated) == len(SOURCES) - 1
    assert found.notes == ("tolerated tlb was not measured: nothing feels it here",
                           "caused tlb was not measured: nothing feels it here")  # fmt: skip


@needs_stress_ng
def test_program_whose_loop_tells_nothing_is_no_profile() -> None:
    with pytest.raises(Unmeasurable, match="its loop reported too little progress at 2 vCPU"):
        made(TrueBench(measure=Measure.CPU))


def test_plan_fits_the_machine_and_the_interference_size_comes_last() -> None:
    small, large = plan_for("local", None, 60.0, cpus=1), plan_for("aws", "m5.xlarge", 60.0, cpus=4)
    assert small.types == {"local.small": 0.5, "local.medium": 1.0}
    assert (large.types, large.sizes) == ({"m5.xlarge": 4.0}, (4.0, 2.0, 0.5, 1.0))
    assert {name: each.vcpus for name, each in DEFAULT_TYPES.items()} == LOCAL_TYPES


def test_confidence_is_the_typical_half_width() -> None:
    told = confidence(profile())
    assert told == {
        "performance_percent": 10.0,
        "tolerated_points": 2.0,
        "caused_points": 2.0,
        "across_cores_points": 2.0,
    }


# ---------------------------------------------------------------------------------------------------------- the command
TINY = """\
recipes:
  copy:
    group: text
    packages: [{package}]
    files: {{input: {{text: "some words"}}}}
    loop: feed input
    command: [cat]
    unit: MiB
"""


def bootstrap(folder: Path, *arguments: str, package: str = "coreutils") -> subprocess.CompletedProcess[str]:
    """Run the command on one tiny recipe."""
    words = bootstrap_words(folder, *arguments, package=package)
    return WARM.run(words, cwd=folder, environment=os.environ, timeout_s=280)


def bootstrap_words(folder: Path, *arguments: str, package: str = "coreutils") -> tuple[str, ...]:
    """Write the tiny recipe; return the words after ``hcloud`` that measure it."""
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes/tiny.yaml").write_text(TINY.format(package=package))
    return "profile", "bootstrap", *arguments, "--recipes", "recipes", "--out", "made", "--seconds", "8"


@needs_stress_ng
def test_real_program_is_measured_at_every_size_and_beside_a_source() -> None:
    chosen = tuple(each for each in SOURCES if each.name == "integer")
    plan = MeasurementPlan(provider="local", types={"local.medium": 1.0}, steps=(0.5, 1.0), sources=chosen, seconds=8.0)
    try:
        found = measure_recipe("copy", RECIPE, plan, EngineHost(), now=1.8e9)
    except Unmeasurable:  # other tests may leave it too little of this machine to be seen at work
        return
    assert found.provenance.command == "cat"
    assert found.cells.step["1 vCPU"].value > found.cells.step["0.5 vCPU"].value * 0.5
    assert {*found.cells.tolerated, *found.cells.caused} <= {"integer"}
    assert len(found.cells.tolerated) + sum("tolerated integer" in note for note in found.notes) == 1


@needs_stress_ng
def test_resumed_bootstrap_measures_only_what_has_no_file(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "made", profile("copy"))
    before = path.read_bytes()
    done = bootstrap(tmp_path, "--resume")
    assert (done.returncode, done.stdout) == (0, "nothing to measure: every program already has a file\n")
    assert path.read_bytes() == before


@needs_stress_ng
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_bootstrap_that_is_ended_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "temporary").mkdir(mode=0o711)
    process = subprocess.Popen(
        [sys.executable, "-m", "hcloud.cli.main", *bootstrap_words(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(list((tmp_path / "temporary").glob("hcloud-scratch-*"))) >= 2, 60.0)  # recipe and copy
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == (130 if number == signal.SIGINT else 128 + number), said
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("arguments", "package", "code", "words"),
    [
        (("paste",), "coreutils", 2, "there is no recipe 'paste'; known recipes are copy"),
        ((), "hcloud-no-such-package", 1, "not installed: hcloud-no-such-package (apt-get install hcloud-no-such"),
        (("--provider", "azur"), "coreutils", 2, "there is no provider 'azur'; known providers: "),
        (("--provider", "mock"), "coreutils", 2, "--provider mock needs --type"),
    ],
)
def test_bootstrap_refuses_in_one_sentence(
    arguments: tuple[str, ...], package: str, code: int, words: str, tmp_path: Path
) -> None:
    done = bootstrap(tmp_path, *arguments, package=package)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "made").exists()
