"""Writes results as a Markdown page: our numbers next to the published ones, with charts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hcloud.simulator.charts import limits_svg
from hcloud.simulator.scenarios import SCENARIOS
from hcloud.simulator.seeds import Mean, mean_of
from lab.papers.study import Claim, Figure, Results, RunSize, judge

UNITS = {"_pct": "%", "_usd": "USD", "_s": "s"}
PAGE_OF_DOCUMENTATION = re.compile(r"\[[a-z]+\]\(([a-z]+\.md)\)")
"""A link to a documentation page, as used in the page and in figures' sources."""


FigureResults = tuple[Figure, Results, RunSize]
"""A figure, its results, and the size of the run."""


def markdown(
    chapters: Mapping[str, Sequence[FigureResults]], command: str, missing: Sequence[str] = (), *, linked: bool = True
) -> str:
    """Return the whole page; charts are expected as ``results/NAME.svg`` next to it.

    ``missing``: names of figures without results. ``linked``: documentation pages are next to it; else they are named
    without a link.
    """
    lines = [
        "# Results: the papers' experiments, run again",
        "",
        f"Made by `{command}`: simulations by the daemon's own controller, planner and store. How much of each",
        "experiment was run, and with how many seeds, is said at each figure. Numbers are means over seeds with their",
        "95 % limits. *Performance* is relative to a job alone on the best machine type, *QoS kept* the share of jobs",
        "that lost at most 5 %. The world is ours, as the papers' machines and programs are not to be had",
        "([simulation](simulation.md) says where its numbers come from): shape and rough size can",
        "agree, digits cannot. What *holds* or *departs* does so by the mean; where the limits reach beyond,",
        "that is said.",
    ]
    for chapter, figures in chapters.items():
        lines += ["", f"## {chapter}"]
        for figure, found, size in figures:
            lines += ["", *_figure(figure, found, size)]
    if missing:
        lines += ["", "## Not run", "", f"Of these figures there are no results here: {', '.join(missing)}."]
    page = "\n".join(lines) + "\n"
    return page if linked else PAGE_OF_DOCUMENTATION.sub(r"`docs/\1`", page)


def _figure(figure: Figure, found: Results, size: RunSize) -> Iterator[str]:
    yield f"### {figure.title}"
    yield ""
    length = f", {size.hours:g} h" if any(case.experiment in SCENARIOS for case in figure.cases) else ""
    yield f"After {figure.source}. Run: {size.share:g} of the jobs and machines{length}, {size.seeds} seed(s):"
    hours = f" --hours {size.hours:g}" if length else ""
    yield f"`python -m lab.papers --figure {figure.name} --share {size.share:g}{hours} --seeds {size.seeds}`."
    if figure.claims:
        yield ""
        yield "| claim | published | here | |"
        yield "|---|---|---|---|"
        yield from (_claim_row(claim, found) for claim in figure.claims)
    yield ""
    yield "| | " + " | ".join(_head(name) for name in figure.columns) + " |"
    yield "|---|" + "---|" * len(figure.columns)
    for label, runs in found.items():
        yield f"| {label} | " + " | ".join(_cell(runs, name) for name in figure.columns) + " |"
    if figure.drawn:
        yield ""
        yield f"![{figure.title}](results/{figure.name}.svg)"


def _claim_row(claim: Claim, found: Results) -> str:
    """Return a claim as a table row; a stored run may lack the numbers it needs."""
    try:
        ours, holds = judge(claim, found)
    except KeyError:
        return f"| {claim.text} | {claim.published} | - | not read off these runs: run them again |"
    verdict = _verdict(claim, ours, holds)
    verdict += f": {claim.why}" if claim.why and not holds else ""
    return f"| {claim.text} | {claim.published} | {_signed(ours, claim.unit)} | {verdict} |"


OPPOSITES = {"cheaper": "more expensive", "dearer": "cheaper", "below": "above"}


def _signed(value: Mean, unit: str) -> str:
    """Return a value with its unit; a negative one as its amount in the opposite direction."""
    direction = unit.removeprefix("% ").partition(",")[0]
    if value.rounded >= 0 or direction not in OPPOSITES:
        return f"{value.text()} {unit}"
    return f"{value.text().removeprefix('-')} {unit.replace(direction, OPPOSITES[direction])}"


def _verdict(claim: Claim, ours: Mean, holds: bool) -> str:
    """Return whether a claim holds on average and within its limits."""
    if ours.half_width is None:
        return "holds with one seed" if holds else "**departs**"
    limits = [claim.holds(ours.value - ours.half_width), claim.holds(ours.value + ours.half_width)]
    if holds:
        return "holds" if all(limits) else "holds on average, but not within the limits"
    return "**departs** on average, but not within the limits" if any(limits) else "**departs**"


def _head(name: str) -> str:
    for ending, unit in UNITS.items():
        if name.endswith(ending):
            return f"{name.removesuffix(ending).replace('_', ' ')}, {unit}"
    return name.replace("_", " ")


def _cell(runs: Sequence[Mapping[str, float]], name: str) -> str:
    values = [run[name] for run in runs if name in run]
    only = "" if len(values) == len(runs) else f" ({len(values)} of {len(runs)} seeds)"
    return mean_of(values).text() + only if values else "-"


def bars_svg(figure: Figure, found: Results) -> str:
    """Return a chart of the figure's main number by case, with 95 % limits."""
    name = figure.drawn
    means = {label: mean_of([run[name] for run in runs if name in run] or [0.0]) for label, runs in found.items()}
    return limits_svg(f"{figure.title}: {_head(figure.drawn)}", means)
