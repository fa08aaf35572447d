"""Savings Plans: an hourly commitment in USD, billed whether used or not, that pays for instances at the plan's rates.

AWS applies them after Reserved Instances, narrow plans (one family) before wide ones, each where it saves most. Compute
plans are also used by other regions and services, which is not visible here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hcloud.core.commitments import capacity_by_end, last_end_first
from hcloud.core.model import CommittedCapacity
from hcloud.core.paging import pages_of
from providers.ec2.clients import Clients
from providers.ec2.errors import Call, translating_errors

_KINDS = ("Compute", "EC2Instance")
_PRODUCT = "Linux/UNIX"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsPlan:
    """An active plan."""

    id: str
    usd_per_h: float
    """The hourly commitment."""
    narrow: bool
    """Whether it covers one instance family only."""
    rates: Mapping[str, float]
    """USD per hour by type, for Linux with shared tenancy in this region."""
    ends_at: float | None = None


@dataclass(frozen=True, slots=True)
class Covered:
    """What plans cover of one type."""

    usd_per_h: float
    """The highest of their rates for the type, since AWS does not say which plan pays for an instance."""
    committed: tuple[CommittedCapacity, ...]

    @property
    def count(self) -> int:
        """How many more instances they cover."""
        return sum(each.free for each in self.committed)


class PlanBalances:
    """What is left of each plan after it was charged for the running on-demand instances."""

    def __init__(
        self, plans: Sequence[SavingsPlan], uncovered: Mapping[str, float], on_demand: Mapping[str, float]
    ) -> None:
        """Charge the plans.

        ``uncovered``: instances by type that no Reserved Instance covers; ``on_demand``: USD per hour by type.
        """
        self._plans = sorted(plans, key=lambda each: (not each.narrow, each.id))
        self._on_demand = on_demand
        self.left: dict[str, float] = {}
        rest = dict(uncovered)
        for plan in self._plans:
            self.left[plan.id] = _charged(plan, plan.usd_per_h, rest, on_demand)

    def unpaid_share(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Return which part (0..1) of further ``counts`` of instances by type the rest of the plans does not pay."""
        rest = dict(counts)
        for plan in self._plans:
            _charged(plan, self.left[plan.id], rest, self._on_demand)
        return {name: rest[name] / count for name, count in counts.items() if count > 0}

    def covers(self, type_name: str) -> Covered | None:
        """Return what the plans with a rate for a type cover of it, used up or not; None: not even one instance."""
        rates = [(plan, plan.rates[type_name]) for plan in self._plans if plan.rates.get(type_name)]
        totals, total = dict[float | None, int](), 0
        for plan, rate in sorted(rates, key=lambda each: last_end_first(each[0].ends_at)):
            total += int((plan.usd_per_h + 1e-9) / rate)
            totals[plan.ends_at] = total
        free = sum(int((self.left[plan.id] + 1e-9) / rate) for plan, rate in rates)
        committed = capacity_by_end(totals.items(), free)
        return Covered(max(rate for _, rate in rates), committed) if committed else None


def _charged(plan: SavingsPlan, left: float, rest: dict[str, float], on_demand: Mapping[str, float]) -> float:
    """Charge instances to what is ``left`` of a plan (USD/h), those that save most first.

    Returns what is left then; updates ``rest``.
    """

    def saved(name: str) -> float:
        """Return the share (0..1) of the on-demand price that the plan saves on a type; 0 where it is not sold."""
        return 1 - plan.rates[name] / on_demand[name] if on_demand.get(name) else 0.0

    for name in sorted((each for each in rest if plan.rates.get(each)), key=lambda each: (-saved(each), each)):
        count = min(rest[name], left / plan.rates[name])
        rest[name] -= count
        left -= count * plan.rates[name]
    return max(0.0, left)


def read_savings_plans(clients: Clients, region: str) -> tuple[SavingsPlan, ...]:
    """Return the active plans that cover instances in a region. Raises ProviderUnavailable, Throttled."""
    with translating_errors(Call.READ, "reading savings plans"):
        plans = _paged(clients, "describe_savings_plans", "savingsPlans", {"states": ["active"]})
        fitting = [each for each in plans if _fits(each, region)]
        return tuple(
            SavingsPlan(
                id=str(each["savingsPlanId"]),
                usd_per_h=float(each["commitment"]),
                narrow=each["savingsPlanType"] == "EC2Instance",
                rates=_rates(clients, str(each["savingsPlanId"]), region),
                ends_at=datetime.fromisoformat(str(each["end"])).timestamp() if each.get("end") else None,
            )
            for each in fitting
        )


def _fits(plan: Mapping[str, Any], region: str) -> bool:
    # Plans in other currencies are ignored: nothing here converts money.
    in_scope = plan.get("savingsPlanType") == "Compute" or plan.get("region") == region
    return plan.get("savingsPlanType") in _KINDS and in_scope and plan.get("currency", "USD") == "USD"


def _rates(clients: Clients, plan_id: str, region: str) -> dict[str, float]:
    filters = [
        {"name": "region", "values": [region]},
        {"name": "productDescription", "values": [_PRODUCT]},
        {"name": "tenancy", "values": ["shared"]},
    ]
    query = {"savingsPlanId": plan_id, "filters": filters}
    found = {}
    for each in _paged(clients, "describe_savings_plan_rates", "searchResults", query):
        properties = {str(one["name"]): str(one["value"]) for one in each.get("properties", ())}
        plain = each.get("productType", "EC2") == "EC2" and each.get("unit", "Hrs") == "Hrs"
        # Checked again: an endpoint that ignores a filter must not produce wrong prices.
        if plain and properties.get("productDescription", _PRODUCT) == _PRODUCT and "instanceType" in properties:
            found[properties["instanceType"]] = float(each["rate"])
    return found


def _paged(clients: Clients, method: str, member: str, query: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    # boto3 has no paginator for this service.
    def read(token: str) -> tuple[Mapping[str, Any], str | None]:
        more = {"nextToken": token} if token else {}
        answer = getattr(clients.reading("savingsplans"), method)(**query, **more)
        return answer, answer.get("nextToken")

    return [each for page in pages_of(read, f"the list of {member}") for each in page.get(member, ())]
