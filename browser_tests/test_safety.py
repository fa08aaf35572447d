"""What a hostile submitter writes is text, and what other sites and users try stays outside."""

from playwright.sync_api import Browser

from browser_tests.conftest import Reader


def test_hostile_text_is_shown_as_text_everywhere(reader: Reader) -> None:
    for path in ("/jobs", "/jobs/job-3", "/money?by=tag:team"):
        reader.open(path)
        assert reader.page.title().endswith("HCloud")
        assert "\u202e" not in reader.page.content()
        assert "\x1b" not in reader.page.content()
    reader.open("/jobs/job-3")
    reader.until("<script>document.title='owned'</script> \\u202egnp.exe \\x1b[31mred", "pre.log")
    assert reader.page.title() == "job-3 hostile · HCloud"
    assert reader.page.locator("main script").count() == 0


def test_the_browser_runs_nothing_that_stands_in_a_page(reader: Reader) -> None:
    reader.page.evaluate(
        """() => { const made = document.createElement('script'); made.textContent = 'window.ran = true';
                   document.body.append(made); }"""
    )
    assert reader.page.evaluate("window.ran") is None
    assert any("Content Security Policy" in each or "script-src" in each for each in reader.said)
    reader.said.clear()


def test_another_browser_and_another_name_are_not_admitted(chromium: Browser, reader: Reader, address: str) -> None:
    context = chromium.new_context()
    page = context.new_page()
    for path, status in (
        (reader.base + "/", 401),
        (address, 401),
        (reader.base.replace("127.0.0.1", "own.localhost"), 421),
    ):
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == status, path
    context.close()
