"""The picture of any profile is well-formed and matches its numbers."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from matplotlib.patches import Rectangle

from hcloud.classifier.profiles import Cells, PerformanceCell, PressureCell
from hcloud.plots import to_svg
from hcloud.profiler.profile_charts import KEPT_FLOOR, profile_figure
from tests.profiler.samples import profile

CELLS = {
    "only nodes": Cells(nodes={"2": PerformanceCell(value=3.0, low=-1.0, high=9.0)}),
    "only types": Cells(type={"aws/m5.large": PerformanceCell(value=1e-9, low=0.0, high=1e-8)}),
    "only caused": Cells(caused={"l2": PressureCell(value=0.0, low=0.0, high=100.0)}),
    "tolerates nothing": Cells(tolerated={"l2": PressureCell(value=0.0, low=0.0, high=0.0)}),
}


@pytest.mark.parametrize("cells", CELLS.values(), ids=CELLS.keys())
def test_any_profile_can_be_drawn(cells: Cells) -> None:
    ElementTree.fromstring(to_svg(profile_figure(replace(profile(), cells=cells))))


def test_bars_are_as_long_as_the_pressures_and_curves_pass_five_percent_there() -> None:
    cells = Cells(
        tolerated={"l2": PressureCell(value=50.0, low=40.0, high=60.0)},
        caused={"l2": PressureCell(value=30, low=30, high=30)},
    )
    tolerated, caused, curves = profile_figure(replace(profile(), cells=cells)).axes
    widths = [each.get_width() for axes in (tolerated, caused) for each in axes.patches if isinstance(each, Rectangle)]
    assert widths == [50.0, 30.0]
    assert tolerated.collections[0].get_segments()[0][:, 0].tolist() == [40.0, 60.0]
    at, heights = curves.lines[0].get_data()
    kept = {float(x): float(y) for x, y in zip(at, heights, strict=True)}
    # Rows grow downwards; a row has 0.8 for what is kept, from the floor to all of it.
    assert kept[50.0] - kept[0.0] == pytest.approx(0.8 * 0.05 / (1.0 - KEPT_FLOOR))
