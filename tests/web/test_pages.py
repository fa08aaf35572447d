"""What the pages show: real data, safely, a part at a time."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from hcloud.core.model import Event, EventKind
from hcloud.store import Store
from hcloud.web.jobs import PAGE_ROWS
from tests.api.deployment import READER, ROOT, job
from tests.web.conftest import Site, serving

HOSTILE = "<script>alert(1)</script>\u202egnp.exe\x1b[31m"
PATHS = ("/", "/jobs", "/jobs/job-1", "/machines", "/machines/inst-1", "/applications", "/money", "/login")


class Elements(HTMLParser):
    """Collects what a strict policy would refuse to run."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.refused += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and not given.get("src")):
            self.refused.append(tag)
        named = [given.get(name) or "" for name in ("src", "href", "action", "hx-get", "sse-connect")]
        self.outside += [each for each in named if "//" in each]


@pytest.fixture(scope="module")
def shown() -> Iterator[Site]:
    """Pages of a deployment with jobs that ended, run and wait; tests only look."""
    with serving() as site:
        jobs = [job(tags={"team": HOSTILE}, command=["echo", HOSTILE]), job("long", command=["sleep", "90"])]
        assert site.peer(ROOT).post("/v1/jobs", json=jobs).status_code == 201
        site.submitted("ada", name="index", tags={"team": "search"}, command=["sleep", "3", "sesame"])
        for _ in range(6):
            site.submitted("mallory", name="train", resources={"vcpus": 8}, command=["sleep", "900"])
        site.deployment.cycle(8)
        yield site


def test_every_page_holds_to_the_policy_it_sends(shown: Site) -> None:
    browser = shown.browser("root")
    for path in PATHS:
        page = browser.get(path)
        assert page.status_code == 200, (path, page.text)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        found = Elements()
        found.feed(page.text)
        assert (found.refused, found.outside) == ([], []), path


def test_what_users_wrote_is_shown_as_text(shown: Site) -> None:
    page = shown.peer(ROOT).get("/jobs/job-1").text
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202egnp.exe\\x1b[31m" in page


def test_output_is_shown_as_text_and_followed_until_it_is_complete(shown: Site) -> None:
    shown.deployment.cycle_until(lambda: shown.deployment.store.job("job-1").finished_at is not None)
    (written,) = shown.deployment.home.glob("logs/job-1.1.0*.stdout")
    written.write_text(HOSTILE)
    part = shown.peer(ROOT).get("/jobs/job-1/log").text
    assert "&lt;script&gt;" in part
    assert "\\u202e" in part
    assert "hx-get" not in part
    following = shown.peer(ROOT).get("/jobs/job-2/log").text
    assert "hx-get" in following
    assert "nothing yet" in following  # until the next part takes its place


def test_jobs_are_listed_page_by_page(fresh_site: Site) -> None:
    root = fresh_site.peer(ROOT)
    jobs = [job(f"task-{number}", after="first" if number % 7 == 6 else []) for number in range(1, 120)]
    assert root.post("/v1/jobs", json=[job("first"), *jobs]).status_code == 201
    for first in ("/jobs", "/jobs?state=waiting"):  # of the database, and of those that have not ended
        seen: list[str] = []
        address = first
        while address:
            page = root.get(address).text
            rows = re.findall(r'<th scope="row"><a href="/jobs/(job-\d+)">', page)
            assert len(rows) <= PAGE_ROWS
            seen += rows
            older = re.search(r'rel="next" href="([^"]+)"', page)
            address = older[1].replace("&amp;", "&") if older else ""
        assert seen == [f"job-{number}" for number in range(120, 0, -1)], first


def test_jobs_are_filtered_by_state_user_name_and_tag(shown: Site) -> None:
    browser = shown.browser("eve")
    for query, only in (("user=ada", "index"), ("name=train", "train"), ("tag=team%3Dsearch", "index")):
        page = browser.get(f"/jobs?{query}").text
        assert [name in page for name in ("<bdi>index", "<bdi>train")] == [only == "index", only == "train"]
    assert "No job matches" in browser.get("/jobs?user=nobody").text
    assert browser.get("/jobs?state=lost").status_code == 400
    assert browser.get("/jobs?job=2").headers["location"] == "/jobs/job-2"


def test_a_waiting_job_says_why_on_its_page_and_on_the_first_one(shown: Site) -> None:
    waiting = next(each for each in shown.deployment.store.live().jobs if each.wait_text)
    browser = shown.browser("ada")
    why = waiting.wait_text.removeprefix("waiting: ")
    for path in ("/", f"/jobs/{waiting.id}"):
        assert why in browser.get(path).text.replace("&#39;", "'")


def test_the_first_page_shows_what_is_bought_and_why(shown: Site) -> None:
    page = shown.browser("eve").get("/").text
    requested = shown.deployment.store.events(kinds=[EventKind.INSTANCE_REQUESTED])[-1]
    assert f'<a href="/machines/{requested.instance_id}">' in page
    assert str(requested.fields["text"]) in page


def test_the_worst_used_machine_is_named_first(fresh_site: Site) -> None:
    fresh_site.submitted("ada", command=["sleep", "900"], resources={"vcpus": 0.1})
    fresh_site.deployment.cycle(8)
    page = fresh_site.browser("eve").get("/machines").text
    assert re.search(r"Worst used:</strong> <a href=\"/machines/inst-1\">", page), page
    assert fresh_site.browser("eve").get("/machines?sort=colour").status_code == 400


def test_what_others_run_is_hidden_and_what_they_are_is_not(shown: Site) -> None:
    made = "job-3"
    for name, seen in (("ada", True), ("root", True), ("mallory", False), ("eve", False)):
        browser = shown.browser(name)
        page = browser.get(f"/jobs/{made}")
        assert (page.status_code, "sesame" in page.text) == (200, seen), name
        assert browser.get(f"/jobs/{made}/log").status_code == (200 if seen else 403)


def test_cost_is_shown_by_what_it_was_spent_on(shown: Site) -> None:
    browser = shown.browser("eve")
    for by, row in (
        ("user", "ada"),
        ("tag:team", "search"),
        ("market", "on_demand"),
        ("job", "job-3"),
        ("day", "2030-"),
    ):
        assert f"by {by.replace('tag:', 'tag ')}" in browser.get(f"/money?by={by}").text
        reports = browser.get(f"/money/reports?by={by}").text
        assert f"<bdi>{row}" in reports
        assert "From the event log as of" in reports


def test_reports_are_computed_by_one_pass_and_shown_again_at_once(
    fresh_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, passes = fresh_site, []
    iterated = Store.iter_events

    def counted(store: Store, **how: Any) -> Iterator[Event]:
        passes.append(how)
        return iterated(store, **how)

    monkeypatch.setattr(Store, "iter_events", counted)
    browser = site.browser("eve")
    assert browser.get("/money").text.count("computing") == 4
    for _ in range(2):
        browser.get("/money/reports")
    assert len(passes) == 1
    browser.get("/money/reports?by=market")  # of which all but one report is known
    assert len(passes) == 2
    site.deployment.clock.advance(3600.0)
    page = browser.get("/money").text
    assert (page.count("computing"), page.count("<tfoot>")) == (1, 0)  # days: the script names the zone
    browser.get("/money/reports")
    assert len(passes) == 3


def test_days_of_cost_are_those_of_the_reader_s_zone(shown: Site) -> None:
    browser = shown.browser("eve")
    assert "computing" in browser.get("/money?by=day").text  # the script names the zone, so no day is in the page
    parts = {
        zone: browser.get("/money/reports", params={"zone": zone, "period": "all"}).text
        for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago")
    }
    days = [re.findall(r"<bdi>(\d{4}-\d\d-\d\d)</bdi>", part) for part in parts.values()]
    assert len(days[0]) == len(days[1]) == 1
    assert days[0] > days[1]
    assert all(f"days of {zone}." in part for zone, part in parts.items())
    assert browser.get("/money/reports?zone=Mars/Phobos").status_code == 400


def test_wrong_addresses_are_answered_with_a_page(shown: Site) -> None:
    browser = shown.browser("eve")
    for path, status in (
        ("/jobs/job-99", 404), ("/jobs/nonsense", 404), ("/machines/inst-99", 404), ("/applications/none", 404),
        ("/money?by=colour", 400), ("/money?period=aeon", 400), ("/money/reports?by=x", 400), ("/static/none.css", 404),
        ("/static/..%2Fsite.py", 404), ("/jobs?before=x", 404), ("/live?topic=%3Cb%3E", 400),
        ("/machines/inst-1/none", 404), ("/jobs/job-1/cancel", 405),
        ("/jobs/job-1?rank=1", 404), ("/jobs/job-1?attempt=9", 404), ("/machines/part/neighbours?sort=colour", 400),
    ):  # fmt: skip
        page = browser.get(path)
        assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8"), path
        assert 'role="alert"' in page.text


def test_files_are_kept_by_browsers_as_long_as_their_address_says(shown: Site) -> None:
    page = shown.peer(READER).get("/").text
    for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
        found = shown.stranger().get(address)
        assert (found.status_code, "immutable" in found.headers["cache-control"]) == (200, True), address
    assert "immutable" not in shown.stranger().get("/static/style.css").headers["cache-control"]


def test_open_lists_are_read_again_without_the_rest_of_the_page_and_made_once_for_all(shown: Site) -> None:
    shown.deployment.clock.advance(5.0)
    part = {"HX-Request": "true"}
    for path in ("/machines?sort=price", "/jobs?state=running"):
        first, second = (shown.browser(name).get(path, headers=part).text for name in ("ada", "eve"))
        assert first == second
        assert "<html" not in first
        assert first in shown.browser("ada").get(path).text
    assert "<bdi>ada" not in shown.browser("eve").get("/machines?sort=price", headers=part).text


def test_a_defect_is_answered_with_a_page_and_to_programs_with_json(
    shown: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("sesame")

    monkeypatch.setattr("hcloud.web.machines.heat_cells", broken)
    shown.deployment.clock.advance(5.0)
    page = shown.browser("eve").get("/machines")
    assert (page.status_code, page.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "a defect in HCloud (ZeroDivisionError)" in page.text
    assert "sesame" not in page.text
    assert "content-security-policy" in page.headers
    part = shown.browser("eve").get("/machines", headers={"HX-Request": "true"})
    assert (part.status_code, "<html" in part.text) == (500, False)


def test_output_is_shown_of_the_rank_and_attempt_that_is_asked_for(fresh_site: Site) -> None:
    made = fresh_site.submitted("ada", command=["sleep", "3"], nodes={"count": 3}, resources={"vcpus": 1})
    fresh_site.deployment.cycle_until(lambda: fresh_site.deployment.store.job(made).finished_at is not None)
    for written in fresh_site.deployment.home.glob(f"logs/{made}.1.*.stdout"):
        written.write_text(f"this is rank {written.name.split('.')[2].partition('_')[0]}")
    browser = fresh_site.browser("ada")
    page = browser.get(f"/jobs/{made}?rank=2").text
    assert re.findall(r'aria-current="true">rank (\d)', page) == ["2"]
    assert re.findall(r"rank (\d) <span", page) == ["0", "1", "2"]
    (address,) = re.findall(r'hx-get="(/jobs/[^"]+stream=stdout)"', page)
    assert "this is rank 2" in browser.get(address.replace("&amp;", "&")).text
    assert "this is rank 1" in browser.get(f"/jobs/{made}/log?rank=1&attempt=1").text
    assert browser.get(f"/jobs/{made}?rank=3").status_code == 404
