"""``python -m bench [NAME ...]``: run the benchmarks and print each figure beside its target.

A benchmark is a module of this package with ``run() -> Iterable[Row]``. Ends with 1 when a target is missed.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench
from bench.rows import Row, machine
from hcloud.core.gc_tuning import infrequent_gc


def modules(wanted: list[str]) -> list[str]:
    """Return the names of the benchmarks to run."""
    found = sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if module.name != "__main__")
    known = [name for name in found if hasattr(importlib.import_module(f"bench.{name}"), "run")]
    for name in wanted:
        if name not in known:
            own = "; it has a command of its own, see make help" if name in found else ""
            print(f"bench: there is no benchmark {name!r}{own}; known are {', '.join(known)}", file=sys.stderr)
            sys.exit(2)
    return wanted or known


def main() -> int:
    """Run what the command line names, or everything."""
    names = modules(sys.argv[1:])
    print(f"machine: {machine()}")
    missed: list[Row] = []
    for name in names:
        print(f"{name}:", flush=True)
        measured = importlib.import_module(f"bench.{name}")
        with infrequent_gc():  # as the daemon does
            for row in measured.run():
                print(row.line(), flush=True)
                missed += [row] if row.holds is False else []
    print(f"{len(missed)} target(s) missed" if missed else "every target met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
