"""One target's messages, in order: read from the event log, sent, and remembered as sent."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from hcloud.core.clock import Clock
from hcloud.core.errors import StoreError
from hcloud.core.model import Event, EventKind
from hcloud.notifications.delivery import DeliveryError
from hcloud.notifications.messages import NOTIFIED, PROVIDER_TROUBLE, Message, message_of
from hcloud.store import Store

_log = logging.getLogger("hcloud")
IDLE_S = 1.0
"""Pause between two looks at the log."""
BUSY_S = 5.0
"""Pause after the database did not answer."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 600.0
"""Pauses between tries of one message: doubled each time up to the longest."""
GIVE_UP_S = 86_400.0
"""A message that was not taken for so long is dropped, so that those behind it are sent."""
SAME_TROUBLE_S = 3600.0
"""The same trouble of a provider is reported once in so long."""
_BATCH = 100
_SAVED_EVERY = 5_000
"""Events without a message after which the place in the log is stored."""


@dataclass(slots=True, kw_only=True)
class Outbox:
    """Sends the messages of one target. Only one thread calls it; others may read ``trouble``."""

    store: Store
    clock: Clock
    owner: str
    name: str
    """The target's name; its place in the log is stored under it."""
    send: Callable[[Message, float], None]
    kinds: Collection[str]
    """Kinds of messages that are sent."""
    users: Collection[str] = ()
    """Owners of jobs whose messages are sent; empty: all."""
    leads: Callable[[], bool] = lambda: True
    """Whether this daemon leads: a standby sends nothing."""
    trouble: str = ""
    """Why the last try failed; empty: it did not."""
    _place: int | None = None
    """Number of the last event that is done with; None: to be read from the store."""
    _saved: int = 0
    _tries: int = 0
    _failing_since: float = 0.0
    _told: dict[tuple[object, ...], tuple[int, float]] = field(default_factory=dict)
    """Which troubles of providers were reported last, each with number and time of its event."""

    @property
    def _key(self) -> str:
        return f"notified.{self.name}"

    def run(self, stop: threading.Event) -> None:
        """Send until ``stop`` is set."""
        while not stop.is_set():
            self.clock.wait(stop, self.step())

    def step(self) -> float:
        """Send what is due; return the pause before the next step, in seconds."""
        try:
            if not self.leads():
                self._place = None  # the leader goes on from what it stored
                return IDLE_S
            return self._send_due()
        except StoreError as error:
            _log.warning("notifications to %s wait for the database: %s", self.name, error)
            return BUSY_S
        except Exception:  # noqa: BLE001 top of the thread: a defect must not end it
            _log.exception("notifications to %s fail", self.name)
            self.trouble = "a defect of HCloud; see its log"
            return LONGEST_PAUSE_S

    def _send_due(self) -> float:
        if self._place is None:
            self._place = self._stored_place()
        newest = self.store.newest_event_seq()
        if self._place >= newest:
            return IDLE_S
        events = self.store.events(
            after_seq=self._place, before_seq=newest + 1, kinds=[NOTIFIED[each] for each in self.kinds], limit=_BATCH
        )
        for event in events:
            message = message_of(event, self.owner, self.store.job, self.store.instance)
            if message is not None and self._is_wanted(event, message):
                pause_s = self._try(message)
                if pause_s > 0.0:
                    return pause_s
                self._advance(event.seq, save=True)
            else:
                self._advance(event.seq)
        if len(events) < _BATCH:
            self._advance(newest)
            return IDLE_S
        return 0.0

    def _stored_place(self) -> int:
        text = self.store.get_meta(self._key)
        if text is None:  # a new target gets no messages about the past
            self._place = self.store.newest_event_seq()
            self._advance(self._place, save=True)
            return self._place
        self._saved = int(text)
        return self._saved

    def _advance(self, seq: int, *, save: bool = False) -> None:
        self._place = seq
        if save or seq - self._saved >= _SAVED_EVERY:
            self.store.set_meta(self._key, str(seq))
            self._saved = seq

    def _is_wanted(self, event: Event, message: Message) -> bool:
        if message.kind not in self.kinds or (self.users and message.user and message.user not in self.users):
            return False
        if message.kind != PROVIDER_TROUBLE:
            return True
        what = tuple(event.fields.get(name) for name in ("provider", "call", "error"))
        told_at = self._told.get(what)
        if told_at is not None and told_at[0] != event.seq and event.at - told_at[1] < SAME_TROUBLE_S:
            return False
        self._told[what] = (event.seq, event.at)
        return True

    def _try(self, message: Message) -> float:
        """Send a message; return how long to wait for another try, 0: it is done with."""
        now = self.clock.now()
        try:
            self.send(message, now)
        except DeliveryError as error:
            if self._tries == 0:
                self._failing_since = now
                _log.warning("notification %s to %s was not taken: %s", message.id, self.name, error)
            self.trouble = str(error)
            if now - self._failing_since < GIVE_UP_S:
                pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._tries, 20))
                self._tries += 1
                return pause_s
            self._drop(message, now)
        else:
            self.trouble = ""
        self._tries = 0
        return 0.0

    def _drop(self, message: Message, now: float) -> None:
        text = f"notification {message.id} to {self.name} was given up after {GIVE_UP_S / 3600:.0f} h: {self.trouble}"
        _log.error("%s", text)
        with self.store.transaction(now) as txn:
            txn.emit(EventKind.DAEMON, what="notification_dropped", name=self.name, text=text)
