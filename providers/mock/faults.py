"""Faults that the mock cloud can inject: once, n times, for a while, or at random."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from hcloud.core.model import Offer

Call = Literal["offers", "launch", "instances", "terminate"]


class FaultKind(StrEnum):
    """Kinds of faults. Refusals happen before the effect of the call; LOSE_REPLY and ANSWER_LATE after it."""

    THROTTLE = "throttle"  # Throttled
    BE_AWAY = "be_away"  # ProviderUnavailable
    RUN_OUT = "run_out"  # InsufficientCapacity
    EXCEED_QUOTA = "exceed_quota"  # QuotaExceeded
    REJECT = "reject"  # LaunchRejected
    REJECT_ALL = "reject_all"  # AccountRejected
    LOSE_REQUEST = "lose_request"  # OutcomeUnknown, nothing happened
    LOSE_REPLY = "lose_reply"  # OutcomeUnknown, but carried out
    ANSWER_LATE = "answer_late"  # OutcomeUnknown, carried out ``delay_s`` later
    LIST_PARTLY = "list_partly"  # the zone (the first with machines unless given) is missing from a listing
    LIST_LATE = "list_late"  # the machine is missing from listings for almost ``list_lag_s``
    NEVER_BOOT = "never_boot"  # the machine stays PENDING
    DIE = "die"  # the machine dies ``delay_s`` after its launch
    PREEMPT = "preempt"  # the machine is preempted ``delay_s`` after its launch, with notice
    LIST_OTHERS = "list_others"  # a listing also contains machines of other owners


_LAUNCH: frozenset[Call] = frozenset({"launch"})
_WRITES: frozenset[Call] = frozenset({"launch", "terminate"})
_ALL: frozenset[Call] = frozenset({"offers", "launch", "instances", "terminate"})
CALLS: dict[FaultKind, frozenset[Call]] = {
    FaultKind.THROTTLE: _ALL,
    FaultKind.BE_AWAY: _ALL,
    FaultKind.LOSE_REQUEST: _WRITES,
    FaultKind.LOSE_REPLY: _WRITES,
    FaultKind.LIST_PARTLY: frozenset({"instances"}),
    FaultKind.LIST_OTHERS: frozenset({"instances"}),
}
"""Calls that a kind of fault applies to; other kinds apply to launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One scripted fault."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: FaultKind
    call: Call | None = None
    """The call it applies to; None: every call of its kind."""
    times: Annotated[int, Field(ge=1)] | None = 1
    """How often it applies; None: always."""
    zone: str | None = None
    """Zone of the offers it applies to; None: any. The same holds for type and market."""
    instance_type: str | None = None
    market: str | None = None
    from_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Start of its period, in seconds since the cloud was created."""
    to_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """End of its period; None: no end."""
    delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5.0
    """Delay of the effect, for kinds that have one."""

    def __post_init__(self) -> None:
        """Reject an empty period."""
        if self.to_s is not None and self.to_s <= self.from_s:
            raise ValueError(f"must have a to_s of more than from_s ({self.from_s:g}), not {self.to_s:g}")

    def applies_to(self, call: Call, offer: Offer | None, age_s: float) -> bool:
        """Return whether this fault applies to a call about an offer at this age of the cloud."""
        if call not in CALLS.get(self.kind, _LAUNCH) or (self.call is not None and self.call != call):
            return False
        if age_s < self.from_s or (self.to_s is not None and age_s >= self.to_s):
            return False
        return offer is None or (
            self.zone in (None, offer.zone)
            and self.instance_type in (None, offer.instance_type.name)
            and self.market in (None, offer.market.value)
        )
