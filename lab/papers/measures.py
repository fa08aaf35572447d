"""What the numbers of figures are, in words: heads of tables and names of axes."""

from __future__ import annotations

from collections.abc import Mapping

UNITS = {"_pct": "%", "_usd": "USD", "_s": "s"}
NAMES: Mapping[str, str] = {
    "k2_error_pct": "mean error of predicted speeds, groups of two, %",
    "k3_error_pct": "mean error of predicted speeds, groups of three, %",
    "k2_R2_pct": "variance explained (R2), groups of two, %",
    "k3_R2_pct": "variance explained (R2), groups of three, %",
    "pairs_to_triples_error_pct": "mean error in groups of three, learnt from pairs only, %",
    "pairs_to_triples_R2_pct": "variance explained in groups of three, learnt from pairs only, %",
    "times_oracle": "time until all is done, as a multiple of the oracle's",
    "last_later_pct": "how much later the last job ends than by least_loss without pauses, %",
    "average_later_pct": "how much later the average job ends, %",
    "pauses": "pauses of programs",
    "three_last_later_pct": "of three on one server: how much later the last one ends, %",
    "three_average_later_pct": "of three on one server: how much later the average one ends, %",
    "k2_times_oracle": "at most two at a time: multiple of the oracle's time",
    "k3_times_oracle": "at most three at a time: multiple of the oracle's time",
    "imbalance_pct": "how much sooner the first server is done than the last, % of the whole time",
    "2_probes_error_pct": "mean error of a new program's speed, two chosen probes, %",
    "3_probes_error_pct": "mean error of a new program's speed, three chosen probes, %",
    "2_random_probes_error_pct": "mean error of a new program's speed, two random probes, %",
    "3_random_probes_error_pct": "mean error of a new program's speed, three random probes, %",
    "9_programs_pct": "geometric mean of speeds, 9 programs, % of the best placement's",
    "12_programs_pct": "geometric mean of speeds, 12 programs, % of the best placement's",
    "mean_rank_pct": "mean rank of the machine found, % of machines that are no better",
    "expected_rank_pct": "rank expected by R / (R + 1), %",
    "below_80_pct": "jobs with a machine below the 80th percentile, %",
    "expected_below_80_pct": "the same, expected by 0.8^R, %",
    "of_best_pct": "quality of the machine found, % of the best machine's",
    "below_90_pct": "jobs with a machine below the 90th percentile, %",
    "violated_pct": "jobs on a machine where a source is violated, %",
    "violated_needlessly_pct": "jobs of these for which another candidate violates none, %",
    "variance_left_pct": "variance of quality left inside buckets, %",
    "missed_pct": "deadlines missed, %",
    "goodput_node_h": "work done, node-hours",
    "best_effort_node_h": "of it best effort, node-hours",
    "latency_s": "best effort from submission to end, mean, s",
    "stopped": "best effort stopped for others, times",
    "plan_ms": "CPU time of a cycle, ms",
    "plan_s": "CPU time of one plan, s",
    "start": "jobs that it starts",
    "allocation_off_pct": "what jobs hold is off from what they need by, %",
    "held_pct": "vCPUs held by jobs, % of the cluster",
    "held_waiting_pct": "vCPUs held by jobs while others wait, % of the cluster",
    "whole_s": "until all jobs have ended, s",
    "waiting_pct": "time of jobs spent waiting, %",
    "framework_pct": "jobs of frameworks: performance, % of alone on the best type",
    "framework_turnaround_pct": "the same with waiting, %",
    "filler_pct": "jobs that fill the rest: performance, % of alone on the best type",
    "filler_turnaround_pct": "the same with waiting, %",
    "service_met_pct": "samples of services within their latency, %",
    "needed_pct": "vCPUs held up to jobs' need, % of the cluster",
    "beyond_need_pct": "held beyond it, % of the cluster",
    "classified_ms": "CPU time of classifying one job, ms",
    "profiling_pct": "time of profiling runs, % of jobs' ideal run times",
    "planning_pct": "CPU time of plans, % of jobs' ideal run times",
    "known_within_s": "from a job's arrival until it is profiled, median, s",
    "lost_below_10_pct": "jobs that lost at most a tenth, %",
    "normal_off_pct": "busy times: largest distance from a normal distribution, points",
    "log_normal_off_pct": "the same, of their logarithms, points",
    "one_free_s": "60 % of servers are busy for at most, s",
    "some_free_s": "with 60 % the first of all is free within, s",
    "freed_in_time_pct": "one was free by then, % of times",
    "freed_in_time_ends_only_pct": "the same if what still runs did not count, % of times",
    "freed_in_time_all_known_pct": "the same if all busy times of the run were known, % of times",
    "all_longer_pct": "all jobs: run longer than ideally (median), %",
    "all_later_pct": "all jobs: end later than ideally, %",
    **{f"shortest_{share}_longer_pct": f"shortest {share} %: run longer, %" for share in (25, 50, 75)},
    **{f"shortest_{share}_later_pct": f"shortest {share} %: end later, %" for share in (25, 50, 75)},
    "urgent_later_pct": "urgent jobs: end later, %",
    "others_later_pct": "other jobs: end later, %",
    "best_pct": "best type recognised, % of programs",
    "within_5_of_best_pct": "a type within 5 % of the best chosen, % of programs",
    "ranked_pct": "all types ranked right, % of programs",
    "ranked_but_two_pct": "all but two ranked right, % of programs",
    "half_ranked_pct": "half of the types ranked right, % of programs",
    "probed_best_pct": "best type among the measured ones, % of programs",
    "error_pct": "mean error, %",
    "p90_error_pct": "90 % of errors are below, %",
    "most_error_pct": "largest error, %",
    "all_error_pct": "mean error of tolerated pressure, points",
    "counted_error_pct": "the same, sources that decisions count, points",
    "below_30_error_pct": "tolerates less than 30: mean error, points",
    "below_60_error_pct": "less than 60: mean error, points",
    "above_60_error_pct": "more than 60: mean error, points",
    "within_5_pct": "programs with a mean error below 5 points, %",
    "within_10_pct": "below 10 points, %",
    "within_20_pct": "below 20 points, %",
    "mean_ms": "CPU time of one prediction, mean, ms",
    "longest_ms": "longest, ms",
}
"""Names of numbers that only some figures have."""
AXES: Mapping[str, str] = {
    "performance_pct": "mean performance, % of alone on the best type",
    "qos_kept_pct": "jobs that lost at most 5 % of their performance, %",
    "turnaround_pct": "mean performance with waiting, % of alone on the best type",
    "target_met_pct": "targets met, %",
    "cost_usd": "cost, USD",
}
"""Names of axes; tables show these numbers in short."""


def head_of(name: str) -> str:
    """Return the head of a number's column: what it is, and its unit."""
    if name in NAMES:
        return NAMES[name]
    for ending, unit in UNITS.items():
        if name.endswith(ending):
            return f"{name.removesuffix(ending).replace('_', ' ')}, {unit}"
    return name.replace("_", " ")


def axis_of(name: str) -> str:
    """Return the name of a number's axis: what is measured, of what, and its unit."""
    return AXES.get(name) or head_of(name)
