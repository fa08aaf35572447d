"""Writes results as a Markdown page: our numbers next to the published ones, with charts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hcloud.plots import to_svg
from hcloud.simulator.scenarios import SCENARIOS
from hcloud.simulator.seeds import Mean, mean_of
from lab.papers.measures import head_of
from lab.papers.pictures import figure_picture
from lab.papers.study import ENOUGH, Case, Claim, ComputedCase, Figure, Results, RunSize, SizedCase, Verdict, judge

PAGE_OF_DOCUMENTATION = re.compile(r"\[([a-z]+)\]\(([a-z]+\.md)\)")
"""A link to a documentation page, as used in the page and in figures' sources."""


FigureResults = tuple[Figure, Results, RunSize]
"""A figure, its results, and the size of the run."""


PICTURED = (
    "strategies-high-variability-whole",
    "strategies-high-variability-2014",
    "mappings",
    "fuller-servers-whole",
    "paragon-small-oversubscribed",
    "paragon-large-low-whole",
    "arq",
    "quasar",
    "peers-high-variability",
    "parts-of-the-world",
)
"""The figures whose pictures the page shows; those of all are on their own pages."""


LEFT_OUT: Mapping[str, str] = {
    "Quasar: table 4.7, fig. 4.8": "simulated jobs have no mappers, heap or block size, and no tasks that straggle",
    "Quasar: figs. 4.11b, 4.11c, 4.12": "the load of a simulated service does not change",
    "Quasar: fig. 4.14": "memory and disk traffic of jobs are not simulated over time",
    "iBench: figs. 5.2 to 5.4": "need real machines: `hcloud profile sources --validate` measures yours, "
    "[profiling](profiling.md) says what it found on one",
    "iBench: figs. 5.5b, 5.6c": "a service stands for the distributed job; see figs. 5.5c and 5.6d",
    "iBench: figs. 5.7 to 5.9": "other hardware for one program, its source code, and cores of several kinds",
    "Tarcil: figs. 7.9 to 7.13": "need tasks of 0.1 s and several schedulers at once: one daemon decides here",
    "3Sigma: fig. 7": "needs logs that are not public",
}
"""What is not reproduced, and why."""


def markdown(
    chapters: Mapping[str, Sequence[FigureResults]], command: str, missing: Sequence[str] = (), *, linked: bool = True
) -> str:
    """Return the page: a table of all claims, and at most ten pictures; details are linked (:func:`details`).

    ``missing``: names of figures without results. ``linked``: documentation pages are next to it; else they are named
    without a link.
    """
    lines = [
        "# Results: the papers' experiments, run again",
        "",
        f"Made by `{command}`: simulations by the daemon's own controller, planner and store. How much of each",
        "experiment was run, and with how many seeds, is said on its own page. Numbers are means over seeds with their",
        "95 % limits. *Performance* is relative to a job alone on the best machine type, *QoS kept* the share of jobs",
        "that lost at most 5 %. The world is ours, as the papers' machines and programs are not to be had",
        "([simulation](simulation.md) says where its numbers come from): shape and rough size can",
        "agree, digits cannot. ESP's and Mage's chapters follow from ESP's own measurements of 15 programs, which",
        "are no part of HCloud, and Tarcil's samples and buckets from servers that are drawn.",
        "What is left out, and why, stands at the end.",
        f"An effect *holds* if at least {100 * ENOUGH:.0f} % of the published size is there, or",
        "within the limits; with less of it there is the *same sign*; what has none, or the opposite one, *departs*.",
        "Where a paper states no size, what it says holds or departs. Pictures show the main number of each case, and",
        "below it which share of each published effect is here: 0 is no effect, 1 as much as published.",
        "",
        _counted([judged for figures in chapters.values() for part in figures for judged in _judged(part)]),
    ]
    for chapter, figures in chapters.items():
        lines += ["", f"## {chapter}", "", "| claim | published | here | verdict |", "|---|---|---|---|"]
        for part in figures:
            lines += _summary_rows(part)
        for figure, _, _ in figures:
            if figure.drawn and figure.name in PICTURED:
                lines += ["", f"![{figure.title}](results/{figure.name}.svg)"]
    lines += ["", "## What is not reproduced", "", "| figures | why |", "|---|---|"]
    lines += [f"| {figures} | {why} |" for figures, why in LEFT_OUT.items()]
    if missing:
        lines += ["", "## Not run", "", f"Of these figures there are no results here: {', '.join(missing)}."]
    return _without_links(lines, linked=linked)


def details(part: FigureResults, *, linked: bool = True) -> str:
    """Return the page of one figure, ``results/NAME.md``: its claims with what is known of their causes, and all its
    numbers. ``linked``: see :func:`markdown`."""
    figure, found, size = part
    lines = [f"# {figure.title}", "", *_run_of(figure, size)]
    if figure.claims:
        lines += ["", "| claim | published | here | verdict |", "|---|---|---|---|"]
        lines += [_row(claim, judged, why=True) for claim, judged in zip(figure.claims, _judged(part), strict=True)]
    lines += ["", "| | " + " | ".join(head_of(name) for name in figure.columns) + " |"]
    lines.append("|---|" + "---|" * len(figure.columns))
    for label, runs in found.items():
        lines.append(f"| {label} | " + " | ".join(_cell(runs, name) for name in figure.columns) + " |")
    if figure.drawn:
        lines += ["", f"![{figure.title}]({figure.name}.svg)"]
    lines += ["", "All claims: [results](../results.md)."]
    return _without_links(lines, linked=linked, up="../")


def _without_links(lines: Sequence[str], *, linked: bool, up: str = "") -> str:
    page = "\n".join(lines) + "\n"
    return PAGE_OF_DOCUMENTATION.sub(rf"[\1]({up}\2)" if linked else r"`docs/\2`", page)


Judged = tuple[Mean, Verdict] | None
"""Our number and how it stands beside the published one; None: a stored run lacks the numbers for it."""


def _judged(part: FigureResults) -> list[Judged]:
    figure, found, _ = part
    judged = list[Judged]()
    for claim in figure.claims:
        try:
            judged.append(judge(claim, found))
        except KeyError:
            judged.append(None)
    return judged


def _counted(judged: Sequence[Judged]) -> str:
    """Return how many claims have which verdict, as a sentence."""
    counts = Counter(verdict for each in judged if each is not None for verdict in [each[1]])
    words = [f"{counts[verdict]} {word}" for verdict, word in VERDICT_WORDS.items() if counts[verdict]]
    return f"Of {len(judged)} claims {', '.join(words) or 'none was judged'}."


VERDICT_WORDS = {
    Verdict.HOLDS: "hold",
    Verdict.HOLDS_WITHIN_LIMITS: "hold within their limits",
    Verdict.SAME_SIGN: "have the same sign only",
    Verdict.DEPARTS: "depart",
}


def _summary_rows(part: FigureResults) -> Iterator[str]:
    figure = part[0]
    yield f"| **[{figure.title}](results/{figure.name}.md)** | | | |"
    for claim, judged in zip(figure.claims, _judged(part), strict=True):
        yield _row(claim, judged, why=False)


def _run_of(figure: Figure, size: RunSize) -> Iterator[str]:
    """Yield where a figure is from, and the command that runs it."""
    if all(isinstance(case, ComputedCase) for case in figure.cases):
        on = "On measurements of others, in a folder of your own" if figure.of_data else "Computed, not simulated"
        data = " --data FOLDER" if figure.of_data else ""
        yield f"After {figure.source}. {on}; {size.seeds} seed(s):"
        yield f"`python -m lab.papers --figure {figure.name}{data} --seeds {size.seeds}`."
        return
    lasting = any(
        case.lasting if isinstance(case, SizedCase) else isinstance(case, Case) and case.experiment in SCENARIOS
        for case in figure.cases
    )
    length = f", {size.hours:g} h" if lasting else ""
    yield f"After {figure.source}. Run: {size.share:g} of the jobs and machines{length}, {size.seeds} seed(s):"
    hours = f" --hours {size.hours:g}" if length else ""
    yield f"`python -m lab.papers --figure {figure.name} --share {size.share:g}{hours} --seeds {size.seeds}`."


def _row(claim: Claim, judged: Judged, *, why: bool) -> str:
    """Return a claim as a table row."""
    if judged is None:
        return f"| {claim.text} | {claim.published} | - | not read off these runs: run them again |"
    ours, verdict = judged
    text = f"**{verdict}**" if verdict is Verdict.DEPARTS else str(verdict)
    text += f": {claim.why}" if why and claim.why and verdict in (Verdict.DEPARTS, Verdict.SAME_SIGN) else ""
    return f"| {claim.text} | {claim.published} | {_signed(ours, claim.unit)} | {text} |"


OPPOSITES = {"cheaper": "more expensive", "dearer": "cheaper", "below": "above"}


def _signed(value: Mean, unit: str) -> str:
    """Return a value with its unit; a negative one as its amount in the opposite direction."""
    direction = unit.removeprefix("% ").partition(",")[0]
    if value.rounded >= 0 or direction not in OPPOSITES:
        return f"{value.text()} {unit}"
    return f"{value.text().removeprefix('-')} {unit.replace(direction, OPPOSITES[direction])}"


def _cell(runs: Sequence[Mapping[str, float]], name: str) -> str:
    values = [run[name] for run in runs if name in run]
    only = "" if len(values) == len(runs) else f" ({len(values)} of {len(runs)} seeds)"
    return mean_of(values).text() + only if values else "-"


def picture_svg(figure: Figure, found: Results) -> str:
    """Return the picture of a figure, as SVG: its main number by case, and its claims beside what is published."""
    return to_svg(figure_picture(figure, found))
