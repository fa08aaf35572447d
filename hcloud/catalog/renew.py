"""Make the shipped snapshot anew from the clouds' public price lists: ``make prices``.

AWS's bulk lists need no credentials. Google's list needs an API key (``GOOGLE_API_KEY``); without one, and for regions
that are not read, the prices of the snapshot stay with their own dates. EC2 spot prices have no public list.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hcloud.catalog.files import CatalogFiles
from hcloud.catalog.refresh import refresh
from hcloud.catalog.snapshot import SNAPSHOT, packed
from hcloud.catalog.sources import AwsPrices, GcpPrices, PriceSource, sources
from hcloud.core.clock import Clock, SystemClock
from hcloud.core.errors import HCloudError

REGIONS: Final = ("us-east-1", "us-east-2", "us-west-2", "eu-central-1", "eu-west-1", "eu-north-1", "ap-northeast-1",
                  "ap-south-1", "ap-southeast-1", "ap-southeast-2", "ca-central-1", "sa-east-1")  # fmt: skip
"""EC2 regions that are read without arguments; each list has some hundred MB."""
API_KEY: Final = "GOOGLE_API_KEY"


def renew(lists: Sequence[PriceSource], clock: Clock, target: Path = SNAPSHOT) -> tuple[bool, list[str]]:
    """Replace the snapshot at ``target`` by itself with the prices of ``lists``; return success and what was read.

    If a list cannot be read or is not plausible, the file is unchanged.
    """
    with tempfile.TemporaryDirectory() as scratch:
        files = CatalogFiles(Path(scratch))
        done = refresh(files, lists, clock)
        if done.errors or done.refused:
            return False, done.sentences()
        content = packed(files.current())
    unfinished = target.with_name(f".{target.name}.new")
    unfinished.write_bytes(content)
    unfinished.replace(target)
    return True, [*done.sentences(), f"{target}: {len(content):,} bytes"]


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Read the lists of the EC2 regions in ``arguments`` (default: :data:`REGIONS`); return the exit code."""
    clock = SystemClock()
    google = GcpPrices(regions=(), api_key=API_KEY if environment.get(API_KEY) else None)
    lists = sources(AwsPrices(regions=arguments or REGIONS, spot=False), google, lambda name: environment[name], clock)
    try:
        renewed, lines = renew(lists, clock)
    except HCloudError as error:
        renewed, lines = False, [str(error)]
    if google.api_key is None:
        lines.append(f"Google's prices are unchanged: {API_KEY} is not set")
    print(*lines, sep="\n", file=sys.stdout if renewed else sys.stderr)
    return 0 if renewed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
