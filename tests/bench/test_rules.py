"""The bench that switches rules of thumb off one by one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.rules import (
    DEFAULT,
    RULES,
    WITH_ALL,
    ResultsFile,
    RulesWorld,
    Run,
    Task,
    _evictions,
    differences,
    main,
    rows,
    run_task,
    summary,
)
from hcloud.planner.make import STAGES
from hcloud.planner.placement import holdback
from hcloud.simulator.run import Setting
from hcloud.spec.policy import Policy


def run(rule: str, seed: int, cost_usd: float, fired: int | None = None) -> Run:
    numbers = {"cost_usd": cost_usd, "targets": 90.0 + seed, "performance": 80.0, "wait_p95_s": 5.0, "evicted": 0.0}
    return Run(world="w", rule=rule, seed=seed, numbers=numbers, fired=fired)


@pytest.mark.parametrize("name", RULES)
def test_every_variant_is_a_valid_policy_that_differs_or_changes_code(name: str) -> None:
    rule = RULES[name]
    assert rule.change(DEFAULT) != DEFAULT or rule.skip_stage in STAGES or rule.without == "patched out"


def test_patched_rule_is_back_after_the_plan() -> None:
    before = holdback.TooSmall.held_back
    with RULES["too_small"].patch():
        assert holdback.TooSmall.held_back is not before
    assert holdback.TooSmall.held_back is before


def test_rule_fires_where_it_decides_and_not_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    short = RulesWorld(summary="", setting=_half_an_hour, base=DEFAULT)
    monkeypatch.setattr("bench.rules._worlds", lambda _: {"w": short})
    found = {
        rule: run_task(Task(world="w", rule=rule, seed=0, logs=Path(), counts=True)).fired
        for rule in ("spin_up_multiple_0", "most_losses")
    }
    assert found["spin_up_multiple_0"] and found["most_losses"] == 0


def _half_an_hour(policy: Policy, seed: int) -> Setting:
    setting = _evictions(policy, seed)
    arrivals = tuple(each for each in setting.workload.arrivals if each.run_s < 200.0 and each.at_s < 900.0)
    return replace(setting, workload=replace(setting.workload, arrivals=arrivals))


def test_runs_are_kept_and_read_again_and_a_foreign_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    ResultsFile(path).add(run("drain", 1, 2.0, fired=3))
    kept = ResultsFile(path)
    assert kept.runs["w", "drain", 1].numbers["cost_usd"] == 2.0
    assert kept.fired("w", "drain", range(3)) == 3
    path.write_text(path.read_text() + json.dumps({"world": "w"}) + "\n")
    with pytest.raises(ValueError, match=r"runs.jsonl:2: is no run of this command"):
        ResultsFile(path)


def test_differences_are_seed_by_seed_and_marked_where_chance_does_not_explain_them() -> None:
    base = [run(WITH_ALL, seed, 1.0 + seed) for seed in range(3)]
    dearer = [run("drain", seed, (1.0 + seed) * 1.1 + 0.001 * seed, fired=1) for seed in range(3)]
    assert differences(dearer, base)["cost_pct"] == pytest.approx([10.0, 10.05, 10.067], abs=0.01)
    kept = ResultsFile(None)
    for each in (*base, *dearer):
        kept.add(each)
    table = "\n".join(rows("w", ["drain"], range(3), kept))
    assert "| `drain` | retention.drain: false | 3 | 3 | **10 ±" in table
    assert "| 0 ±0 | - | 0 ±0 | 0 ±0 | 0 ±0 |" in table


def test_one_table_of_all_worlds_tells_what_acted_and_what_is_beyond_chance() -> None:
    kept = ResultsFile(None)
    for seed in range(3):
        kept.add(run(WITH_ALL, seed, 1.0 + seed))
        kept.add(run("drain", seed, (1.0 + seed) * 1.1, fired=1))
    kept.add(run("most_losses", 0, 1.0, fired=0))
    table = list(summary(["w", "v"], ["drain", "most_losses", "upsizing"], range(3), kept))
    assert table[0] == "| without | w | v |"
    assert table[2:] == [
        "| `drain` | **+10.0** / +0.0 |  |",
        "| `most_losses` | - |  |",
        "| `upsizing` |  |  |",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["drainn"], "there is no rule 'drainn'; did you mean 'drain'?"),
        (["--worlds", "knew"], "there is no world 'knew'"),
        (["--seeds", "0"], "--seeds and --processes must be at least 1"),
    ],
)
def test_wrong_words_are_one_sentence(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.rules", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and told in capsys.readouterr().err
