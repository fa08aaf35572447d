"""Logging in with a token, at the port that other machines reach."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from browser_tests.conftest import ADAS_TOKEN, Fleet


@pytest.fixture
def stranger(chromium: Browser) -> Iterator[Page]:
    """A browser that has not logged in; the certificate is one of our own."""
    context = chromium.new_context(ignore_https_errors=True)
    yield context.new_page()
    context.close()


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_a_token_opens_the_pages_until_the_login_ends(stranger: Page, fleet: Fleet) -> None:
    base = f"https://127.0.0.1:{fleet.tls_port}"
    stranger.goto(f"{base}/jobs/job-7")
    assert stranger.url == f"{base}/login"
    log_in(stranger, "a guess of twenty letters and more")
    assert "not in the daemon's tokens file" in stranger.get_by_role("alert").inner_text()
    assert stranger.context.cookies() == []
    log_in(stranger, ADAS_TOKEN)
    assert stranger.url == f"{base}/"
    assert stranger.locator(".who").inner_text().split()[:2] == ["ada", "reader"]
    (cookie,) = stranger.context.cookies()
    assert (cookie["name"], cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (
        *("__Host-hcloud", True, True, "Strict"),
    )
    assert ADAS_TOKEN not in cookie["value"]
    stranger.goto(f"{base}/jobs/job-7")
    assert "Why it waits:" in stranger.locator("main").inner_text()
    assert stranger.get_by_role("button", name="Cancel").count() == 0  # readers change nothing
    stranger.get_by_role("button", name="Log out").click()
    stranger.goto(f"{base}/money")
    assert stranger.url == f"{base}/login"
