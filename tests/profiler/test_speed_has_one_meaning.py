"""Speed on a type is that of the job at stated vCPUs, whether the bootstrap, a profiling run or a job measured it."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from hcloud.classifier.applications import Identity, learn
from hcloud.classifier.belief_store import BeliefStore
from hcloud.classifier.library import Library, Question
from hcloud.classifier.profiles import LOCAL_TYPES, ReferenceProfile, library_of
from hcloud.classifier.step_curve import conversion, rate_at, rates_by_vcpus
from hcloud.config import load_library, package_data
from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import Application, Classification, Estimate, Findings, Measure, Reading
from hcloud.core.model import ProfileRequest
from hcloud.engine.host import EngineHost
from hcloud.planner.fit.expected_performance import expected
from hcloud.profiler.bootstrap import TOTAL, measure_recipe, plan_for, subject
from hcloud.profiler.measure import Rate, _ProfilingRun, measure
from hcloud.profiler.recipes import InputFile, Recipe, prepared
from hcloud.profiler.sources import InterferenceSource
from hcloud.profiler.subject import Subject
from tests.machine import needs_stress_ng
from tests.profiler.samples import profile

RECIPE = Recipe(
    group="text",
    packages=("coreutils",),
    files={"input": InputFile(text="some words\n")},
    loop="feed input",
    command=("cat",),
    unit="MiB",
)
IDENTITY = Identity(program="ann:copy", input="0" * 64)
SHIPPED = load_library([package_data.path("profiles")])


@dataclass
class Machine:
    """A machine of ``speed`` on which one program scales by Amdahl's law; measurements are exact to 3 %."""

    parallel: float = 0.8
    speed: float = 1.0
    notes: list[str] = field(default_factory=list)
    spent_s: float = 0.0
    host: object = field(default_factory=lambda: SimpleNamespace(vcpus=4.0))

    @contextmanager
    def __call__(self, subject: Subject, host: object, *, run_s: float, deadline_s: float) -> Iterator["Machine"]:
        yield self

    def look(self, vcpus: float) -> object:
        return SimpleNamespace(short=False)

    def rate(self, vcpus: float, *, within_s: float) -> Rate:
        value = 40 * self.speed / TOTAL * self.speed_up(vcpus)
        return Rate(
            value=value,
            low=0.97 * value,
            high=1.03 * value,
            runs=3,
            measure=Measure.PROGRESS,
            use=(vcpus, 9.0, 0.0, 0.0),
        )

    def speed_up(self, vcpus: float) -> float:
        return vcpus if vcpus <= 1 else 1 / (1 - self.parallel + self.parallel / vcpus)

    def tolerated(self, source: InterferenceSource, vcpus: float, *, within_s: float) -> Reading:
        raise Unmeasurable("it has no neighbours")

    def caused(self, source: InterferenceSource, vcpus: float, *, within_s: float) -> Reading:
        raise Unmeasurable("it has no neighbours")

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def bootstrap(self, provider: str = "local", whole_type: str | None = None, cpus: int = 2) -> ReferenceProfile:
        """The program as ``hcloud profile bootstrap`` measures it."""
        plan = plan_for(provider, whole_type, 60.0, sources=(), cpus=cpus)
        return measure_recipe("copy", RECIPE, plan, EngineHost(), now=1.8e9, bench_for=self)

    def profiled(self, request: ProfileRequest) -> Findings:
        """The program as a profiling run measures it."""
        run = _ProfilingRun(request, self, lambda _: None)  # type: ignore[arg-type]
        run.answer_all()
        return run.findings()


def asking(column: str, *vcpus: float) -> ProfileRequest:
    return ProfileRequest(job_id="job-1", type_column=column, steps_vcpus=vcpus, total_s=60.0)


def learned(*runs: tuple[ProfileRequest, Findings], row: Application | None = None) -> Application:
    """The row of an application after profiling runs."""
    for number, (request, findings) in enumerate(runs):
        row = learn(row, IDENTITY, request, findings, f"job-{number + 2}", 9.0)
    assert row is not None
    return row


def believed(row: Application, library: Library) -> Classification:
    store = BeliefStore(library=library)
    store.follow({row.name: row})
    return store.believe([row.name])[row.name]


# ------------------------------------------------------------------------------------------ bootstrap and profiling run
@needs_stress_ng
@pytest.mark.parametrize("vcpus", [0.5, 1.0, 2.0])
def test_bootstrap_and_profiling_run_give_the_same_row(vcpus: float) -> None:
    machine = Machine()
    whole = library_of([machine.bootstrap()]).known["copy"]
    request = asking("local/local.large", vcpus, vcpus / 2)
    row = learned((request, machine.profiled(request)))
    to_job = conversion(whole.cells[Question.STEP], 1.0, row.reference_vcpus)
    assert to_job is not None and row.reference_vcpus == vcpus
    own = row.cells["type"]["local/local.large"] * TOTAL
    for column, rate in whole.cells[Question.TYPE].items():  # slices of one machine are equally fast at equal vCPUs
        reach = whole.spreads[Question.TYPE][column] + row.spreads["type"]["local/local.large"]
        assert abs(math.log(own / (rate * to_job))) <= reach, column


@needs_stress_ng
def test_real_program_has_one_row_whichever_way_it_is_measured() -> None:
    measured, why = None, ""
    for total_s in (3.0, 8.0, 20.0):  # other tests may leave it too little of this machine to be seen at work
        plan = replace(plan_for("local", None, 7.0 * total_s, sources=(), cpus=1), steps=(0.5, 1.0))
        request = replace(asking("local/local.medium", 0.5), run_s=0.5, total_s=total_s)
        try:
            whole = library_of([measure_recipe("copy", RECIPE, plan, EngineHost(), now=1.8e9)]).known["copy"]
            with prepared(RECIPE) as folder:
                findings = measure(request, subject("copy", RECIPE, folder), EngineHost())
        except Unmeasurable as error:
            why = str(error)
            continue
        why = "; ".join(findings.notes)
        if findings.readings:
            measured = whole, findings
            break
    assert measured is not None, why
    whole, findings = measured
    own = learned((request, findings)).cells["type"]["local/local.medium"] * TOTAL
    factor = conversion(whole.cells[Question.STEP], 1.0, 0.5)
    assert factor is not None
    # Whole machines against half a vCPU differ by a factor of two; what other work takes away, by less.
    assert own == pytest.approx(whole.cells[Question.TYPE]["local/local.medium"] * factor, rel=0.6)


def test_whole_machines_of_a_cloud_are_converted_by_their_own_steps() -> None:
    large = replace(profile("copy"), provenance=replace(profile().provenance, provider="aws", cores=4))
    steps = {"1 vCPU": 20.0, "2 vCPU": 36.0, "4 vCPU": 60.0}
    cells = replace(
        large.cells,
        step={column: replace(large.cells.step["1 vCPU"], value=v, low=v, high=v) for column, v in steps.items()},
        type={"aws/m5.xlarge": replace(large.cells.step["1 vCPU"], value=60.0, low=58.0, high=62.0)},
    )
    assert replace(large, cells=cells).measured().cells[Question.TYPE] == {"aws/m5.xlarge": pytest.approx(20.0)}
    half = replace(large, cells=cells, type_vcpus={"aws/m5.xlarge": 2.0})  # where stated, not the whole of it
    assert half.measured().cells[Question.TYPE] == {"aws/m5.xlarge": pytest.approx(60.0 * 20.0 / 36.0)}
    bare = replace(large, cells=replace(cells, step={}))
    assert Question.TYPE not in bare.measured().cells  # nothing says what one vCPU would do
    assert bare.measured(steps).cells[Question.TYPE] == {"aws/m5.xlarge": pytest.approx(20.0)}


def test_steps_of_one_program_from_two_machines_become_one_curve() -> None:
    def on(speed: float, *vcpus: float) -> ReferenceProfile:
        cell = profile().cells.step["1 vCPU"]
        step = {f"{v:g} vCPU": replace(cell, value=20.0 * speed * v, low=1.0, high=1e3) for v in vcpus}
        return replace(profile("copy"), cells=replace(profile().cells, step=step))

    row = library_of([on(1.0, 0.5, 1.0), on(3.0, 1.0, 2.0, 4.0)]).known["copy"]
    assert rates_by_vcpus(row.cells[Question.STEP]) == pytest.approx({0.5: 30.0, 1.0: 60.0, 2.0: 120.0, 4.0: 240.0})


# -------------------------------------------------------------------------------------------------- runs of one program
def test_run_at_another_size_is_converted_to_that_of_the_row() -> None:
    slow, fast = Machine(), Machine(speed=2.0)
    base, more = asking("mock/slow", 2.0, 1.0), asking("mock/fast", 1.0)
    row = learned((base, slow.profiled(base)), (more, fast.profiled(more)))
    types = row.cells["type"]
    assert types["mock/fast"] / types["mock/slow"] == pytest.approx(2.0)
    assert rates_by_vcpus(row.cells["step"]) == {v: slow.rate(v, within_s=1.0).value for v in (1.0, 2.0)}
    larger = asking("mock/slow", 4.0, 2.0)  # measured anew at another size: the other type follows
    again = learned((larger, slow.profiled(larger)), row=row)
    assert again.reference_vcpus == 4.0
    assert again.cells["type"]["mock/fast"] / again.cells["type"]["mock/slow"] == pytest.approx(2.0)


def test_type_that_cannot_be_converted_is_forgotten() -> None:
    first = replace(asking("mock/old", 1.0), look=True)
    row = Application(
        name="a", program="p", measure=Measure.PROGRESS, reference_vcpus=1.0, cells={"type": {"mock/old": 3.0}}
    )
    assert learned((first, Findings()), row=row).cells["type"] == {"mock/old": 3.0}
    only = Reading(question="type", column="mock/new", value=5.0, low=5.0, high=5.0)
    base = asking("mock/new", 2.0, 1.0)
    assert learned((base, Findings(measure=Measure.PROGRESS, readings=(only,))), row=row).cells["type"] == {
        "mock/new": 5.0
    }


def test_job_that_asks_for_other_vcpus_than_were_measured_is_expected_at_its_own() -> None:
    known = Classification(
        by_type={"mock/m": Estimate(10.0, 9.0, 11.0)},
        by_step={"1 vCPU": Estimate(5.0, 5.0, 5.0, True), "2 vCPU": Estimate(10.0, 10.0, 10.0, True)},
        quality_target=Estimate(0.5, 0.0, 1.0),
        reference_vcpus=2.0,
    )
    asked = expected(known, "mock/m", vcpus=1.0, asked_vcpus=1.0)
    assert asked is not None and asked.value == pytest.approx(5.0)
    unstated = expected(replace(known, reference_vcpus=0.0), "mock/m", vcpus=1.0, asked_vcpus=1.0)
    assert unstated is not None and unstated.value == pytest.approx(10.0)


# ------------------------------------------------------------------------------------------------- the shipped library
def _readings(rates: Mapping[float, float], column: str, *vcpus: float) -> Findings:
    cells = [("type", column, vcpus[0]), *(("step", f"{each:g} vCPU", each) for each in vcpus)]
    values = [(question, column, rate_at(rates, each)) for question, column, each in cells]
    found = [Reading(question=q, column=c, value=v, low=0.97 * v, high=1.03 * v) for q, c, v in values]
    return Findings(measure=Measure.PROGRESS, readings=tuple(found))


@pytest.mark.parametrize("vcpus", [0.5, 1.0, 2.0])
def test_shipped_rows_predict_each_other_at_a_jobs_vcpus_without_bias(vcpus: float) -> None:
    errors, within = list[float](), list[bool]()
    for name, whole in list(SHIPPED.known.items())[::2]:  # each takes a fit of all others
        others = {other: row for other, row in SHIPPED.known.items() if row.program != whole.program}
        rates = rates_by_vcpus(whole.cells[Question.STEP])
        request = asking("local/local.large", vcpus, vcpus / 2)
        row = learned((request, _readings(rates, "local/local.large", vcpus, vcpus / 2)))
        found = believed(row, Library(known=others))
        for size in LOCAL_TYPES.keys() & {"local.small", "local.medium"}:
            estimate = found.by_type[f"local/{size}"]
            errors.append(math.log(estimate.value / rate_at(rates, vcpus)))
            within.append(estimate.low <= rate_at(rates, vcpus) <= estimate.high)
        assert name and found.reference_vcpus == vcpus
    assert abs(math.fsum(errors) / len(errors)) <= 0.02
    assert sum(within) >= 0.75 * len(within)


def test_curve_is_of_the_machine_that_measured_it_last() -> None:
    slow, fast = Machine(), Machine(speed=2.0)
    base, again = asking("mock/slow", 2.0, 1.0), asking("mock/fast", 2.0, 0.5)
    row = learned((base, slow.profiled(base)), (again, fast.profiled(again)))
    assert rates_by_vcpus(row.cells["step"]) == {v: fast.rate(v, within_s=1.0).value for v in (0.5, 2.0)}
    assert row.spreads["step"].keys() == row.cells["step"].keys()
    assert row.cells["type"]["mock/fast"] / row.cells["type"]["mock/slow"] == pytest.approx(2.0)


def test_converted_reading_is_no_surer_than_the_curve() -> None:
    machine = Machine()
    base, more = asking("mock/slow", 2.0, 1.0), asking("mock/fast", 1.0)
    sure = tuple(replace(each, low=each.value, high=each.value) for each in machine.profiled(more).readings)
    row = learned((base, machine.profiled(base)), (more, replace(machine.profiled(more), readings=sure)))
    assert row.spreads["type"]["mock/fast"] == max(row.spreads["step"].values()) > 0


def test_slices_that_were_converted_from_one_measurement_leave_doubt_about_another_machine() -> None:
    rates = rates_by_vcpus(SHIPPED.known["gzip"].cells[Question.STEP])
    request = asking("local/local.large", 0.5, 0.25)
    row = learned((request, _readings(rates, "local/local.large", 0.5, 0.25)))
    found = believed(row, SHIPPED).by_type
    own, other = found["local/local.large"], found["local/local.small"]
    assert own.high / own.low < 1.1
    assert other.value == pytest.approx(own.value, rel=0.02)
    assert 1.2 < other.high / other.low < 1.5  # two machines of one kind, measured at different times
