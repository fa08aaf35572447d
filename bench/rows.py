"""What every benchmark returns: measured figures beside their targets, and the machine they were measured on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. ``target`` None: reported only; ``better`` says on which side of the target it should lie."""

    name: str
    value: float
    unit: str
    target: float | None = None
    better: Literal["lower", "higher"] = "lower"
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return self.value <= self.target if self.better == "lower" else self.value >= self.target

    def line(self) -> str:
        """Return the row as one line of a table."""
        sign = {"lower": "<=", "higher": ">="}[self.better]
        target = "" if self.target is None else f"{sign} {self.target:g} {self.unit}"
        verdict = {True: "met", False: "MISSED", None: ""}[self.holds]
        return f"  {self.name:<58} {self.value:>10.4g} {self.unit:<9} {target:<18} {verdict:<7} {self.note}"


def machine() -> str:
    """Describe this machine in one line: processor, cores, kernel, Python, load."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return (
        f"{model or platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
