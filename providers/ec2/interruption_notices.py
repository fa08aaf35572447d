"""Spot interruption warnings from an SQS queue that EventBridge fills. They are stored before they are deleted."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hcloud.core.errors import ProviderError
from providers.ec2.clients import Clients
from providers.ec2.errors import Call, translating_errors

NOTICE_S = 120.0
"""EC2 interrupts a spot instance two minutes after its warning."""
DETAIL_TYPE = "EC2 Spot Instance Interruption Warning"
MESSAGES_PER_CALL = 10
CALLS_PER_POLL = 20
FORGET_AFTER_S = 86_400.0


class InterruptionNotices:
    """Interruption times by provider id, kept in a file that survives a restart of the daemon.

    Messages of other instances and of other kinds are deleted as well: the queue must belong to this deployment
    alone.
    """

    def __init__(self, clients: Clients, queue_url: str | None, state_dir: Path) -> None:
        self._clients, self._queue_url = clients, queue_url
        self._file = state_dir / "notices.json"
        self._lock = threading.Lock()
        self._known: dict[str, float] = self._load()
        self.error = ""

    def poll(self, now: float) -> Mapping[str, float]:
        """Read the queue and return all known interruption times.

        A queue that cannot be read is only reported in ``error``.
        """
        with self._lock:
            if self._queue_url:
                try:
                    self._drain(now)
                    self.error = ""
                except (ProviderError, OSError) as error:
                    self.error = str(error)
            return dict(self._known)

    def _drain(self, now: float) -> None:
        for _ in range(CALLS_PER_POLL):
            with translating_errors(Call.READ, "reading the interruption queue"):
                answer = self._clients.reading("sqs").receive_message(
                    QueueUrl=self._queue_url, MaxNumberOfMessages=MESSAGES_PER_CALL, WaitTimeSeconds=0
                )
            messages = answer.get("Messages", [])
            if not messages:
                return
            self._record(dict(filter(None, (read_warning(each["Body"]) for each in messages))), now)
            self._delete(messages)

    def _delete(self, messages: Iterable[Mapping[str, Any]]) -> None:
        entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
        with translating_errors(Call.READ, "deleting from the interruption queue"):  # deleting twice is harmless
            self._clients.reading("sqs").delete_message_batch(QueueUrl=self._queue_url, Entries=entries)

    def _record(self, found: Mapping[str, float], now: float) -> None:
        """Add new warnings durably. The first warning of an instance counts, since repeats arrive late."""
        kept = {key: at for key, at in self._known.items() if at > now - FORGET_AFTER_S}
        for key, at in found.items():
            kept.setdefault(key, at)
        if kept == self._known:
            return
        new = self._file.with_suffix(".new")
        with new.open("w") as file:
            json.dump(kept, file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._file)
        self._known = kept

    def _load(self) -> dict[str, float]:
        try:
            return {str(key): float(at) for key, at in json.loads(self._file.read_text()).items()}
        except (OSError, ValueError, AttributeError):
            return {}


def read_warning(body: str) -> tuple[str, float] | None:
    """Return instance id and interruption time (Unix seconds), or None for a message of another kind."""
    try:
        event = json.loads(body)
        if event["detail-type"] != DETAIL_TYPE:
            return None
        warned = datetime.fromisoformat(event["time"].replace("Z", "+00:00"))
        return str(event["detail"]["instance-id"]), warned.timestamp() + NOTICE_S
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
