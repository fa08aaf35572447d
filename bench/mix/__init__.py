"""Placement with real programs and real contention: this planner against least loaded and random, on two slices.

``python -m bench mix`` needs a machine of two CPUs or more that has nothing else to do, as an ordinary deployment: real
engine, real daemon, programs of the recipes. ``HCLOUD_MIX_SEEDS`` (default 3) says how often the mix is repeated.
"""

from __future__ import annotations

import os

from bench.rows import Row


def run() -> list[Row]:
    """Let the mix run under every order, each with the same seeds, and tell what became of it."""
    from bench.mix.scene import measure, missing
    from bench.mix.tell import rows, table

    lacking = missing()
    if lacking:
        print(f"  skipped, because these packages are not installed: {' '.join(lacking)}")
        return []
    runs = measure(range(int(os.environ.get("HCLOUD_MIX_SEEDS", "3"))))
    print(table(runs))
    return rows(runs)
