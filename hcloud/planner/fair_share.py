"""Fair share: among jobs of one priority, those of owners with less recent use are served first."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Final

from hcloud.core.model import JobSpec
from hcloud.planner.text import usd
from hcloud.spec.policy import AdmissionPolicy

LEAST_USD: Final = 0.01
STEP: Final = 1.25
"""Owners that used as much within such a factor count as equal, so that their jobs are served by age."""


def share_owner(spec: JobSpec, admission: AdmissionPolicy) -> str:
    """Return for whom a job counts: its user, or the value of its tag; empty: it has no such tag."""
    key = admission.fair_share_tag
    return spec.user if key is None else spec.tags.get(key, "")


def usage_level(spec: JobSpec, usage_usd: Mapping[str, float], admission: AdmissionPolicy) -> float:
    """Return what orders jobs of one priority, the smallest first; 0 without fair share."""
    if admission.fair_share == "none":
        return 0.0
    return float(round(log(1.0 + usage_usd.get(share_owner(spec, admission), 0.0) / LEAST_USD) / log(STEP)))


def fair_share_words(spec: JobSpec, usage_usd: Mapping[str, float], admission: AdmissionPolicy) -> str:
    """Return one sentence about what decides the order of a waiting job; empty without fair share."""
    if admission.fair_share == "none":
        return ""
    owner, key = share_owner(spec, admission), admission.fair_share_tag
    whose = owner if key is None else f"{key}={owner}" if owner else f"jobs without the tag {key}"
    used = usd(usage_usd.get(owner, 0.0))
    rule = "at one priority, less recent use goes first, by 25 % and $0.001 at least"
    return f"fair share: {whose} used {used} lately; {rule}"
