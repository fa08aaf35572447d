"""The chapter of ESP (ICAC 2016): speeds beside named neighbours, and schedules that use them, on its own measurements.

The paper's groups of four to seven are not part of what is to be had; what it states over all sizes is compared with
sizes two and three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from bench.accuracy.pqsgd import PqSgd
from bench.neighbours import LOG_LINK, MODELS, PAIR_TABLE, PRINTED, SERVER, TRAINED, MeasuredGroups, joined, score
from hcloud.classifier.slowdown.table import CoRunQuestion, FittedSlowdown
from lab.co_schedules import (
    CoRunSets,
    Floats,
    Group,
    Place,
    ServersOutcome,
    any_server,
    at_random,
    by_difference,
    by_least_finish,
    drawn_servers,
    in_steps,
    least_finish,
    least_loss,
    most_varied,
    on_servers,
    until_one_ends,
)
from lab.papers.measured import counters, measured_groups
from lab.papers.study import (
    Claim,
    ComputedCase,
    Effect,
    Figure,
    Numbers,
    computed_cases,
    given,
)

ORACLE, RANDOM, ALONE = "oracle", "random", "one after another"
FILTERING = "collaborative filtering (PQ-SGD)"
ACTIVITY: Mapping[str, tuple[str, ...]] = {
    "MEM": ("mem_read_total", "mem_write_total"),
    "IPC": ("ipc_total",),
    "L3R": ("l2miss_total",),
}
"""Activity vectors by the resource that they weigh: counters that are added up. Requests of the third cache are what
the second misses."""
LEARNT_SHARE = {2: 0.7, 3: 0.4}
"""Share of the groups of each size that schedules learn from (ESP table I)."""
LEAST_SPEED, UNKNOWN_SPEED = 0.02, 0.3
"""Least expected speed, and the true one where the measurement is an artefact."""
WORK_S = (20.0, 200.0)
"""Programs need so long alone; the paper says 10 s or more."""
JOBS, SERVERS = 40, (2, 3, 4)
CAUTION = 5.0
"""Steps that work is scheduled in (eta), as printed for several servers; for one the paper does not say."""
SIZES = (2, 3)


TOGETHER = "least_loss, together"
TURNS: Mapping[str, tuple[str, bool]] = {
    TOGETHER: ("loss", False),
    "least_loss, in turns": ("loss", True),
    "algorithm 3, together": ("finish", False),
    "algorithm 3, in turns": ("finish", True),
    "any server, together": ("any", False),
    "any server, in turns": ("any", True),
}
"""Rules of placement, and whether the programs of a server are paused for each other (algorithm 2, as the product
does it)."""
LONGER, STEP_S, DRAWS = 10.0, 60.0, 20
"""Jobs of that figure run so many times as long as those of the others, as a turn of the product takes a minute."""


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _accuracy()
    yield _one_server()
    yield _servers()
    yield _turns()


# ------------------------------------------------------------------------------------------------------------- accuracy
def _split(groups: MeasuredGroups, learnt: float, seed: int) -> tuple[MeasuredGroups, MeasuredGroups]:
    """Return the groups that are learnt from and the others."""
    combos = np.random.default_rng(seed).permutation(np.unique(groups.combos))
    is_learnt = np.isin(groups.combos, combos[: round(learnt * len(combos))])
    return groups.take(np.flatnonzero(is_learnt)), groups.take(np.flatnonzero(~is_learnt))


def accuracy_numbers(model: str, folder: Path | None, seed: int) -> Numbers:
    """Return errors and R2 of a model on groups left out, by size, and on triples where it knows pairs only."""
    groups = measured_groups(given(folder))
    found = dict[str, float]()
    for size in SIZES:
        learnt, asked = _split(groups[size], TRAINED, seed)
        scored = score(MODELS[model].fit(learnt.table), asked)
        found |= {f"k{size}_error_pct": scored.error_pct, f"k{size}_R2_pct": 100.0 * scored.r2}
    carried = score(_of_pairs(model, given(folder)), groups[3])
    return {**found, "pairs_to_triples_error_pct": carried.error_pct, "pairs_to_triples_R2_pct": 100.0 * carried.r2}


@cache
def _of_pairs(model: str, folder: Path) -> FittedSlowdown:
    return MODELS[model].fit(measured_groups(folder)[2].table)


def filtering_numbers(folder: Path | None, seed: int) -> Numbers:
    """Return errors and R2 of Paragon's collaborative filtering of pairs (ESP §IV-F)."""
    learnt, asked = _split(measured_groups(given(folder))[2], TRAINED, seed)
    programs = sorted(learnt.table.features)
    at = {name: number for number, name in enumerate(programs)}
    speeds = np.full((len(programs), len(programs)), np.nan)
    np.fill_diagonal(speeds, 1.0)
    for each, speed in zip(learnt.table.questions, learnt.speed, strict=True):
        speeds[at[each.application], at[each.neighbours[0]]] = min(1.0, speed)
    filled = PqSgd().reconstruct(speeds)
    guess = np.array([filled[at[each.application], at[each.neighbours[0]]] for each in asked.table.questions])
    guess, cut = np.clip(guess, LEAST_SPEED, 1.0), np.minimum(asked.speed, 1.0)
    error = float((np.abs(guess - asked.speed) / asked.speed).mean())
    r2 = 1.0 - float(((guess - cut) ** 2).sum() / ((cut - cut.mean()) ** 2).sum())
    return {"k2_error_pct": 100.0 * error, "k2_R2_pct": 100.0 * r2}


def _accuracy() -> Figure:
    def of(model: str, name: str) -> Claim:
        published = {"k2_R2_pct": 76.0, "k3_R2_pct": 93.0}[name]
        size = name[1]
        return Claim(
            text=f"{model}, 70 % of the groups of {size} known: how much of the variance it explains (R2)",
            published=f"{published:g} %" + (" to 96 % for groups of three and more" if size == "3" else ""),
            ours=lambda seed: seed[model][name],
            holds=lambda value: value >= published,
            unit="% of the variance",
        )

    return Figure(
        name="esp-accuracy",
        title="Speeds beside named neighbours: errors of ESP's model and of ours",
        source="ESP §IV-E, §IV-F, figs. 5 and 6",
        cases=(
            *(ComputedCase(label=name, numbers=partial(accuracy_numbers, name)) for name in MODELS),
            ComputedCase(label=FILTERING, numbers=filtering_numbers),
        ),
        columns=(
            "k2_error_pct", "k2_R2_pct", "k3_error_pct", "k3_R2_pct", "pairs_to_triples_error_pct",
            "pairs_to_triples_R2_pct",
        ),
        claims=(
            of(PRINTED, "k2_R2_pct"),
            of(PRINTED, "k3_R2_pct"),
            of(LOG_LINK, "k3_R2_pct"),
            of(PAIR_TABLE, "k2_R2_pct"),
            of(PAIR_TABLE, "k3_R2_pct"),
            Claim(
                text="ESP explains more of the variance of pairs than collaborative filtering does",
                published="always more (fig. 6)",
                ours=lambda seed: seed[PRINTED]["k2_R2_pct"] - seed[FILTERING]["k2_R2_pct"],
                holds=lambda value: value > 0.0,
                unit="points",
            ),
            Claim(
                text="who knows pairs only: the pair table's error on triples beside that of ESP as printed",
                published="-",
                ours=lambda seed: 100.0 * (1.0 - seed[PAIR_TABLE]["pairs_to_triples_error_pct"]
                                           / seed[PRINTED]["pairs_to_triples_error_pct"]),
                holds=lambda value: value > 0.0,
                unit="% lower",
            ),
        ),
        drawn="k3_R2_pct",
        published={PRINTED: 93.0},
        of_data=measured_groups,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ schedules
@cache
def _true(folder: Path, size: int) -> CoRunSets:
    """Return the measured speeds of all sets up to a size."""
    groups = measured_groups(folder)
    programs = sorted(groups[2].table.features)
    measured = {
        (each.application, frozenset(each.neighbours)): min(1.0, float(speed))
        for part in groups.values()
        for each, speed in zip(part.table.questions, part.speed, strict=True)
    }

    def speed(member: int, beside: Group) -> float:
        found = measured.get((programs[member], frozenset(programs[each] for each in beside)), UNKNOWN_SPEED)
        return max(LEAST_SPEED, found)

    return CoRunSets.of(len(programs), size, speed)


@cache
def _expected(folder: Path, size: int, model: str, seed: int) -> CoRunSets:
    """Return the speeds that a model expects which was fitted to each size's share of the groups."""
    groups = measured_groups(folder)
    programs = sorted(groups[2].table.features)
    learnt = {each: _split(groups[each], share, seed)[0] for each, share in LEARNT_SHARE.items() if each <= size}
    if model == PAIR_TABLE:  # which carries over from one size to the next
        learnt = dict.fromkeys(learnt, joined(list(learnt.values())))
    fitted = {each: MODELS[model].fit(groups.table) for each, groups in learnt.items()}

    def speed(member: int, beside: Group) -> float:
        question = CoRunQuestion(programs[member], tuple(programs[each] for each in beside), SERVER, None)
        answer = fitted[len(beside) + 1].slowdown(question)
        return LEAST_SPEED if answer is None else max(LEAST_SPEED, float(np.exp(-answer.mean)))

    return CoRunSets.of(len(programs), size, speed)


def _need(folder: Path, resource: str) -> Floats:
    used = counters(folder, ACTIVITY[resource])
    sums = np.array([used[name].sum() for name in sorted(used)])
    return np.asarray(sums / sums.max())


def one_server_numbers(rule: str, folder: Path | None, seed: int) -> Numbers:
    """Return the time that all programs take on one server, as times the oracle's, by how many may share it."""
    data, found = given(folder), {}
    for size in SIZES:
        true, rng = _true(data, size), np.random.default_rng(seed)
        work = rng.uniform(*WORK_S, len(true.speeds))
        found[f"k{size}_times_oracle"] = _on_one(rule, data, size, seed, work, rng) / in_steps(true, true, work, 1.0)
    return {**found, "times_oracle": float(np.mean(list(found.values())))}


def _on_one(rule: str, data: Path, size: int, seed: int, work: Floats, rng: np.random.Generator) -> float:
    """Return the seconds that a rule takes for the work of a server."""
    true = _true(data, size)
    if rule == ALONE:
        return float(work.sum())
    if rule == RANDOM:
        return until_one_ends(true, work, size, at_random(rng))
    if rule in ACTIVITY:
        return until_one_ends(true, work, size, most_varied(_need(data, rule)))
    if rule == ORACLE:
        return in_steps(true, true, work, 1.0)
    return in_steps(true, _expected(data, size, rule, seed), work, CAUTION)


def servers_numbers(rule: str, folder: Path | None, seed: int) -> Numbers:
    """Return the time until the last of several servers is done with 40 jobs, as times the oracle's, and by how much
    servers differ, as a share of that time."""
    data, times, spread = given(folder), list[float](), list[float]()
    for size in SIZES:
        programs = len(_true(data, size).speeds)
        for servers in SERVERS:
            rng = np.random.default_rng((seed, size, servers))
            jobs = [(int(rng.integers(programs)), float(rng.uniform(*WORK_S))) for _ in range(JOBS)]
            taken = _on_several(rule, data, size, servers, seed, jobs)
            times.append(max(taken) / _oracles_time(data, size, servers, seed, tuple(jobs)))
            spread.append(100.0 * (max(taken) - min(taken)) / max(taken))
    return {"times_oracle": float(np.mean(times)), "imbalance_pct": float(np.mean(spread))}


@cache
def _oracles_time(data: Path, size: int, servers: int, seed: int, jobs: tuple[tuple[int, float], ...]) -> float:
    return max(_on_several(ORACLE, data, size, servers, seed, list(jobs)))


def _on_several(
    rule: str, data: Path, size: int, servers: int, seed: int, jobs: list[tuple[int, float]]
) -> list[float]:
    """Return the seconds that each server is busy."""
    rng, programs = np.random.default_rng((seed, 7)), len(_true(data, size).speeds)
    if rule == RANDOM:
        work = drawn_servers(programs, jobs, servers, rng)
    elif rule in ACTIVITY:
        work = by_difference(_need(data, rule), jobs, servers)
    else:
        expected = _true(data, size) if rule == ORACLE else _expected(data, size, rule, seed)
        work = by_least_finish(expected, jobs, servers)
    return [_on_one(rule, data, size, seed, work[:, at], rng) for at in range(servers)]


RULES = (ORACLE, PRINTED, PAIR_TABLE, *ACTIVITY, RANDOM)


def _less_than(ours: str, other: str, published: float) -> Claim:
    return Claim(
        text=f"schedules by {ours} take less time than {'random ones' if other == RANDOM else f'those by {other}'}",
        published=f"{published:g} % less",
        ours=lambda seed: 100.0 * (1.0 - seed[ours]["times_oracle"] / seed[other]["times_oracle"]),
        effect=Effect(published),
        unit="% less",
    )


def _near_oracle(ours: str, most_pct: float, published: str) -> Claim:
    return Claim(
        text=f"schedules by {ours} come near the oracle's",
        published=published,
        ours=lambda seed: 100.0 * (seed[ours]["times_oracle"] - 1.0),
        holds=lambda value: value <= most_pct,
        unit="% longer",
    )


def _one_server() -> Figure:
    less = {"MEM": 25.0, "IPC": 29.0, "L3R": 27.0, RANDOM: 26.0}
    return Figure(
        name="esp-one-server",
        title="15 programs on one server, at most two or three at a time",
        source="ESP §IV-B, fig. 1 (algorithm 2)",
        cases=computed_cases(one_server_numbers, (*RULES, ALONE)),
        columns=("times_oracle", *(f"k{size}_times_oracle" for size in SIZES)),
        claims=(
            _near_oracle(PRINTED, 5.0, "5 % longer (two to six at a time)"),
            *(_less_than(PRINTED, other, share) for other, share in less.items()),
            _near_oracle(PAIR_TABLE, 5.0, "5 % longer (two to six at a time)"),
            _less_than(PAIR_TABLE, RANDOM, 26.0),
        ),
        drawn="times_oracle",
        published={PRINTED: 1.05},
        of_data=measured_groups,
    )  # fmt: skip


def _servers() -> Figure:
    less = {"MEM": 47.0, "IPC": 61.0, "L3R": 47.0, RANDOM: 54.0}
    return Figure(
        name="esp-servers",
        title="40 jobs on two, three and four servers, at most two or three at a time",
        source="ESP §IV-C, figs. 3 and 4 (algorithm 3)",
        cases=computed_cases(servers_numbers, RULES),
        columns=("times_oracle", "imbalance_pct"),
        claims=(
            _near_oracle(PRINTED, 13.0, "5 to 13 % longer"),
            *(_less_than(PRINTED, other, share) for other, share in less.items()),
            _near_oracle(PAIR_TABLE, 13.0, "5 to 13 % longer"),
            _less_than(PAIR_TABLE, RANDOM, 54.0),
        ),
        drawn="times_oracle",
        published={PRINTED: 1.13},
        of_data=measured_groups,
    )


def turns_numbers(rule: str, folder: Path | None, seed: int) -> Numbers:
    """Return how much later the last job ends, and the average one, than where ``least_loss`` places them and nothing
    is paused, in percent: of 40 jobs on several servers, and of three on one with nothing that waits."""
    data = given(folder)
    queued = [(_taken(rule, data, each, JOBS, seed), _taken(TOGETHER, data, each, JOBS, seed)) for each in SERVERS]
    alone = [
        (_taken(rule, data, 1, max(SIZES), (seed, each)), _taken(TOGETHER, data, 1, max(SIZES), (seed, each)))
        for each in range(DRAWS)
    ]
    last, average = _later_pct(queued)
    three_last, three_average = _later_pct(alone)
    return {
        "last_later_pct": last,
        "average_later_pct": average,
        "pauses": float(np.mean([made.pauses for made, _ in queued])),
        "three_last_later_pct": three_last,
        "three_average_later_pct": three_average,
    }


def _later_pct(pairs: Sequence[tuple[ServersOutcome, ServersOutcome]]) -> tuple[float, float]:
    last = float(np.mean([made.makespan_s / base.makespan_s for made, base in pairs]))
    average = float(np.mean([made.turnaround_s / base.turnaround_s for made, base in pairs]))
    return 100.0 * (last - 1.0), 100.0 * (average - 1.0)


@cache
def _taken(rule: str, data: Path, servers: int, count: int, seed: int | tuple[int, int]) -> ServersOutcome:
    """Return what becomes of ``count`` jobs; where they are as many as one server holds, all of different programs."""
    first = seed if isinstance(seed, int) else seed[0]
    true, expected = _true(data, max(SIZES)), _expected(data, max(SIZES), PAIR_TABLE, first)
    rng, (placed, is_in_turns) = np.random.default_rng((servers, *np.atleast_1d(seed))), TURNS[rule]
    programs = rng.choice(len(true.speeds), count, replace=count > max(SIZES))
    jobs = [(int(each), LONGER * float(rng.uniform(*WORK_S))) for each in programs]
    places: Mapping[str, Place] = {
        "loss": least_loss(expected),
        "finish": least_finish(expected, in_turns=is_in_turns),
        "any": any_server(np.random.default_rng(first)),
    }
    return on_servers(true, expected, jobs, servers, place=places[placed], step_s=STEP_S if is_in_turns else None)


def _turns() -> Figure:
    def later(rule: str, column: str, text: str) -> Claim:
        return Claim(
            text=text,
            published="-",
            ours=lambda seed: seed[rule][column],
            holds=lambda value: value <= 0.0,
            unit="% later",
        )

    return Figure(
        name="esp-turns",
        title="40 jobs that wait for two to four servers of three each: do turns help?",
        source="ESP §III-A, §III-B (algorithms 2 and 3), as HCloud does them",
        cases=computed_cases(turns_numbers, TURNS),
        columns=("last_later_pct", "average_later_pct", "pauses", "three_last_later_pct", "three_average_later_pct"),
        claims=(
            later("least_loss, in turns", "last_later_pct", "in turns the last job ends no later than together"),
            later("least_loss, in turns", "average_later_pct", "in turns the average job ends no later than together"),
            later("algorithm 3, in turns", "last_later_pct", "by algorithms 2 and 3 the last ends no later either"),
            later("least_loss, in turns", "three_last_later_pct", "of three on one server the last ends no later"),
            later("least_loss, in turns", "three_average_later_pct", "of three on one server the average one neither"),
        ),
        drawn="last_later_pct",
        published={},
        of_data=measured_groups,
    )
