"""Commands on their way to agents: each is sent once, awaited for a moment, and answered whenever its agent does.

The caller's loop waits for all of them together, and never again for a machine that kept it waiting: what is unanswered
by then goes on in the background, within its own time limit. The same command is not sent again while it is unanswered;
its answer is returned to the next caller that asks for it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hcloud.core.errors import defect_text
from hcloud.core.model import FailureCause, InstanceId

_log = logging.getLogger("hcloud")
Answer = dict[str, Any]
Key = tuple[object, ...]
Numbered = tuple[int, Answer]
"""An answer and the index of its command in the call."""
CHUNK_BYTES = 1 << 20
LATE_KEPT_S = 60.0
"""How long an answer is kept that came after the caller had stopped waiting."""


class EngineAway(Exception):
    """The gateway did not answer; what was asked may or may not have been done."""


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """One command to one agent."""

    key: Key
    """What it is known by: a kind, then what it is about."""
    instance_id: InstanceId
    request: Answer
    needs_sign_of_life: bool = False
    """Whether it is only passed on to an agent that responds."""
    archives: Mapping[str, Path] = field(default_factory=dict)
    """What an agent that lacks it is sent, by name, after which the command is repeated."""
    is_news: bool = False
    """Whether a late answer ends the caller's pause."""


@dataclass(slots=True, eq=False)
class _Sent:
    """A command that was sent, and its answer once it came."""

    command: Command
    answer: Answer | None = None
    answered_at: float = 0.0
    is_overdue: bool = False
    """Whether a caller waited for it in vain."""
    is_unclaimed: bool = False
    """Whether the answer will not be asked for."""


class Wire(Protocol):
    """What carries commands."""

    def groups(self, commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
        """Yield the commands in groups that may be sent in one call each."""
        ...

    def call(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Sequence[Numbered]]:
        """Send commands; yield their answers as they come. Raises EngineAway."""
        ...


@dataclass(slots=True)
class Calls:
    """Sends commands and keeps their answers. Safe in several threads."""

    wire: Wire
    timeout_s: float
    """How long an agent may take to answer before the outcome of a command is unknown."""
    within_s: float
    """How long all waits between two calls of :meth:`begin_round` may take together."""
    on_late_news: Callable[[], object]
    _left_s: float = 0.0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _sent: dict[Key, _Sent] = field(default_factory=dict)
    """Commands that are not answered, or whose answer has not been taken."""
    _uploads: dict[tuple[InstanceId, str], list[Command]] = field(default_factory=dict)
    """Commands that wait for an archive to arrive, by machine and archive."""
    _upload_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(int(time.monotonic() * 1e6)))

    def __post_init__(self) -> None:
        self._left_s = self.within_s

    def begin_round(self) -> None:
        """Allow the waits of one more round of the caller's loop."""
        with self._changed:
            self._left_s = self.within_s

    def spend(self, seconds: float) -> None:
        """Count time that the caller waited for something else."""
        with self._changed:
            self._left_s = max(0.0, self._left_s - seconds)

    @property
    def left_s(self) -> float:
        """How long the caller may still wait in this round, in seconds."""
        return self._left_s

    def answered(self, *kinds: str) -> frozenset[str]:
        """Return what commands of these kinds were about whose answers came late and were not taken."""
        with self._changed:
            self._drop_old()
            late = (key for key, sent in self._sent.items() if sent.answer is not None)
            return frozenset(str(key[1]) for key in late if key[0] in kinds)

    def ask(self, commands: Sequence[Command]) -> list[Answer | None]:
        """Return the answers to commands, those of earlier equal ones among them; None for what goes on."""
        asked = self._send(commands)
        with self._changed:
            began = time.monotonic()
            slow = {e.command.instance_id for e in self._sent.values() if e.is_overdue and e.answer is None}
            awaited = [each for each in asked if each.command.instance_id not in slow]
            self._changed.wait_for(lambda: all(each.answer is not None for each in awaited), self._left_s)
            self._left_s = max(0.0, self._left_s - (time.monotonic() - began))
            self._leave(asked)
            return [each.answer for each in asked]

    def ask_at_leisure(self, commands: Sequence[Command], timeout_s: float | None = None) -> list[Answer]:
        """Return the answers to commands of one caller alone, however long they take within their time limit;
        None: that of all commands."""
        found = dict[int, Answer]()
        for numbered in self._exchanged(commands, timeout_s):
            found.update(numbered)
        return [found[number] for number in range(len(commands))]

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands whose answers do not matter."""
        asked = self._send(commands)
        with self._changed:
            for each in asked:
                each.is_unclaimed = True
                if each.answer is not None:
                    self._sent.pop(each.command.key, None)

    def _send(self, commands: Sequence[Command]) -> list[_Sent]:
        with self._changed:
            self._drop_old()
            fresh = {each.key: each for each in commands if each.key not in self._sent}
            self._sent |= {key: _Sent(each) for key, each in fresh.items()}
            asked = [self._sent[each.key] for each in commands]
        for group in self.wire.groups(list(fresh.values())) if fresh else ():
            self._in_background(self._carry, group)
        return asked

    def _leave(self, asked: Sequence[_Sent]) -> None:
        """Take the answers that came; the other commands go on."""
        for each in asked:
            if each.answer is None:
                each.is_overdue = True
            elif self._sent.get(each.command.key) is each:
                del self._sent[each.command.key]

    def _in_background(self, work: Callable[..., object], *given: object) -> None:
        threading.Thread(target=work, args=given, name="engine call", daemon=True).start()

    def _carry(self, commands: Sequence[Command], uploaded: Set[str] = frozenset()) -> None:
        """Send commands and take in their answers; those that lack an archive go on with its upload, unless it was
        ``uploaded`` for them before."""
        for numbered in self._exchanged(commands):
            settled = list[tuple[Command, Answer]]()
            for number, answer in numbered:
                command = commands[number]
                name = str(answer.get("need", ""))
                if name in command.archives and name not in uploaded:
                    self._upload_for(command, name, uploaded)
                else:
                    settled.append((command, answer))
            self._settle(settled)

    def _exchanged(self, commands: Sequence[Command], timeout_s: float | None = None) -> Iterator[list[Numbered]]:
        """Yield one answer to each command; unknown where the agent or the gateway gives none."""
        left, why = set(range(len(commands))), "the engine gave no answer"
        try:
            for numbered in self.wire.call(commands, self.timeout_s if timeout_s is None else timeout_s):
                first = [each for each in dict(numbered).items() if each[0] in left]
                left -= {number for number, _ in first}
                yield first
        except EngineAway as away:
            why = str(away)
        except Exception as defect:  # noqa: BLE001 any defect: what was sent must not stay unanswered for ever
            _log.exception("calling %s failed, a defect", ", ".join(sorted({each.instance_id for each in commands})))
            why = defect_text(defect)
        if left:
            yield [(number, {"unknown": why}) for number in sorted(left)]

    def _settle(self, answers: Iterable[tuple[Command, Answer]]) -> None:
        has_news = False
        with self._changed:
            now = time.monotonic()
            for command, answer in answers:
                sent = self._sent[command.key]
                sent.answer, sent.answered_at = answer, now
                if sent.is_unclaimed:
                    del self._sent[command.key]
                has_news = has_news or (sent.is_overdue and command.is_news)
            self._changed.notify_all()
        if has_news:
            self.on_late_news()

    def _drop_old(self) -> None:
        kept_since = time.monotonic() - LATE_KEPT_S
        old = [key for key, each in self._sent.items() if each.answer is not None and each.answered_at < kept_since]
        for key in old:
            del self._sent[key]

    # -------------------------------------------------------------------------------------------------------- archives
    def _upload_for(self, command: Command, name: str, uploaded: Set[str]) -> None:
        """Send a command's archive, once for all commands to the machine that wait for it; then repeat them."""
        to = (command.instance_id, name)
        with self._changed:
            waiting = self._uploads.setdefault(to, [])
            waiting.append(command)
        if len(waiting) == 1:
            self._in_background(self._upload_and_repeat, to, command.archives[name], uploaded | {name})

    def _upload_and_repeat(self, to: tuple[InstanceId, str], archive: Path, uploaded: Set[str]) -> None:
        sent = self.upload(*to, archive)
        with self._changed:
            waiting = self._uploads.pop(to)
        if "taken" in sent:
            self._carry(waiting, uploaded)
        elif "refused" in sent:
            self._carry([refused(each, sent["refused"]) for each in waiting], uploaded)
        else:
            self._settle([(each, sent) for each in waiting])

    def upload(self, instance_id: InstanceId, name: str, archive: Path) -> Answer:
        """Send an archive in pieces, each with a time limit of its own; return the last answer."""
        upload, offset = next(self._upload_numbers), 0
        try:
            with archive.open("rb") as file:
                content = file.read(CHUNK_BYTES)
                while True:
                    following = file.read(CHUNK_BYTES)
                    piece = {"op": "put", "name": name, "upload": upload, "offset": offset, "content": content}
                    command = Command((), instance_id, {**piece, "last": not following})
                    (answer,) = self.ask_at_leisure([command])
                    if "taken" not in answer or not following:
                        return answer
                    content, offset = following, offset + len(content)
        except OSError as error:
            return {"refused": unreadable(archive, error)}


def refused(command: Command, why: str, cause: str = FailureCause.START_REFUSED.value) -> Command:
    """Return the command by which a unit is never to start, in place of its start."""
    return Command(
        command.key,
        command.instance_id,
        {"op": "refuse", "spec": command.request["spec"], "why": why, "cause": cause},
        command.needs_sign_of_life,
        is_news=command.is_news,
    )


def unreadable(archive: Path, error: OSError) -> str:
    """Return why an archive cannot be sent."""
    return f"the archive {archive} cannot be read: {error.strerror}"
