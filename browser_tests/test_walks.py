"""Somebody who never saw the pages finds four answers by them alone, each within three clicks from the first page."""

import re

from browser_tests.conftest import Reader


def test_why_does_job_7_wait(reader: Reader) -> None:
    reader.click("nav >> text=Jobs")
    reader.click("tbody >> a:text-is('job-7')")
    found = reader.until("Why it waits:")
    assert re.search(r"Why it waits: \S.{20,}", found), found
    assert reader.clicks <= 3


def test_what_did_team_search_cost_this_week(reader: Reader) -> None:
    reader.click("nav >> text=Money")
    reader.click("a:has-text('by tag team')")
    reader.until("total", "section[aria-labelledby=h-cost]")
    assert "last 7 days" in reader.text("#h-cost")
    row = reader.text("section[aria-labelledby=h-cost] tbody tr:has-text('search')")
    assert re.search(r"search\s.*\$0\.\d+", row), row
    assert reader.clicks <= 3


def test_which_machine_is_badly_used(reader: Reader) -> None:
    reader.click("nav >> text=Machines")
    found = reader.until("Worst used:")
    assert re.search(r"Worst used: inst-\d+, local\.\w+: \d+ % .* of its \$[\d.]+/h pays for unused vCPUs", found), (
        found
    )
    reader.click("section.callout a")
    assert "Lease: paid until" in reader.until("What happened to it")
    assert reader.clicks <= 3


def test_what_would_no_spot_have_cost(reader: Reader) -> None:
    reader.click("a.tile:has-text('Money per hour')")
    assert reader.page.locator("select[name=policy]").input_value() == "no-spot"
    reader.click("button:has-text('Replay')")
    found = reader.until("no-spot would have cost", "#what-if-result")
    assert re.search(r"no-spot would have cost \$[\d.]+, the policy in force \$[\d.]+: \d+ % more", found), found
    assert reader.clicks <= 3
