"""Every page is readable for everybody, at every width, in both colour schemes, and quickly."""

import os
import statistics
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from browser_tests.conftest import AXE, Reader, wait_for

PAGES = ("/", "/jobs", "/jobs/job-1", "/jobs/job-7", "/machines", "/machines/inst-1", "/applications", "/money")
WIDEST = 1400
SCREENSHOTS = os.environ.get("HCLOUD_SCREENSHOTS")
"""A folder for pictures of all pages, to be looked at; None: none are taken."""
SERIOUS = ("serious", "critical")
FIRST_PAINT_MS = 1000
"""Far above what is measured on an idle machine, below what a reader would call slow."""
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
VIOLATIONS = "async () => (await axe.run()).violations.map(each => [each.impact, each.id, each.nodes[0].html])"


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (800, "light"), (WIDEST, "dark")])
def test_every_page_fits_its_width_and_axe_finds_nothing_serious(
    chromium: Browser, reader: Reader, login: Any, width: int, scheme: Any
) -> None:
    context = chromium.new_context(
        storage_state=login, viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
    )
    page, paints = context.new_page(), []
    page.goto(reader.base + "/applications")
    known = [each.get_attribute("href") or "" for each in page.locator("tbody th a").all()[:1]]
    for path in (*PAGES, *known):
        page.goto(reader.base + path, wait_until="load")
        paints.append(wait_for(lambda: page.evaluate(FIRST_PAINT), "the first paint"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        if width < WIDEST:  # each colour scheme once
            page.evaluate(AXE)
            found = [each for each in page.evaluate(VIOLATIONS) if each[0] in SERIOUS]
            assert found == [], path
        if SCREENSHOTS is not None:
            name = path.strip("/").replace("/", "-").replace("%", "-") or "now"
            page.screenshot(path=Path(SCREENSHOTS) / f"{name}-{width}-{scheme}.png", full_page=True)
    context.close()
    print(f"first paint at {width} px: {[round(each) for each in paints]} ms")
    assert statistics.median(paints) < FIRST_PAINT_MS


def test_pages_are_used_by_keyboard(reader: Reader) -> None:
    reader.page.keyboard.press("Tab")
    assert reader.page.evaluate("document.activeElement.className") == "skip"
    reader.page.keyboard.press("Enter")
    assert reader.page.evaluate("document.activeElement.id") == "main"
    reader.page.locator("nav a").nth(2).focus()
    reader.page.keyboard.press("Enter")
    reader.page.wait_for_url("**/machines")


def test_times_are_shown_in_the_zone_of_the_reader(chromium: Browser, reader: Reader, login: Any) -> None:
    shown = []
    for zone in ("Asia/Tokyo", "America/New_York"):
        context = chromium.new_context(storage_state=login, timezone_id=zone)
        page = context.new_page()
        page.goto(reader.base + "/jobs/job-1", wait_until="load")
        assert zone in page.locator("footer").inner_text()
        shown.append(page.locator("section.callout time").first.inner_text())
        page.goto(reader.base + "/money?by=day", wait_until="load")
        page.get_by_text(f"days of {zone}").first.wait_for()
        context.close()
    assert "UTC" not in "".join(shown)
    assert shown[0] != shown[1]
