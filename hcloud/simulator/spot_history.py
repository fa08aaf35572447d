"""Recorded spot markets for a simulated cloud: prices, placement scores and availability by zone and type.

    time,type,zone,price_usd_per_h,score
    2026-05-01T00:00:00Z,m5.large,us-east-1a,0.035,9
    2026-05-01T06:00:00Z,m5.large,us-east-1a,0.041,6

Each value holds until the next row of its type and zone that has one; the first holds before, the last after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hcloud.core.errors import BadInput
from hcloud.core.model import Market
from hcloud.core.units import parse_number
from hcloud.simulator.input_table import (
    PACKED,
    YES_OR_NO,
    InputColumn,
    Problems,
    Row,
    listed,
    moment,
    number_within,
    open_lines,
    printable,
    read_json,
    read_objects,
    read_rows,
)
from hcloud.simulator.run import Setting, offers_of
from hcloud.simulator.scratch import quick_folder
from hcloud.spec.validation import counted

_WORD = printable(100)


def _is_available(text: str) -> bool:
    """Return whether machines are to be had, of yes, no or the number of them."""
    count = parse_number(text)
    return YES_OR_NO(text) if count is None else number_within(0.0)(text) > 0


COLUMNS = (
    InputColumn(name="time", parse=moment, required=True, aliases=("at", "Timestamp")),
    InputColumn(name="type", parse=_WORD, required=True, aliases=("InstanceType",)),
    InputColumn(name="zone", parse=_WORD, required=True, aliases=("AvailabilityZone",)),
    InputColumn(name="price_usd_per_h", parse=number_within(1e-9, 1e6), aliases=("usd_per_h", "SpotPrice")),
    InputColumn(name="score", parse=number_within(1.0, 10.0)),
    InputColumn(name="available", parse=_is_available),
    InputColumn(name="product", aliases=("ProductDescription",)),
    InputColumn(name="cloud"),
    InputColumn(name="region"),
    InputColumn(name="AvailabilityZoneId"),
)
"""Names that `aws ec2 describe-spot-price-history` and HCloud's own price history have are understood as well."""
VALUES = {"price_usd_per_h": "prices", "score": "scores", "available": "available"}
"""Columns that hold a recorded value, and the setting of the mock provider that follows it."""
LINUX = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
"""Products whose prices count."""
Steps = tuple[tuple[float, float], ...]
"""Times (Unix seconds), each with the value from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotHistory:
    """A recorded spot market."""

    name: str
    """Of its file."""
    steps: Mapping[str, Mapping[tuple[str, str], Steps]]
    """By setting of the mock provider, then by zone and type."""
    notes: tuple[str, ...] = ()
    """Sentences on what was left out of the file."""

    @property
    def pools(self) -> tuple[tuple[str, str], ...]:
        """All pairs of zone and type, sorted."""
        return tuple(sorted({pool for pools in self.steps.values() for pool in pools}))

    @property
    def first_at(self) -> float:
        """Time of the first row."""
        return min(steps[0][0] for pools in self.steps.values() for steps in pools.values())

    @property
    def last_at(self) -> float:
        """Time of the last change."""
        return max(steps[-1][0] for pools in self.steps.values() for steps in pools.values())

    def since(self, start_at: float, moved_to: float) -> SpotHistory:
        """Return the history from ``start_at`` on, moved in time such that this moment is ``moved_to``.

        Raises BadInput if it ends before.
        """
        if start_at > self.last_at:
            raise BadInput(f"{self.name}: ends before the start that was asked for; choose an earlier one")
        by_s = moved_to - start_at
        moved = {
            kind: {pool: tuple(_moved(steps, start_at, by_s)) for pool, steps in pools.items()}
            for kind, pools in self.steps.items()
        }
        return replace(self, steps=moved)


def _moved(steps: Steps, start_at: float, by_s: float) -> Iterator[tuple[float, float]]:
    for place, (at, value) in enumerate(steps):
        if at >= start_at or place + 1 == len(steps) or steps[place + 1][0] > start_at:
            yield max(at, start_at) + by_s, value


# -------------------------------------------------------------------------------------------------------------- reading
def read_spot_history(path: Path) -> SpotHistory:
    """Read a spot history from CSV, or from JSON as AWS returns it, packed or not, with rows in any order.

    Raises BadInput, which names all wrong columns.
    """
    kind = Path(path.stem if path.suffix.lower() == PACKED else path).suffix.lower()
    problems = Problems(str(path), entry="entry" if kind == ".json" else "line")
    if kind == ".json":
        return _history(problems, read_objects(_entries(read_json(path), path), COLUMNS, problems))
    with open_lines(path) as lines:
        return _history(problems, read_rows(lines, COLUMNS, problems, table="a spot history"))


def _entries(document: Any, path: Path) -> Sequence[object]:
    entries = document.get("SpotPriceHistory") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise BadInput(f"{path}: must be a list, or an object whose SpotPriceHistory is one")
    return entries


def _history(problems: Problems, rows: Iterable[tuple[int, Row]]) -> SpotHistory:
    found: dict[str, dict[tuple[str, str], dict[float, float]]] = {kind: defaultdict(dict) for kind in VALUES.values()}
    other_products = conflicts = 0
    for at, row in rows:
        if row.get("product", LINUX[0]) not in LINUX:
            other_products += 1
            continue
        if not any(column in row for column in VALUES):
            problems.add("", f"has none of {', '.join(VALUES)}", at)
        # Whole seconds, so that a cycle of the simulation falls on each change.
        time, pool = float(round(row["time"])), (row["zone"], row["type"])
        for column, kind in VALUES.items():
            if column in row:
                value, known = float(row[column]), found[kind][pool]
                conflicts += known.get(time, value) != value
                # The less favourable value counts, whatever the order of rows.
                known[time] = (max if column == "price_usd_per_h" else min)(value, known.get(time, value))
    problems.check()
    steps = {kind: {pool: _steps(values) for pool, values in sorted(pools.items())} for kind, pools in found.items()}
    if not any(steps.values()):
        raise BadInput(f"{problems.name}: has no row of Linux machines")
    notes = []
    if other_products:
        notes.append(f"{counted(other_products, 'row')} of other products than {LINUX[0]} left out")
    if conflicts:
        notes.append(f"of {counted(conflicts, 'second value')} for the same moment the less favourable one counts")
    return SpotHistory(name=problems.name, steps=steps, notes=tuple(notes))


def _steps(values: Mapping[float, float]) -> Steps:
    """Return the changes of a value, in order of time."""
    steps = list[tuple[float, float]]()
    for at, value in sorted(values.items()):
        if not steps or steps[-1][1] != value:
            steps.append((at, value))
    return tuple(steps)


# ------------------------------------------------------------------------------------------------------------- applying
Pools = Mapping[str, frozenset[tuple[str, str]]]
"""Zones and types by provider."""


def sold_as_spot(setting: Setting) -> Pools:
    """Return what the clouds of a setting sell as spot. Raises ConfigError if their settings are invalid."""
    with quick_folder() as folder:
        return {
            name: frozenset((each.zone, each.instance_type.name) for each in offers if each.market is Market.SPOT)
            for name, offers in offers_of(setting, folder).items()
        }


def with_spot_history(setting: Setting, history: SpotHistory, sold: Pools, start_at: float | None = None) -> Setting:
    """Return the setting with clouds whose spot markets follow a history, as far as they sell its types and zones.

    ``start_at``: the moment of the history at which the simulation starts; None: its first row.

    Raises BadInput if none of them is sold as spot, or the history ends before.
    """
    if not any(pool in pools for pool in history.pools for pools in sold.values()):
        sells = sorted({_text(*pool) for pools in sold.values() for pool in pools})
        other = f"it sells {listed(sells)}; --cloud names another" if sells else "it has no spot market"
        raise BadInput(
            f"{history.name}: the simulated cloud sells none of its types and zones as spot; {other}. It has "
            f"{listed([_text(*pool) for pool in history.pools])}"
        )
    moved = history.since(history.first_at if start_at is None else start_at, setting.starts_at)
    clouds = {}
    for name, settings in setting.providers.items():
        recorded = {
            kind: {f"{zone}/{kept}": steps for (zone, kept), steps in pools.items() if (zone, kept) in sold[name]}
            for kind, pools in moved.steps.items()
        }
        spot = settings.get("spot")
        clouds[name] = {**settings, "spot": {**(spot if isinstance(spot, Mapping) else {}), "history": recorded}}
    return replace(setting, cloud={}, clouds=clouds)


def with_recorded_spot(cloud: Mapping[str, Any], region: str, history: SpotHistory) -> dict[str, object]:
    """Return settings of a region that sells, as spot, the types with recorded prices, in the zones that have them.

    The price catalogue knows no spot prices of EC2. In a zone without recorded prices such a type costs what it does
    elsewhere: the median of its first prices.
    """
    first_usd: dict[str, list[float]] = defaultdict(list)
    zones = set[str]()
    for (zone, type_name), steps in history.steps["prices"].items():
        if zone[:-1].rstrip("-") == region and type_name in cloud["types"]:
            first_usd[type_name].append(steps[0][1])
            zones.add(zone)
    if not zones:
        return dict(cloud)
    types = dict(cloud["types"])
    for type_name, usd in first_usd.items():
        kind = types[type_name]
        markets = sorted({*kind["markets"], Market.SPOT.value})
        types[type_name] = {**kind, "markets": markets, "spot_price_factor": min(1.0, median(usd) / kind["usd_per_h"])}
    return {
        **cloud,
        "types": types,
        "zones": sorted(zones),
        "regions": dict.fromkeys(sorted(zones), region),
        "markets": sorted({*cloud["markets"], Market.SPOT.value}),
    }


def unsold_note(history: SpotHistory, sold: Pools) -> str:
    """Return a sentence that names what of a history no cloud sells as spot, so that it is left out; empty if none."""
    unsold = [_text(*pool) for pool in history.pools if not any(pool in pools for pools in sold.values())]
    return f"{history.name}: not sold as spot on this cloud, so left out: {listed(unsold)}" if unsold else ""


def _text(zone: str, type_name: str) -> str:
    return f"{type_name} in {zone}"
