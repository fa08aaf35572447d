"""Which buckets the daemon reads for whom: those that the configuration names, and nothing else.

What a submitter writes is compared with that before any request is made, so that the daemon's own rights reach no
further for them (confused deputy), and no address of theirs is ever asked (SSRF): endpoints stand in the configuration.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from hcloud.buckets.clients import BucketClient, BucketProblem, GcsStore, S3Client, StoredObject
from hcloud.core.bucket_urls import BucketInput, BucketOutput, BucketUrl, parse_bucket_url, why_no_path
from hcloud.core.clock import Clock

OBJECTS_MOST: Final = 10_000
"""Objects of all inputs of a job."""
LISTED_FOR_S: Final = 10.0
"""So long a list of objects counts: the tasks of an array begin together."""
LISTS_KEPT: Final = 64
WRITABLE_FOR_S: Final = 60.0
"""So long a folder that could be written counts as such."""
WRITE_CHECK: Final = ".hcloud-write-check"
"""Name of the object whose upload is begun, and given up, to see whether a folder can be written."""
AT_ONCE: Final = 4
TURN_S: Final = 10.0
"""So many lists are asked for at one time; a request without a turn within this time is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketGrant:
    """A bucket, or a folder of it, that the daemon may use for users."""

    url: BucketUrl
    users: frozenset[str] = frozenset()
    """Empty: all."""
    may_write: bool = False
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFile:
    """One object that is to become one file."""

    client: BucketClient = field(compare=False)
    bucket: str
    stored: StoredObject
    path: str
    """Below the work directory."""


def _client_of(grant: BucketGrant) -> BucketClient:
    if grant.url.scheme == "s3":
        return S3Client(endpoint=grant.endpoint, region=grant.region, profile=grant.profile)
    return GcsStore(endpoint=grant.endpoint)


@dataclass(slots=True)
class BucketAccess:
    """The buckets of a deployment. Safe in several threads."""

    grants: Sequence[BucketGrant]
    clock: Clock
    connect: Callable[[BucketGrant], BucketClient] = _client_of
    _clients: dict[BucketGrant, BucketClient] = field(default_factory=dict)
    _lists: dict[tuple[BucketGrant, BucketUrl], tuple[float, list[StoredObject]]] = field(default_factory=dict)
    _writable_until: dict[tuple[BucketGrant, BucketUrl], float] = field(default_factory=dict)
    _turns: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(AT_ONCE))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def grant_for(self, url: BucketUrl, user: str, *, write: bool = False) -> BucketGrant:
        """Return by which grant a user may use an address. Raises BucketProblem: by none."""
        of_user = [each for each in self.grants if not each.users or user in each.users]
        found = [each for each in of_user if url.is_within(each.url) and (each.may_write or not write)]
        if found:
            return max(found, key=lambda each: len(each.url.key))
        verb = "written" if write else "read"
        allowed = sorted({str(each.url) for each in of_user if each.may_write or not write})
        named = f"those that may be: {', '.join(allowed[:5])}" if allowed else "none may be"
        raise BucketProblem(f"{url} may not be {verb} for {user}; {named} (files.buckets of the configuration)")

    def check_inputs(self, inputs: Sequence[BucketInput], user: str, disk_gib: float, *, exist: bool) -> None:
        """Check what would keep a job from its inputs; ``exist``: also whether they are there now, and fit.

        Raises:
            BucketProblem: one sentence, which begins with the place in the job file.
        """
        for index, each in enumerate(inputs):
            try:
                self.grant_for(parse_bucket_url(each.source), user)
                if exist:
                    self._files_of(each, user)
            except (BucketProblem, ValueError) as error:
                raise BucketProblem(f"inputs[{index}].from: {error}") from error
        if exist and inputs:
            try:
                self.files(inputs, user, disk_gib)
            except BucketProblem as error:
                raise BucketProblem(f"inputs: {error}") from error

    def check_outputs(self, outputs: Sequence[BucketOutput], user: str) -> None:
        """Check what would keep a job from sending files to buckets. Raises BucketProblem, with the place."""
        for each in outputs:
            try:
                url = parse_bucket_url(each.to)
                self._check_folder(self.grant_for(url, user, write=True), url)
            except (BucketProblem, ValueError) as error:
                raise BucketProblem(f"outputs: {error}") from error

    def _check_folder(self, grant: BucketGrant, url: BucketUrl) -> None:
        """Check that a folder can be listed and written; kept for a while where it can. Raises BucketProblem."""
        now, key = self.clock.now(), (grant, url)
        with self._lock:
            self._writable_until = {each: until for each, until in self._writable_until.items() if until > now}
            if key in self._writable_until:
                return
        self._ask(grant, url, 1)
        with self._turn(url):
            self._clients[grant].check_write(url.bucket, url.joined(WRITE_CHECK).key)
        with self._lock:
            self._writable_until[key] = now + WRITABLE_FOR_S

    def client_for(self, url: BucketUrl, user: str) -> BucketClient:
        """Return what writes to an address for a user. Raises BucketProblem: they may not."""
        grant = self.grant_for(url, user, write=True)
        with self._lock:
            return self._clients.setdefault(grant, self.connect(grant))

    def files(self, inputs: Sequence[BucketInput], user: str, disk_gib: float) -> list[BucketFile]:
        """Return the files that inputs are now. Raises BucketProblem: one is missing, or all are too large."""
        found = [file for each in inputs for file in self._files_of(each, user)]
        if len(found) > OBJECTS_MOST:
            raise BucketProblem(f"{len(found)} objects are more than {OBJECTS_MOST}; pack them into archives")
        total = sum(each.stored.size_bytes for each in found)
        if total > disk_gib * 2**30:
            raise BucketProblem(
                f"{total / 2**30:.3g} GiB are more than the job's disk of {disk_gib:g} GiB; raise resources.disk"
            )
        places = {each.path for each in found}
        if len(places) < len(found):
            paths = [each.path for each in found]
            twice = next(path for path in paths if paths.count(path) > 1)
            raise BucketProblem(f"two objects would become the file {twice}; give each its place (to)")
        above = next((p for each in found for p in _folders_of(each.path) if p in places), None)
        if above is not None:
            raise BucketProblem(f"{above} would be a file and a folder; give each its place (to)")
        return found

    def _files_of(self, wanted: BucketInput, user: str) -> list[BucketFile]:
        url = parse_bucket_url(wanted.source)
        grant = self.grant_for(url, user)
        client, stored = self._listed(grant, url)
        folder = url.key if not url.key or url.key.endswith("/") else f"{url.key}/"
        one = next((each for each in stored if each.key == url.key and not url.key.endswith("/")), None)
        if one is not None:
            name = url.key.rpartition("/")[2]
            path = _below(wanted.to, name) if wanted.to == "." or wanted.to.endswith("/") else wanted.to
            return [BucketFile(client=client, bucket=url.bucket, stored=one, path=path)]
        # What ends with a slash stands for a folder in consoles.
        inside = [each for each in stored if each.key.startswith(folder) and not each.key.endswith("/")]
        if not inside:
            raise BucketProblem(f"{url}: there is no such object, nor one below it")
        if len(stored) > OBJECTS_MOST:
            raise BucketProblem(f"{url} holds more than {OBJECTS_MOST} objects; name a part of it, or pack them")
        files = list[BucketFile]()
        for each in inside:
            name = each.key.removeprefix(folder)
            if problem := why_no_path(name):
                raise BucketProblem(f"{url} holds {name[:80]!r}, which can be no file: it {problem}")
            files.append(BucketFile(client=client, bucket=url.bucket, stored=each, path=_below(wanted.to, name)))
        return files

    def _listed(self, grant: BucketGrant, url: BucketUrl) -> tuple[BucketClient, list[StoredObject]]:
        """Return the objects whose names begin so, as they are or were a moment ago."""
        now, key = self.clock.now(), (grant, url)
        with self._lock:
            client = self._clients.setdefault(grant, self.connect(grant))
            at, stored = self._lists.get(key, (0.0, None))
            if stored is not None and now < at + LISTED_FOR_S:
                return client, stored
        found = self._ask(grant, url, OBJECTS_MOST + 1)
        with self._lock:
            while len(self._lists) >= LISTS_KEPT:
                self._lists.pop(next(iter(self._lists)))
            self._lists[key] = (now, found)
        return client, found

    def _ask(self, grant: BucketGrant, url: BucketUrl, limit: int) -> list[StoredObject]:
        """Return the objects whose names begin so, a few lists being asked for at one time."""
        with self._lock:
            client = self._clients.setdefault(grant, self.connect(grant))
        with self._turn(url):
            return client.list(url.bucket, url.key, limit)

    @contextmanager
    def _turn(self, url: BucketUrl) -> Iterator[None]:
        """Wait until few enough requests are under way. Raises BucketProblem: that took too long."""
        if not self._turns.acquire(timeout=TURN_S):
            raise BucketProblem(f"{url}: too many buckets are being asked at this time; try again")
        try:
            yield
        finally:
            self._turns.release()


def _below(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder.rstrip('/')}/{name}"


def _folders_of(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
