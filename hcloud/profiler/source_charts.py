"""A validation as files: one table as JSON, CSV and Markdown, and an SVG chart."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from hcloud.profiler.validation import INTENSITIES, METER_UNITS, SourceValidation, Validation

CELL_WIDTH, CELL_HEIGHT, LEFT, TOP = 74, 22, 170, 46
PLOT_WIDTH = 90
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
        "sources.svg": svg(validation),
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


def svg(validation: Validation) -> str:
    """Return slowdowns as a coloured matrix (rows: sources, columns: victims), with pressure by intensity beside it."""
    kinds = list(validation.noise)
    width = LEFT + CELL_WIDTH * len(kinds) + PLOT_WIDTH + 40
    height = TOP + CELL_HEIGHT * len(validation.measured) + 16
    parts = [f'<text x="{LEFT}" y="16">slowdown at full intensity of a victim of</text>']
    parts += [f'<text x="{LEFT + CELL_WIDTH * at + 4}" y="{TOP - 8}">{kind}</text>' for at, kind in enumerate(kinds)]
    parts.append(f'<text x="{LEFT + CELL_WIDTH * len(kinds) + 20}" y="{TOP - 8}">pressure</text>')
    for at, each in enumerate(validation.measured):
        parts += _drawn_row(each, kinds, TOP + CELL_HEIGHT * at)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _drawn_row(each: SourceValidation, kinds: list[str], top: int) -> Iterator[str]:
    core = "same core" if each.shares_core else "other core"
    yield f'<text x="4" y="{top + 15}">{escape(each.source.name)}<title>{core}</title></text>'
    for at, kind in enumerate(kinds):
        slowdown = each.slowdown[kind][100]
        shade = round(255 - 175 * min(1.0, max(0.0, (slowdown - 1) / (WORST - 1))))
        left = LEFT + CELL_WIDTH * at
        yield (
            f'<rect x="{left}" y="{top}" width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}" '
            f'fill="rgb(255,{shade},{shade})"/><text x="{left + 6}" y="{top + 15}">{slowdown:.2f}</text>'
        )
    yield _drawn_pressure(each, LEFT + CELL_WIDTH * len(kinds) + 20, top)


def _drawn_pressure(each: SourceValidation, left: int, top: int) -> str:
    most = max([*each.pressure.values(), 1e-9])
    points = [(0, 0.0), *((at, each.pressure[at] / most) for at in INTENSITIES)]
    line = " ".join(
        f"{left + PLOT_WIDTH * at / 100:.1f},{top + (CELL_HEIGHT - 4) * (1 - level) + 1:.1f}" for at, level in points
    )
    return f'<polyline points="{line}" fill="none" stroke="steelblue" stroke-width="1.5"/>'
