"""The shipped snapshot of prices and sizes: ``snapshot.json.gz``, in which each price has its source and date.

``make prices`` makes it anew (:mod:`hcloud.catalog.renew`); docs/prices.md lists its sources and their licences.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Final

from hcloud.catalog.document import catalogue_of, document_of
from hcloud.catalog.prices import PriceCatalogue
from hcloud.core.errors import ConfigError, error_text

SNAPSHOT: Final = Path(__file__).parent / "snapshot.json.gz"


@cache
def shipped_catalogue() -> PriceCatalogue:
    """Return the snapshot; cached.

    Raises:
        ConfigError: the file of the installation is missing or damaged.
    """
    try:
        return catalogue_of(json.loads(gzip.decompress(SNAPSHOT.read_bytes())))
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        detail = error_text(error, with_type=True)
        raise ConfigError(f"is not a snapshot of prices ({detail}); reinstall HCloud", where=str(SNAPSHOT)) from error


def snapshot_digest() -> str:
    """Return the SHA-256 of the shipped file."""
    return hashlib.sha256(SNAPSHOT.read_bytes()).hexdigest()


def packed(catalogue: PriceCatalogue) -> bytes:
    """Return the file of a snapshot: the same bytes for the same prices."""
    # Editions are left out: a deployment has not read them, so it reads each list once.
    document = document_of(PriceCatalogue(sizes=catalogue.sizes, quotes=catalogue.quotes))
    return gzip.compress(json.dumps(document, separators=(",", ":"), allow_nan=False).encode(), 9, mtime=0)
