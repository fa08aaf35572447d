"""The clouds' bills as lines about machines: AWS Cost and Usage Reports, and Google's billing export.

Forms: AWS "Cost and Usage Report" (legacy names such as ``lineItem/ResourceId``) and its successor CUR 2.0
(``line_item_resource_id``); Google's "detailed usage cost" export, as JSON lines or flattened to CSV.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hcloud.core.errors import BadInput
from hcloud.core.units import parse_utc_s, shown

Fields = Mapping[str, Any]
_AWS_MACHINE: Final = re.compile(r"(?:^|[-:])(?:BoxUsage|SpotUsage|DedicatedUsage|HostBoxUsage|EBSOptimized)")
_GCP_MACHINE: Final = re.compile(r"\b(?:Core|Ram|Micro Instance|Small Instance)\b.* running in ")
_AWS_TAGS: Final = "resource_tags"
_GCP_OWNER: Final = "hcloud-owner"
# How much of a line its machine cost: a line covered by a commitment has its share of that, not what was charged.
_AWS_COST: Final = {
    "Usage": "line_item_unblended_cost",
    "DiscountedUsage": "reservation_effective_cost",
    "SavingsPlanCoveredUsage": "savings_plan_savings_plan_effective_cost",
}
_AWS_CANCELS: Final = "SavingsPlanNegation"
"""Takes back what covered usage was charged; that is not counted in the first place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """What one thing cost in some time. ``machine``: the machine itself, not its disk or traffic."""

    resource: str
    usd: float
    machine: bool


@dataclass(slots=True, kw_only=True)
class Bill:
    """A bill's lines about machines. ``since`` and ``until`` bound the time it covers (Unix seconds).

    ``owners`` are owner tags by resource; ``not_compared`` sums what is not about a machine, by what it is.
    """

    cloud: str
    since: float = math.inf
    until: float = -math.inf
    lines: list[BillLine] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    has_owners: bool = False
    not_compared: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def note_time(self, since: float, until: float) -> None:
        """Widen the time that the bill covers."""
        self.since, self.until = min(self.since, since), max(self.until, until)


def read_bill(rows: Iterable[tuple[str, Fields]]) -> Bill:
    """Return the bill in ``rows``: where each stands (``file:line``), and its fields by name.

    Raises:
        BadInput: it is neither of the known bills, in another currency than USD, or a line is broken (named).
    """
    bill: Bill | None = None
    for where, row in rows:
        plain = {_plain(name): value for name, value in row.items()}
        if bill is None:
            bill = _begun(plain, row, where)
        take = _take_aws if bill.cloud == "AWS" else _take_gcp
        take(plain, row, where, bill)
    if bill is None or bill.since > bill.until:
        raise BadInput("the bill holds no line about compute machines; nothing can be compared")
    return bill


def _plain(name: str) -> str:
    """Return a column's name as CUR 2.0 spells it: ``lineItem/ResourceId`` is ``line_item_resource_id``."""
    if "/" not in name:
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("/", "_")).lower()


def _begun(plain: Fields, row: Fields, where: str) -> Bill:
    if "line_item_resource_id" in plain:
        return Bill(cloud="AWS", has_owners=_AWS_TAGS in plain or any(map(_is_owner, row)))
    if {"service", "sku", "usage_start_time"} <= set(plain):
        return Bill(cloud="Google", has_owners="labels" in plain or "owner" in plain)
    raise BadInput(
        f"{where}: is neither an AWS Cost and Usage Report with resource ids nor a detailed Google billing export; "
        f"it has {', '.join(sorted(plain)[:6]) or 'no columns'}"
    )


# --------------------------------------------------------------------------------------------------------------- AWS
def _take_aws(plain: Fields, row: Fields, where: str, bill: Bill) -> None:
    kind = _text(plain, "line_item_line_item_type", where)
    _check_currency(plain.get("line_item_currency_code"), where)
    if kind == _AWS_CANCELS:
        return
    resource = str(plain.get("line_item_resource_id") or "").rpartition("/")[2]
    charged = _usd(plain, "line_item_unblended_cost", where)
    if kind not in _AWS_COST or not resource.startswith("i-"):
        what = plain.get("line_item_product_code") if kind in _AWS_COST else kind
        bill.not_compared[str(what or "lines without a product")] += charged
        return
    column = _AWS_COST[kind]
    if column not in plain:
        raise BadInput(f"{where}: a line of type {kind} needs the column {column}; include it in the report")
    bill.note_time(
        _moment(plain, "line_item_usage_start_date", where), _moment(plain, "line_item_usage_end_date", where)
    )
    machine = _AWS_MACHINE.search(_text(plain, "line_item_usage_type", where)) is not None
    bill.lines.append(BillLine(resource=resource, usd=_usd(plain, column, where), machine=machine))
    owner = _aws_owner(plain, row)
    if owner:
        bill.owners[resource] = owner


def _is_owner(name: object) -> bool:
    """Return whether a column or key is our owner tag: ``resourceTags/user:hcloud:owner``, ``user_hcloud_owner``..."""
    return re.sub(r"[^a-z]", "", str(name).lower()).endswith("hcloudowner")


def _aws_owner(plain: Fields, row: Fields) -> str:
    tags: object = plain.get(_AWS_TAGS)
    if isinstance(tags, str):
        try:
            tags = json.loads(tags or "{}")
        except ValueError:
            tags = {}
    found = {**row, **(tags if isinstance(tags, Mapping) else {})}
    return next((str(value) for name, value in found.items() if value and _is_owner(name)), "")


# ------------------------------------------------------------------------------------------------------------ Google
def _take_gcp(plain: Fields, row: Fields, where: str, bill: Bill) -> None:
    _check_currency(plain.get("currency"), where)
    service, sku = _described(plain["service"]), _described(plain["sku"])
    usd = _usd(plain, "cost", where) + _credits(plain.get("credits"), where)
    resource = _resource(plain)
    kind = str(plain.get("cost_type") or "regular")
    if service != "Compute Engine" or kind != "regular" or not resource:
        bill.not_compared[service if kind == "regular" else kind] += usd
        return
    bill.note_time(_moment(plain, "usage_start_time", where), _moment(plain, "usage_end_time", where))
    bill.lines.append(BillLine(resource=resource, usd=usd, machine=_GCP_MACHINE.search(sku) is not None))
    owner = _owner(plain)
    if owner:
        bill.owners[resource] = owner


def _described(value: object) -> str:
    """Return a service or SKU by its description: nested as exported, or flattened to text."""
    return str(value.get("description", "")) if isinstance(value, Mapping) else str(value or "")


def _resource(plain: Fields) -> str:
    nested = plain.get("resource")
    name = nested.get("name") if isinstance(nested, Mapping) else plain.get("resource_name")
    return str(name or "").rpartition("/")[2]


def _credits(value: object, where: str) -> float:
    """Return the sum of credits (negative): discounts for sustained and committed use."""
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadInput(f"{where}: credits must be a number or a JSON list, not {shown(value)}") from None
    if isinstance(value, list):
        amounts = [each.get("amount", 0) if isinstance(each, Mapping) else each for each in value]
        return sum(_number(amount, "credits", where) for amount in amounts)
    return _number(value, "credits", where)


def _owner(plain: Fields) -> str:
    labels = plain.get("labels")
    if isinstance(labels, list):
        return next((str(each.get("value")) for each in labels if each.get("key") == _GCP_OWNER), "")
    return str(plain.get("owner") or "")


# ------------------------------------------------------------------------------------------------------------ fields
def _text(plain: Fields, name: str, where: str) -> str:
    value = plain.get(name)
    if not value:
        raise BadInput(f"{where}: {name} is missing; the report needs this column")
    return str(value)


def _usd(plain: Fields, name: str, where: str) -> float:
    return _number(plain.get(name), name, where)


def _number(value: object, name: str, where: str) -> float:
    try:
        found = float(str(value)) if value not in (None, "") else 0.0
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise BadInput(f"{where}: {name} must be an amount, not {shown(value)}")
    return found


def _moment(plain: Fields, name: str, where: str) -> float:
    text = _text(plain, name, where).removesuffix(" UTC").replace(" ", "T")
    try:
        return parse_utc_s(text if re.search(r"(?:Z|[+-]\d\d:?\d\d)$", text) else f"{text}Z")
    except ValueError as error:
        raise BadInput(f"{where}: {name} {error}") from None


def _check_currency(currency: object, where: str) -> None:
    if currency and currency != "USD":
        raise BadInput(f"{where}: the bill is in {currency}, the ledger in USD; export the bill in USD")
