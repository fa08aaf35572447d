"""Hypothesis strategies for snapshots in which something is known of jobs, and policies that use it."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, BestEffortTarget, JobState, Target
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import AdmissionPolicy, PlacementPolicy, Policy
from tests.planner.scenes import NOW as SCENE_NOW
from tests.planner.scenes import job, machine, need, offer, running, scene, spec
from tests.strategies_planner import NOW, policies, snapshots

SOURCES = ("cpu", "llc", "net")
TYPES = ("mock/small", "mock/medium", "mock/large")
AWARE = ("paragon", "quasar", "heterogeneity_oblivious")
_NAMES = ("calm", "loud", "fragile")


@st.composite
def estimates(draw: DrawFn, values: tuple[float, ...]) -> Estimate:
    """A value with narrow or wide limits."""
    value = draw(st.sampled_from(values))
    wide = draw(st.sampled_from([0.0, 0.1]))
    return Estimate(value=value, low=value * (1 - wide), high=value * (1 + wide), observed=not wide)


_RISES = ((1.0, 2.0, 4.0), (1.0, 1.6, 1.8), (1.0, 1.0, 1.0))
steps = st.one_of(
    st.just({}),
    st.sampled_from(_RISES).map(
        lambda rise: {f"{n} vCPU": Estimate(value=v, low=v, high=v) for n, v in zip((1, 2, 4), rise, strict=True)}
    ),
)


_QUALITIES = tuple(Estimate(value=value, low=value - 0.1, high=value + 0.1) for value in (0.5, 0.2, 0.8))


@st.composite
def classifications(draw: DrawFn) -> Classification:
    """What might be believed of a job: some resources are felt and pressed, some types are faster."""
    pressures = (0.0, 10.0, 30.0, 60.0, 90.0)
    rates = (0.001, 0.002, 0.004)
    return Classification(
        by_type={name: draw(estimates(rates)) for name in TYPES if draw(st.booleans())},
        by_step=draw(steps),
        by_nodes={count: draw(estimates((count * 0.8, float(count)))) for count in (1, 2, 3, 4)},
        tolerated={name: draw(estimates((20.0, 50.0, 80.0, 100.0))) for name in SOURCES},
        caused={name: draw(estimates(pressures)) for name in SOURCES},
        quality_target=draw(st.sampled_from(_QUALITIES)),
        measure=draw(st.sampled_from([None, Measure.COMPLETION, Measure.CPU])),
    )


@st.composite
def known_snapshots(draw: DrawFn) -> Snapshot:
    """A small fleet at work, most of whose jobs were profiled."""
    snapshot = draw(snapshots())
    names = st.sampled_from([*_NAMES, *_NAMES, "", "never profiled"])
    since = st.sampled_from([0.0, 20.0, 70.0, 5000.0])
    jobs = []
    for given in snapshot.jobs:
        # Before it is queued, a job is not known.
        state = JobState.QUEUED if given.state is JobState.SUBMITTED else given.state
        queued_at = max(given.submitted_at, NOW - draw(since))
        within = draw(st.sampled_from([None, None, (0.5, 4.0)])) if not given.spec.exclusive else None
        asked = replace(given.spec, vcpus_within=within)
        jobs.append(replace(given, spec=asked, state=state, application=draw(names), queued_at=queued_at))
    applications = {name: draw(classifications()) for name in _NAMES}
    busy_s = draw(st.sampled_from([(), (5.0, 20.0, 60.0), (3000.0,) * 8]))
    return replace(
        snapshot, jobs=tuple(jobs), applications=applications, fleet_stats=replace(snapshot.fleet_stats, busy_s=busy_s)
    )


@st.composite
def crowded(draw: DrawFn) -> Snapshot:
    """A few READY machines with room, known jobs on them and known jobs of one node waiting; seldom anything to buy."""
    machines = [machine(number, offer("large", vcpus=8.0)) for number in range(1, draw(st.integers(1, 3)) + 1)]
    jobs, names = [], st.sampled_from(_NAMES)
    for number in range(1, draw(st.integers(1, 3)) + 1):
        on = draw(st.sampled_from(machines))
        asks = spec(target=draw(_PLAIN_TARGETS))
        jobs.append(running(number, on, asks=asks, application=draw(names)))
    for number in range(len(jobs) + 1, len(jobs) + draw(st.integers(1, 4)) + 1):
        queued_at = SCENE_NOW - draw(st.sampled_from([0.0, 20.0, 70.0, 5000.0]))
        within = draw(st.sampled_from([None, None, (0.5, 4.0)]))
        amount = need(draw(st.sampled_from([1.0, 4.0])))
        asks = spec(target=draw(_PLAIN_TARGETS), resources=amount, vcpus_within=within)
        jobs.append(job(number, asks=asks, application=draw(names), queued_at=queued_at, submitted_at=queued_at))
    bought = [offer()] if draw(st.sampled_from([False, False, True])) else []
    applications = {name: draw(classifications()) for name in _NAMES}
    return scene(*jobs, *machines, *bought, applications=applications)


@st.composite
def contended(draw: DrawFn) -> Snapshot:
    """One or two READY machines for which more jobs wait than fit, nearly all of which suit each other."""
    machines = [machine(number, offer("large", vcpus=8.0)) for number in range(1, draw(st.integers(1, 2)) + 1)]
    names = st.sampled_from(_NAMES)
    jobs = [running(1, machines[0], application=draw(names))]
    for number in range(2, draw(st.integers(4, 6)) + 2):
        queued_at = SCENE_NOW - draw(st.sampled_from([0.0, 5.0, 20.0]))
        asks = spec(target=BatchTarget(), resources=need(draw(st.sampled_from([2.0, 4.0]))))
        jobs.append(job(number, asks=asks, application=draw(names), queued_at=queued_at, submitted_at=queued_at))
    mild = {
        "tolerated": {name: Estimate(value=80.0, low=80.0, high=80.0) for name in SOURCES},
        "caused": {name: draw(estimates((0.0, 10.0, 30.0))) for name in SOURCES},
    }
    applications = {name: replace(draw(classifications()), **mild) for name in _NAMES}
    return scene(*jobs, *machines, applications=applications)


_PLAIN_TARGETS: st.SearchStrategy[Target] = st.sampled_from([BatchTarget(), BatchTarget(), BestEffortTarget()])


@st.composite
def aware_policies(
    draw: DrawFn,
    base: st.SearchStrategy[Policy] = policies(),  # noqa: B008
    orders: tuple[str, ...] = AWARE,
) -> Policy:
    """Policies whose order of placement uses what is known."""
    placement = PlacementPolicy(
        order=draw(st.sampled_from(orders)),
        neighbour_confidence=draw(st.sampled_from([0.5, 0.9])),
        neighbour_tolerance=0.05,
    )
    admission = AdmissionPolicy(
        queues=draw(st.sampled_from(["one", "by_quality", "planned"])),
        classes=draw(st.sampled_from([1, 4, 10])),
        order=draw(st.sampled_from(["priority", "shortest"])),
        patience_s=draw(st.sampled_from([0.0, 60.0])),
    )
    return replace(draw(base), placement=placement, admission=admission)
