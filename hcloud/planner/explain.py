"""The timeline of a job, built from its events: why it waited, what was launched for it, where it ran, what it cost.

Pure: events and rows in, lines out. Decisions are shown with their own text and numbers, next to what was measured
later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hcloud.core.model import JOB_ENDED, Event, EventKind, Instance, InstanceId, Job, JobState, Resources
from hcloud.core.redone_work import RedoneWork
from hcloud.core.task_runs import ends_of_text
from hcloud.forecast.runtimes.prediction import RECORDED_IN, RunTimePrediction
from hcloud.planner.text import failure, percent, price, seconds, size_share, usd
from hcloud.spec.validation import counted

_SHOWN_BY_NEXT = {JobState.PLACED, *JOB_ENDED}
"""In these states the next event shows the reason, with more: the placement, or the end of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineStep:
    """One step of a timeline."""

    at: float
    code: str
    """Stable code of the step."""
    text: str
    """One sentence for users."""
    numbers: Mapping[str, object] = field(default_factory=dict)
    """Fields of the event behind it."""


def job_timeline(job: Job, events: Sequence[Event], instances: Sequence[Instance]) -> list[TimelineStep]:
    """Return the steps of ``job`` in order, from its events and those of instances it awaited or ran on.

    ``events`` may include others, which are skipped. ``instances`` are the known rows of those instances; without a
    row, cost is left out.
    """
    known = {instance.id: instance for instance in instances}
    machines = machines_of(job, events)
    lines, work = list[TimelineStep](), RedoneWork()
    for event in sorted(events, key=lambda event: event.seq):
        render = _RENDERERS.get(event.kind)
        concerns = event.job_id == job.id or (event.job_id is None and event.instance_id in machines)
        if render is not None and concerns:
            lines += render(event)
        if event.job_id == job.id and (lost_s := work.take(event)) is not None:
            lines.append(_begun_again(event, lost_s))
    return [*lines, *_cost(job, events, known)]


def machines_of(job: Job, events: Sequence[Event]) -> set[InstanceId]:
    """Return the instances ``job`` awaits or awaited, runs or ran on, according to its row and its ``events``."""
    machines = set(job.awaiting) | {a.instance_id for a in (job.attempt.allocations if job.attempt is not None else ())}
    for event in events:
        if event.job_id == job.id:
            awaited = event.fields.get("awaits")
            machines |= {name for name in (event.instance_id, awaited) if isinstance(name, str)}
            machines |= {name for name, _ in _allocations(event)}
    return machines


def predicted_run(job: Job, events: Sequence[Event]) -> str:
    """Return one sentence about how long an ended job ran, beside what was predicted when its last attempt started;
    empty: nothing was, or it never ran."""
    attempt = job.attempt.id if job.attempt is not None else ""
    placed = [each for each in events if each.kind is EventKind.ATTEMPT_PLACED and each.job_id == job.id]
    found = next((each for each in placed if each.fields.get("attempt") == attempt), None)
    predicted = None if found is None else RunTimePrediction.from_fields(found.fields.get(RECORDED_IN))
    finished = next((each for each in events if each.kind is EventKind.JOB_FINISHED and each.job_id == job.id), None)
    run_s = None if finished is None else _number(finished, "run_s")
    if predicted is None or finished is None or not run_s:
        return ""
    limit_s = predicted.quantile_s(0.9)
    text = f"run time: predicted {seconds(predicted.quantile_s(0.5))} (median), {seconds(limit_s)} at most with"
    text += f" probability 0.9, by {predicted.source}"
    if finished.fields.get("stopped"):
        return f"{text}; stopped after {seconds(run_s)}"
    return f"{text}; ran {seconds(run_s)}, {'within' if run_s <= limit_s else 'beyond'} the limit"


def _allocations(event: Event) -> Iterator[tuple[InstanceId, Resources]]:
    given = event.fields.get("allocations")
    for text in given if isinstance(given, list | tuple) else ():
        instance_id, _, vcpus, memory_mib = str(text).split(":")
        yield instance_id, Resources(vcpus=float(vcpus), memory_mib=int(memory_mib), disk_gib=0.0)


# -------------------------------------------------------------------------------------------------------------- tellers
def _line(event: Event, code: str, text: str) -> TimelineStep:
    numbers = {key: value for key, value in event.fields.items() if key not in ("code", "text")}
    return TimelineStep(at=event.at, code=code, text=text, numbers=numbers)


def _number(event: Event, key: str) -> float | None:
    value = event.fields.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _decision(event: Event) -> str:
    return str(event.fields.get("text") or event.fields.get("code") or "no reason was recorded")


def _submitted(event: Event) -> Iterator[TimelineStep]:
    f = event.fields
    text = f"submitted by {event.user}: {f.get('name')}, {f.get('target_kind')}"
    if f.get("array"):
        text = f"may run soon: task {f.get('task')} of {f.get('array')} {f.get('name')}, {f.get('target_kind')}"
    elif f.get("tasks"):
        text += f", {counted(int(_number(event, 'tasks') or 0), 'task')}"
    text += f", {_number(event, 'vcpus') or 0.0:g} vCPU, {f.get('memory_mib')} MiB"
    text += f", {f['gpus']}" if f.get("gpus") else ""
    text += f", {counted(int(_number(event, 'nodes') or 1), 'node')}, priority {f.get('priority')}"
    text += f"; {f['waits']}" if f.get("waits") else ""
    yield _line(event, "submitted", text)


def _state(event: Event) -> Iterator[TimelineStep]:
    before, after = event.fields.get("from"), event.fields.get("to")
    if after == "classified" != before:
        return  # JOB_CLASSIFIED says more
    text = _decision(event)
    if after in _SHOWN_BY_NEXT:
        text = f"{before} -> {after}"
    elif after == JobState.AWAITING_INSTANCE and event.fields.get("awaits"):
        text = f"{before} -> {after}: {event.fields['awaits']}"
    elif before != after:
        text = f"{before} -> {after}: {text}"
    yield _line(event, str(event.fields.get("code", "")), text)


def _profiled(event: Event) -> Iterator[TimelineStep]:
    yield _line(event, "profiled", f"profiling run {_decision(event)}")


def _classified(event: Event) -> Iterator[TimelineStep]:
    f, quality = event.fields, _number(event, "quality_target")
    text = f"classified ({f.get('source')}): {_decision(event)}"
    if quality is not None:
        text += f"; needs quality {quality:.2f} (class {f.get('quality_class')})"
    if f.get("nearest"):
        text += f"; nearest known: {f['nearest']}"
    yield _line(event, "classified", text)


def _predicted(event: Event) -> Iterator[TimelineStep]:
    f = event.fields
    predicted, low, high, measured = (_number(event, key) for key in ("predicted", "low", "high", "measured"))
    if predicted is None or low is None or high is None or measured is None:
        return
    if f.get("question") == "loss":
        limits = f"({low:.0f} to {high:.0f}), {'within' if low <= measured <= high else 'outside'} the limits"
        yield _line(
            event, "prediction", f"lost {measured:.0f} % beside neighbours; predicted {predicted:.0f} % {limits}"
        )
        return
    if measured == 0:
        return
    error = f"{percent(abs(predicted - measured) / measured)} too {'high' if predicted > measured else 'low'}"
    within = "within" if low <= measured <= high else "outside"
    text = f"measured {measured:.4g} {f.get('measure')}/s on {f.get('instance_type')}; predicted {predicted:.4g}"
    text += f" ({low:.4g} to {high:.4g}): {error}, {within} the limits"
    text += "" if f.get("alone") else "; the machine was shared"
    yield _line(event, "prediction", text)


def _requested(event: Event) -> Iterator[TimelineStep]:
    text = f"launched {event.instance_id}: {_decision(event)}"
    alternatives = event.fields.get("alternatives")
    yield _line(event, "bought", text + (f"; alternatives: {alternatives}" if alternatives else ""))


def _ready(event: Event) -> Iterator[TimelineStep]:
    boot_s = _number(event, "boot_s")
    has = [str(event.fields[name]) for name in ("cpus", "gpus") if event.fields.get(name)]
    text = f"{event.instance_id} is ready" + (f" after {seconds(boot_s)}" if boot_s else "")
    yield _line(event, "machine_ready", text + (f"; it has {', '.join(has)}" if has else ""))


def _placed(event: Event) -> Iterator[TimelineStep]:
    names = ", ".join(dict.fromkeys(name for name, _ in _allocations(event)))
    first = names.partition(",")[0]
    text = f"attempt {event.fields.get('attempt')} placed on {names}: {_decision(event).removeprefix(f'{first}: ')}"
    given = event.fields.get("candidates")
    candidates = [_candidate_words(str(each)) for each in given] if isinstance(given, list | tuple) else []
    text += f"; chosen: {candidates[0]}" if candidates else ""
    text += f"; alternatives: {', '.join(candidates[1:])}" if candidates[1:] else ""
    given = event.fields.get("gpus")
    gpus = [str(each).split(":") for each in given] if isinstance(given, list | tuple) else []
    text += "".join(f"; GPU {numbers} of {name} for rank {rank}" for name, rank, numbers in gpus)
    yield _line(event, "placed", text)


def _candidate_words(given: str) -> str:
    column, usd_per_h, predicted, low, high, rejected = given.split("|", 5)
    expectation = f", expected {float(predicted):.3g} ({float(low):.3g} to {float(high):.3g})/s" if predicted else ""
    return f"{column} at {price(float(usd_per_h))}{expectation}" + (f" ({rejected})" if rejected else "")


def _corrected(event: Event) -> Iterator[TimelineStep]:
    yield _line(event, str(event.fields.get("code", "")), f"corrected ({event.fields.get('step')}): {_decision(event)}")


def _missed(event: Event) -> Iterator[TimelineStep]:
    yield _line(event, str(event.fields.get("code", "")), _decision(event))


def _resized(event: Event) -> Iterator[TimelineStep]:
    f = event.fields
    text = f"rank {f.get('rank')} resized to {f.get('vcpus')} vCPU, {f.get('memory_mib')} MiB on {event.instance_id}"
    if "cpus" in f:
        where = f"to CPUs {f['cpus']}" if f["cpus"] else "to no CPUs any more"
        text = f"rank {f.get('rank')} pinned {where} on {event.instance_id}"
    yield _line(event, "pinned" if "cpus" in f else "resized", text + (f": {f['detail']}" if f.get("detail") else ""))


def _paused(event: Event) -> Iterator[TimelineStep]:
    yield _line(event, str(event.fields.get("code", "")), _decision(event))


def _resumed(event: Event) -> Iterator[TimelineStep]:
    lasted = f" after a pause of {seconds(_number(event, 'paused_s') or 0.0)}"
    yield _line(event, str(event.fields.get("code", "")), f"{_decision(event)}{lasted}")


def _unit_ended(event: Event) -> Iterator[TimelineStep]:
    f, started_at = event.fields, _number(event, "started_at")
    ran = f" after {seconds(event.at - started_at)}" if started_at is not None else " before it started"
    detail = str(f.get("detail") or "")
    how = " ".join(["succeeded", detail] if detail.startswith("though") else [detail or "succeeded"])
    if f.get("cause"):
        how = failure(str(f["cause"]), f.get("exit_code"), f.get("detail"))
    yield _line(event, "unit_ended", f"rank {f.get('rank')} on {event.instance_id} {how}{ran}")


def _instance_decision(event: Event) -> Iterator[TimelineStep]:
    yield _line(event, str(event.fields.get("code", "")), f"{event.instance_id}: {_decision(event)}")


def _drained(event: Event) -> Iterator[TimelineStep]:
    after, before = event.fields.get("to"), event.fields.get("from")
    if after == "draining" or (before == "draining" and after == "ready"):
        yield from _instance_decision(event)


def _notice(event: Event) -> Iterator[TimelineStep]:
    at = _number(event, "preempt_at")
    soon = f" in {seconds(max(0.0, at - event.at))}" if at is not None else ""
    yield _line(event, "preempt_notice", f"provider will preempt {event.instance_id}{soon}")


def _failing(event: Event) -> Iterator[TimelineStep]:
    yield _line(event, "planning_trouble", f"{event.fields.get('text')}: {event.fields.get('error')}")


def _executed(event: Event) -> Iterator[TimelineStep]:
    rank, text = event.fields.get("rank"), event.fields.get("text")
    yield _line(event, "exec", f"command of {event.actor} on rank {rank}: {text}")


def _begun_again(event: Event, lost_s: float) -> TimelineStep:
    how = "goes on from a checkpoint" if "restored_at" in event.fields else "begins anew"
    text = f"attempt {event.fields.get('attempt')} {how}: {seconds(lost_s)} of the work before are done again"
    return replace(_line(event, "begun_again", text), numbers={**event.fields, "redone_s": lost_s})


def _tasks_ended(event: Event) -> Iterator[TimelineStep]:
    given = event.fields.get("ended")
    ended = [ends_of_text(str(each)) for each in (given if isinstance(given, list | tuple) else ())]
    failed = sum(each.count for each in ended if each.cause is not None)
    text = f"{counted(sum(each.count for each in ended), 'task')} ended one after the other in the unit of attempt "
    text += f"{event.fields.get('attempt')} on {event.instance_id}" + (f", {failed} failed" if failed else "")
    yield _line(event, "tasks_ended", text)


def _finished(event: Event) -> Iterator[TimelineStep]:
    f, run_s, queue_s = event.fields, _number(event, "run_s"), _number(event, "queue_s")
    state, text = str(f.get("state")), str(f.get("outcome"))
    text = text if text.startswith(state) else f"{state}: {text}"
    if queue_s is not None and run_s is not None:
        attempts = counted(int(_number(event, "attempts") or 0), "attempt")
        paused_s = _number(event, "paused_s")
        paused = f", paused {seconds(paused_s)}" if paused_s else ""
        text += f"; waited {seconds(queue_s)}, ran {seconds(run_s)}{paused}, {attempts}"
    if f.get("target_met") is not None:
        text += ", deadline met" if f["target_met"] else ", deadline missed"
    yield _line(event, "finished", text)


_RENDERERS: Mapping[EventKind, Callable[[Event], Iterator[TimelineStep]]] = {
    EventKind.JOB_SUBMITTED: _submitted,
    EventKind.JOB_STATE: _state,
    EventKind.JOB_FINISHED: _finished,
    EventKind.ATTEMPT_PLACED: _placed,
    EventKind.CORRECTION: _corrected,
    EventKind.TARGET_MISSED: _missed,
    EventKind.PLANNING_TROUBLE: _failing,
    EventKind.UNIT_RESIZED: _resized,
    EventKind.UNIT_PAUSED: _paused,
    EventKind.UNIT_RESUMED: _resumed,
    EventKind.UNIT_ENDED: _unit_ended,
    EventKind.EXEC: _executed,
    EventKind.TASKS_ENDED: _tasks_ended,
    EventKind.JOB_PROFILED: _profiled,
    EventKind.JOB_CLASSIFIED: _classified,
    EventKind.PREDICTION: _predicted,
    EventKind.INSTANCE_REQUESTED: _requested,
    EventKind.INSTANCE_READY: _ready,
    EventKind.INSTANCE_NOTICE: _notice,
    EventKind.INSTANCE_STATE: _drained,
    EventKind.INSTANCE_TERMINATED: _instance_decision,
}


# ----------------------------------------------------------------------------------------------------------------- cost
def _cost(job: Job, events: Sequence[Event], known: Mapping[InstanceId, Instance]) -> Iterator[TimelineStep]:
    """Yield the cost of the job's units: their share of each instance's price while they held it."""
    ended = [e for e in events if e.kind is EventKind.UNIT_ENDED and e.job_id == job.id]
    total, parts, at = 0.0, [], 0.0
    for event in ended:
        instance, started_at = known.get(event.instance_id or ""), _number(event, "started_at")
        if instance is None or started_at is None:
            continue
        for since, until, held in _periods_held(job, event, started_at, events):
            share = size_share(held, instance)
            total, at = total + instance.offer.price_usd_per_h * share * (until - since) / 3600, event.at
            parts.append(f"{percent(share)} of {instance.id} at {price(instance.offer.price_usd_per_h)}")
    if parts:
        text = f"cost {usd(total)} ({', '.join(dict.fromkeys(parts))})"
        yield TimelineStep(at=at, code="cost", text=text, numbers={"cost_usd": round(total, 9), "units": len(parts)})


def _periods_held(
    job: Job, ended: Event, started_at: float, events: Sequence[Event]
) -> Iterator[tuple[float, float, Resources]]:
    """Yield start, end and resources of each period in which the unit's size was constant."""
    since, held = started_at, job.spec.resources
    rank = (ended.fields.get("attempt"), ended.fields.get("rank"))
    for event in sorted(events, key=lambda each: each.seq):
        concerns = event.kind is EventKind.UNIT_RESIZED and event.job_id == job.id and since <= event.at <= ended.at
        if concerns and (event.fields.get("attempt"), event.fields.get("rank")) == rank:
            yield since, event.at, held
            vcpus, memory_mib = _number(event, "vcpus") or 0.0, _number(event, "memory_mib") or 0.0
            since, held = event.at, Resources(vcpus=vcpus, memory_mib=int(memory_mib), disk_gib=0.0, gpus=held.gpus)
    yield since, ended.at, held
