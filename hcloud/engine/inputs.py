"""Fetching a unit's inputs on its machine, as the unit's user, before anything of the job runs.

The daemon sent a list: for each file its path, size, a URL signed for that one object, and what shows that it is the
content that was listed. A connection that breaks is taken up where it broke; what arrives otherwise than it was listed
fails the unit. No redirect is followed, and nothing outside the work directory is written.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 looking up a host needs it, when the unit's user may no longer read Python's files
import hashlib
import http.client
import os
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from hcloud.core.bucket_urls import why_no_path
from hcloud.core.errors import InputsFailed

AT_ONCE: Final = 4
"""Files that are fetched at one time."""
SILENT_S: Final = 30.0
"""A connection that brings nothing for so long is given up, and made anew."""
TRIES_MAX: Final = 5
"""So often in a row a connection may break before anything more came."""
PAUSE_S, PAUSE_CAP_S = 0.5, 8.0
READ_BYTES: Final = 1 << 20
SENT_AT_ONCE_BYTES: Final = 256 << 10
AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Answers that another try may change."""


class _Broken(Exception):
    """A connection broke, or the store was busy: to be tried again."""


def fetch_inputs(
    files: list[Mapping[str, Any]], limit_bytes: int, pause: Callable[[float], object] = time.sleep
) -> None:
    """Fetch files into the present directory. Raises InputsFailed, OSError."""
    if sum(int(each["bytes"]) for each in files) > limit_bytes:
        raise InputsFailed(f"its inputs are larger than {limit_bytes >> 20} MiB, its disk")
    trust = ssl.create_default_context()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = [pool.submit(_fetch, number, each, trust, pause) for number, each in enumerate(files)]
        done, left = wait(made, return_when=FIRST_EXCEPTION)
        for each in left:
            each.cancel()
        for each in done:
            each.result()


def _fetch(number: int, file: Mapping[str, Any], trust: ssl.SSLContext, pause: Callable[[float], object]) -> None:
    """Fetch one file, beside its place first."""
    place, here = Path(file["path"]), Path.cwd().resolve()
    if problem := why_no_path(file["path"]):
        raise InputsFailed(f"the input {file['path']!r} {problem}")
    place.parent.mkdir(parents=True, exist_ok=True)
    # A link of the work directory leads nowhere else.
    if not place.parent.resolve().is_relative_to(here):
        raise InputsFailed(f"{place.parent} leads outside of the work directory")
    part, tries, pause_s = Path(f".hcloud-input-{number}.part"), 0, PAUSE_S
    part.touch(mode=0o644)
    while True:
        before = part.stat().st_size
        try:
            is_md5 = _read_into(part, file, trust)
            break
        except (_Broken, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and _is_of_disk(error):
                raise
            tries = 0 if part.stat().st_size > before else tries + 1
            if tries >= TRIES_MAX:
                why = str(error) or type(error).__name__
                raise InputsFailed(f"{file['key']} could not be fetched: {why}") from error
            pause(pause_s)
            pause_s = min(PAUSE_CAP_S, 2 * pause_s)
    if is_md5 and file["md5"]:
        with part.open("rb") as content:
            if hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() != file["md5"]:
                raise InputsFailed(f"{file['key']} arrived damaged: its MD5 is not {file['md5']}")
    part.replace(place)


def _is_of_disk(error: OSError) -> bool:
    """Return whether an error is of the file, not of the connection."""
    return error.filename is not None or error.errno in (28, 122, 27)  # ENOSPC, EDQUOT, EFBIG


def connection_to(url: SplitResult, trust: ssl.SSLContext) -> http.client.HTTPConnection:
    """Return a connection for one request. Raises InputsFailed: the daemon named no URL of HTTP."""
    if url.scheme not in ("http", "https") or url.hostname is None:
        raise InputsFailed("the daemon sent no URL of HTTP")
    if url.scheme == "https":
        return http.client.HTTPSConnection(
            url.hostname, url.port, timeout=SILENT_S, context=trust, blocksize=SENT_AT_ONCE_BYTES
        )
    return http.client.HTTPConnection(url.hostname, url.port, timeout=SILENT_S, blocksize=SENT_AT_ONCE_BYTES)


def _read_into(part: Path, file: Mapping[str, Any], trust: ssl.SSLContext) -> bool:
    """Read the rest of a file; return whether its MD5 can be compared. Raises _Broken, OSError, InputsFailed."""
    url, have, size = urlsplit(file["url"]), part.stat().st_size, int(file["bytes"])
    connection = connection_to(url, trust)
    try:
        range_of = {"Range": f"bytes={have}-"} if have and have < size else {}
        headers = {"Accept-Encoding": "identity", **file["headers"], **range_of}
        connection.request("GET", f"{url.path}?{url.query}", headers=headers)
        answer = connection.getresponse()
        if answer.status in AGAIN:
            raise _Broken(f"HTTP {answer.status}")
        if answer.status == 412:
            raise InputsFailed(f"{file['key']} was changed since it was listed")
        if answer.status not in (200, 206):
            raise InputsFailed(f"{file['key']} could not be fetched: HTTP {answer.status}")
        for name, value in file["answers"].items():
            if answer.headers.get(name) != value:
                raise InputsFailed(f"{file['key']} is not what was listed: {name} is {answer.headers.get(name)!r}")
        offset = have if answer.status == 206 else 0
        with part.open("r+b") as content:
            content.truncate(offset)
            content.seek(offset)
            while piece := answer.read(min(READ_BYTES, size - content.tell() + 1)):
                if content.tell() + len(piece) > size:
                    raise InputsFailed(f"{file['key']} is longer than the {size} bytes that were listed")
                content.write(piece)
            if content.tell() < size:
                raise _Broken(f"it broke off after {content.tell()} of {size} bytes")
        return not answer.headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    finally:
        connection.close()


def fetch_listed(listed: Mapping[str, Any], limit_bytes: int) -> str:
    """Fetch what a list names into the present directory; return why that failed, empty if it did not.

    Raises OSError: the disk is full.
    """
    try:
        os.umask(0o022)
        fetch_inputs(list(listed["files"]), limit_bytes)
    except InputsFailed as error:
        return str(error)
    except (KeyError, TypeError, ValueError) as error:
        return f"its list of inputs makes no sense: {error!r}"
    return ""
