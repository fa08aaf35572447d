"""next_knee: the size between two measured ones at which a program stops scaling."""

import pytest

from hcloud.core.estimates import MOST_KNEES, next_knee


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({1.0: 10.0, 16.0: 40.0}, 4.0),  # four threads
        ({1.0: 10.0, 3.0: 30.0, 16.0: 41.0}, 4.0),
        ({0.5: 10.0, 8.0: 16.0}, 0.8),
        ({1.0: 10.0, 8.0: 80.0}, None),  # scales all the way
        ({1.0: 10.0, 8.0: 10.3}, None),  # does not scale at all
        ({1.0: 10.0, 4.0: 40.0, 16.0: 41.0}, None),  # found before
        ({2.0: 10.0}, None),
    ],
)
def test_knee_is_where_proportional_scaling_ends(rates: dict[float, float], expected: float | None) -> None:
    assert next_knee(rates) == expected


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 6, 8, 12])
def test_few_measurements_find_how_many_threads_a_program_has(threads: int) -> None:
    def rate(vcpus: float) -> float:
        return float(min(vcpus, threads)) ** 0.9

    rates = {vcpus: rate(vcpus) for vcpus in (1.0, 16.0)}
    for _ in range(MOST_KNEES):
        if (at := next_knee(rates)) is not None:
            rates[at] = rate(at)
    enough = min(vcpus for vcpus, value in rates.items() if value >= 0.99 * rate(16.0))
    assert threads <= enough <= 1.5 * threads
