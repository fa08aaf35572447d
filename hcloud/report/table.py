"""A report as data: columns with units, rows, a total and notes; as JSON, as CSV, and back from JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["", "usd", "s", "h", "%"]
Value = str | float | int | None
Row = tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. ``name`` carries the unit (``cost_usd``); ``unit`` repeats it for formatting: empty is text
    or a plain number. ``label`` is what people are shown instead of the name, where programs rely on that."""

    name: str
    unit: Unit = ""
    label: str = ""

    def to_json(self) -> dict[str, str]:
        """Return what it is called and measured in."""
        return {"name": self.name, "unit": self.unit, **({"label": self.label} if self.label else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A finished report. Each row has one value per column, None where there is nothing to say; so has ``total``."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    total: Row | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; rows are objects by column name."""
        names = [column.name for column in self.columns]
        return {
            "title": self.title,
            "columns": [column.to_json() for column in self.columns],
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
            "total": None if self.total is None else dict(zip(names, self.total, strict=True)),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ReportTable:
        """Return the report that ``to_json`` made a document of."""
        columns = tuple(
            Column(name=each["name"], unit=each["unit"], label=each.get("label", "")) for each in document["columns"]
        )

        def row(values: Mapping[str, Value]) -> Row:
            """Return values in the order of the columns. Raises KeyError where one is lacking."""
            return tuple(values[column.name] for column in columns)

        total = document["total"]
        return cls(
            title=document["title"],
            columns=columns,
            rows=tuple(row(values) for values in document["rows"]),
            total=None if total is None else row(total),
            notes=tuple(document["notes"]),
        )

    def to_csv(self) -> str:
        """Return header and rows as CSV, without total and notes; an absent value is an empty field."""
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows(self.rows)
        return written.getvalue()


def columns(*described: str) -> tuple[Column, ...]:
    """Return columns from names, reading each unit off the name's ending: ``_usd``, ``_s``, ``_h``, ``_pct``.

    A name that is a user's (``tag:KEY``) has no unit.
    """
    endings: dict[str, Unit] = {"usd": "usd", "s": "s", "h": "h", "pct": "%"}
    return tuple(
        Column(name=name, unit="" if ":" in name else endings.get(name.rpartition("_")[2], "")) for name in described
    )


def dollars(amount_usd: float) -> str:
    """Return money with cents, the sign before the dollar."""
    return f"{'-' if amount_usd < 0 else ''}${abs(amount_usd):.2f}"


def share_pct(part: float, whole: float) -> float | None:
    """Return ``part`` of ``whole`` in percent, or None where there is no whole."""
    return 100.0 * (part / whole) if whole else None  # exactly 100 of itself


def total_row(names: Sequence[Column], rows: Sequence[Row], summed: set[str]) -> Row:
    """Return the row under a table: the sums of some columns, ``total`` in the first, nothing elsewhere."""
    sums: list[Value] = []
    for index, column in enumerate(names):
        values = [row[index] for row in rows]
        sums.append(sum(v for v in values if isinstance(v, (int, float))) if column.name in summed else None)
    return ("total", *sums[1:])
