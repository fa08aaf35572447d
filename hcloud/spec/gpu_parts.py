"""The part of a job file about GPUs: how many, of which kind, with how much memory."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from hcloud.core.resources import Gpus, gpu_kind
from hcloud.core.units import PositiveGib, Text, shown
from hcloud.spec.job_variables import JobFilePart

GPUS_MOST: Final = 64
"""Plausibility limit of GPUs per node; more is a typing error."""
_KIND = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9*? ._-]{0,62}")
_MEMORY = re.compile(r"(?i)[0-9.]+\s*[kmgt]i?b?")


def _kind(text: str) -> str:
    if not _KIND.fullmatch(text) or not (kind := gpu_kind(text)):
        raise ValueError(f"must be a kind of GPU such as a100 or l4 (* and ? are wildcards), not {shown(text)}")
    return kind


class GpusPart(JobFilePart):
    """GPUs of each node, which no other job uses meanwhile."""

    count: Annotated[int, Field(strict=True, ge=1, le=GPUS_MOST)] = 1
    """Number of GPUs."""
    kind: Annotated[Text, AfterValidator(_kind)] | None = None
    """Kind, for example a100, l4 or "a100*"; * and ? are wildcards. Default: any."""
    memory: PositiveGib | None = None
    """Memory that each of them has at least, for example 24GB; a bare number is GiB."""

    def to_gpus(self) -> Gpus:
        """Return them as the model has them."""
        return Gpus(count=self.count, kind=self.kind or "", memory_gib=self.memory or 0.0)


def gpus_from_text(value: object) -> object:
    """Turn the short forms ``gpus: 2``, ``gpus: a100``, ``gpus: a100:2`` and ``gpus: a100:80GB:2`` into a mapping.

    Raises ValueError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    if not isinstance(value, str):
        return value
    found: dict[str, int | str] = {}
    for part in map(str.strip, value.split(":")):
        if part.isascii() and part.isdigit():
            name = "count"
        else:
            name = "memory" if _MEMORY.fullmatch(part) else "kind"
        is_nameless = name == "kind" and not any(each.isalpha() or each in "*?" for each in part)
        if is_nameless or name in found:
            raise ValueError(f"must be a number, or kind, memory and number such as a100:80GB:2, not {shown(value)}")
        found[name] = int(part[:9]) if name == "count" else part
    return found
