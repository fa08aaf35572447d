"""What Prometheus makes of scrapes: rules and expressions are evaluated by promtool, over series that were scraped."""

import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hcloud.config import package_data
from tests.machine import PROMTOOL

RULES = package_data.path("deploy/prometheus/hcloud.rules.yml")
HEALTHY_MIN, BAD_MIN = 10, 40
"""For how long the first scrape holds, and then the second, in minutes."""
NAME = re.compile(r"\bhcloud_[a-z_]+")
_SAMPLE = re.compile(r"(hcloud_\w+)(?:\{(.*)\})? (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Two scrapes after each other, and what expressions give at the end of each.

    Counters and histograms that grew from the first to the second go on growing so much in each minute.
    """

    name: str
    before: str
    after: str
    at_first: dict[str, float | None] = field(default_factory=dict)
    """Value of each expression; None: it gives nothing."""
    at_last: dict[str, float | None] = field(default_factory=dict)


def run(*arguments: str, text: str | None = None) -> str:
    """Run promtool; return what it says if it fails."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], input=text, capture_output=True, text=True, check=False, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def failures(cases: list[Case], folder: Path) -> str:
    """Return what is not as the cases say, in promtool's words; "" if all is."""
    asked = frozenset(NAME.findall(RULES.read_text()))
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "name": case.name,
                "interval": "1m",
                "input_series": _series(case.before, case.after, asked | _names(case)),
                "promql_expr_test": [
                    *(_expected(text, value, HEALTHY_MIN - 1) for text, value in case.at_first.items()),
                    *(_expected(text, value, HEALTHY_MIN + BAD_MIN - 1) for text, value in case.at_last.items()),
                ],
            }
            for case in cases
        ],
    }
    file = folder / "cases.json"
    file.write_text(json.dumps(document))
    return run("test", "rules", str(file))


def _names(case: Case) -> frozenset[str]:
    return frozenset(NAME.findall(" ".join([*case.at_first, *case.at_last])))


def _expected(expression: str, value: float | None, minute: int) -> dict[str, Any]:
    samples = [] if value is None else [{"labels": "{}", "value": value}]
    return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}


def _series(before: str, after: str, asked: frozenset[str]) -> list[dict[str, str]]:
    first, last, grows = _samples(before), _samples(after), _growing(after)
    found = []
    for series in {**first, **last}:
        if series.partition("{")[0] not in asked:
            continue
        was, now = first.get(series), last.get(series)
        head = f"_x{HEALTHY_MIN}" if was is None else f"{was:.15g}+0x{HEALTHY_MIN - 1}"
        if now is None:
            tail = f"_x{BAD_MIN}"
        elif series.partition("{")[0] in grows:
            step = now - (was or 0.0)
            tail = f"{now:.15g}+{step:.15g}x{BAD_MIN - 1}"
        else:
            tail = f"{now:.15g}+0x{BAD_MIN - 1}"
        found.append({"series": series, "values": f"{head} {tail}"})
    return found


def _samples(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if match := _SAMPLE.fullmatch(line):
            labels = ",".join(part for part in ('job="hcloud"', match[2]) if part)
            found[f"{match[1]}{{{labels}}}"] = float(match[3])
    return found


def _growing(text: str) -> set[str]:
    """Return the names of the series that only grow."""
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    names = {name for name, kind in kinds.items() if kind == "counter"}
    for name, kind in kinds.items():
        names |= {f"{name}_{part}" for part in ("bucket", "count", "sum")} if kind == "histogram" else set()
    return names
