"""`hcloud profile bootstrap --on`: reference programs measured by jobs of the daemon."""

import signal

from hcloud.config.profiles import load_profiles
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell
from tests.waiting import wait_until

RECIPES = """\
recipes:
  copy:
    group: text
    packages: [coreutils]
    files: {input: {text: "some words"}}
    loop: repeat
    command: [sleep, "1"]
    unit: MiB
"""
MEASURE = ("profile", "bootstrap", "--on", "mock", "--recipes", "recipes", "--seconds", "5", "--out", "made")


def write_recipes(shell: Shell) -> None:
    (shell.directory / "recipes").mkdir()
    (shell.directory / "recipes/tiny.yaml").write_text(RECIPES)


def test_programs_are_measured_once_per_type_and_merged(shell: Shell, deployment: Deployment) -> None:
    write_recipes(shell)
    types = ("--type", "m.two", "--type", "m.one")
    out, _ = shell.run(*MEASURE, *types)
    assert "1 of 1 programs measured" in out
    (found,) = load_profiles(shell.directory / "made/copy.yaml")
    assert set(found.cells.type) == {"mock/m.two", "mock/m.one"}
    assert len(found.cells.tolerated) == len(found.cells.caused) == 16
    jobs = deployment.store.jobs()
    assert len(jobs) == 2
    assert {job.spec.exclusive for job in jobs} == {True}
    (shell.directory / "made/copy.yaml").unlink()
    shell.run(*MEASURE, *types)  # the earlier measurements are reused
    assert len(deployment.store.jobs()) == 2
    assert load_profiles(shell.directory / "made/copy.yaml") == (found,)
    shell.run(*MEASURE, *types, "--again")
    assert len(deployment.store.jobs()) == 4


def test_killed_command_finds_its_jobs_when_run_again(shell: Shell, deployment: Deployment) -> None:
    write_recipes(shell)
    first = shell.start(*MEASURE, "--type", "m.two", "--again")
    wait_until(lambda: deployment.store.jobs(), 60.0)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    shell.run(*MEASURE, "--type", "m.two")
    assert len(deployment.store.jobs()) == 1
    assert (shell.directory / "made/copy.yaml").exists()


def test_unknown_provider_or_type_is_refused(shell: Shell) -> None:
    write_recipes(shell)
    deep = ("profile", "bootstrap", "--recipes", "recipes", "--on")
    assert "has no 'm.nine'; it has m.one, m.two" in shell.run(*deep, "mock", "--type", "m.nine", exit_code=2)[1]
    assert "needs --type, once for each" in shell.run(*deep, "mock", exit_code=2)[1]
    assert "no offers of 'aws'; it has offers of: mock" in shell.run(*deep, "aws", "--type", "x", exit_code=2)[1]
