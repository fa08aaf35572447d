"""``hcloud simulate`` and ``hcloud plan policy`` on the command line."""

import csv
import gzip
import io
import json
import re
from dataclasses import replace
from typing import Any, cast

import pytest

from hcloud.cli.history import recorded_workload
from hcloud.client.connection import Connection
from hcloud.report.spending_accounts import Account
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell
from tests.cli.terminal import at_terminal

ARRIVALS = "at_s,run_s,vcpus,within_s\n" + "".join(f"{10 * n},{60 + n},2,400\n" for n in range(6))
CLOUD = """
types: {m.one: {vcpus: 2, memory_mib: 4096, usd_per_h: 0.4}, m.two: {vcpus: 8, memory_mib: 16384, usd_per_h: 1.5}}
boot: {p50_s: 10, p95_s: 20}
"""
POLICY = "name: mine\nprofiling: {when: never}\ncaps: {max_instances: 3}\n"
WRONG_FILES = {
    "nothing.yaml": "types: {m.one: {vcpus: 0, memory_mib: 10, usd_per_h: 1}}\n",
    "red.yaml": 'name: "\\e[31mred"\n',
    "peer.yaml": "name: peer:mine\n",
    "worded.yaml": 'types: {m.one: {vcpus: "2", memory_mib: 10, usd_per_h: 1}}\n',
    "true.yaml": "reserved: {m.large: true}\n",
    "bell.yaml": 'types: {"m\\a": {vcpus: 2, memory_mib: 10, usd_per_h: 1}}\n',
    "free.yaml": "region_price_factors: {east-1: 0}\n",
    "slow.yaml": "boot: {p50_s: 100, p95_s: 5}\n",
    "over.yaml": "script: [{kind: die, from_s: 5, to_s: 1}]\n",
    "plain.swf.gz": "1 0 0 60 1\n",
    "kept.yaml": "state_file: kept.journal\n",
    "seeded.yaml": "seed: 0\n",
    "far.yaml": "boot: {p50_s: 1e300}\n",
    "often.yaml": "spot: {step_s: 1e-300}\n",
    "twice.yaml": "zones: [east-1a, east-1a]\n",
    "spot.csv": "time,type,zone,price\n0,m.one,east-1a,x\n",
    "gone.csv": "time,type,zone,usd_per_h\n0,m.nine,east-1a,1\n",
    "minus.yaml": "reserved: {m.large: -1}\n",
}


@pytest.fixture
def shell_with_files(lonely: Shell) -> Shell:
    """A shell in a directory with a workload, a cloud and a policy."""
    for name, text in (("jobs.csv", ARRIVALS), ("cloud.yaml", CLOUD), ("mine.yaml", POLICY)):
        (lonely.directory / name).write_text(text)
    # After this time without progress a simulation has stalled; jobs here take minutes and wait for no other hour.
    return replace(lonely, constants={**lonely.constants, "hcloud.simulator.run.STALL_S": 1200.0})


def test_policies_are_compared_on_the_same_work(shell_with_files: Shell) -> None:
    options = ["--cloud", "cloud.yaml", "--reserved", "m.two=1", "--policy", "mine.yaml", "--compare", "cheapest"]
    out, err = shell_with_files.run("simulate", "jobs.csv", *options, "--out", "made", "-o", "json")
    document = json.loads(out)
    assert [row["policy"] for row in document["rows"]] == ["mine", "cheapest"]
    assert all(row["succeeded"] == row["jobs"] >= 6 and row["cost_usd"] > 0 for row in document["rows"])
    for row in document["rows"]:
        spent = [row[f"spent_{each}_usd"] for each in Account]
        assert sum(spent) == pytest.approx(row["cost_usd"]) and row["spent_used_usd"] > 0.0
        assert row["spent_boot_pct"] == pytest.approx(100.0 * row["spent_boot_usd"] / row["cost_usd"])
    assert len(document["series"][0]["at_s"]) == len(document["series"][0]["held_vcpus"])
    assert err.count("wrote made/") == 7
    plain = ["--cloud", "cloud.yaml", "--reserved", "m.two=1", "-o", "json"]
    out, _ = shell_with_files.run("simulate", "jobs.csv", *plain, "--compare", "mine.yaml", "cheapest")
    assert json.loads(out) == document
    assert {path.name for path in (shell_with_files.directory / "made").iterdir()} == {
        "outcome.json", "outcome.csv", "allocation.svg", "fullness.svg", "cost.svg", "performance.svg", "waits.svg",
    }  # fmt: skip
    rows = list(csv.DictReader(io.StringIO((shell_with_files.directory / "made" / "outcome.csv").read_text())))
    assert float(rows[0]["cost_usd"]) == document["rows"][0]["cost_usd"]
    assert float(rows[1]["spent_used_usd"]) == document["rows"][1]["spent_used_usd"]


def test_policies_with_the_same_name_are_distinguished_by_their_files(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "copy.yaml").write_text(POLICY.replace("3", "2"))
    out, _ = shell_with_files.run("simulate", "jobs.csv", "mine.yaml", "copy.yaml", "default", "-o", "json")
    assert [row["policy"] for row in json.loads(out)["rows"]] == ["mine (mine.yaml)", "mine (copy.yaml)", "default"]


def test_long_paths_of_policies_are_clipped_at_their_start(shell_with_files: Shell) -> None:
    far = shell_with_files.directory / ("d" * 120) / ("e" * 120)
    far.mkdir(parents=True)
    (far / "b\a.yaml").write_text("name: " + "n" * 200)
    (far / "copy.yaml").write_text("name: " + "n" * 200)
    out, _ = shell_with_files.run("simulate", "jobs.csv", str(far / "b\a.yaml"), str(far / "copy.yaml"), "-o", "json")
    first, second = (row["policy"] for row in json.loads(out)["rows"])
    assert first.startswith("nnn") and first.endswith("eee/b?.yaml)") and len(first) <= 200
    assert second.endswith("eee/copy.yaml)")


def test_custom_scenario_has_other_jobs_with_another_seed(shell_with_files: Shell) -> None:
    load = "load: [[0, 4], [0.05, 8]]\njobs:\n  - {name: etl, vcpus: 2, run_s: 60, within_s: 600}\n"
    (shell_with_files.directory / "evenings.yaml").write_text(load)
    out, _ = shell_with_files.run(
        "simulate", "evenings.yaml", "mine.yaml", "--cloud", "cloud.yaml", "--seeds", "2", "-o", "json"
    )
    document = json.loads(out)
    first, second = document["by_seed"]
    assert first["succeeded"] == first["jobs"] > 5 and first["cost_usd"] != second["cost_usd"]


def test_paper_experiment_and_interference_are_simulated(shell_with_files: Shell) -> None:
    out, _ = shell_with_files.run("simulate", "paragon-small-low", "--share", "0.03", "-o", "json")
    (row,) = json.loads(out)["rows"]
    assert row["performance_pct"] is None or 0 < row["performance_pct"] <= 110
    words = ("simulate", "static", "--share", "0.004", "--hours", "0.02", "-o", "csv")
    plain, today, former = (
        shell_with_files.run(*words, *world)[0] for world in ((), ("--world", "today"), ("--world", "interference"))
    )
    assert plain != today == former


def test_longer_planning_cycles_make_jobs_wait_longer(shell_with_files: Shell) -> None:
    words = ("simulate", "static", "--share", "0.004", "--hours", "0.02", "-o", "json")
    every_second, every_minute = (
        json.loads(shell_with_files.run(*words, "--cycle", seconds)[0])["rows"][0]["wait_p50_s"]
        for seconds in ("1", "60")
    )
    assert every_minute > every_second + 20.0


def test_scenario_by_name_is_shown_as_a_table(shell_with_files: Shell) -> None:
    out, err = shell_with_files.run("simulate", "static", "--hours", "0.05", "--share", "0.01", "--policy", "mine.yaml")
    assert err == ""  # the progress bar is drawn on terminals only
    assert "target_met %" in out
    assert "\nmine " in out
    policies, _, accounts = out.partition("\nWhere the money went\n")
    assert "spent" not in policies
    assert re.match(r"account +mine +share %\nused +\$[\d.]+ +[\d.]+ *\nbeyond_need +\$0.00 +0.0 *\n", accounts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["statik"], "there is no scenario 'statik'; did you mean 'static'?"),
        ([""], "there is no scenario ''; known here: "),
        (["hystory"], "there is no scenario 'hystory'; did you mean 'history'?"),
        (["hcloud-statik"], "there is no scenario 'hcloud-statik'; did you mean 'hcloud-static'?"),
        (["none.csv"], "none.csv: no such file"),
        (["static", "--cycle", "0"], "invalid value for '--cycle': 0.0 is not in the range"),
        (["cloud.yaml"], "cloud.yaml:2: types: unknown key; known here: jobs, load, name"),
        (["jobs.txt"], "jobs.txt: a workload file must be a scenario (.yaml), a job log (.swf), a list of"),
        (["jobs.csv", "--policy", "none.yaml"], "none.yaml"),
        (["jobs.csv", "--reserved", "many"], "--reserved 'many': must be TYPE=COUNT"),
        (
            ["jobs.csv", "--reserved", "m.twoo=1", "--cloud", "cloud.yaml"],
            "hcloud: --reserved 'm.twoo=1': unknown type m.twoo; did you mean m.two?",
        ),
        (["jobs.csv", "--share", "7"], "invalid value for '--share': 7.0 is not in the range"),
        (["static", "--share", "nan"], "invalid value for '--share': nan is not a finite number"),
        (["jobs.csv", "--hours", "1e300"], "invalid value for '--hours': 1e+300 is not in the range"),
        (["jobs.csv", "--hours", "1"], "--hours applies only to built-in scenarios (static, low-vari"),
        (["quasar", "--hours", "1"], "--hours applies only to built-in scenarios"),
        (
            ["jobs.csv", "--node-vcpus", "8"],
            "--node-vcpus applies only to a job log (.swf) or a Batsim",
        ),
        (["jobs.csv", "--host-flops", "1e9"], "--host-flops applies only to a Batsim workload (.json); remove it"),
        (["static", "--since", "1d"], "--since applies only to the workload `history`; remove it"),
        (
            ["static", "--processes", "2"],
            "--processes needs --seeds: it sets how many seeds are simulated in parallel",
        ),
        (["jobs.csv", "--node-vcpus", "9" * 30], "invalid value for '--node-vcpus': "),
        (["jobs.csv", "--reserved", "m.two=99999999999"], "'m.two=99999999999': at most 1000000 machines of a type"),
        (["jobs.csv", "--reserved", "m.two=" + "9" * 5000], "at most 1000000 machines of a type can be reserved"),
        (["jobs.csv", "--cloud", "far.yaml"], "far.yaml:1: boot.p50_s: "),
        (["jobs.csv", "--cloud", "often.yaml"], "often.yaml:1: spot.step_s: "),
        (["jobs.csv", "--cloud", "twice.yaml"], "must name each once; 'east-1a' is there twice"),
        (["jobs.csv", "--policy", "cheapst"], "no such shipped policy; did you mean 'cheapest'?"),
        (["jobs.csv", "--reserved", "m.two=²", "--cloud", "cloud.yaml"], "--reserved 'm.two=²': must be TYPE=COUNT"),
        (["jobs.csv", "--cloud", "kept.yaml"], "kept.yaml:1: state_file: not supported, as a simulated cloud is not"),
        (["jobs.csv", "--cloud", "seeded.yaml"], "seeded.yaml:1: seed: not supported, as --seed sets the random seed"),
        (["jobs.csv", "--cloud", "minus.yaml"], "minus.yaml:1: reserved.m.large: "),
        (
            ["jobs.csv", "--out", "cloud.yaml/made"],
            "--out cloud.yaml/made cannot be created: cloud.yaml is not a directory",
        ),
        (["jobs.csv", "--out", "/dev/full"], "--out /dev/full is not a directory"),
        (
            ["static", "--share", "1e-5", "--hours", "0.01"],
            "hcloud: static: --share 1e-05 for --hours 0.01 has no job; increase one of them",
        ),
        (["torn.csv.gz"], "torn.csv.gz: cannot be unpacked (Compressed file ended before"),
        (["plain.swf.gz"], "plain.swf.gz: cannot be unpacked (Not a gzipped file"),
        (["jobs.csv", "--cloud", "azure/x"], "--cloud azure/x: no such cloud or file; must be ec2/"),
        (["jobs.csv", "--cloud", "ec2"], "or gce/REGION, offers, or a YAML file"),
        (["jobs.csv", "--cloud", "none.yaml"], "none.yaml: no such file"),
        (
            ["jobs.csv", "--seed", "\uff11"],
            "invalid value for '--seed': '\uff11' is not a whole number in plain digits",
        ),
        (["jobs.csv", "--node-vcpus", "1_6"], "'1_6' is not a whole number in plain digits"),
        (["static", "--share", "\uff10.\uff11"], "'\uff10.\uff11' is not a number in plain digits"),
        (["jobs.csv", "--out", ""], "invalid value for '--out': is empty; name a path"),
        (["jobs.csv", "--policy", ""], "is empty; name a path"),
        (["jobs.csv", "--cloud", ""], "is empty; name a path"),
        (["history", "--since", "0s"], "--since '0s': must be in the past"),
        (["history", "--since", ""], "--since '': write a duration such as 7d, or a UTC date"),
        (["jobs.csv", "default", "default"], "policy 'default' is given twice; give each once"),
        (["jobs.csv", "mine.yaml", "--policy", "./mine.yaml"], "policy 'mine.yaml' is given twice; give each once"),
        (["jobs.csv", "peer:ray-like", "peer:ray-like"], "policy 'peer:ray-like' is given twice; give each once"),
        (["jobs.csv", "--peers", "--policy", "peer.yaml"], "peer.yaml: name: 'peer:mine' must not start with peer:"),
        (["jobs.csv", "--policy", "red.yaml"], "red.yaml:1: name: must be of printable characters, not"),
        (["jobs.csv", "--cloud", "worded.yaml"], "types.m.one.vcpus: must be a number, not '2'"),
        (["jobs.csv", "--cloud", "true.yaml"], "reserved.m.large: must be a number, not True"),
        (["jobs.csv", "--cloud", "bell.yaml"], "must hold names of printable characters"),
        (["jobs.csv", "--cloud", "free.yaml"], "region_price_factors.east-1: input should be greater than 0"),
        (["jobs.csv", "--cloud", "slow.yaml"], "boot: must have a p50_s of at most p95_s (5)"),
        (["jobs.csv", "--cloud", "over.yaml"], "must have a to_s of more than from_s (5)"),
        (["jobs.csv", "--spot-history-start", "0"], "--spot-history-start needs --spot-history"),
        (["jobs.csv", "--spot-history", "gone.csv", "--spot-history-start", "x"], "--spot-history-start: 'x' is not a"),
        (["jobs.csv", "--spot-history", "none.csv"], "none.csv: no such file"),
        (["jobs.csv", "--spot-history", "spot.csv"], "spot.csv: column price: unknown, did you mean 'price_usd_per_h'"),
        (
            ["jobs.csv", "--cloud", "cloud.yaml", "--spot-history", "gone.csv"],
            "sells none of its types and zones as spot; it sells m.one in east-1a, m.two in east-1a; --cloud",
        ),
        (["jobs.csv", "--cloud", "nothing.yaml"], "nothing.yaml:1: types.m.one.vcpus: "),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(shell_with_files: Shell, arguments: list[str], words: str) -> None:
    for name, text in WRONG_FILES.items():
        (shell_with_files.directory / name).write_text(text)
    (shell_with_files.directory / "torn.csv.gz").write_bytes(gzip.compress(ARRIVALS.encode())[:30])
    _, err = shell_with_files.run("simulate", *arguments, exit_code=2)
    assert words in err
    assert err.count("\n") == 1


def test_region_of_the_catalogue_is_simulated_without_a_daemon(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "few.yaml").write_text(
        POLICY + "allow: {providers: [gce], instance_types: [n1-standard-2]}\n"
    )
    out, _ = shell_with_files.run(
        "simulate", "jobs.csv", "--cloud", "gce/us-central1", "--policy", "few.yaml", "-o", "json"
    )
    document = json.loads(out)
    (row,) = document["rows"]
    assert row["succeeded"] == 6 and 0 < row["cost_usd"] < 0.2
    assert document["notes"][-1].startswith("the oldest price of the simulated cloud is ")
    assert document["notes"][-1].endswith(" old (warning: over 30 days; update with `hcloud catalog refresh`)")
    _, err = shell_with_files.run("simulate", "jobs.csv", "--cloud", "ec2/us-eats-1", exit_code=2)
    assert "hcloud: --cloud ec2/us-eats-1: no price is known there; did you mean 'us-east-1'" in err


def test_machines_of_a_cost_export_are_simulated_beside_what_was_paid(shell_with_files: Shell) -> None:
    header = (
        "ChargePeriodStart,ChargePeriodEnd,EffectiveCost,ResourceId,ServiceCategory,ChargeCategory,SkuPriceDetails\n"
    )
    details = '"{""InstanceType"": ""m.large"", ""CoreCount"": 2, ""MemorySize"": 4}"'
    row = "2026-05-01T0{}:00Z,2026-05-01T0{}:00Z,2.5,i-{},Compute,Usage,{}\n"
    rows = "".join(row.format(hour, hour + 1, number, details) for hour in range(2) for number in range(3))
    other = "2026-05-01T00:00Z,2026-05-02T00:00Z,9,b,Storage,Usage,\n"
    (shell_with_files.directory / "bill.csv").write_text("\n" + header + rows + other)
    options = ["--cloud", "cloud.yaml", "--policy", "mine.yaml", "-o", "json"]
    out, err = shell_with_files.run("simulate", "bill.csv", *options)
    simulated, paid = json.loads(out)["rows"]
    assert (simulated["jobs"], simulated["succeeded"], simulated["target_met_pct"]) == (3, 3, 100.0)
    assert (paid["policy"], paid["cost_usd"], paid["jobs"]) == ("as billed", 15.0, 3)
    assert "bill.csv: 1 row of other charges than use of machines left out, of cost 9.00" in err
    (shell_with_files.directory / "wrong.focus.csv").write_text("ResourceId,EffectiveCost\ni-1,x\n")
    _, err = shell_with_files.run("simulate", "wrong.focus.csv", *options, exit_code=2)
    assert "wrong.focus.csv: column ChargePeriodStart: missing; column ChargePeriodEnd: missing" in err
    assert "column EffectiveCost: line 2: 'x' is not a number" in err


def test_spot_market_follows_a_recorded_history(shell_with_files: Shell) -> None:
    header, row = "Timestamp,InstanceType,AvailabilityZone,SpotPrice\n", "2026-05-01T00:00:00Z,{},east-1a,{}\n"
    options = ["--cloud", "cloud.yaml", "--reserved", "none", "--policy", "cheapest", "-o", "json"]
    cost_usd = []
    for price in (0.001, 0.002):
        text = header + row.format("m.one", price) + row.format("m.two", 90) + row.format("m.huge", 1)
        (shell_with_files.directory / "spot.csv.gz").write_bytes(gzip.compress(text.encode()))
        out, err = shell_with_files.run("simulate", "jobs.csv", *options, "--spot-history", "spot.csv.gz")
        cost_usd.append(json.loads(out)["rows"][0]["cost_usd"])
        assert err.count("not sold as spot on this cloud, so left out: m.huge in east-1a") == 1
    assert cost_usd[1] == pytest.approx(2 * cost_usd[0], rel=1e-9)
    out, err = shell_with_files.run(
        "simulate", "jobs.csv", *options[:-2], "--spot-history", "spot.csv.gz", "--seeds", "2"
    )
    assert err.count("m.huge") == 1


def test_scenario_with_the_papers_machines_differs_from_the_plain_one(shell_with_files: Shell) -> None:
    words = ("--share", "0.01", "--hours", "0.05", "--policy", "mine.yaml", "-o", "csv")
    plain, papers = (shell_with_files.run("simulate", name, *words)[0] for name in ("static", "hcloud-static"))
    assert plain != papers


@pytest.mark.parametrize("columns", [60, 400])
def test_table_is_transposed_on_a_narrow_terminal(shell_with_files: Shell, columns: int) -> None:
    words = ("simulate", "jobs.csv", "--cloud", "cloud.yaml", "--compare", "mine.yaml", "cheapest")
    with at_terminal(shell_with_files, *words, columns=columns) as person:
        assert person.ended() == 0
        lines = [line.split() for line in person.shown.splitlines()]
    headers = ["policy", "mine", "cheapest"] if columns < 200 else ["policy", "cost", "cost", "%", "metered"]
    assert any(line[: len(headers)] == headers for line in lines)
    assert (["jobs", "6", "6"] in lines) is (columns < 200)


def test_files_with_bom_other_encodings_and_compression_are_read(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "JOBS.CSV").write_text("\ufeff" + ARRIVALS)
    (shell_with_files.directory / "log.swf").write_bytes(b"; caf\xe9\n1 0 0 60 1 -1 -1 1 99 -1 1 1 1 1 1 -1 -1 -1\n")
    for packed in ("JOBS.CSV", "log.swf"):
        (shell_with_files.directory / f"{packed}.gz").write_bytes(
            gzip.compress((shell_with_files.directory / packed).read_bytes())
        )
    for name, jobs in (("JOBS.CSV", 6), ("log.swf", 1), ("JOBS.CSV.gz", 6), ("log.swf.gz", 1)):
        out, _ = shell_with_files.run("simulate", name, "mine.yaml", "--cloud", "cloud.yaml", "-o", "json")
        assert json.loads(out)["rows"][0]["succeeded"] == jobs


def test_job_larger_than_any_machine_is_noted_as_impossible(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "wide.csv").write_text("at_s,run_s,vcpus\n0,10,64\n0,10,1\n")
    out, _ = shell_with_files.run(
        "simulate", "wide.csv", "--cloud", "cloud.yaml", "--policy", "mine.yaml", "-o", "json"
    )
    notes = json.loads(out)["notes"]
    assert any(
        note.startswith("mine: 1 of 2 jobs failed: 1 impossible (can never run here: no offer") for note in notes
    )


def test_stalled_policy_does_not_end_the_comparison(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "gang.csv").write_text("at_s,run_s,vcpus,nodes\n0,60,2,1\n5,60,2,2\n")
    caps = "{max_instances: 1, max_instances_per_type: {m.two: 0}}"  # a large machine must not take its place
    (shell_with_files.directory / "one.yaml").write_text(f"name: one\nprofiling: {{when: never}}\ncaps: {caps}\n")
    words = ("simulate", "gang.csv", "--cloud", "cloud.yaml", "--reserved", "none")
    for peers in ([], ["peer:on-demand-only"]):
        compared = [*words, "--compare", "mine.yaml", "one.yaml", *peers, "--out", "made", "-o", "json"]
        out, _ = shell_with_files.run(*compared, exit_code=1)
        document = json.loads(out)
        stalled, others = document["rows"][1], [document["rows"][0], *document["rows"][2:]]
        assert stalled.pop("policy") == "one" and set(stalled.values()) == {None}
        assert all(row["succeeded"] == row["jobs"] == 2 for row in others) and len(others) == 1 + len(peers)
        assert any(note.startswith("one: not simulated to its end: 1 job has not ended") for note in document["notes"])
        assert len(document["series"]) == len(others)
        assert (shell_with_files.directory / "made" / "outcome.csv").read_text().splitlines()[2].rstrip(",") == "one"
    _, err = shell_with_files.run(*words, "mine.yaml", "one.yaml", "-o", "csv", exit_code=1)
    assert err.startswith("hcloud: one: not simulated to its end: 1 job has not ended") and err.count("\n") == 1
    (shell_with_files.directory / "two.yaml").write_bytes((shell_with_files.directory / "one.yaml").read_bytes())
    for alone in (["one.yaml"], ["one.yaml", "two.yaml"]):
        _, err = shell_with_files.run(*words, "--compare", *alone, "--out", "new/deep", exit_code=2)
        assert err.startswith("hcloud: 1 job has not ended") and err.count("\n") == 1
        assert not (shell_with_files.directory / "new").exists()


def test_policies_with_identical_names_keep_their_own_results(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "gang.csv").write_text("at_s,run_s,vcpus,nodes\n0,60,2,1\n5,60,2,2\n")
    alike = []
    for folder, most in (("a", 9), ("b", 2), ("c", 1)):
        far = shell_with_files.directory / folder / ("d" * 120)
        far.mkdir(parents=True)
        caps = f"{{max_instances: {most}, max_instances_per_type: {{m.two: 0}}}}"
        (far / "copy.yaml").write_text(f"name: copy\nprofiling: {{when: never}}\ncaps: {caps}\n")
        alike.append(str(far / "copy.yaml"))
    words = ("simulate", "gang.csv", "--cloud", "cloud.yaml", "--reserved", "none", *alike, "-o", "json")
    alone = [json.loads(shell_with_files.run(*words, "--seed", str(seed), exit_code=1)[0])["rows"] for seed in (0, 1)]
    means = json.loads(shell_with_files.run(*words, "--seeds", "2", exit_code=1)[0])["rows"]
    assert len({row["policy"] for row in means}) == 1
    assert alone[0][0]["wait_p95_s"] < alone[0][1]["wait_p95_s"] and alone[0][2]["wait_p95_s"] is None
    for place, row in enumerate(means[:2]):
        assert row["cost_usd"] == pytest.approx(sum(rows[place]["cost_usd"] for rows in alone) / 2)
    assert means[2]["cost_usd"] is None


def test_times_bound_is_rounded_in_tables_only(shell_with_files: Shell) -> None:
    words = ["simulate", "jobs.csv", "mine.yaml", "peer:on-demand-only", "--cloud", "cloud.yaml", "--reserved", "none"]
    shown, _ = shell_with_files.run(*words)
    times = [row["times_bound"] for row in json.loads(shell_with_files.run(*words, "-o", "json")[0])["rows"]]
    assert all(each != round(each, 2) for each in times)
    rows = [line.split() for line in shown.splitlines() if line.startswith(("mine  ", "peer:on-demand-only  "))]
    assert [row[3] for row in rows] == [f"{each:.2f}" for each in times]
    assert "\npeer:NAME: a tool's placement and purchasing rules, re-implemented" in shown


SHORT = ("simulate", "static", "--share", "0.004", "--hours", "0.05", "mine.yaml", "cheapest")


def test_several_seeds_show_means_rows_by_seed_and_differences(shell_with_files: Shell) -> None:
    words = (*SHORT, "peer:on-demand-only", "-o", "json")
    alone = {seed: json.loads(shell_with_files.run(*words, "--seed", str(seed))[0]) for seed in (3, 4)}
    out, err = shell_with_files.run(*words, "--seed", "3", "--seeds", "2", "--processes", "2", "--out", "made")
    document = json.loads(out)
    assert json.loads(shell_with_files.run(*words, "--seed", "3", "--seeds", "2", "--processes", "1")[0]) == document
    assert document["by_seed"] == [{"seed": seed, **row} for seed, one in alone.items() for row in one["rows"]]
    assert document["series"] == alone[3]["series"] and document["seeds"] == [3, 4]
    for at, row in enumerate(document["rows"]):
        first, second = (alone[seed]["rows"][at] for seed in (3, 4))
        assert row["policy"] == first["policy"] and row["jobs"] == first["jobs"] + second["jobs"]
        assert row["cost_usd"] == pytest.approx((first["cost_usd"] + second["cost_usd"]) / 2)
        for name in ("times_bound", "unused_commitment_usd", "used_once_pct"):
            assert row[name] == pytest.approx((first[name] + second[name]) / 2)
    assert any(note.startswith("cheapest compared with mine: cost ") for note in document["notes"])
    made = shell_with_files.directory / "made"
    assert {"cost.svg", "outcome.csv"} <= {path.name for path in made.iterdir()}
    assert "mean of all seeds, 95 % limits" in (made / "cost.svg").read_text()
    assert err.count("wrote made/") == 7
    shown, _ = shell_with_files.run(*words[:-2], "--seeds", "2")
    assert "±" in shown and "limit" not in shown.splitlines()[1]
    policies, title, accounts = shown.partition("\nWhere the money went\n")
    assert "$0.00 ±0.00 " in policies and "$0.00 ±0.0000" not in shown  # no commitments
    assert title and re.search(r"^used +\$[\d.]+ ±[\d.]+ +[\d.]+ ±[\d.]+ ", accounts, re.MULTILINE)


def test_several_seeds_without_peers_are_not_compared_with_the_bound(shell_with_files: Shell) -> None:
    for row in json.loads(shell_with_files.run(*SHORT, "--seeds", "2", "-o", "json")[0])["rows"]:
        assert not {"times_bound", "unused_commitment_usd", "used_once_pct"} & set(row)


def test_policy_that_stalls_with_any_seed_has_no_means(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "gang.csv").write_text("at_s,run_s,vcpus,nodes\n0,60,2,1\n5,60,2,2\n")
    caps = "{max_instances: 1, max_instances_per_type: {m.two: 0}}"
    (shell_with_files.directory / "one.yaml").write_text(f"name: one\nprofiling: {{when: never}}\ncaps: {caps}\n")
    words = ("simulate", "gang.csv", "--cloud", "cloud.yaml", "--reserved", "none", "--seeds", "2")
    out, _ = shell_with_files.run(*words, "mine.yaml", "one.yaml", "-o", "json", exit_code=1)
    document = json.loads(out)
    assert set(document["rows"][1].values()) == {"one", None}
    assert document["rows"][0]["jobs"] == document["rows"][0]["succeeded"] == 4
    assert any(
        note.startswith("one: not simulated to its end: with seed 0: 1 job has not") for note in document["notes"]
    )
    _, err = shell_with_files.run(*words, "one.yaml", "--seed", "5", exit_code=2)
    assert err.startswith("hcloud: with seed 5: 1 job has not ended") and err.count("\n") == 1


def test_past_jobs_are_replayed_under_another_policy(shell: Shell, deployment: Deployment) -> None:
    shell.run("run", "-q", "--within", "10m", "--", "sleep", "30")
    shell.run("run", "-q", "--", "false", exit_code=1)
    # Providers, zones and types keep their names, so that a policy means the same in the past.
    (shell.directory / "mine.yaml").write_text(POLICY + "allow: {providers: [mock], zones: [east-1a]}\n")
    for arguments in (["plan", "policy", "mine.yaml"], ["simulate", "history", "--cloud", "offers"]):
        out, err = shell.run(*arguments, "-o", "json")
        document = json.loads(out)
        rows = document["rows"]
        assert [(row["jobs"], row["succeeded"]) for row in rows] == [(1, 1)] * len(rows)
        if arguments[0] == "plan":
            _check_recorded_row(shell, document)
        assert re.fullmatch(r"the oldest price of the simulated cloud is [\dms]+ old", document["notes"][-1])
        assert "history: 1 job has not succeeded" in err
    repeated = json.loads(shell.run("plan", "policy", "mine.yaml", "--seeds", "2", "-o", "json")[0])
    assert [row["policy"] for row in repeated["rows"]][1:] == ["mine", "as it was"]
    assert repeated["rows"][0]["jobs"] == 2 and repeated["rows"][2]["jobs"] == 1
    _, err = shell.run("plan", "policy", "mine.yaml", "--since", "soon", exit_code=2)
    assert "--since 'soon': write a duration such as 7d, or a UTC date" in err
    shown, _ = shell.run("plan", "policy", "mine.yaml")
    assert re.search(r"\naccount +default \(in force\) +share % +mine +share % +as it was +share %\n", shown)
    since = ("--since", "2020-01-01", "-o", "json")
    dated = json.loads(shell.run("plan", "policy", "mine.yaml", *since)[0])
    assert [row["jobs"] for row in dated["rows"]] == [1, 1, 1]
    assert len(json.loads(shell.run("simulate", "history", "--cloud", "offers", *since)[0])["rows"]) == 1
    _, err = shell.run("plan", "policy", "none.yaml", exit_code=2)
    assert "none.yaml" in err
    _, err = shell.run("plan", "policy", "mine.yaml", "cheapst", exit_code=2)
    assert "policy 'cheapst': there is no such file and no such shipped policy; did you mean 'cheapest'?" in err
    several = json.loads(shell.run("plan", "policy", "cheapest", "mine.yaml", "peer:ray-like", "-o", "json")[0])
    assert [row["policy"] for row in several["rows"]][1:] == ["cheapest", "mine", "peer:ray-like", "as it was"]
    assert [row["succeeded"] for row in several["rows"]] == [1] * 5


def _check_recorded_row(shell: Shell, document: dict[str, Any]) -> None:
    """Check the row of recorded results: the cost of all machines, and the targets and waits of the replayed job."""
    in_force, tried, was = document["rows"]
    assert in_force["policy"].endswith(" (in force)")
    assert (tried["policy"], was["policy"]) == ("mine", "as it was")
    bill = json.loads(shell.run("report", "cost", "--by", "market", "-o", "json")[0])
    assert 0 < was["cost_usd"] <= bill["total"]["cost_usd"]  # machines may have been up since
    assert was["cost_usd"] == pytest.approx(was["metered_usd"] + was["committed_usd"])
    assert was["cost_pct"] == pytest.approx(100 * was["cost_usd"] / in_force["cost_usd"])
    done = json.loads(shell.run("report", "performance", "--by", "job", "-o", "json")[0])["rows"][0]
    assert (was["target_met_pct"], was["wait_p95_s"]) == (done["target_met_pct"], done["queue_s"])
    assert was["launches"] >= 1
    assert sum(was[f"spent_{each}_usd"] or 0.0 for each in Account) == pytest.approx(was["cost_usd"])
    assert was["spent_used_usd"] > 0.0 == was["spent_reserved_unused_usd"]
    notes = [note for note in document["notes"] if "as it was" in note]
    assert "also those of 1 job not replayed (failed, cancelled or unfinished)" in notes[0]
    assert "unless the 1 job not replayed delayed the others" in notes[1]
    assert any(note.startswith("not directly comparable") for note in notes)


class FakeClient:
    """Answers requests for these jobs as the API does, newest first; the daemon's clock is at 1000."""

    def __init__(self, *jobs: dict[str, object]) -> None:
        self.jobs = jobs

    def get(self, path: str, **parameters: object) -> object:
        if path == "/v1/status":
            return {"now": 1000.0}
        return list(self.jobs) if parameters["before"] is None else []


def api_job(name: str, at: float, *ranks: tuple[float | None, float | None], **more: object) -> dict[str, object]:
    """A job as the API returns it; ``ranks`` are start and end of its nodes."""
    kind = {"kind": "service", "requests_per_s": 10.0, "latency_ms": 20.0} if "finished_at" in more else {}
    spec = {"name": name, "user": "ada", "command": ["true"], "target": kind, "resources": {"vcpus": 1.0}}
    attempt = {"allocations": [{"started_at": started, "ended_at": ended} for started, ended in ranks]}
    base = {"id": name, "submitted_at": at, "spec": spec, "state": "succeeded", "attempt": attempt, "attempts_made": 1}
    return {**base, **more}


def test_jobs_submitted_at_the_same_time_keep_their_order() -> None:
    jobs = [api_job(name, at, (10.0, 20.0)) for name, at in (("job-3", 990.0), ("job-2", 990.0), ("job-1", 980.0))]
    work = recorded_workload(cast(Connection, FakeClient(*jobs)), 100.0)
    assert [each.spec.name for each in work.arrivals] == ["job-1", "job-2", "job-3"]
    assert [each.at_s for each in work.arrivals] == [0.0, 10.0, 10.0]
    assert work.began_at == 980.0


@pytest.mark.parametrize(
    ("job", "runs_s"),
    [
        (api_job("late", 900.0, (910.0, 960.0), (947.0, 997.0)), 50.0),  # the second node joined late
        (api_job("lost", 900.0, (910.0, None), state="preempted"), None),
        (api_job("up", 900.0, (910.0, None), state="running", finished_at=None), 90.0),  # so far
        (api_job("cancelled", 900.0, (910.0, 950.0), state="cancelled", finished_at=951.0), 41.0),
        (api_job("again", 900.0, (940.0, None), state="running", finished_at=None, attempts_made=2), 100.0),
        (api_job("broken", 900.0, (910.0, 950.0), state="failed", finished_at=951.0), None),
        (api_job("never up", 900.0, (None, None), state="placed", finished_at=None), None),
    ],
)
def test_run_time_in_replays_of_batch_jobs_and_services(job: dict[str, object], runs_s: float | None) -> None:
    other = api_job("other", 990.0, (10.0, 20.0))
    work = recorded_workload(cast(Connection, FakeClient(other, job)), 100.0)
    found = {each.spec.name: each.run_s for each in work.arrivals}
    assert found.get(str(job["id"])) == runs_s


def test_exit_code_is_1_if_a_policy_cannot_run_jobs_that_another_can(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "few.csv").write_text("at_s,run_s,vcpus\n0,100,1\n5,50,4\n")
    (shell_with_files.directory / "small.yaml").write_text("name: small\nallow:\n  instance_types: [m.small]\n")
    _, err = shell_with_files.run("simulate", "few.csv", "default", "small.yaml", exit_code=1)
    assert "hcloud: small: 1 of 2 jobs can never run; its cost is not comparable with the others" in err
    shell_with_files.run("simulate", "few.csv", "small.yaml", exit_code=0)


def test_exit_code_is_1_if_jobs_can_never_run_with_a_later_seed(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "small.yaml").write_text("name: small\nallow:\n  instance_types: [m.small]\n")
    words = ("simulate", "high-variability", "--share", "0.002", "--hours", "0.4", "default", "small.yaml")
    shell_with_files.run(*words, "--seed", "1", exit_code=0)
    _, err = shell_with_files.run(*words, "--seed", "1", "--seeds", "2", exit_code=1)
    assert "hcloud: small: 2 of 4 jobs of all seeds can never run; its cost is not comparable" in err


def test_job_that_never_started_has_no_wait(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "large.csv").write_text("at_s,run_s,vcpus\n0,100,64\n")
    out, _ = shell_with_files.run("simulate", "large.csv", "-o", "json", exit_code=1)
    (row,) = json.loads(out)["rows"]
    assert (row["wait_p50_s"], row["wait_p95_s"], row["succeeded"]) == (None, None, 0)


def test_result_files_are_written_all_or_none(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "few.csv").write_text("at_s,run_s,vcpus\n0,10,1\n")
    (shell_with_files.directory / "made" / "outcome.csv").mkdir(parents=True)
    _, err = shell_with_files.run("simulate", "few.csv", "mine.yaml", "--out", "made", exit_code=2)
    assert err.endswith("hcloud: made/outcome.csv: is a directory; a file is to be written there\n")
    assert [each.name for each in (shell_with_files.directory / "made").iterdir()] == ["outcome.csv"]


def test_years_between_arrivals_are_skipped(shell_with_files: Shell) -> None:
    (shell_with_files.directory / "gap.csv").write_text(f"at_s,run_s,vcpus\n0,10,1\n{300_000_000},10,1\n")
    out, _ = shell_with_files.run("simulate", "gap.csv", "-o", "json")
    assert json.loads(out)["rows"][0]["succeeded"] == 2
