"""How soon a browser shows what a page is for, with 10,000 jobs and 1,000 machines: ``make bench-paint``.

Headless Chromium opens each page again and again while the daemon goes on with its cycles. First meaningful paint is
the first frame after the words or the table are there that a reader comes for, counted from the navigation's begin.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.pages import busy_daemon
from bench.rows import Row, machine
from tests.daemon.home import Home

if TYPE_CHECKING:
    from playwright.sync_api import Page

TARGET_MS = 300.0
LOADS = 9
REST_S = 1.5
"""Longer than the interval of cycles: each load finds a fleet that has changed."""
FLAGS = ("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
MEANINGFUL = {
    "/": "[aria-labelledby=h-fleet] tbody tr",
    "/jobs": "#rows tbody tr",
    "/jobs?state=waiting": "#rows tbody tr",
    "/jobs/job-1": "main section h2",
    "/machines": ".heat a",
    "/machines/inst-1": "main section h2",
    "/applications": "main h1",
    "/money": "[aria-labelledby=h-cost] tbody tr",
}
"""By page: what a reader comes for."""
WATCH = """(() => {
  const wanted = SELECTORS;
  const look = () => {
    const found = document.querySelector(wanted[location.pathname + location.search]);
    if (found) requestAnimationFrame(() => { window.meantAt = performance.now(); });
    else setTimeout(look, 2);
  };
  look();
})()"""

PAINTED = """(() => {
  const [first] = performance.getEntriesByName("first-contentful-paint");
  return first && window.meantAt ? [first.startTime, window.meantAt] : null;
})()"""
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Paint:
    """What one load took from the navigation's begin, in milliseconds."""

    first_ms: float
    meaningful_ms: float


def load(page: Page, address: str) -> Paint:
    """Open a page and return when it was painted."""
    page.goto(address, wait_until="load")
    end = time.monotonic() + PATIENCE_S
    while (found := page.evaluate(PAINTED)) is None:  # the page's policy forbids to wait for an expression
        assert time.monotonic() < end, f"{address} shows nothing"
        time.sleep(0.02)
    first_ms, meant_ms = found
    # What is in the page from the beginning is painted with the first frame.
    return Paint(first_ms, max(first_ms, meant_ms))


@contextmanager
def web_address(home: Home) -> Iterator[str]:
    """Run ``hcloud web``, and return the address that it prints."""
    with subprocess.Popen(
        [sys.executable, "-m", "hcloud.cli.main", "web"],
        env={**home.environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().removeprefix("open ")
        finally:
            process.terminate()


def rows(page: Page, address: str, loads: int) -> Iterator[Row]:
    """Open every page ``loads`` times and return its rows."""
    base = address.partition("/start")[0]
    page.add_init_script(WATCH.replace("SELECTORS", json.dumps(MEANINGFUL)))
    first = load(page, address)
    yield Row(name="/ in a browser that knows nothing yet", value=first.meaningful_ms, unit="ms", note=busy())
    for path in MEANINGFUL:
        found = []
        for _ in range(loads):
            time.sleep(REST_S)
            found.append(load(page, base + path))
        times = sorted(each.meaningful_ms for each in found)
        yield Row(
            name=f"{path}: first meaningful paint (median of {loads})",
            value=statistics.median(times),
            unit="ms",
            target=TARGET_MS,
            note=f"{times[0]:.0f} to {times[-1]:.0f}; first paint {paint_ms(found):.0f}; {busy()}",
        )


def paint_ms(found: Sequence[Paint]) -> float:
    """Return the median of the first paints."""
    return statistics.median(each.first_ms for each in found)


def busy() -> str:
    """Return how busy the machine is."""
    return f"load {os.getloadavg()[0]:.1f}"


def main() -> int:
    """Measure; return 1 if a page is too late."""
    parser = argparse.ArgumentParser(prog="make bench-paint", description=__doc__)
    parser.add_argument("--loads", type=int, default=LOADS, help="how often each page is opened (default 9)")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="keep a picture of each page there")
    asked = parser.parse_args()
    if asked.loads < 1:
        parser.error("--loads must be at least 1")
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("chromium is not installed; 'make bench-paint' installs it")
    missed = False
    print(f"machine: {machine()}")
    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    from playwright.sync_api import sync_playwright  # bench imports this module where no browser is installed

    with busy_daemon() as (home, _), web_address(home) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        for row in rows(page, address, asked.loads):
            print(row.line(), flush=True)
            missed |= row.holds is False
        if asked.screenshots is not None:
            keep_pictures(page, address, asked.screenshots)
        browser.close()
    return 1 if missed else 0


def keep_pictures(page: Page, address: str, folder: Path) -> None:
    """Write a picture of each page, narrow and wide, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in MEANINGFUL:
        load(page, address.partition("/start")[0] + path)
        for width, scheme in ((360, "dark"), (1280, "light")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            name = path.strip("/").translate(str.maketrans("/?=", "---")) or "now"
            page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)


if __name__ == "__main__":
    sys.exit(main())
