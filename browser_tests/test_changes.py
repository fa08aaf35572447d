"""Pages change by themselves, and forms change what they say."""

from browser_tests.conftest import Fleet, Reader, wait_for


def test_the_first_page_shows_a_new_job_without_a_reload(reader: Reader, fleet: Fleet) -> None:
    before = reader.text("a.tile:has-text('Jobs waiting')")
    made = fleet.submit("later", "sleep 600", vcpus=2)
    wait_for(lambda: reader.text("a.tile:has-text('Jobs waiting')") != before, "one more waits")
    fleet.cancel(made)


def test_output_follows_and_a_job_is_cancelled_and_run_again(reader: Reader, fleet: Fleet) -> None:
    command = "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.2; done"
    made = fleet.submit("talker", command)
    reader.open(f"/jobs/{made}")
    reader.until("line 3", "pre.log")
    reader.until("line 9", "pre.log")
    reader.page.on("dialog", lambda dialog: dialog.accept())
    reader.click("text=Cancel")
    reader.until("cancelled")
    reader.click("text=Run again")
    wait_for(lambda: reader.page.url != f"{reader.base}/jobs/{made}", "the new job is shown")
    again = reader.page.url.rpartition("/")[2]
    reader.until("talker", "h1")
    fleet.cancel(again)
