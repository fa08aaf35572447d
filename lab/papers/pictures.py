"""The picture of a figure: its main number by case, and how much of each published effect is there."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from hcloud.plots import BLUE, GREEN, GREY, ORANGE, RED, ROW_IN, draw_limits, label, name_rows, new_figure
from hcloud.simulator.charts import draw_means
from hcloud.simulator.seeds import Mean, mean_of
from lab.papers.measures import axis_of
from lab.papers.study import Claim, Effect, Figure, Results, Verdict, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture
    from matplotlib.figure import SubFigure

VERDICTS = {
    Verdict.HOLDS: GREEN,
    Verdict.HOLDS_WITHIN_LIMITS: BLUE,
    Verdict.SAME_SIGN: ORANGE,
    Verdict.DEPARTS: RED,
}
LEAST, MOST = -1.5, 2.5
"""Edges of the scale of effects; what lies beyond is drawn as an arrow at the edge."""
COST, PERFORMANCE = "cost_usd", ("performance_pct", "target_met_pct", "qos_kept_pct")


def figure_picture(figure: Figure, found: Results) -> Picture:
    """Draw the main number of each case with its 95 % limits, and below it each claim whose size is published."""
    claims = _judged(figure, found)
    found = {case: runs for case, runs in found.items() if any(figure.drawn in run for run in runs)}
    cases_in, claims_in = 0.85 + ROW_IN * len(found), 1.2 + 1.5 * ROW_IN * len(claims)
    picture = new_figure(0.4 + cases_in + (claims_in if claims else 0.0), figure.title)
    parts = picture.subfigures(
        1 + bool(claims), 1, height_ratios=[cases_in, *([claims_in] if claims else [])], squeeze=False
    )
    _draw_cases(parts[0, 0], figure, found)
    if claims:
        _draw_claims(parts[1, 0], claims)
    return picture


def _draw_cases(part: SubFigure, figure: Figure, found: Results) -> None:
    """Draw the main number; beside the cost how well jobs did, and beside that the cost, if the figure has both."""
    others = PERFORMANCE if figure.drawn == COST else (COST,)
    shown = [name for name in others if name in figure.columns]  # on a private cluster all cost the same
    known = [name for name in shown if all(name in run for runs in found.values() for run in runs)]
    other = next((name for name in known if len({round(each.value, 9) for each in _means(found, name)}) > 1), None)
    axes = part.subplots(
        1, 1 if other is None else 2, sharey=True, squeeze=False, width_ratios=[3, 2][: 1 + bool(other)]
    )
    draw_means(axes[0, 0], _means(found, figure.drawn))
    name_rows(axes[0, 0], [label(each) for each in found])
    axes[0, 0].set_xlabel(axis_of(figure.drawn))
    published = [(value, row) for row, case in enumerate(found) if (value := figure.published.get(case)) is not None]
    if published:
        values, rows = zip(*published, strict=True)
        below, marks = [row + 0.3 for row in rows], {"color": "white", "markeredgecolor": "black", "markersize": 6}
        # At the lower edge of its bar: between two bars it could be of either.
        axes[0, 0].plot(values, below, "^", label="published", clip_on=False, **marks)
        axes[0, 0].set_xlim(right=max(axes[0, 0].get_xlim()[1], 1.05 * max(values)))
        axes[0, 0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderpad=0.1)
    axes[0, 0].set_title("here: means over seeds, 95 % limits")
    if other is not None:
        for row, each in enumerate(_means(found, other)):
            half = each.half_width or 0.0
            draw_limits(axes[0, 1], row, each.value, each.value - half, each.value + half, marker="o")
        axes[0, 1].set_xlabel(axis_of(other))
        axes[0, 1].margins(x=0.15)


def _means(found: Results, name: str) -> list[Mean]:
    return [mean_of([run[name] for run in runs if name in run]) for runs in found.values()]


def _judged(figure: Figure, found: Results) -> list[tuple[Claim, Effect, Mean, Verdict]]:
    """Return the claims with a published size, and what stands beside it."""
    judged = []
    for claim in figure.claims:
        try:
            if claim.effect is not None:
                judged.append((claim, claim.effect, *judge(claim, found)))
        except KeyError:  # a stored run lacks the numbers for it
            continue
    return judged


def _draw_claims(part: SubFigure, claims: Sequence[tuple[Claim, Effect, Mean, Verdict]]) -> None:
    axes = part.subplots()
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    axes.axvline(1.0, color="black", linewidth=1.2)
    for row, (claim, effect, ours, verdict) in enumerate(claims):
        half, colour = ours.half_width or 0.0, VERDICTS[verdict]
        ends = sorted(effect.share(value) for value in (ours.value - half, ours.value + half))
        share = effect.share(ours.value)
        place = min(MOST, max(LEAST, share))
        axes.plot([1.0], [row], "D", color="white", markeredgecolor="black", markersize=6)
        if share != place:
            axes.plot([place], [row], ">" if share > MOST else "<", color=colour, markersize=7, clip_on=False)
        else:
            draw_limits(axes, row, share, max(LEAST, ends[0]), min(MOST, ends[1]), colour=colour, marker="o")
        numbers = f"{ours.text()}, published {effect.published:.3g}\n({label(claim.unit, 34)})"
        axes.annotate(numbers, (1.02, row), xycoords=("axes fraction", "data"), va="center", annotation_clip=False)
    name_rows(axes, ["\n".join(wrap(claim.text, 50)[:3]) for claim, *_ in claims])
    axes.set_xlim(LEAST - 0.05, MOST + 0.05)
    axes.set_xticks([-1, 0, 1, 2], ["-1\nopposite", "0\nno effect", "1\nas published", "2\ntwice"])
    axes.set_title("share of each published effect (diamond) that is here")
    shown = [verdict for verdict in VERDICTS if verdict in {each[3] for each in claims}]
    for verdict in shown:
        axes.plot([], [], "o", color=VERDICTS[verdict], label=str(verdict))
    part.legend(loc="outside lower center", ncols=len(VERDICTS))
