"""The chapter of 3Sigma (EuroSys 2018): deadlines planned by distributions of run times, on nodes that cannot grow.

Figures 6 and 10 run the daemon's cycles and whole planner in the simulator, figures 8, 9 and 11 its linear program
alone. Figure 7 needs logs that are not public. The paper prints its curves without numbers: what it says is judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from hcloud.core.errors import NoJobs
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.forecast.runtimes.printed import PrintedPredictor
from hcloud.simulator.clusters import nodes_at
from hcloud.simulator.deadline_mix import LOAD, PAST_RUNS, PROGRAMS, SLACKS, JobTrace, make_trace
from lab.papers.study import ENOUGH, Claim, ComputedCase, Effect, Figure, Numbers, RunSize, SizedCase
from lab.three_sigma.cluster import ClusterResult, simulate
from lab.three_sigma.scale import PENDING, REPEATS, one_plan
from lab.three_sigma.simulated import run_system
from lab.three_sigma.systems import SYSTEMS, ClusterScheduler, shifted

OURS, PRINTED, PERFECT, POINT, PADDED = "HCloud", "3Sigma", "PointPerfEst", "PointRealEst", "PointPaddedEst"
PRIO, NO_DIST, NO_OE, NO_ADAPT = "Prio", "NoDist", "NoOE", "NoAdapt"
COLUMNS = ("missed_pct", "goodput_node_h", "best_effort_node_h", "latency_s", "stopped", "plan_ms")
MISSED, EFFORT = "missed_pct", "best_effort_node_h"
THREE_SIGMA_PCT, POINT_PCT, PRIO_PCT = 3.6, 18.0, 12.0
"""Published shares of missed deadlines (§6.1). That of 3Sigma is not printed: Point's is 4.0 times and Prio's 2.3 times
higher, and only 3.6 % fits both."""
LITTLE = 2.0
"""Points within which two shares of missed deadlines count as the same, where the paper says that they nearly match."""
SLACK_PCTS, LOADS, SAMPLES = (20, 60, 100, 180), (1.0, 1.2, 1.4, 1.6), (5, 10, 25, 50, 100)
SHIFT_PCTS = (-50, -20, 0, 20, 50, 100)
SPREADS: Mapping[str, float] = {"point": 0.0, "CoV 10 %": 0.1, "CoV 20 %": 0.2, "CoV 50 %": 0.5}
"""Systems of figure 9: standard deviation of what is given, as a share of the true run time; 0: one estimate."""
PREDICTIONS = 1_000
BY_SEED = Mapping[str, Numbers]

WHOLE_PLANNER = "the daemon's cycles and whole planner, in the simulator"
PROGRAM_ALONE = "the linear program alone, in cycles of 15 s"


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _systems()
    yield _by_slack()
    yield _by_shift()
    yield _by_load()
    yield _by_samples()
    yield _by_scale()


# ----------------------------------------------------------------------------------------------------------------- runs
def system_numbers(
    name: str,
    size: RunSize,
    seed: int,
    within: Path | None,
    *,
    whole: bool = False,
    load: float = LOAD,
    slacks: Sequence[float] = SLACKS,
    samples: int | None = None,
) -> Numbers:
    """Return what comes out with one of the paper's systems; ``whole``: with the whole planner, in the simulator.

    Raises NoJobs where no deadline lies within the run.
    """
    trace = trace_of(size, seed, load=load, slacks=slacks, samples=samples)
    return _numbers(trace, SYSTEMS[name], size, seed, within, whole=whole)


def trace_of(
    size: RunSize, seed: int, *, load: float = LOAD, slacks: Sequence[float] = SLACKS, samples: int | None = None
) -> JobTrace:
    """Return the workload of a seed; ``samples``: how many earlier runs of a program are known, on average, the first
    ones of the same; None: as usual."""
    known, nodes = PAST_RUNS if samples is None else max(SAMPLES), nodes_at(size.share)
    trace = make_trace(seed, load=load, slacks=slacks, hours=size.hours, past_runs=known, nodes=nodes)
    return trace if samples is None else replace(trace, past=trace.past[: samples * PROGRAMS])


def shifted_numbers(spread: float, shift: float, size: RunSize, seed: int, _: Path | None) -> Numbers:
    """Return what comes out where run times are off by ``shift`` in the mean, and as wide as ``spread`` says."""
    run_times = partial(shifted, seed=seed, shift=shift, spread=spread)
    system = ClusterScheduler(name="", run_times=run_times, overestimates="adaptive" if spread else "no")
    trace = make_trace(seed, hours=size.hours, past_runs=0, nodes=nodes_at(size.share))
    return _numbers(trace, system, size, seed, None, whole=False)


def _numbers(
    trace: JobTrace, system: ClusterScheduler, size: RunSize, seed: int, within: Path | None, *, whole: bool
) -> Numbers:
    if not any(job.deadline_s is not None and job.deadline_s <= trace.span_s for job in trace.jobs):
        raise NoJobs(f"no deadline lies within --hours {size.hours:g}; increase it")
    found: ClusterResult = (
        run_system(system, trace, share=size.share, seed=seed, within=within)
        if whole
        else simulate(trace, system, nodes_at(size.share))
    )
    return {name: float(value) for name, value in asdict(found).items()}


def scale_numbers(count: int, as_points: bool, _: Path | None, seed: int) -> Numbers:
    """Return the CPU time of a plan for ``count`` pending jobs, the least of some, by distributions or points."""
    plans = [one_plan(count, seed, as_points=as_points) for _ in range(REPEATS)]
    return {"plan_s": min(took_s for took_s, _ in plans), "start": float(len(plans[0][1].starting))}


def prediction_numbers(name: str, _: Path | None, seed: int) -> Numbers:
    """Return the longest and the mean processor time of one prediction, once a trace's past is known."""
    predictor = {OURS: MixturePredictor, PRINTED: PrintedPredictor}[name]()
    trace = make_trace(seed, hours=1.0)
    for features, run_s in trace.past:
        predictor.observe(features, run_s)
    took_s = []
    for at in range(PREDICTIONS):
        began_s = time.process_time()
        predictor.predict(trace.jobs[at % len(trace.jobs)].features)
        took_s.append(time.process_time() - began_s)
    return {"longest_ms": 1e3 * max(took_s), "mean_ms": 1e3 * fmean(took_s)}


# --------------------------------------------------------------------------------------------------------------- claims
def _claim(
    text: str,
    published: str,
    ours: Callable[[BY_SEED], float],
    holds: Callable[[float], bool],
    unit: str = "points",
    why: str = "",
) -> Claim:
    return Claim(text=text, published=published, ours=ours, holds=holds, unit=unit, why=why)


def _at_most(text: str, published: str, case: str, name: str, most: float, unit: str) -> Claim:
    """Return the claim that a number of one case is not above ``most``."""
    return _claim(text, published, lambda seed: seed[case][name], lambda value: value <= most, unit)


def _more_missed(seed: BY_SEED, one: Sequence[str], other: Sequence[str], of: str = MISSED) -> float:
    """Return how much greater a number is in the cases ``one`` than in the ``other``, on average."""
    # Rounded: where both are the same, sums in another order are not to count as a difference.
    return round(fmean(seed[each][of] for each in one) - fmean(seed[each][of] for each in other), 9)


def _less_pct(seed: BY_SEED, less: Sequence[str], than: Sequence[str], of: str = EFFORT) -> float:
    """Return how much less a number is in the cases ``less``, in percent."""
    return 100.0 * (1.0 - sum(seed[each][of] for each in less) / max(1e-9, sum(seed[each][of] for each in than)))


def _more(text: str, published: str, one: Sequence[str], other: Sequence[str], why: str = "") -> Claim:
    """Return the claim that the cases ``one`` miss more deadlines than the ``other``."""
    return _claim(text, published, lambda seed: _more_missed(seed, one, other), lambda value: value > 0.0,
                  "points more", why)  # fmt: skip


def _near(text: str, published: str, one: Sequence[str], other: Sequence[str]) -> Claim:
    """Return the claim that the cases ``one`` miss hardly more deadlines than the ``other``."""
    return _claim(text, published, lambda seed: _more_missed(seed, one, other), lambda value: value <= LITTLE,
                  "points more")  # fmt: skip


def _less_effort(text: str, published: str, less: Sequence[str], than: Sequence[str], why: str = "") -> Claim:
    """Return the claim that the cases ``less`` do less work of best effort."""
    return _claim(text, published, lambda seed: _less_pct(seed, less, than), lambda value: value > 0.0, "% less", why)


# ------------------------------------------------------------------------------------------------------------- figure 6
def _systems() -> Figure:
    def near_published(name: str) -> Claim:
        most, published = THREE_SIGMA_PCT / ENOUGH, f"{THREE_SIGMA_PCT:g} %"
        return _at_most(f"{name} misses few deadlines", published, name, MISSED, most, "% of them")

    def more(name: str, published: float) -> Claim:
        return Claim(
            text=f"{name} misses more deadlines than {OURS}",
            published=f"{published:g} % beside {THREE_SIGMA_PCT:g}",
            ours=lambda seed: seed[name][MISSED] - seed[OURS][MISSED],
            effect=Effect(published - THREE_SIGMA_PCT),
            unit="points more",
        )

    def spread_of_latency(seed: BY_SEED) -> float:
        all_s = [seed[name]["latency_s"] for name in (OURS, PERFECT, POINT, PRIO)]
        return 100.0 * (max(all_s) / max(1e-9, min(all_s)) - 1.0)

    return Figure(
        name="3sigma-systems",
        title="Nine schedulers: deadlines with 20 to 80 % of slack, load 1.4",
        source=f"3Sigma §6.1, fig. 6, with padded estimates (§2.2) and those of fig. 8; {WHOLE_PLANNER}",
        cases=tuple(
            SizedCase(label=name, numbers=partial(system_numbers, name, whole=True)) for name in SYSTEMS
        ),
        columns=COLUMNS,
        claims=(
            near_published(OURS),
            near_published(PRINTED),
            more(POINT, POINT_PCT),
            more(PRIO, PRIO_PCT),
            _near(f"{OURS} misses little more than perfect run times do", "a few more", (OURS,), (PERFECT,)),
            Claim(
                text=f"{POINT} does less work than {OURS}",
                published="5.4 % less",
                ours=lambda seed: _less_pct(seed, (POINT,), (OURS,), "goodput_node_h"),
                effect=Effect(5.4),
                unit="% less",
            ),
            _less_effort(f"{PRIO} does less best effort than {OURS}", "much less", (PRIO,), (OURS,)),
            _less_effort(f"{OURS} does less best effort than perfect run times", "fewer jobs", (OURS,), (PERFECT,)),
            _claim("jobs of best effort take about as long with all four", "similar", spread_of_latency,
                   lambda value: value <= 30.0, "% between the least and the most",
                   "strict priorities stop them several times as often as plans do"),
            _more("padded estimates help: points as they are miss more", "they help", (POINT,), (PADDED,),
                  "most padded estimates end after the deadline, and such jobs are not tried"),
            _more(f"they are no remedy: they miss more than {OURS}", "problems remain", (PADDED,), (OURS,)),
            _more("3Sigma's predictor misses more than ours, with the same planner", "-", (PRINTED,), (OURS,)),
        ),
        drawn=MISSED,
        published={PRINTED: THREE_SIGMA_PCT, POINT: POINT_PCT, PRIO: PRIO_PCT},
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- figure 8
def _by_slack() -> Figure:
    def at(name: str, *slacks: int) -> tuple[str, ...]:
        return tuple(f"{name}, slack {slack} %" for slack in slacks or SLACK_PCTS)

    least, most = SLACK_PCTS[0], SLACK_PCTS[-1]

    def effort_kept(seed: BY_SEED) -> float:
        falls = [_less_pct(seed, at(name, most), at(name, least)) for name in (PERFECT, OURS)]
        return falls[0] - falls[1]

    return Figure(
        name="3sigma-slack",
        title="By slack of all deadlines, each of our techniques left out",
        source=f"3Sigma §6.2, §6.4, fig. 8; {PROGRAM_ALONE}",
        cases=tuple(
            SizedCase(
                label=at(name, slack)[0],
                numbers=partial(system_numbers, name, slacks=(slack / 100,)),
            )
            for slack in SLACK_PCTS
            for name in (OURS, PERFECT, POINT, NO_DIST, NO_OE, NO_ADAPT)
        ),
        columns=COLUMNS,
        claims=(
            _more(f"{POINT} misses more than {NO_DIST}: too long estimates are tried", "more", at(POINT), at(NO_DIST)),
            _more(f"{NO_DIST} misses more than {OURS}", "still high", at(NO_DIST), at(OURS)),
            _near(f"{NO_OE} misses about as many as perfect run times, from 60 % of slack on",
                  "their level for most slacks", at(NO_OE, *SLACK_PCTS[1:]), at(PERFECT, *SLACK_PCTS[1:])),
            _more(f"slack {least} %: {NO_OE} misses more than {NO_ADAPT}", "more", at(NO_OE, least),
                  at(NO_ADAPT, least), "our distributions are wide: hardly any deadline seems out of reach"),
            _less_effort(f"{NO_ADAPT} does less best effort than {OURS}", "less", at(NO_ADAPT), at(OURS)),
            *(
                _more(f"{name} misses more with slack {least} % than with {most} %", "more", at(name, least),
                      at(name, most))
                for name in (OURS, PERFECT, POINT)
            ),
            _less_effort("perfect run times do less best effort with more slack", "less", at(PERFECT, most),
                         at(PERFECT, least)),
            _claim(f"{OURS} loses less of it than they do", "the smallest decrease", effort_kept,
                   lambda value: value > 0.0),
        ),
        drawn=MISSED,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- figure 9
def _by_shift() -> Figure:
    def at(name: str, *shifts: int) -> tuple[str, ...]:
        return tuple(f"{name}, off by {shift} %" for shift in shifts)

    narrow, wide, spreads = "CoV 10 %", "CoV 50 %", tuple(SPREADS)[1:]

    def fewer(seed: BY_SEED) -> float:
        return _less_pct(seed, at(narrow, 0), at("point", 0), MISSED)

    return Figure(
        name="3sigma-shift",
        title="By how far run times are off in the mean, and how wide they are",
        source=f"3Sigma §6.3, fig. 9; points without allowance for overestimates; {PROGRAM_ALONE}",
        cases=tuple(
            SizedCase(label=at(name, shift)[0], numbers=partial(shifted_numbers, spread, shift / 100))
            for shift in SHIFT_PCTS
            for name, spread in SPREADS.items()
        ),
        columns=COLUMNS,
        claims=(
            Claim(
                text="not off in the mean: distributions miss fewer than points",
                published="half as many",
                ours=fewer,
                effect=Effect(50.0),
                unit="% fewer",
            ),
            *(
                _more(f"off by {shift} %: points miss more than distributions (mean of the three)", "strictly more",
                      at("point", shift), [each for name in spreads for each in at(name, shift)])
                for shift in SHIFT_PCTS
            ),
            _more("off by up to 20 %: wide distributions miss more than narrow ones", "more", at(wide, -20, 0, 20),
                  at(narrow, -20, 0, 20), "wide ones leave time where run times seem too short; else both do as well"),
            _more("off by 50 % and more: narrow ones miss more than wide ones", "more", at(narrow, -50, 50, 100),
                  at(wide, -50, 50, 100)),
        ),
        drawn=MISSED,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ figure 10
def _by_load() -> Figure:
    def at(name: str, *loads: float) -> tuple[str, ...]:
        return tuple(f"{name}, load {load:g}" for load in loads or LOADS)

    least, most = LOADS[0], LOADS[-1]

    def gap_grown(seed: BY_SEED) -> float:
        return _more_missed(seed, at(PERFECT, most), at(OURS, most), EFFORT) - _more_missed(
            seed, at(PERFECT, least), at(OURS, least), EFFORT
        )

    names = (OURS, PERFECT, POINT, PRIO)
    return Figure(
        name="3sigma-load",
        title="By load: jobs with deadlines and of best effort, in halves",
        source=f"3Sigma §6.4, fig. 10; {WHOLE_PLANNER}",
        cases=tuple(
            SizedCase(label=at(name, load)[0], numbers=partial(system_numbers, name, whole=True, load=load))
            for load in LOADS
            for name in names
        ),
        columns=COLUMNS,
        claims=(
            *(
                _near(f"load {load:g}: {OURS} misses little more than perfect run times do", "matching closely",
                      at(OURS, load), at(PERFECT, load))
                for load in LOADS
            ),
            _more(f"{POINT} misses more than {OURS}, all loads", "at each load", at(POINT), at(OURS)),
            _more(f"{PRIO} misses more than {OURS}, all loads", "at each load", at(PRIO), at(OURS)),
            *(
                _more(f"{name} misses more at {most:g} than at {least:g}", "more", at(name, most), at(name, least))
                for name in names
            ),
            _less_effort(f"{OURS} does less best effort at {most:g} than at {least:g}", "less", at(OURS, most),
                         at(OURS, least)),
            _claim("the gap in best effort between perfect run times and ours grows with load", "it widens",
                   gap_grown, lambda value: value > 0.0, "node-hours"),
        ),
        drawn=MISSED,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ figure 11
def _by_samples() -> Figure:
    def at(name: str, *samples: int) -> tuple[str, ...]:
        return tuple(f"{name}, {count} runs" for count in samples or SAMPLES)

    def gained_more(seed: BY_SEED) -> float:
        first, last = SAMPLES[0], SAMPLES[-1]
        return _more_missed(seed, at(PRINTED, first), at(PRINTED, last)) - _more_missed(
            seed, at(POINT, first), at(POINT, last)
        )

    perfect = SizedCase(label=PERFECT, numbers=partial(system_numbers, PERFECT, samples=SAMPLES[0]))
    return Figure(
        name="3sigma-samples",
        title="By known runs of each program, on average",
        source=f"3Sigma §6.4, fig. 11; {PROGRAM_ALONE}",
        cases=(
            perfect,
            *(
                SizedCase(label=at(name, count)[0], numbers=partial(system_numbers, name, samples=count))
                for count in SAMPLES
                for name in (OURS, PRINTED, POINT)
            ),
        ),
        columns=COLUMNS,
        claims=(
            *(
                _more(f"{name}: 5 runs miss more than 25", "significantly more", at(name, 5), at(name, 25))
                for name in (OURS, PRINTED, POINT)
            ),
            *(
                _near(f"{name}: 25 runs miss little more than perfect run times", "converged", at(name, 25), (PERFECT,))
                for name in (OURS, PRINTED)
            ),
            _more(f"{POINT} misses more than {PRINTED}, all numbers of runs", "at each", at(POINT), at(PRINTED)),
            _claim(f"{PRINTED} gains more from further runs (5 to 100) than {POINT}", "more", gained_more,
                   lambda value: value > 0.0),
        ),
        drawn=MISSED,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ figure 12
def _by_scale() -> Figure:
    kinds = {"distributions": False, "points": True}
    largest = max(PENDING)

    def at(kind: str, count: int) -> str:
        return f"{count} pending, {kind}"

    return Figure(
        name="3sigma-scale",
        title="Processor time of one plan on 12,583 nodes, beside 10,000 running jobs, and of one prediction",
        source=f"3Sigma §6.5, fig. 12; the linear program alone, the least time of {REPEATS}",
        cases=(
            *(
                ComputedCase(label=at(kind, count), numbers=partial(scale_numbers, count, as_points))
                for count in PENDING
                for kind, as_points in kinds.items()
            ),
            *(
                ComputedCase(label=f"prediction, {name}", numbers=partial(prediction_numbers, name))
                for name in (OURS, PRINTED)
            ),
        ),
        columns=("plan_s", "start", "mean_ms", "longest_ms"),
        claims=(
            _claim(
                f"{largest} pending: plans by distributions take moderately longer than by points", "moderately",
                lambda seed: -_less_pct(seed, [at("distributions", largest)], [at("points", largest)], "plan_s"),
                lambda value: value <= 50.0, "% longer",
            ),
            *(
                _at_most(f"{name}: the longest of {PREDICTIONS:,} predictions", "14 ms at most", f"prediction, {name}",
                         "longest_ms", 14.0, "ms")
                for name in (OURS, PRINTED)
            ),
        ),
        drawn="plan_s",
    )  # fmt: skip
