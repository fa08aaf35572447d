"""Addresses of objects in buckets (``s3://bucket/key``, ``gs://bucket/key``), and paths below a work directory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

KEY_BYTES_MAX: Final = 1024
"""Limit of S3 and GCS for the name of an object."""
PATH_BYTES_MAX: Final = 1024
NAME_BYTES_MAX: Final = 255
"""Linux's limit for the name of a file."""
SCHEMES: Final = ("s3", "gs")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


@dataclass(frozen=True, slots=True, order=True)
class BucketUrl:
    """An object, or all objects whose names begin with ``key``."""

    scheme: str
    bucket: str
    key: str
    """Empty: the whole bucket; with a slash at its end: a folder."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def is_within(self, other: BucketUrl) -> bool:
        """Return whether it is ``other``, or in the folder that ``other`` is."""
        if (self.scheme, self.bucket) != (other.scheme, other.bucket):
            return False
        folder = other.key.rstrip("/")
        return not folder or self.key.rstrip("/") == folder or self.key.startswith(f"{folder}/")

    def joined(self, name: str) -> BucketUrl:
        """Return the object ``name`` in the folder that this is."""
        folder = self.key.rstrip("/")
        return BucketUrl(self.scheme, self.bucket, f"{folder}/{name}" if folder else name)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketInput:
    """An object of a bucket, or all objects of a folder of it, that a job finds in its work directory."""

    source: str
    """Its address."""
    to: str
    """File or folder below the work directory; ``.``: the work directory itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketOutput:
    """Files below the work directory that go to a folder of a bucket."""

    pattern: str
    to: str
    """Address of the folder."""


def is_bucket_url(text: str) -> bool:
    """Return whether a text has the form of an address, not of a path."""
    return "://" in text


def parse_bucket_url(text: str) -> BucketUrl:
    """Return the address. Raises ValueError, saying what would be right."""
    scheme, _, rest = text.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in SCHEMES:
        raise ValueError(f"must begin with s3:// or gs://, not {text[:80]!r}")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(f"must name a bucket, as in {scheme}://my-bucket/folder/, not {text[:80]!r}")
    if key and (problem := why_no_path(key.rstrip("/"), KEY_BYTES_MAX)):
        raise ValueError(f"names the object {key[:80]!r}, which {problem}")
    return BucketUrl(scheme, bucket, key)


def why_no_path(text: str, most_bytes: int = PATH_BYTES_MAX) -> str:
    """Return what keeps a name from being a path below some folder, such as ``is absolute``; empty if nothing does."""
    if not text.isprintable():
        return "has characters that cannot be printed"
    if text.startswith("/"):
        return "is absolute"
    parts = text.split("/")
    if ".." in parts:
        return "leads outside with '..'"
    if any(part in ("", ".") for part in parts):
        return "has an empty part or '.'"
    if len(text.encode()) > most_bytes or any(len(part.encode()) > NAME_BYTES_MAX for part in parts):
        return "is too long"
    return ""
