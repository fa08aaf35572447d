"""The chart of any profile is well-formed and matches its numbers."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from hcloud.classifier.profiles import Cells, PerformanceCell, PressureCell
from hcloud.profiler.profile_charts import BAR, CURVE, svg
from tests.profiler.samples import profile

SVG = "{http://www.w3.org/2000/svg}"
CELLS = {
    "only nodes": Cells(nodes={"2": PerformanceCell(value=3.0, low=-1.0, high=9.0)}),
    "only types": Cells(type={"aws/m5.large": PerformanceCell(value=1e-9, low=0.0, high=1e-8)}),
    "only caused": Cells(caused={"l2": PressureCell(value=0.0, low=0.0, high=100.0)}),
    "tolerates nothing": Cells(tolerated={"l2": PressureCell(value=0.0, low=0.0, high=0.0)}),
}


@pytest.mark.parametrize("cells", CELLS.values(), ids=CELLS.keys())
def test_any_profile_can_be_drawn_within_its_frame(cells: Cells) -> None:
    drawn = ElementTree.fromstring(svg(replace(profile(), cells=cells)))
    width, height = float(drawn.attrib["width"]), float(drawn.attrib["height"])
    for each in drawn.iter(f"{SVG}rect"):
        if not each.attrib["width"].endswith("%"):
            assert 0 <= float(each.attrib["x"]) + float(each.attrib["width"]) <= width
            assert 0 <= float(each.attrib["y"]) + float(each.attrib["height"]) <= height
    for each in drawn.iter(f"{SVG}text"):
        assert 0 <= float(each.attrib["x"]) <= width
        assert 0 <= float(each.attrib["y"]) <= height


def test_bars_are_as_long_as_the_pressures_and_curves_pass_five_percent_there() -> None:
    cells = Cells(
        tolerated={"l2": PressureCell(value=50.0, low=40.0, high=60.0)},
        caused={"l2": PressureCell(value=30, low=30, high=30)},
    )
    text = svg(replace(profile(), cells=cells))
    widths = [float(each) for each in re.findall(r'width="([0-9.]+)" height="16" fill="#(?:4682b4|cd5c5c)"', text)]
    assert widths == [0.5 * BAR, 0.3 * BAR]
    (line,) = re.findall(r'polyline points="([^"]+)"', text)
    points = [tuple(map(float, pair.split(","))) for pair in line.split()]
    left, top = points[0]
    at_half = next(y for x, y in points if x == left + CURVE / 2)
    # 5 % of performance is a twelfth of the height of a curve that ends at 40 %.
    assert at_half - top == pytest.approx(21 * 0.05 / 0.6, abs=0.06)
