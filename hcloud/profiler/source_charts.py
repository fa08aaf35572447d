"""A validation as files: one table as JSON, CSV and Markdown, and a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcloud.plots import BLUE, RED, ROW_IN, name_rows, new_figure, to_svg
from hcloud.profiler.validation import INTENSITIES, METER_UNITS, SourceValidation, Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORST = 3.0  # slowdown drawn in the darkest colour


def row(each: SourceValidation) -> dict[str, Any]:
    """Return one source as a flat row: slowdowns at full intensity, pressure by intensity."""
    pressure = {f"pressure_{at}": round(each.pressure[at], 3) for at in INTENSITIES}
    slowdown = {f"slowdown_{victim}": round(by[100], 2) for victim, by in each.slowdown.items()}
    target = each.target_slowdown
    return {
        "number": each.source.number,
        "name": each.source.name,
        "core": "same" if each.shares_core else "other",
        "unit": METER_UNITS[each.source.meter],
        **pressure,
        "linearity": each.linearity,
        **slowdown,
        "target_slowdown": round(target, 2) if target is not None else None,
        "spill_over": round(each.spill_over, 2),
    }


def document(validation: Validation) -> dict[str, Any]:
    """Return all results in machine-readable form."""
    return {
        "sources": [row(each) for each in validation.measured],
        "noise": {victim: round(value, 3) for victim, value in validation.noise.items()},
        "repeats": validation.repeats,
        "victim_s": round(validation.victim_s, 3),
        "not_felt": list(validation.not_felt),
        "indistinguishable": [list(group) for group in validation.indistinguishable],
        "lacks": list(validation.lacks),
    }


def sentences(validation: Validation) -> Iterator[str]:
    """Yield sentences that interpret the results."""
    noise = ", ".join(f"{victim} {value:.0%}" for victim, value in validation.noise.items())
    yield f"Median of {validation.repeats} run(s) of {validation.victim_s:.2f} s. Noise of the victims alone: {noise}."
    for group in validation.indistinguishable:
        yield f"Indistinguishable by these victims on this machine: {', '.join(group)}."
    if validation.not_felt:
        yield f"Felt by no victim beyond its noise: {', '.join(validation.not_felt)}."
    odd = [f"{each.source.name} ({each.linearity})" for each in validation.measured if each.linearity != "linear"]
    if odd:
        yield f"Pressure is not about linear for: {', '.join(odd)}."
    for lack in validation.lacks:
        yield f"{lack[0].upper()}{lack[1:]}."


def write_files(validation: Validation, directory: Path) -> list[Path]:
    """Write ``sources.json``, ``.csv``, ``.md`` and ``.svg``; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    contents = {
        "sources.json": json.dumps(document(validation), indent=2) + "\n",
        "sources.csv": _csv(validation),
        "sources.md": _markdown(validation),
        "sources.svg": to_svg(sources_figure(validation)),
    }
    for name, text in contents.items():
        (directory / name).write_text(text)
    return [directory / name for name in contents]


def _csv(validation: Validation) -> str:
    rows = [row(each) for each in validation.measured]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _markdown(validation: Validation) -> str:
    rows = [row(each) for each in validation.measured]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_shown(value) for value in each.values()] for each in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"# Sources of interference on this machine\n\n{table}\n\n" + "\n".join(
        f"* {sentence}" for sentence in sentences(validation)
    ) + "\n"  # fmt: skip


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def sources_figure(validation: Validation) -> Figure:
    """Draw slowdowns as a coloured matrix (rows: sources, columns: victims), with pressure by intensity beside it."""
    kinds, measured = list(validation.noise), validation.measured
    figure = new_figure(1.6 + ROW_IN * 1.1 * len(measured), "Sources of interference on this machine")
    slowdowns, pressures = figure.subplots(1, 2, sharey=True, width_ratios=(max(2, len(kinds)), 2))
    for row, each in enumerate(measured):
        for column, kind in enumerate(kinds):
            slowdown = each.slowdown[kind][100]
            shade = min(1.0, max(0.0, (slowdown - 1.0) / (WORST - 1.0)))
            slowdowns.barh(row, 0.96, 0.9, left=column - 0.48, color=RED, alpha=0.05 + 0.85 * shade, linewidth=0)
            slowdowns.text(
                column, row, f"{slowdown:.2f}", ha="center", va="center", color="white" if shade > 0.6 else "black"
            )
        most = max([*each.pressure.values(), 1e-9])
        at = [0, *INTENSITIES]
        heights = [row + 0.45 - 0.9 * level for level in (0.0, *(each.pressure[one] / most for one in INTENSITIES))]
        pressures.plot(at, heights, color=BLUE)
        pressures.axhline(row + 0.45, color="#dddddd", linewidth=0.7)
    slowdowns.set_xticks(range(len(kinds)), kinds)
    slowdowns.set_xlim(-0.6, len(kinds) - 0.4)
    slowdowns.set_title("slowdown (times) at full intensity, by victim")
    slowdowns.grid(visible=False)
    name_rows(slowdowns, [f"{each.source.name} ({'same' if each.shares_core else 'other'} core)" for each in measured])
    pressures.set_xlim(0, 100)
    pressures.set_xlabel("intensity, %")
    pressures.set_title("pressure caused, of the most")
    pressures.grid(visible=False, axis="y")
    return figure
