"""Who gets in by which way, and what forms need to change anything."""

from tests.api.deployment import ROOT, sentence
from tests.web.conftest import ROLES, Site, form_token


def test_strangers_are_led_to_the_login_and_programs_are_not(site: Site) -> None:
    stranger = site.stranger()
    page = stranger.get("/jobs")
    assert (page.status_code, page.headers["location"]) == (303, "/login")
    part = stranger.get("/money/reports", headers={"HX-Request": "true"})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/login")
    assert stranger.post("/jobs/job-1/cancel", data={}).status_code == 401
    assert stranger.get("/live?topic=now").headers["location"] == "/login"
    assert "send a token" in sentence(stranger.get("/v1/jobs"))


def test_paths_belong_to_a_page_or_to_the_api(site: Site) -> None:
    pages = ("/", "/jobs", "/jobs/job-1/log", "/money/reports", "/static/style.css", "/live", "/login")
    others = ("/v1/jobs", "/metrics", "/healthz", "/openapi.json", "*", "", "//jobs", "/jobsx", "/v1/../jobs")
    assert [each for each in (*pages, *others) if site.pages.covers(each)] == list(pages)


def test_a_wrong_token_opens_nothing(site: Site) -> None:
    stranger = site.stranger()
    answer = stranger.post("/login", data={"token": "guessed"})
    assert answer.status_code == 401
    assert "not in the daemon&#39;s tokens file" in answer.text
    assert "set-cookie" not in answer.headers
    assert stranger.get("/").status_code == 303
    assert stranger.post("/login", data={}).status_code == 401


def test_the_cookie_of_a_login_is_for_this_host_and_no_script(site: Site) -> None:
    answer = site.stranger().post("/login", data={"token": "secret of ada"})
    value, _, attributes = answer.headers["set-cookie"].partition(";")
    assert value.startswith("__Host-hcloud=")
    assert "secret" not in value
    assert sorted(each.strip().lower() for each in attributes.split(";")) == [
        *("httponly", "path=/", "samesite=strict", "secure"),
    ]


def test_a_login_opens_pages_and_not_the_api(site: Site) -> None:
    browser = site.browser("ada")
    assert "<bdi>ada</bdi>" in browser.get("/").text
    assert "send a token" in sentence(browser.get("/v1/jobs"))


def test_a_token_that_is_removed_ends_its_logins_at_once(site: Site) -> None:
    browser = site.browser("ada")
    site.write_tokens({name: role for name, role in ROLES.items() if name != "ada"})
    assert browser.get("/").headers["location"] == "/login"


def test_a_lower_role_counts_at_once(site: Site) -> None:
    made, browser = site.submitted("ada"), site.browser("ada")
    token = form_token(browser.get(f"/jobs/{made}").text)
    site.write_tokens({**ROLES, "ada": "reader"})
    assert browser.post(f"/jobs/{made}/cancel", data={"form_token": token}).status_code == 403
    assert "Cancel" not in browser.get(f"/jobs/{made}").text


def test_logging_out_ends_the_login(site: Site) -> None:
    browser = site.browser("ada")
    cookie = browser.cookies["__Host-hcloud"]
    assert browser.post("/logout", data={}).headers["location"] == "/login"
    assert site.stranger().get("/", headers={"Cookie": f"__Host-hcloud={cookie}"}).status_code == 303


def test_old_logins_of_one_token_make_room_for_new_ones(site: Site) -> None:
    first = site.pages.sessions.begin("secret of ada", "ada")
    other = site.pages.sessions.begin("secret of eve", "eve")
    for _ in range(50):
        site.pages.sessions.begin("secret of ada", "ada")
    answers = [site.stranger().get("/", headers={"Cookie": f"__Host-hcloud={each}"}) for each in (first, other)]
    assert [each.status_code for each in answers] == [303, 200]


def test_a_form_cancels_a_job_and_runs_it_again(site: Site) -> None:
    made, browser = site.submitted("ada"), site.browser("ada")
    token = form_token(browser.get(f"/jobs/{made}").text)
    answer = browser.post(f"/jobs/{made}/cancel", data={"form_token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{made}")
    site.deployment.cycle(3)
    assert site.deployment.store.job(made).cancelled_by == "ada"
    page = browser.get(f"/jobs/{made}").text
    again = browser.post(f"/jobs/{made}/rerun", data={"form_token": form_token(page)})
    assert again.status_code == 303
    repeated = site.deployment.store.job(again.headers["location"].removeprefix("/jobs/"))
    assert (repeated.id != made, repeated.spec.user) == (True, "ada")


def test_forms_of_other_pages_change_nothing(site: Site) -> None:
    made, browser = site.submitted("ada"), site.browser("ada")
    token = form_token(browser.get(f"/jobs/{made}").text)
    foreign = form_token(site.browser("root").get(f"/jobs/{made}").text)
    address = f"/jobs/{made}/cancel"
    refusals = [
        browser.post(address, data={}),
        browser.post(address, data={"form_token": "0" * 64}),
        browser.post(address, data={"form_token": foreign}),
        browser.post(address, data={"form_token": token}, headers={"Origin": "https://evil.test"}),
        browser.post(address, json={"form_token": token}),
        browser.post(address, data={"form_token": token, "more": "x" * 20_000}),
        browser.post("/login", data={"token": "secret of eve"}, headers={"Origin": "https://evil.test"}),
        browser.post("/money/what-if", data={"policy": "no-spot"}),
    ]
    assert [each.status_code for each in refusals] == [403, 403, 403, 403, 400, 400, 403, 403]
    assert site.deployment.store.job(made).cancelled_by is None


def test_others_may_not_cancel_and_readers_may_change_nothing(site: Site) -> None:
    made, own = site.submitted("ada"), site.submitted("mallory")
    mallory, eve = site.browser("mallory"), site.browser("eve")
    token = form_token(mallory.get(f"/jobs/{own}").text)
    answer = mallory.post(f"/jobs/{made}/cancel", data={"form_token": token})
    assert (answer.status_code, "only ada or an admin" in answer.text) == (403, True)
    for path in (f"/jobs/{made}/cancel", f"/jobs/{made}/rerun", "/money/what-if"):
        assert eve.post(path, data={"form_token": token}).status_code == 403
    assert ["Cancel" in each.get(f"/jobs/{made}").text for each in (mallory, eve)] == [False, False]
    assert site.deployment.store.job(made).cancelled_by is None


def test_on_the_socket_the_kernel_says_who_it_is(site: Site) -> None:
    root = site.peer(ROOT)
    assert "<bdi>root</bdi>" in root.get("/").text
    assert root.get("/login").headers["location"] == "/"
    assert root.post("/login", data={"token": "secret of ada"}).status_code == 403
