"""What all records of a program on a type have in common is an error of what was expected of it, not its neighbours."""

import numpy as np
import pytest

from hcloud.classifier.slowdown.base_speeds import COMMON_SD, SpeedRecord, base_errors
from hcloud.classifier.slowdown.forecasts import SlowdownForecasts, fit_slowdowns
from hcloud.core.co_runs import CoRun
from tests.classifier.slowdown.worlds import PROGRAMS, TYPE, PairWorld

LARGE = "mock/large"


def record(longer: float, *, beside: float = 0.0, doubt: float = 0.15, type_column: str = TYPE) -> SpeedRecord:
    return SpeedRecord(
        application="sort",
        type_column=type_column,
        log_longer=longer,
        log_longer_beside=beside,
        sensitivity_sd=0.5,
        doubt=doubt,
        periods=5,
    )


def test_a_run_alone_shows_the_error() -> None:
    found = base_errors([record(0.4)])["sort", TYPE]
    assert 0.3 < found.mean < 0.4
    assert found.deviation < 0.1


def test_slow_beside_whomever_is_slow_alone() -> None:
    among = [record(0.4 + beside, beside=beside) for beside in (0.02, 0.05, 0.1, 0.2)]
    found = base_errors(among)["sort", TYPE]
    assert 0.25 < found.mean < 0.42
    # Slower the more its neighbours press: they are the cause.
    pressed = [record(3.0 * beside, beside=beside) for beside in (0.02, 0.05, 0.1, 0.2)]
    assert base_errors(pressed)["sort", TYPE].mean < 0.3 * found.mean


def test_the_surer_the_expectation_the_less_records_deny_it() -> None:
    sure, vague = (base_errors([record(0.3, beside=0.1, doubt=doubt)])["sort", TYPE].mean for doubt in (0.01, 0.5))
    assert sure < 0.8 * vague


def test_types_share_a_part_of_the_error() -> None:
    found = base_errors([*[record(0.4)] * 3, record(0.0, beside=0.3, type_column=LARGE)])
    assert found["sort", TYPE].mean > found["sort", LARGE].mean


def test_what_all_programs_have_in_common_is_found() -> None:
    """Machines in use are slower than those that programs were measured on."""
    rows = [
        SpeedRecord(
            application=f"program-{number}",
            type_column=TYPE,
            log_longer=0.2,
            log_longer_beside=0.0,
            sensitivity_sd=0.5,
            doubt=0.01,
            periods=20,
        )
        for number in range(10)
    ]
    assert base_errors(rows[:1])["program-0", TYPE].mean == pytest.approx(0.2, rel=0.1)
    assert base_errors(rows)["program-9", TYPE].mean == pytest.approx(0.2, rel=0.02)
    assert COMMON_SD < 0.2


def fitted(records: list[CoRun]) -> SlowdownForecasts:
    steps = fit_slowdowns(records, {})
    try:
        while True:
            next(steps)
    except StopIteration as done:
        found: SlowdownForecasts = done.value
        return found


def test_a_wrong_expectation_is_not_blamed_on_neighbours() -> None:
    """Each program is slower than expected of it on this type, by as much as neighbours cost or more."""
    world = PairWorld()
    wrong = dict(zip(PROGRAMS, np.random.default_rng(3).uniform(-0.3, 0.6, len(PROGRAMS)).tolist(), strict=True))

    def observed(application: str, neighbours: tuple[str, ...]) -> CoRun:
        return CoRun(
            application=application,
            neighbours=neighbours,
            type_column=TYPE,
            log_speed=-world.longer(application, neighbours) - wrong[application],
            doubt=0.3,
            seconds=600.0,
            periods=5,
        )

    groups = world.groups(2) + world.groups(3)[::3]
    records = [observed(each, tuple(name for name in group if name != each)) for group in groups for each in group]
    alone = [observed(each, ()) for each in PROGRAMS]

    def error(found: SlowdownForecasts) -> float:
        said = [
            found.slowdown(each, [name for name in group if name != each], TYPE, 0.1).mean
            - world.longer(each, [name for name in group if name != each])
            for group in world.groups(3)
            for each in group
        ]
        return float(np.abs(said).mean())

    usual = float(np.mean(np.abs(list(wrong.values()))))
    assert error(fitted(records)) < 0.6 * usual
    assert error(fitted([*records, *alone])) < 0.3 * usual
