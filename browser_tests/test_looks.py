"""Every page is readable for everybody, at every width, in both colour schemes, and quickly."""

import os
import statistics
from pathlib import Path
from typing import Any

import pytest

from browser_tests.conftest import AXE, Reader, wait_for

PAGES = ("/", "/jobs", "/jobs/job-1", "/jobs/job-7", "/machines", "/machines/inst-1", "/applications", "/money")
NARROWEST = 360
LOOKS = ((NARROWEST, "dark"), (NARROWEST, "light"), (800, "light"), (1400, "dark"))
SCREENSHOTS = os.environ.get("HCLOUD_SCREENSHOTS")
"""A folder for pictures of all pages, to be looked at; None: none are taken."""
SERIOUS = ("serious", "critical")
FIRST_PAINT_MS = 1000
"""Far above what is measured on an idle machine, below what a reader would call slow."""
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
VIOLATIONS = (
    "async (asked) => (await axe.run(asked)).violations.map(each => [each.impact, each.id, each.nodes[0].html])"
)
EVERYTHING: dict[str, Any] = {}
CONTRAST = {"runOnly": ["color-contrast"]}
"""What depends on the colours."""


def test_every_page_fits_each_width_and_axe_finds_nothing_serious(reader: Reader) -> None:
    page, paints = reader.page, []
    reader.open("/applications")
    known = [each.get_attribute("href") or "" for each in page.locator("tbody th a").all()[:1]]
    for path in (*PAGES, *known):
        reader.look(*LOOKS[0], "reduce")
        reader.open(path)
        paints.append(wait_for(lambda: page.evaluate(FIRST_PAINT), "the first paint"))
        page.evaluate(AXE)
        for width, scheme in LOOKS:
            reader.look(width, scheme, "reduce")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            if width == NARROWEST:  # the page is the same but for its colours
                asked = EVERYTHING if scheme == "dark" else CONTRAST
                found = [each for each in page.evaluate(VIOLATIONS, asked) if each[0] in SERIOUS]
                assert found == [], (path, scheme)
            if SCREENSHOTS is not None:
                reader.open(path)  # charts are drawn in the colours that the page was opened with
                name = path.strip("/").replace("/", "-").replace("%", "-") or "now"
                page.screenshot(path=Path(SCREENSHOTS) / f"{name}-{width}-{scheme}.png", full_page=True)
                page.evaluate(AXE)
    print(f"first paint: {[round(each) for each in paints]} ms")
    assert statistics.median(paints) < FIRST_PAINT_MS


@pytest.mark.parametrize(("words", "asked"), [("label", EVERYTHING), ("color-contrast", CONTRAST)])
def test_axe_sees_what_is_wrong(reader: Reader, words: str, asked: dict[str, Any]) -> None:
    reader.page.evaluate(AXE)
    reader.page.evaluate(
        """() => { const made = document.createElement('p');
                   made.style.color = '#888'; made.style.background = '#999'; made.textContent = 'hardly to be read';
                   document.querySelector('main').append(made, document.createElement('input')); }"""
    )
    assert words in [each[1] for each in reader.page.evaluate(VIOLATIONS, asked)]


def test_pages_are_used_by_keyboard(reader: Reader) -> None:
    reader.page.keyboard.press("Tab")
    assert reader.page.evaluate("document.activeElement.className") == "skip"
    reader.page.keyboard.press("Enter")
    assert reader.page.evaluate("document.activeElement.id") == "main"
    reader.page.locator("nav a").nth(2).focus()
    reader.page.keyboard.press("Enter")
    reader.page.wait_for_url("**/machines")


def test_times_are_shown_in_the_zone_of_the_reader(reader: Reader) -> None:
    page, shown = reader.page, []
    browser = page.context.new_cdp_session(page)
    for zone in ("Asia/Tokyo", "America/New_York"):
        browser.send("Emulation.setTimezoneOverride", {"timezoneId": zone})
        reader.open("/jobs/job-1")
        assert zone in reader.text("footer")
        shown.append(reader.text("section.callout time"))
        reader.open("/money?by=day")
        page.get_by_text(f"days of {zone}").first.wait_for()
        browser.send("Emulation.setTimezoneOverride", {"timezoneId": ""})
    browser.detach()
    assert "UTC" not in "".join(shown)
    assert shown[0] != shown[1]
