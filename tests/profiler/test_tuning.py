"""Finding the intensity at which 5 % is lost: correct on known curves, in few steps, with limits that cover noise."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.profiler.repeats import Interval
from hcloud.profiler.tuning import FULL, LOSS, POINTS_MAX, Loss, crossing, next_intensity, tolerated

Curve = Callable[[float], float]
Next = Callable[[list[Loss], float], float | None]


def lost(value: float, spread: float = 0.0) -> Interval:
    """A measured loss."""
    return Interval(value=value, low=value - spread, high=value + spread, runs=3)


def tuned(curve: Curve, spread: float = 0.0, highest: float = FULL, step: Next = next_intensity) -> Interval:
    """Tune on a known curve."""
    points: list[Loss] = []
    while (at := step(points, highest)) is not None:
        assert len(points) < POINTS_MAX
        points.append(Loss(intensity=at, loss=lost(curve(at), spread)))
    return tolerated(points)


@given(st.floats(0.051, 0.9))
def test_linear_effects_are_found_exactly(at_full: float) -> None:
    found = tuned(lambda intensity: at_full * intensity / 100)
    assert found.value == pytest.approx(100 * LOSS / at_full, rel=1e-6)


@given(st.floats(0.1, 0.9), st.floats(0.5, 2.0))
def test_curved_effects_are_found_nearly(at_full: float, power: float) -> None:
    found = tuned(lambda intensity: at_full * (intensity / 100) ** power)
    true = 100 * (LOSS / at_full) ** (1 / power)
    assert abs(found.value - true) <= max(6.0, 0.25 * true)


def is_honest(step: Next) -> bool:
    """The limits cover the true value if every measured loss lies within its own limits."""
    chances = [(0.06, 0.02), (0.2, 0.03), (0.5, 0.05), (0.9, 0.05)]
    for at_full, spread in chances:
        true = 100 * LOSS / at_full
        for off in (-spread, 0.0, spread):
            found = tuned(lambda at, off=off, full=at_full: full * at / 100 + off, spread, step=step)  # type: ignore[misc]
            if not (found.low - 1e-9 <= min(100.0, true) <= found.high + 1e-9 and 0 <= found.low <= found.high <= FULL):
                return False
    return True


def test_limits_hold_the_truth_under_noise() -> None:
    assert is_honest(next_intensity)


def test_property_catches_tuning_that_forgets_the_spread() -> None:
    def fault(points: list[Loss], highest: float) -> float | None:
        at = next_intensity(points, highest)
        points[:] = [Loss(intensity=each.intensity, loss=lost(each.loss.value)) for each in points]
        return at

    assert not is_honest(fault)


def test_what_is_never_felt_is_tolerated_in_full_after_one_look() -> None:
    looked: list[float] = []

    def curve(at: float) -> float:
        looked.append(at)
        return 0.01

    assert tuned(curve, spread=0.01).value == FULL
    assert looked == [FULL]


def test_noise_that_speeds_up_is_tolerated_in_full() -> None:
    assert tuned(lambda at: -0.2 * at / 100).value == FULL


def test_what_cannot_be_pressed_in_full_is_continued_straight() -> None:
    found = tuned(lambda at: 0.08 * at / 100, spread=0.01, highest=50.0)
    assert found.value == pytest.approx(62.5)
    assert found.low < 62.5 < found.high


def test_curve_that_falls_again_is_made_to_rise() -> None:
    assert crossing([(50.0, 0.04), (75.0, 0.01), (100.0, 0.08)]) == pytest.approx(81.25)


def test_no_points_are_refused() -> None:
    with pytest.raises(ValueError, match="no points"):
        tolerated([])
