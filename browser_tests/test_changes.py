"""Pages change by themselves, and forms change what they say."""

from browser_tests.conftest import Fleet, Reader, wait_for

NEIGHBOURS = "section[aria-labelledby=h-neighbours]"


def test_the_first_page_shows_a_new_job_without_a_reload(reader: Reader, fleet: Fleet) -> None:
    before = reader.text("a.tile:has-text('Jobs waiting')")
    made = fleet.submit("later", "sleep 600", vcpus=2)
    wait_for(lambda: reader.text("a.tile:has-text('Jobs waiting')") != before, "one more waits")
    fleet.cancel(made)


def test_output_follows_and_a_job_is_cancelled_and_run_again(reader: Reader, fleet: Fleet) -> None:
    command = "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.1; done"
    made = fleet.submit("talker", command)
    reader.open(f"/jobs/{made}")
    reader.until("line 3", "pre.log")
    reader.until("line 9", "pre.log")
    reader.page.once("dialog", lambda dialog: dialog.accept())
    reader.click("text=Cancel")
    reader.until("cancelled")
    reader.click("text=Run again")
    wait_for(lambda: reader.page.url != f"{reader.base}/jobs/{made}", "the new job is shown")
    again = reader.page.url.rpartition("/")[2]
    reader.until("talker", "h1")
    fleet.cancel(again)


def test_output_of_each_rank_of_a_gang_is_a_click_away(reader: Reader, fleet: Fleet) -> None:
    made = fleet.submit("gang", "echo this is rank $HCLOUD_RANK; sleep 600", vcpus=0.25, nodes={"count": 2})
    reader.open(f"/jobs/{made}")
    reader.until("this is rank 0", "pre.log")
    reader.click("a:has-text('rank 1')")
    reader.until("this is rank 1", "pre.log")
    assert "this is rank 0" not in reader.text("pre.log")
    fleet.cancel(made)


def test_the_use_of_machines_is_shown_over_time_with_their_neighbours(reader: Reader, fleet: Fleet) -> None:
    wait_for(lambda: all(each["jobs"] for each in fleet.machines()), "machines of earlier jobs are gone")
    pair = list[str]()
    for name in ("one", "other"):  # the other goes beside the one on its machine, which is up
        small = {"vcpus": 0.25, "memory": "256MiB"}  # half of the smallest machine
        pair.append(fleet.submit(name, "sleep 600", resources=small))
        wait_for(lambda: fleet.state(pair[-1]) == "running", f"{name} runs")
    known = reader.page.locator('.over-time .strip[aria-label*="of its vCPUs in use, between"]')

    def use_is_known() -> bool:
        reader.open("/machines")  # a unit's first samples come a moment after its start
        return known.count() >= 1

    wait_for(use_is_known, "use is known")
    assert known.first.locator("path").count() >= 1

    def neighbours_are_known() -> bool:
        reader.open("/machines")  # what they cost is computed once for each view
        wait_for(lambda: "computing" not in reader.text(NEIGHBOURS), "what neighbours cost is computed")
        return all(each in reader.text(NEIGHBOURS) for each in pair)

    wait_for(neighbours_are_known, "both jobs are neighbours")
    assert "Measured loss" in reader.text(NEIGHBOURS)
    for each in pair:
        fleet.cancel(each)


def test_a_job_of_ten_thousand_tasks_is_shown_as_one(reader: Reader, fleet: Fleet) -> None:
    made = fleet.submit("many", "true", vcpus=4, array="0-9999")
    reader.open("/jobs")
    assert "10000 tasks" in reader.text(f"tr:has(a:text-is('{made}'))")
    assert reader.page.locator("tbody tr").count() <= 50
    reader.open(f"/jobs/{made}")
    assert "many" in reader.text("h1")
    reader.until("10000 waiting, 0 running")
    assert reader.page.evaluate("document.querySelectorAll('*').length") < 2000
    fleet.cancel(made)
