"""Files of ended units on their way from their machines to buckets, before the units' ends are recorded.

A machine lists its files; the daemon signs a URL for each, for one object with that size and MD5, and below the folder
that the job names only; the machine sends; the daemon looks whether all is there. Repeated after a restart, it writes
the same objects again.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from hcloud.buckets import BucketAccess, BucketProblem
from hcloud.buckets.access import OBJECTS_MOST
from hcloud.buckets.clients import BucketClient
from hcloud.core.bucket_urls import BucketOutput, BucketUrl, parse_bucket_url, why_no_path
from hcloud.core.clock import Clock
from hcloud.core.model import InstanceId, UnitId
from hcloud.observe.archive_receiver import ArchiveReceiver
from hcloud.provider import BucketSender

VALID_S: Final = 6 * 3600.0
"""So long a machine may take to send; then its URLs end."""
TURN_S, LOOK_S = 20.0, 0.2
"""How long and how often a machine is asked; then others have their turn."""
LISTING_MIB: Final = 8
FILE_BYTES_MAX: Final = 5 << 30
"""Limit of S3 for an object that comes in one part."""
TRIES_MAX: Final = 3
NOTES_MOST: Final = 3
_MD5 = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What of a unit goes to buckets."""

    instance_id: InstanceId
    user: str
    outputs: Sequence[BucketOutput]
    place: str = ""
    """Folder of its own below that of the job, for one of several nodes or tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentFile:
    folder: BucketUrl
    """That the job names."""
    target: BucketUrl
    path: str
    size_bytes: int
    md5: str


@dataclass(slots=True)
class BucketOutputs:
    """Has files sent to buckets. For threads beside the daemon's loop, one for each unit."""

    folder: Path
    """Where lists are kept meanwhile."""
    sender: BucketSender
    buckets: BucketAccess
    clock: Clock
    _over: dict[UnitId, str] = field(default_factory=dict)
    _tries: dict[UnitId, int] = field(default_factory=dict)
    _began_at: dict[UnitId, float] = field(default_factory=dict)
    _never: threading.Event = field(default_factory=threading.Event)

    def deliver(self, unit: UnitId, delivery: Delivery) -> str | None:
        """Go on; return in words what went where, once that is over. Raises WorkerUnreachable, OSError."""
        if unit in self._over:
            return self._over[unit]
        began_at = self._began_at.setdefault(unit, self.clock.now())
        listing = self.folder / f"{unit}.listing"
        try:
            listed = self._listed(unit, delivery, listing)
            if listed is None:
                words = self._sent(unit, delivery, listing)
            else:
                words = listed or None
        except BucketProblem as problem:
            words = self._again(unit, str(problem))
        if words is None and self.clock.now() > began_at + VALID_S:
            words = f"not sent to buckets within {VALID_S / 3600:.0f} h"
        if words is not None:
            self._over[unit] = words
            listing.unlink(missing_ok=True)
            self._urls(unit).unlink(missing_ok=True)
        return words

    def forget(self, unit: UnitId) -> None:
        """Forget what is known of a unit."""
        for known in (self._over, self._tries, self._began_at):
            known.pop(unit, None)

    def _urls(self, unit: UnitId) -> Path:
        return self.folder / f"{unit}.urls"

    def _listed(self, unit: UnitId, delivery: Delivery, listing: Path) -> str | None:
        """Fetch the machine's list of files. None: it is here; empty: not yet; else why there is nothing to send."""
        if listing.exists():
            return None
        part = self.folder / f"{unit}.listing.part"
        part.unlink(missing_ok=True)
        receiver = ArchiveReceiver(clock=self.clock, max_mib=LISTING_MIB, packing_s=TURN_S, look_s=LOOK_S)
        received = receiver.receive(partial(self.sender.read_listing, unit, delivery.instance_id), part)
        if received.outcome == "whole":
            files = _parsed(part.read_bytes(), len(delivery.outputs))
            part.write_text(json.dumps({"files": files, "note": received.manifest.note}))
            part.rename(listing)
            return None
        part.unlink(missing_ok=True)
        if received.outcome == "nothing":
            return f"nothing to send to buckets: {received.manifest.note or 'no files'}"
        if received.outcome in ("not_packed", "too_late"):
            return ""
        return self._again(unit, "its list of files came damaged") or ""

    def _sent(self, unit: UnitId, delivery: Delivery, listing: Path) -> str | None:
        """Have files sent; return what went where once they are there."""
        listed = json.loads(listing.read_bytes())
        files, notes = _targets(delivery, listed["files"])
        notes += [listed["note"]] if listed["note"] else []
        urls = self._urls(unit)
        if not urls.exists():
            self._sign(delivery, files, urls)
        until = self.clock.now() + TURN_S
        while (state := self.sender.send_outputs(unit, delivery.instance_id, str(urls))).sent is None:
            if self.clock.now() >= until:
                return None
            self.clock.wait(self._never, LOOK_S)
        absent = self._absent(delivery, files)
        if absent or state.problem:
            urls.unlink(missing_ok=True)  # signed anew
            count = f"{len(absent)} of {len(files)} files did not arrive" if absent else "not all files were sent"
            return self._again(unit, f"{count}: {state.problem or f'{absent[0].target} is not there, or differs'}")
        return "; ".join([*_words(files), *notes])

    def _again(self, unit: UnitId, problem: str) -> str | None:
        """Return None for another try, or the problem after the last one."""
        self._tries[unit] = self._tries.get(unit, 0) + 1
        return problem if self._tries[unit] >= TRIES_MAX else None

    def _client(self, delivery: Delivery, url: BucketUrl) -> BucketClient:
        return self.buckets.client_for(url, delivery.user)

    def _sign(self, delivery: Delivery, files: Sequence[_SentFile], urls: Path) -> None:
        entries = []
        for each in files:
            to = each.target
            signed = self._client(delivery, to).sign_put(to.bucket, to.key, each.size_bytes, each.md5, VALID_S)
            entry = {"path": each.path, "bytes": each.size_bytes, "url": signed.url, "headers": dict(signed.headers)}
            entries.append(entry)
        new = urls.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_text(json.dumps({"files": entries}))
        new.rename(urls)

    def _absent(self, delivery: Delivery, files: Sequence[_SentFile]) -> list[_SentFile]:
        """Return files that are not in their bucket as they were listed."""
        lists, absent = dict[BucketUrl, dict[str, tuple[int, str]]](), list[_SentFile]()
        for each in files:
            to, client = each.target, self._client(delivery, each.target)
            folder = BucketUrl(to.scheme, to.bucket, to.key.rpartition("/")[0])
            if folder not in lists:
                prefix = f"{folder.key}/" if folder.key else ""
                found = client.list(to.bucket, prefix, OBJECTS_MOST)
                lists[folder] = {stored.key: (stored.size_bytes, stored.md5) for stored in found}
            known = lists[folder].get(to.key)
            if known is None:  # among more than are listed
                alone = [stored for stored in client.list(to.bucket, to.key, 1) if stored.key == to.key]
                known = (alone[0].size_bytes, alone[0].md5) if alone else None
            if known is None or known[0] != each.size_bytes or (known[1] and known[1] != each.md5):
                absent.append(each)
        return absent


def _parsed(content: bytes, patterns: int) -> list[dict[str, Any]]:
    """Return the files that a machine listed. Raises BucketProblem: it lies."""
    files = list[dict[str, Any]]()
    try:
        for line in content.splitlines():
            each = json.loads(line)
            index, size = int(each["pattern"]), int(each["bytes"])
            path, name, md5 = str(each["path"]), str(each["name"]), str(each["md5"])
            is_right = 0 <= index < patterns and size >= 0 and _MD5.fullmatch(md5)
            if not is_right or why_no_path(path) or why_no_path(name) or len(files) >= OBJECTS_MOST:
                raise ValueError(path[:80])
            files.append({"pattern": index, "path": path, "name": name, "bytes": size, "md5": md5})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BucketProblem("its machine sent a list of files that makes no sense") from error
    return files


def _targets(delivery: Delivery, listed: Sequence[Mapping[str, Any]]) -> tuple[list[_SentFile], list[str]]:
    """Return which objects files become, and what is left out."""
    files, notes, taken = list[_SentFile](), list[str](), set[BucketUrl]()
    for each in listed:
        folder = parse_bucket_url(delivery.outputs[each["pattern"]].to)
        target = (folder.joined(delivery.place) if delivery.place else folder).joined(each["name"])
        if each["bytes"] > FILE_BYTES_MAX:
            notes.append(f"{each['path']} is larger than {FILE_BYTES_MAX >> 30} GiB, and was left out")
        elif target not in taken:
            taken.add(target)
            path, size, md5 = each["path"], each["bytes"], each["md5"]
            files.append(_SentFile(folder=folder, target=target, path=path, size_bytes=size, md5=md5))
    return files, notes[:NOTES_MOST]


def _words(files: Sequence[_SentFile]) -> list[str]:
    """Return how many files went to which folder."""
    by_folder = dict[str, list[int]]()
    for each in files:
        by_folder.setdefault(str(each.folder), []).append(each.size_bytes)
    notes = [
        f"{len(sizes)} file{'' if len(sizes) == 1 else 's'} ({sum(sizes)} bytes) went to {folder}"
        for folder, sizes in by_folder.items()
    ]
    more = len(notes) - NOTES_MOST
    return notes if more <= 0 else [*notes[:NOTES_MOST], f"others to {more} more folders"]
