"""The import contracts and banned calls of `pyproject.toml` are shown to break on the imports and calls they forbid."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import tree

PROGRAMS = Path(sys.executable).parent


def broken_contracts(checkout: Path) -> str:
    """What `lint-imports` says about the checkout; empty when every contract is kept."""
    done = subprocess.run(
        [PROGRAMS / "lint-imports", "--no-cache"], cwd=checkout, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr if done.returncode else ""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the two packages and their contracts, to do damage to."""
    for each in ("hcloud", "providers", "lab"):
        shutil.copytree(tree.ROOT / each, tmp_path / each, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(tree.ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("hcloud/core/model.py", "import hcloud.planner.plan", "Rooms import only"),
        ("hcloud/fresh_room.py", "", "Rooms import only"),
        ("hcloud/core/errors.py", "import providers", "The product imports neither"),
        ("hcloud/core/errors.py", "import lab.soak", "The product imports neither"),
        ("providers/fresh_cloud.py", "import lab.soak", "Plug-ins never import"),
        ("providers/fresh_cloud.py", "import hcloud.config.package_data", "Providers see only"),
        ("hcloud/planner/plan.py", "from hcloud.core.clock import Clock", "Pure rooms"),
        ("hcloud/core/model.py", "import os", "Pure rooms"),
        ("hcloud/planner/fresh_policy.py", "from time import monotonic", "Pure rooms"),
        ("hcloud/report/table.py", "import yaml", "Only hcloud.config reads YAML"),
        ("hcloud/provider.py", "from sqlalchemy import text", "Only the store"),
        ("hcloud/config/package_data.py", "import sqlite3", "Only the store"),
    ],
)
def test_contract_breaks_on_a_forbidden_import(module: str, line: str, contract: str, checkout: Path) -> None:
    with (checkout / module).open("a") as source:
        source.write(f"\n{line}\n")
    report = broken_contracts(checkout)
    assert f"{contract}" in report
    assert any(text.startswith(contract) and "BROKEN" in text for text in report.splitlines()), report


def ruff_says(source: str, path: str) -> str:
    line = [
        PROGRAMS / "ruff",
        "check",
        "--no-cache",
        "--select",
        "TID251",
        "--stdin-filename",
        str(tree.ROOT / path),
        "-",
    ]
    return subprocess.run(line, cwd=tree.ROOT, input=source, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()\n",
        "from time import time_ns\ntime_ns()\n",
        "import datetime\ndatetime.datetime.now()\n",
        "from datetime import date\ndate.today()\n",
        "from unittest.mock import MagicMock\n",
        "import numpy as np\nnp.random.normal()\n",
    ],
)
def test_ruff_sees_a_banned_call(source: str) -> None:
    assert "TID251" in ruff_says(source, "hcloud/apply.py")


def test_the_clock_may_read_the_wall_clock() -> None:
    assert "TID251" not in ruff_says("import time\ntime.time()\n", "hcloud/core/clock.py")
