"""Parallel simulations: results come in order, with few tasks ahead."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hcloud.simulator.pool import in_order


def test_results_come_in_order_with_few_tasks_ahead() -> None:
    taken = []

    def numbers() -> Iterator[int]:
        for number in range(10):
            taken.append(number)
            yield number

    with ThreadPoolExecutor(2) as pool:
        for at, made in enumerate(in_order(pool, lambda number: number**2, numbers(), 4)):
            assert made == at**2 and len(taken) <= at + 4
    assert taken == list(range(10))


def test_errors_are_raised_in_order() -> None:
    with ThreadPoolExecutor(2) as pool:
        made = in_order(pool, lambda number: 1 / number, [2, 0, 1], 3)
        assert next(made) == 0.5
        with pytest.raises(ZeroDivisionError):
            next(made)
