"""Parsing of cloud bills into lines about machines: AWS Cost and Usage Reports, and Google's billing export.

Formats: the AWS "Cost and Usage Report" (legacy column names such as ``lineItem/ResourceId``) and its successor CUR 2.0
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
# The column with the cost of a line, by line type: usage covered by a commitment has its effective cost elsewhere.
_AWS_COST: Final = {
    "Usage": "line_item_unblended_cost",
    "DiscountedUsage": "reservation_effective_cost",
    "SavingsPlanCoveredUsage": "savings_plan_savings_plan_effective_cost",
}
_AWS_CANCELS: Final = "SavingsPlanNegation"
"""Line type that cancels the list-price charge of covered usage; that charge is not counted here at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """Cost of one resource for one period."""

    resource: str
    usd: float
    machine: bool
    """Whether the line is for the machine itself, not its disk or traffic."""


@dataclass(slots=True, kw_only=True)
class Bill:
    """The lines of a bill that concern machines, and its period."""

    cloud: str
    since: float = math.inf
    """Start of the period, Unix seconds."""
    until: float = -math.inf
    """End of the period, Unix seconds."""
    lines: list[BillLine] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    """Owner tags by resource."""
    has_owners: bool = False
    """Whether the bill has a column of owner tags at all."""
    not_compared: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Sums in USD of lines that do not concern a machine, by product or line type."""

    def extend_period(self, since: float, until: float) -> None:
        """Extend the period to include ``since`` to ``until``."""
        self.since, self.until = min(self.since, since), max(self.until, until)


def read_bill(rows: Iterable[tuple[str, Fields]]) -> Bill:
    """Return the bill in ``rows``: pairs of a position (``file:line``) and the fields by column name.

    Raises:
        BadInput: unknown bill format, a currency other than USD, or an invalid line (with its position).
    """
    bill: Bill | None = None
    for where, row in rows:
        plain = {_cur2_name(name): value for name, value in row.items()}
        if bill is None:
            bill = _new_bill(plain, row, where)
        add_line = _add_aws_line if bill.cloud == "AWS" else _add_google_line
        add_line(plain, row, where, bill)
    if bill is None or bill.since > bill.until:
        raise BadInput("the bill has no line for a compute machine; nothing can be compared")
    return bill


def _cur2_name(name: str) -> str:
    """Return a column name in the spelling of CUR 2.0: ``lineItem/ResourceId`` is ``line_item_resource_id``."""
    if "/" not in name:
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("/", "_")).lower()


def _new_bill(plain: Fields, row: Fields, where: str) -> Bill:
    if "line_item_resource_id" in plain:
        return Bill(cloud="AWS", has_owners=_AWS_TAGS in plain or any(map(_is_owner, row)))
    if {"service", "sku", "usage_start_time"} <= set(plain):
        return Bill(cloud="Google", has_owners="labels" in plain or "owner" in plain)
    raise BadInput(
        f"{where}: must be an AWS Cost and Usage Report with resource ids or a detailed Google billing export; "
        f"its columns are {', '.join(sorted(plain)[:6]) or 'missing'}"
    )


# --------------------------------------------------------------------------------------------------------------- AWS
def _add_aws_line(plain: Fields, row: Fields, where: str, bill: Bill) -> None:
    kind = _text(plain, "line_item_line_item_type", where)
    _check_currency(plain.get("line_item_currency_code"), where)
    if kind == _AWS_CANCELS:
        return
    resource = str(plain.get("line_item_resource_id") or "").rpartition("/")[2]
    charged = _usd(plain, "line_item_unblended_cost", where)
    if kind not in _AWS_COST or not resource.startswith("i-"):
        item = plain.get("line_item_product_code") if kind in _AWS_COST else kind
        bill.not_compared[str(item or "lines without a product")] += charged
        return
    column = _AWS_COST[kind]
    if column not in plain:
        raise BadInput(f"{where}: a line of type {kind} needs the column {column}; include it in the report")
    bill.extend_period(
        _time_s(plain, "line_item_usage_start_date", where), _time_s(plain, "line_item_usage_end_date", where)
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
    candidates = {**row, **(tags if isinstance(tags, Mapping) else {})}
    return next((str(value) for name, value in candidates.items() if value and _is_owner(name)), "")


# ------------------------------------------------------------------------------------------------------------ Google
def _add_google_line(plain: Fields, row: Fields, where: str, bill: Bill) -> None:
    _check_currency(plain.get("currency"), where)
    service, sku = _description(plain["service"]), _description(plain["sku"])
    usd = _usd(plain, "cost", where) + _credits(plain.get("credits"), where)
    nested = plain.get("resource")
    name = nested.get("name") if isinstance(nested, Mapping) else plain.get("resource_name")
    resource = str(name or "").rpartition("/")[2]
    kind = str(plain.get("cost_type") or "regular")
    if service != "Compute Engine" or kind != "regular" or not resource:
        bill.not_compared[service if kind == "regular" else kind] += usd
        return
    bill.extend_period(_time_s(plain, "usage_start_time", where), _time_s(plain, "usage_end_time", where))
    bill.lines.append(BillLine(resource=resource, usd=usd, machine=_GCP_MACHINE.search(sku) is not None))
    labels = plain.get("labels")
    if isinstance(labels, list):
        owner = next((str(each.get("value")) for each in labels if each.get("key") == _GCP_OWNER), "")
    else:
        owner = str(plain.get("owner") or "")
    if owner:
        bill.owners[resource] = owner


def _description(value: object) -> str:
    """Return the description of a service or SKU, which is nested in JSON exports and plain text in CSV."""
    return str(value.get("description", "")) if isinstance(value, Mapping) else str(value or "")


def _credits(value: object, where: str) -> float:
    """Return the sum of the credits in USD (negative): discounts for sustained and committed use."""
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadInput(f"{where}: credits must be a number or a JSON list, not {shown(value)}") from None
    if isinstance(value, list):
        amounts = [each.get("amount", 0) if isinstance(each, Mapping) else each for each in value]
        return sum(_number(amount, "credits", where) for amount in amounts)
    return _number(value, "credits", where)


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
        amount = float(str(value)) if value not in (None, "") else 0.0
    except ValueError:
        amount = math.nan
    if not math.isfinite(amount):
        raise BadInput(f"{where}: {name} must be an amount, not {shown(value)}")
    return amount


def _time_s(plain: Fields, name: str, where: str) -> float:
    text = _text(plain, name, where).removesuffix(" UTC").replace(" ", "T")
    try:
        return parse_utc_s(text if re.search(r"(?:Z|[+-]\d\d:?\d\d)$", text) else f"{text}Z")
    except ValueError as error:
        raise BadInput(f"{where}: {name} {error}") from None


def _check_currency(currency: object, where: str) -> None:
    if currency and currency != "USD":
        raise BadInput(f"{where}: the bill is in {currency}, the ledger in USD; export the bill in USD")
