"""From events to messages, and their two forms. Pure, but for the rows that it is given functions to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hcloud.core.errors import NotFound
from hcloud.core.model import Event, EventKind, Instance, Job
from hcloud.core.units import utc_text

JOB_ENDED, BUDGET, SPOT_LOSS, PROVIDER_TROUBLE, TEST = "job_ended", "budget", "spot_loss", "provider_trouble", "test"
NOTIFIED: Final[Mapping[str, EventKind]] = {
    JOB_ENDED: EventKind.JOB_FINISHED,
    BUDGET: EventKind.BUDGET,
    SPOT_LOSS: EventKind.INSTANCE_TERMINATED,
    PROVIDER_TROUBLE: EventKind.PROVIDER_TROUBLE,
}
"""The events that messages of each kind are made of."""
_CALLS: Final = {
    "offers": "reading offers",
    "instances": "listing machines",
    "launch": "launching a machine",
    "terminate": "terminating machines",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is sent."""

    id: str
    """Owner tag and number of the event: the same for every try, and unique among deployments."""
    kind: str
    at: float
    text: str
    """One sentence."""
    user: str = ""
    """Whose job it is about."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Its facts, for programs."""


def message_of(
    event: Event, owner: str, job_of: Callable[[str], Job], instance_of: Callable[[str], Instance]
) -> Message | None:
    """Return the message about ``event``; None: there is none.

    Tasks of arrays and profiling runs end without one. ``job_of`` and ``instance_of`` raise NotFound for pruned rows.
    """
    if event.kind is EventKind.JOB_FINISHED:
        return _job_ended(event, owner, job_of)
    if event.kind is EventKind.BUDGET:
        return _message(event, owner, BUDGET, str(event.fields.get("text")), **_only(event, "scope", "name", "period"),
                        **_only(event, "share", "spent_usd", "limit_usd", "ends_at", "job"))  # fmt: skip
    if event.kind is EventKind.INSTANCE_TERMINATED and event.fields.get("code") == "preempted":
        return _spot_loss(event, owner, instance_of)
    if event.kind is EventKind.PROVIDER_TROUBLE:
        provider, call = str(event.fields.get("provider")), str(event.fields.get("call"))
        why = str(event.fields.get("text")).removeprefix(f"{provider}: ")
        text = f"provider {provider}: {_CALLS.get(call, call)} failed: {why}"
        return _message(event, owner, PROVIDER_TROUBLE, text, **_only(event, "provider", "call", "error"))
    return None


def _job_ended(event: Event, owner: str, job_of: Callable[[str], Job]) -> Message | None:
    if event.fields.get("array"):
        return None
    try:
        job = job_of(event.job_id or "")
    except NotFound:
        return None
    if job.array or job.spec.profile is not None:
        return None
    state, outcome = str(event.fields.get("state")), str(event.fields.get("outcome"))
    text = f"{job.id} {job.spec.name} of {job.spec.user}: "
    text += outcome if outcome.startswith(state) else f"{state}, {outcome}"
    about = {"job": job.id, "name": job.spec.name, "tags": dict(job.spec.tags)}
    return _message(event, owner, JOB_ENDED, text, **about, **_only(event, "state", "outcome", "run_s", "attempts"),
                    **_only(event, "deadline_at", "target_met"))  # fmt: skip


def _spot_loss(event: Event, owner: str, instance_of: Callable[[str], Instance]) -> Message:
    about: dict[str, object] = {"instance": event.instance_id}
    text = f"spot machine {event.instance_id} was preempted"
    try:
        offer = instance_of(event.instance_id or "").offer
    except NotFound:
        return _message(event, owner, SPOT_LOSS, text, **about)
    about |= {"type": offer.instance_type.name, "zone": offer.zone, "provider": offer.provider}
    return _message(event, owner, SPOT_LOSS, f"{text} ({offer.instance_type.name} in {offer.zone})", **about)


def _message(event: Event, owner: str, kind: str, text: str, **fields: object) -> Message:
    return Message(id=f"{owner}-{event.seq}", kind=kind, at=event.at, text=text, user=event.user or "", fields=fields)


def _only(event: Event, *names: str) -> dict[str, object]:
    return {name: event.fields[name] for name in names if name in event.fields}


def webhook_body(message: Message) -> bytes:
    """Return the message as JSON in the form of Standard Webhooks: type, timestamp, data."""
    data = {"id": message.id, "text": message.text, "user": message.user, **message.fields}
    body = {"type": message.kind, "timestamp": utc_text(message.at), "data": data}
    return json.dumps(body, separators=(",", ":")).encode()


def slack_body(message: Message) -> bytes:
    """Return the message as Slack's incoming webhooks take it; nothing in it is read as markup or a mention."""
    text = message.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return json.dumps({"text": f"HCloud: {text}", "mrkdwn": False}, separators=(",", ":")).encode()
