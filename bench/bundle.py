"""The agent bundle: what a machine downloads and keeps, and how long a fake one takes from boot to registered."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.rows import Row
from hcloud.engine.bundle import AgentBundle, build
from tests.engine.site import PATIENCE_S, Site
from tests.providers.test_boot import boot, can_boot, orders, written_by
from tests.waiting import wait_until

DOWNLOAD_MB, INSTALLED_MB = 15.0, 45.0


def installed_mb(bundle: AgentBundle, folder: Path) -> float:
    """Unpack it, compile its modules as their first use does, and return the size of all files."""
    folder.mkdir()
    subprocess.run(["tar", "-xzf", str(bundle.path), "-C", str(folder)], check=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(folder / "lib")], check=True)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def boot_s(bundle: AgentBundle, folder: Path) -> tuple[float, float]:
    """Return the seconds from a machine's start until its setup was done, and until it was registered.

    The machine is this host in namespaces of its own (``tests/providers/boot.py``): kernel, cloud-init and apt-get take
    no time there.
    """
    site = Site(folder, archives=bundle.path.parent)
    notes = folder / "notes"
    try:
        runner = site.runner()
        began = time.monotonic()
        machine = boot(orders(site, bundle), notes)
        try:
            wait_until(lambda: "hcloud setup: done" in written_by(notes), PATIENCE_S)
            setup_s = time.monotonic() - began
            wait_until(lambda: runner.observe().workers, PATIENCE_S)
            return setup_s, time.monotonic() - began
        finally:
            machine.kill()
            machine.wait()
    finally:
        site.close()


def run() -> Iterator[Row]:
    """Yield the sizes beside their targets, and the times."""
    with tempfile.TemporaryDirectory(prefix="bundle-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        began = time.monotonic()
        bundle = build(folder / "agents")
        built_s = time.monotonic() - began
        yield Row(name="agent: download", value=bundle.size_bytes / 1e6, unit="MB", target=DOWNLOAD_MB)
        yield Row(name="agent: installed", value=installed_mb(bundle, folder / "lib"), unit="MB", target=INSTALLED_MB)
        yield Row(name="making the archive", value=built_s, unit="s", note="once per installation")
        if can_boot():
            setup_s, registered_s = boot_s(bundle, folder / "site")
            yield Row(name="fake machine: boot to setup done", value=setup_s, unit="s", note="without apt-get")
            yield Row(name="fake machine: boot to registered", value=registered_s, unit="s", note="without apt-get")
