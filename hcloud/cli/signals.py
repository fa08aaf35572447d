"""How a long command is ended by a signal: in good order, whatever it was doing, and once."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points

AGAIN_S = 0.2
"""So often a signal is acted on again that something has swallowed."""
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_pool_log = logging.getLogger("sqlalchemy.pool")
"""Tells of a connection that is cut off as it closes, with its trace: no news where somebody wants to leave."""


@dataclass(slots=True)
class SignalHandling:
    """Whether a signal has asked to leave a block, and that it is left."""

    asked: list[int] = field(default_factory=list)
    """Numbers of signals, in the order in which they came."""
    _pid: int = field(default_factory=os.getpid)

    def end(self, number: int, _: object) -> None:
        """Begin to leave: the handler of signals that end."""
        if os.getpid() != self._pid:  # a child on its way to another program
            os._exit(128 + number)
        self.asked.append(number)
        _pool_log.setLevel(logging.CRITICAL)
        signal.signal(signal.SIGALRM, self._again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        self.go_on()

    def _again(self, _: int, __: object) -> None:
        self.go_on()

    def go_on(self) -> None:
        """Return, or raise what was asked for (first), but where that, or what it has become, is being handled.

        Raises SystemExit (128 + the signal), KeyboardInterrupt.
        """
        if not self.asked or _is_leaving(sys.exc_info()[1]):
            return
        raise KeyboardInterrupt if self.asked[0] == signal.SIGINT else SystemExit(128 + self.asked[0])


def _is_leaving(handled: BaseException | None) -> bool:
    while handled is not None and not isinstance(handled, (SystemExit, KeyboardInterrupt)):
        handled = handled.__context__
    return handled is not None


@contextmanager
def exit_on_signal() -> Iterator[SignalHandling]:
    """Leave the block by ``SystemExit`` on SIGTERM and SIGHUP, by ``KeyboardInterrupt`` on SIGINT, so that whatever it
    opened is closed on the way out. Whoever is on the way is deaf to further signals; forked children just end.

    What a signal's handler raises is lost where CPython runs code without a caller (a hook of a fork, of a weak
    reference, of an import's lock), and turned into something else by some libraries: it is raised again until it is
    on its way. Before the block reports anything it calls ``go_on``, so that no interrupted result is reported.
    """
    # Simulations import it when they begin: an exception that a signal handler raises within an import can get lost.
    for point in entry_points(group="hcloud.providers", name="mock"):
        point.load()
    leaving = SignalHandling()
    with _as_it_was(leaving):
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as of what a script runs in the background
                signal.signal(number, leaving.end)
        yield leaving
        leaving.go_on()


@contextmanager
def _as_it_was(leaving: SignalHandling) -> Iterator[None]:
    """Put handlers, timer and log back at the end of the block."""
    handlers = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGALRM)}
    timer, level = signal.getitimer(signal.ITIMER_REAL), _pool_log.level
    try:
        yield
    finally:
        if leaving.asked:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, *timer)
        for number, handler in handlers.items():
            if handler is not None:  # else it was not set by Python, and cannot be
                signal.signal(number, handler)
        _pool_log.setLevel(level)
