"""A report as data: columns with units, rows, a total and notes. Converts to JSON and CSV, and from JSON."""

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
    """One column of a report."""

    name: str
    """Name in JSON and CSV, with the unit as its suffix: ``cost_usd``."""
    unit: Unit = ""
    """Unit for formatting; empty for text and plain numbers."""
    label: str = ""
    """Header for people, if it differs from the name."""

    def to_json(self) -> dict[str, str]:
        """Return the column as a JSON object."""
        return {"name": self.name, "unit": self.unit, **({"label": self.label} if self.label else {})}


NOTHING = "nothing to report for this period"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A finished report. Each row, and ``total``, has one value per column; None is an empty cell."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    total: Row | None = None
    notes: tuple[str, ...] = ()
    further: tuple[ReportTable, ...] = ()
    """Tables shown below this one."""
    when_empty: str = NOTHING
    """Shown in place of a table without rows."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object; each row is an object by column name."""
        names = [column.name for column in self.columns]
        return {
            "title": self.title,
            "columns": [column.to_json() for column in self.columns],
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
            "total": None if self.total is None else dict(zip(names, self.total, strict=True)),
            "notes": list(self.notes),
            **({"further": [each.to_json() for each in self.further]} if self.further else {}),
            **({"when_empty": self.when_empty} if not self.rows and self.when_empty != NOTHING else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ReportTable:
        """Return the report of a document from ``to_json``. Raises KeyError if a part is missing."""
        columns = tuple(
            Column(name=each["name"], unit=each["unit"], label=each.get("label", "")) for each in document["columns"]
        )

        def row(values: Mapping[str, Value]) -> Row:
            return tuple(values[column.name] for column in columns)

        total = document["total"]
        return cls(
            title=document["title"],
            columns=columns,
            rows=tuple(row(values) for values in document["rows"]),
            total=None if total is None else row(total),
            notes=tuple(document["notes"]),
            further=tuple(cls.from_json(each) for each in document.get("further", ())),
            when_empty=document.get("when_empty", NOTHING),
        )

    def to_csv(self) -> str:
        """Return header and rows as CSV, without total, notes and further tables; None is an empty field."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows(self.rows)
        return stream.getvalue()


def columns(*described: str) -> tuple[Column, ...]:
    """Return columns by name, each with the unit of the name's suffix: ``_usd``, ``_s``, ``_h`` or ``_pct``.

    A name with a user's tag (``tag:KEY``) has no unit.
    """
    endings: dict[str, Unit] = {"usd": "usd", "s": "s", "h": "h", "pct": "%"}
    return tuple(
        Column(name=name, unit="" if ":" in name else endings.get(name.rpartition("_")[2], "")) for name in described
    )


def dollars(amount_usd: float) -> str:
    """Return an amount with cents: ``$1.50``, ``-$0.20``."""
    return f"{'-' if amount_usd < 0 else ''}${abs(amount_usd):.2f}"


def share_pct(part: float, whole: float) -> float | None:
    """Return ``part`` of ``whole`` in percent, or None if ``whole`` is 0."""
    return 100.0 * (part / whole) if whole else None  # in this order: exactly 100 if both are equal


def total_row(names: Sequence[Column], rows: Sequence[Row], summed: set[str]) -> Row:
    """Return a total row: ``total`` in the first column, sums of the ``summed`` columns, None in the others."""
    sums: list[Value] = []
    for index, column in enumerate(names):
        values = [row[index] for row in rows]
        sums.append(sum(v for v in values if isinstance(v, (int, float))) if column.name in summed else None)
    return ("total", *sums[1:])
