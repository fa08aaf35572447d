"""The style of all pictures, and how they are written. matplotlib (extra ``plots``) is imported only to draw one."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unicodedata import east_asian_width

from hcloud.core.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = (".svg", ".png", ".pdf")
"""Endings of file names, by which the format is chosen."""
BLUE, ORANGE, GREEN, PURPLE, RED, GREY, TEAL, OLIVE = (
    "#3b6fa0", "#d9822b", "#5a9a4a", "#8a5a9c", "#b8433f", "#6b6b6b", "#3a9c9c", "#a8922f",
)  # fmt: skip
COLOURS: Final = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY, TEAL, OLIVE)
MARKETS: Final[Mapping[str, str]] = {"reserved": BLUE, "on_demand": ORANGE, "spot": GREEN}
DASHES: Final = ("solid", "dashed", "dotted")
"""Distinguish lines of the same colour."""
WIDTH_IN: Final = 9.0
ROW_IN: Final = 0.3
"""Height of a bar with its label."""
LABEL_MOST: Final = 44
"""Characters of a label; a longer one is shortened in its middle, since names differ at both ends."""
_STYLE: Final[Mapping[Any, Any]] = {
    "axes.axisbelow": True, "axes.edgecolor": "#555555", "axes.grid": True, "axes.labelsize": 9,
    "axes.spines.right": False, "axes.spines.top": False, "axes.titlelocation": "left", "axes.titlesize": 10,
    "axes.titleweight": "bold", "figure.dpi": 100, "figure.titlesize": 11, "figure.titleweight": "bold",
    "font.family": "sans-serif", "font.size": 9, "grid.color": "#dddddd", "grid.linewidth": 0.7, "legend.fontsize": 9,
    "legend.frameon": False, "lines.linewidth": 1.5, "savefig.facecolor": "white", "svg.fonttype": "none",
    "svg.hashsalt": "hcloud", "text.parse_math": False, "xtick.labelsize": 9, "ytick.labelsize": 9,
}  # fmt: skip


def require_matplotlib() -> None:
    """Raise BadInput if pictures cannot be drawn here; call it before long work that ends with one."""
    if find_spec("matplotlib") is None:
        raise BadInput("pictures need matplotlib; install it with: pip install 'hcloud-daemon[plots]'")


def check_picture(path: Path) -> None:
    """Raise BadInput if a picture cannot be drawn, or not in the format that the file's name asks for."""
    if path.suffix.lower() not in FORMATS:
        raise BadInput(f"{path}: a picture's name must end with {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    require_matplotlib()


@cache
def _figure_type() -> type[Figure]:
    require_matplotlib()
    import matplotlib

    matplotlib.rcParams.update(_STYLE)
    from matplotlib.figure import Figure

    return Figure


def new_figure(height_in: float, title: str = "", width_in: float = WIDTH_IN) -> Figure:
    """Return an empty figure in the common style."""
    figure = _figure_type()(figsize=(width_in, height_in), layout="constrained")
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    return figure


def to_bytes(figure: Figure, suffix: str = ".svg") -> bytes:
    """Return a figure as a file of a format; equal figures give equal bytes."""
    stream = io.BytesIO()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that matplotlib's own font lacks; the reader's may have them
        figure.savefig(stream, format=suffix.removeprefix("."), metadata=metadata, dpi=150)
    return stream.getvalue()


def to_svg(figure: Figure) -> str:
    """Return a figure as SVG; its text is text."""
    return to_bytes(figure).decode()


def write(figure: Figure, path: Path) -> None:
    """Write a figure to a file, in the format of its name. Raises BadInput."""
    check_picture(path)
    path.write_bytes(to_bytes(figure, path.suffix.lower()))


# ------------------------------------------------------------------------------------------------------- parts of plots
def label(text: str, most: int = LABEL_MOST) -> str:
    """Return a name at most as wide as ``most`` characters, without characters that cannot be shown."""
    shown = "".join(each if each.isprintable() else "?" for each in text)
    end = most // 2
    if sum(map(_character_width, shown)) <= most:
        return shown
    return f"{_prefix(shown, most - end - 1)}…{_prefix(shown[::-1], end)[::-1]}"


def _prefix(text: str, most: int) -> str:
    ends = accumulate(map(_character_width, text))
    return text[: sum(end <= most for end in ends)]


def _character_width(letter: str) -> int:
    return 2 if east_asian_width(letter) in "WF" else 1


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label rows from top to bottom, one for each whole number of the y axis; ``names`` as they fit."""
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def draw_limits(
    axes: Axes, row: float, value: float, low: float, high: float, *, colour: str = "black", marker: str = ""
) -> None:
    """Draw the limits of a value in a row, with a marker at the value if one is given."""
    axes.errorbar(
        [value], [row], xerr=[[max(0.0, value - low)], [max(0.0, high - value)]], fmt=marker or "none", color=colour,
        ecolor=colour, elinewidth=1.3, capsize=2.5, markersize=5.5,
    )  # fmt: skip


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the seconds of the unit in which a span is best shown, and its name."""
    for unit_s, name in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 3 * unit_s:
            return unit_s, name
    return 1.0, "seconds"
