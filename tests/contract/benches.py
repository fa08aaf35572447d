"""What an implementation brings to a port's contract suite: time, and the faults it can be made to show.

A suite is a class of tests; an implementation subclasses it, names its ``abilities`` and gives a ``bench`` fixture. A
test marked ``@needs(ability)`` that the implementation lacks says so in its id (``[cannot-lose_reply]``) and is
reported as skipped with the reason, so that it does not count as passed. What the same implementation shows under
another suite, with other settings, is named in ``elsewhere`` and not asked here.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import ClassVar, TypeVar

import pytest

from hcloud.core.clock import Clock, ManualClock
from tests.waiting import wait_until

T = TypeVar("T")
Test = TypeVar("Test", bound=Callable[..., None])


def needs(ability: StrEnum) -> Callable[[Test], Test]:
    """Mark a test that only an implementation with this ability can show."""

    def mark(test: Test) -> Test:
        test.needed_ability = ability  # type: ignore[attr-defined]
        return test

    return mark


class ContractSuite:
    """Base of the suites: states missing abilities in test ids."""

    abilities: ClassVar[frozenset[StrEnum]] = frozenset()
    elsewhere: ClassVar[frozenset[StrEnum]] = frozenset()

    def __init_subclass__(cls) -> None:
        """Leave out the tests of what is shown elsewhere."""
        super().__init_subclass__()
        for name in dir(cls):
            if getattr(getattr(cls, name), "needed_ability", None) in cls.elsewhere:
                setattr(cls, name, None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give each test that needs an ability one parameter: what is missing, or nothing."""
        needed = getattr(metafunc.function, "needed_ability", None)
        if needed is not None:
            able = needed in self.abilities
            name = f"can-{needed}" if able else f"cannot-{needed}"
            metafunc.parametrize("missing_ability", ["" if able else str(needed)], ids=[name], indirect=True)

    @pytest.fixture(autouse=True)
    def missing_ability(self, request: pytest.FixtureRequest) -> None:
        """Skip, saying why, what this implementation cannot be made to show."""
        missing = getattr(request, "param", "")
        if missing:
            pytest.skip(f"{type(self).__name__} cannot {missing.replace('_', ' ')}, so this was not shown on it")


class VirtualTime:
    """Time that stands still until a test lets it pass. ``looks`` are taken at most while waiting for something."""

    looks = 400

    def __init__(self, clock: ManualClock) -> None:
        self.clock: Clock = clock
        self._manual = clock

    def let_pass(self, seconds: float) -> None:
        """Move the clock forward."""
        self._manual.advance(seconds)

    def until(self, condition: Callable[[], T | None], timeout_s: float) -> T:
        """Let time pass in small steps until the condition holds, and return its value."""
        step_s = max(0.02, timeout_s / self.looks)
        for _ in range(round(timeout_s / step_s) + 1):
            value = condition()
            if value:
                return value
            self._manual.advance(step_s)
        raise TimeoutError(f"{condition} was still {condition()!r} after {timeout_s} s of the clock")


class RealTime:
    """Time as it is; for implementations with real processes."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def let_pass(self, seconds: float) -> None:
        """Wait until the clock has moved on by so much."""
        end_at = self.clock.now() + seconds
        wait_until(lambda: self.clock.now() >= end_at, timeout_s=seconds + 60)

    def until(self, condition: Callable[[], T | None], timeout_s: float) -> T:
        """Wait until the condition holds, and return its value."""
        value = wait_until(condition, timeout_s)
        assert value is not None
        return value


def numbers() -> Iterator[int]:
    """Count from 1."""
    number = 0
    while True:
        number += 1
        yield number
