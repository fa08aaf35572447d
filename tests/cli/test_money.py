"""`hcloud bill` and `hcloud offers` for a size, against a running daemon."""

import csv
import json

from tests.cli.conftest import Shell

COLUMNS = (
    "line_item_line_item_type", "line_item_usage_start_date", "line_item_usage_end_date", "line_item_product_code",
    "line_item_usage_type", "line_item_resource_id", "line_item_unblended_cost", "line_item_currency_code",
    "resource_tags_user_hcloud_owner",
)  # fmt: skip


def test_machine_of_ours_missing_in_the_ledger_is_reported(shell: Shell) -> None:
    line = ["Usage", "2026-11-01T00:00:00Z", "2026-11-01T01:00:00Z", "AmazonEC2", "BoxUsage:m5.large", "i-lost", "0.5"]
    with (shell.directory / "cur.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([COLUMNS, [*line, "USD", "hcloud-mine"]])
    out, _ = shell.run("bill", "cur.csv", "--owner", "hcloud-mine", "-o", "json", exit_code=1)
    [row] = json.loads(out)["rows"]
    assert (row["finding"], row["resource"], row["bill_usd"]) == ("not in the ledger", "i-lost", 0.5)
    out, _ = shell.run("bill", "cur.csv", "--owner", "hcloud-mine", exit_code=1)
    assert "1 not in the ledger" in out
    _, err = shell.run("bill", "cur.csv", "--owner", "hcloud-mine", "--tolerance", "200", exit_code=2)
    assert "--tolerance" in err


def test_offers_for_a_size_are_large_enough(shell: Shell) -> None:
    everything = json.loads(shell.run("offers", "-o", "json")[0])
    vcpus = sorted(each["instance_type"]["capacity"]["vcpus"] for each in everything)
    middle = vcpus[len(vcpus) // 2]
    fitting = json.loads(shell.run("offers", "--vcpus", str(middle), "-o", "json")[0])
    assert len(fitting) == sum(each >= middle for each in vcpus) > 0
    prices = [each["usd_per_h"] for each in fitting]
    assert prices == sorted(prices)
    out, err = shell.run("offers", "--vcpus", str(middle), "-n", "1")
    assert len(out.splitlines()) == 2
    assert "the oldest of these prices is" in err
