"""The contract suites catch faults: each of these implementations has one."""

from pathlib import Path
from typing import Any

import pytest

from hcloud.fake_runner.runner import FakeRunner, work_from
from providers.mock import MockProvider
from tests.contract import test_provider_mock as mock_suites
from tests.contract import test_runner_fake as fake_suites
from tests.contract.benches import ContractSuite
from tests.contract.fencing_contract import FencingContract
from tests.contract.pause_contract import PauseContract
from tests.contract.profiling_contract import ProfilingContract
from tests.contract.provider_contract import ProviderContract
from tests.contract.resize_contract import ResizeContract
from tests.contract.runner_contract import SCRIPTS, RunnerContract
from tests.contract.test_provider_mock import SETTINGS, MockBench
from tests.contract.test_runner_fake import FakeBench
from tests.providers import broken


class WholeContract(RunnerContract, FencingContract, ProfilingContract, ResizeContract, PauseContract):
    """All tests of a Runner."""


CAUGHT = (AssertionError, TimeoutError, pytest.fail.Exception)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (broken.ForgetsTokens, "test_same_token_yields_the_same_machine"),
        (broken.ForgetsTokens, "test_same_token_after_the_end_launches_nothing"),
        (broken.ForgetsTokens, "test_same_token_from_many_threads_yields_one_machine"),
        (broken.ForgetsTokens, "test_lost_reply_is_unknown_and_the_token_finds_the_machine"),
        (broken.IgnoresExpiry, "test_machine_ends_itself_at_its_expiry"),
        (broken.ShowsAllOwners, "test_two_owners_in_one_cloud_see_only_their_own"),
        (broken.HidesMissingZones, "test_partial_listing_says_which_zone_is_missing"),
        (broken.UnderstatesLag, "test_complete_listing_holds_every_machine_older_than_it_says"),
        (broken.UnderstatesLag, "test_machine_missing_from_the_next_list_appears_within_the_stated_time"),
        (broken.EndsTwice, "test_terminated_machine_stops_billing_and_keeps_its_end"),
    ],
)
def test_provider_contract_catches(tmp_path: Path, kind: type[MockProvider], test: str) -> None:
    class BrokenBench(MockBench):
        owner = "somebody"

        def _made(self, owner: str, settings: Any = None) -> MockProvider:
            chosen = {**self._settings, **(settings or {})}
            return kind("mock", chosen, self.clock, owner, str(self._state_dir))

    with pytest.raises(CAUGHT):
        getattr(ProviderContract(), test)(BrokenBench(tmp_path, {**SETTINGS, "persist": True}))


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (broken.ForgetsFences, "test_start_repeated_while_running_starts_once"),
        (broken.ForgetsFences, "test_start_repeated_after_the_end_starts_once"),
        (broken.ForgetsFencesOfForgotten, "test_forgotten_unit_never_starts_again"),
        (broken.FencesNothing, "test_stop_before_start_fences_the_unit"),
        (broken.ForgetsRefusals, "test_refused_unit_never_starts_though_the_reason_is_gone"),
        (broken.ResizesInVain, "test_resized_unit_uses_as_much_as_it_may_from_then_on"),
        (broken.ResizesInVain, "test_pinned_unit_runs_on_those_cpus_until_it_may_run_anywhere"),
        (broken.BoundsForAnybody, "test_resize_by_who_led_before_comes_too_late"),
        (broken.PausesInVain, "test_paused_unit_uses_no_cpu_time_until_it_is_resumed"),
        (broken.PausesForAnybody, "test_pause_by_who_led_before_comes_too_late"),
        (broken.NeverResumesForAStop, "test_paused_unit_that_ignores_a_stop_is_killed"),
        (broken.CountsPauses, "test_time_limit_does_not_count_pauses"),
        (broken.RewritesExits, "test_stop_after_the_end_changes_nothing"),
        (broken.RefusesWrongly, "test_lost_reply_to_start_is_unknown_and_repeating_starts_once"),
        (broken.LosesFindings, "test_stopped_profiling_run_tells_what_it_found_by_then"),
        (broken.KeepsDeadWorkers, "test_units_of_a_lost_machine_are_reported_no_more"),
    ],
)
def test_runner_contract_catches(tmp_path: Path, kind: type[FakeRunner], test: str) -> None:
    class BrokenBench(FakeBench):
        def _made(self) -> FakeRunner:
            return kind([self.cloud], self.clock, work=work_from(SCRIPTS), sample_every_s=1.0)

    with pytest.raises(CAUGHT):
        getattr(WholeContract(), test)(BrokenBench(tmp_path, {}))


@pytest.mark.parametrize(
    ("suite", "other"),
    [
        (mock_suites.TestMockProviderInMemory, mock_suites.TestMockProviderInAFile),
        (mock_suites.TestMockProviderWithoutDelays, mock_suites.TestMockProviderInAFile),
        (fake_suites.TestFakeRunnerInMemory, fake_suites.TestFakeRunnerWrittenDown),
    ],
)
def test_what_a_suite_leaves_to_another_is_asked_there(suite: type[ContractSuite], other: type[ContractSuite]) -> None:
    left_out = [name for name in dir(suite) if name.startswith("test_") and getattr(suite, name) is None]
    assert left_out and suite.elsewhere <= other.abilities
    assert {getattr(other, name).needed_ability for name in left_out} == suite.elsewhere
