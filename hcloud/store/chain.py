"""The hash chain of the event log: what it proves, and how it is verified.

Every event but samples has a link number and the SHA-256 digest of the previous link's digest and of its own content.
Samples are measurements with a retention of their own. The row of ``head`` holds the newest link. Pruned links leave
the number and digest of the last one of each run in ``event_anchor``; the newest "pruned" event has these rows' digest.

The digests have no key: one kept on the same host would stop no one who can write the database there. Whoever can
write it can compute a new chain, and only a copy of the head that is kept elsewhere shows that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, select

from hcloud.core.errors import StoreError
from hcloud.core.model import EventKind
from hcloud.core.units import utc_text
from hcloud.store import schema
from hcloud.store.event_folds import EventFilter, EventRow, FoldCache, read_events, wrong_fold

PRUNED = "pruned"
"""``what`` of the event that records a pruning."""
SHOWN_DIGITS = 32
"""Digits of a digest in messages: 128 bits."""
_CHUNK = 2000
_content = itemgetter("seq", "at", "kind", "job_number", "instance_number", "user_name", "actor", "fields")
_SAMPLE = EventKind.SAMPLE.value


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHead:
    """A link of the chain, from which everything before it follows."""

    link: int
    """Number of the link; 0: no event yet."""
    digest: str
    """Its digest in hexadecimal digits, or the first of them."""

    def __str__(self) -> str:
        return f"{self.link}:{self.digest[:SHOWN_DIGITS]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A run of pruned links."""

    first: int
    last: int
    digest: str
    """Of the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLog:
    """Result of a verification."""

    head: AuditHead
    records: int = 0
    """Verified events."""
    pruned: int = 0
    """Links whose events were pruned."""
    unlinked: int = 0
    """Events of before the chain began, which it does not cover."""
    fault: str = ""
    """The first thing that is wrong; empty: nothing is."""


def link_events(events: Sequence[dict[str, Any]], link: int, digest: str) -> tuple[int, str]:
    """Add ``link`` and ``digest`` to rows in their order, after the given link; return the newest link."""
    for row in events:
        if row["kind"] == _SAMPLE:
            row["link"] = row["digest"] = None
            continue
        link += 1
        row["link"], row["digest"] = link, (digest := link_digest(digest, row))
    return link, digest


def link_digest(previous: str, row: Mapping[Any, Any]) -> str:
    """Return the digest of an event's row after the link with the digest ``previous`` (empty: the first)."""
    seq, at, kind, job, instance, user, actor, fields = _content(row)
    # Plain numbers (repr of a float is exact, and the same in all versions of Python), then texts with their lengths,
    # so that no two rows have the same content. SQLite stores no negative zero.
    content = (
        f"{previous}|{seq}|{at + 0.0!r}|{job}|{instance}|{len(kind)}|{kind}|{-1 if user is None else len(user)}|{user}|"
        f"{len(actor)}|{actor}|{fields}"
    )
    return sha256(content.encode()).hexdigest()


def anchors_digest(anchors: Iterable[Anchor]) -> str:
    """Return the digest of all anchors."""
    content = json.dumps([[each.first, each.last, each.digest] for each in anchors])
    return sha256(content.encode()).hexdigest()


def read_anchors(connection: Connection) -> list[Anchor]:
    """Return the anchors by number."""
    table = schema.event_anchor
    rows = connection.execute(select(table).order_by(table.c.first_link))
    return [Anchor(first=row.first_link, last=row.last_link, digest=row.digest) for row in rows]


def with_pruned(anchors: Iterable[Anchor], links: Iterable[tuple[int, str]]) -> list[Anchor]:
    """Return the anchors after the pruning of more links, given as number and digest; adjacent runs are one."""
    runs = [*anchors, *(Anchor(first=link, last=link, digest=digest) for link, digest in links)]
    joined: list[Anchor] = []
    for run in sorted(runs, key=lambda each: each.first):
        if joined and joined[-1].last + 1 == run.first:
            joined[-1] = Anchor(first=joined[-1].first, last=run.last, digest=run.digest)
        else:
            joined.append(run)
    return joined


def read_head(connection: Connection) -> AuditHead:
    """Return the newest link."""
    row = connection.execute(select(schema.head.c.links, schema.head.c.digest)).one()
    return AuditHead(link=row.links, digest=row.digest)


def verify_log(connection: Connection, kept: AuditHead | None = None) -> VerifiedLog:
    """Verify the event log in one snapshot, and that it contains ``kept``, a head that was kept elsewhere.

    Takes about ten seconds for a million events.
    """
    head = read_head(connection)
    walk = _Walk(read_anchors(connection), connection.execute(select(schema.head.c.unlinked)).scalar_one(), kept)
    position, folds = None, FoldCache()  # not 0: a row that was inserted may have any number
    try:
        wrong = wrong_fold(connection)
        while not wrong:
            rows = read_events(connection, EventFilter(after_seq=position), folds, limit=_CHUNK)
            for row in rows:
                walk.take(_columns(row), is_folded=isinstance(row, EventRow))
                if walk.fault:
                    break
            if walk.fault or len(rows) < _CHUNK:
                break
            position = rows[-1].seq
            folds.drop_before(position)
    except StoreError as error:
        wrong = str(error)
    walk.fault = walk.fault or wrong
    if not walk.fault:
        walk.end(head)
    return VerifiedLog(
        head=head, records=walk.records, pruned=walk.pruned, unlinked=walk.without_link, fault=walk.fault
    )


def folded_links(connection: Connection, first_seqs: Sequence[int]) -> list[tuple[int, str]]:
    """Return number and digest of each link in the folds that begin with these events."""
    folds, wanted = FoldCache(), set[int]()
    chosen = select(schema.event_fold).where(schema.event_fold.c.first_seq.in_(first_seqs))
    for fold in connection.execute(chosen):
        wanted |= {row.link for row in folds.rows(connection, fold) if row.link is not None}
    if not wanted:
        return []
    log = schema.event_log.c
    before = select(log.seq, log.link, log.digest).where(log.seq < min(first_seqs), log.link.is_not(None))
    last = connection.execute(before.order_by(log.seq.desc()).limit(1)).first()
    position, link, digest = (-1, 0, "") if last is None else (last.seq, last.link, last.digest)
    anchors = {each.first: each for each in read_anchors(connection)}
    found = list[tuple[int, str]]()
    while link < max(wanted):
        rows = read_events(connection, EventFilter(after_seq=position), folds, limit=_CHUNK)
        for row in rows:
            if row.link is None or row.link <= link:
                continue
            while (anchor := anchors.get(link + 1)) is not None:
                link, digest = anchor.last, anchor.digest
            link, digest = row.link, row.digest or link_digest(digest, _columns(row))
            if link in wanted:
                found.append((link, digest))
        if len(rows) < _CHUNK:
            break
        position = rows[-1].seq
        folds.drop_before(position)
    return found


def _columns(row: Any) -> Mapping[str, Any]:
    columns: Mapping[str, Any] = row._asdict() if isinstance(row, EventRow) else row._mapping
    return columns


class _Walk:
    """The chain up to one event; ``fault`` is the first thing that is wrong."""

    def __init__(self, anchors: Sequence[Anchor], unlinked: int, kept: AuditHead | None) -> None:
        self.records = self.pruned = self.without_link = 0
        self.fault = ""
        self._anchors = {each.first: each for each in anchors}
        self._anchors_digest = anchors_digest(anchors)
        self._stated_digest = anchors_digest(())
        self._unlinked = unlinked
        self._kept = kept
        self._link, self._digest = 0, ""
        self._or_folded = ""
        self._last_row: Mapping[Any, Any] | None = None

    def take(self, row: Mapping[Any, Any], *, is_folded: bool = False) -> None:
        """Verify the next event. The digest of a folded one is not stored: the next that is stored depends on it."""
        if row["kind"] == _SAMPLE:
            if row["link"] is not None:
                self.fault = f"{_name(row)} was changed: a sample has no link number, and it has {row['link']}"
            return
        if row["link"] is None:
            if row["seq"] > self._unlinked:
                self.fault = f"{_name(row)} was inserted or changed: it has no link number, expected {self._link + 1}"
            self.without_link += 1
            return
        self._pass_anchors()
        expected = self._link + 1
        if row["link"] > expected:
            missing = row["link"] - expected
            numbers = f"{expected}" if missing == 1 else f"{expected} to {row['link'] - 1}"
            between = f"{self._last} and {_name(row)}"
            self.fault = f"{_missing(missing)} between {between}: expected link {numbers}, found {row['link']}"
        elif row["link"] < expected:
            self.fault = f"{_name(row)} or one before was inserted: expected link {expected}, found {row['link']}"
        elif (digest := link_digest(self._digest, row)) != row["digest"] and not is_folded:
            self.fault = (
                f"{_name(row)}{self._or_folded} was changed: expected digest {digest[:SHOWN_DIGITS]}, "
                f"found {str(row['digest'])[:SHOWN_DIGITS]}"
            )
        if self.fault:
            return
        self._or_folded = " or a folded one before it" if is_folded else ""
        self._move(expected, digest)
        self.records, self._last_row = self.records + 1, row
        if row["kind"] == EventKind.DAEMON.value and f'"what":"{PRUNED}"' in row["fields"]:
            self._stated_digest = json.loads(row["fields"]).get("anchors", "")

    def end(self, head: AuditHead) -> None:
        """Compare the end of the log with its head, and what was pruned with what the log says of that."""
        self._pass_anchors()
        if self._link < head.link:
            self.fault = f"{_missing(head.link - self._link)} after {self._last}: expected links up to {head.link}"
        elif (self._link, self._digest) != (head.link, head.digest):
            what = f"was inserted{' or changed' if self._or_folded else ''}"
            self.fault = f"{self._last}{self._or_folded} {what}: the log ended with link {head}, not {self._link}"
        elif self._anchors or self._anchors_digest != self._stated_digest:
            self.fault = (
                "the runs of pruned links are not those of the last recorded pruning: "
                f"expected digest {self._stated_digest[:SHOWN_DIGITS]}, found {self._anchors_digest[:SHOWN_DIGITS]}"
            )
        elif self._kept is not None and self._kept.link > head.link:
            self.fault = f"{_missing(self._kept.link - head.link)} at the end: link {self._kept} was there"

    @property
    def _last(self) -> str:
        return "the beginning" if self._last_row is None else _name(self._last_row)

    def _pass_anchors(self) -> None:
        while (anchor := self._anchors.pop(self._link + 1, None)) is not None:
            self.pruned += anchor.last - anchor.first + 1
            self._move(anchor.last, anchor.digest)

    def _move(self, link: int, digest: str) -> None:
        self._link, self._digest = link, digest
        kept = self._kept
        if kept is not None and kept.link == link and not digest.startswith(kept.digest):
            self.fault = f"link {link} or one before it was replaced: expected {kept}, found {digest[:SHOWN_DIGITS]}"


def _missing(count: int) -> str:
    return "1 event is missing" if count == 1 else f"{count} events are missing"


def _name(row: Mapping[Any, Any]) -> str:
    try:
        at = utc_text(round(row["at"]))
    except (OverflowError, ValueError):  # a changed row may have any number
        at = f"at {row['at']!r} s"
    return f"event {row['seq']} ({at}, {row['kind']} by {row['actor']})"
