"""Rules of the planner from installed packages: found by entry point, accepted in policies, used in plans."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from hcloud.config import load_plugins, load_policy
from hcloud.core.errors import ConfigError
from hcloud.planner.placement import orders
from hcloud.planner.plan import Launch, Place
from hcloud.planner.provisioning import strategies
from hcloud.spec.policy import ORDERS, STRATEGIES, Policy
from hcloud.spec.validation import json_schema
from tests.planner.scenes import decide, job, machine, of, offer, running, scene

TOY = """
    from hcloud.planner.placement.order import OrderNeeds, Preference

    class FullestFirst:
        name = "fullest"
        needs = OrderNeeds()

        def choose(self, context, group, fits, neighbours_too):
            places = fits.nonzero()[0]
            return int(places[context.fleet.load[places].argmax()])

        def explain(self, context, group):
            return Preference("fullest", "the fullest with room")

    ORDER = FullestFirst()
"""
CHEAP_ONLY = """
    from hcloud.planner.provisioning.strategies import ProvisioningStrategy

    class CheapOnly(ProvisioningStrategy):
        def refusal(self, offer, full_from, policy):
            return "strategy cheap rents up to $1 per hour" if offer.price_usd_per_h > 1.0 else None

    ORDER = CheapOnly(name="cheap")
"""
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a package of one module with one entry point, and returns its directory."""
    for registry, names in ((orders._ORDERS, ORDERS), (strategies._STRATEGIES, STRATEGIES)):
        monkeypatch.setattr(registry, "_rules", dict(registry._rules))
        monkeypatch.setattr(names, "_classified", dict(names._classified))
        monkeypatch.setattr(names, "_in_turns", set(names._in_turns))
    monkeypatch.syspath_prepend(tmp_path)

    def install(text: str, *, name: str = "fullest", group: str = "placement_orders") -> Path:
        (tmp_path / "toy_rules.py").write_text(dedent(text))
        facts = tmp_path / "toy_rules-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-rules\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[hcloud.{group}]\n{name} = toy_rules:ORDER\n")
        load_plugins.cache_clear()
        return tmp_path

    yield install
    load_plugins.cache_clear()
    sys.modules.pop("toy_rules", None)


def write_policy(folder: Path, order: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(f"name: toy\nplacement: {{order: {order}}}\nadmission: {{queues: one}}\n")
    return path


def test_an_order_of_one_installed_file_places_jobs(install: Install) -> None:
    policy = load_policy(write_policy(install(TOY), "fullest"))
    size = offer("plain", vcpus=8.0)
    busy, idle = machine(1, size), machine(2, size)
    [placed] = of(decide(scene(running(1, busy), job(2), busy, idle), policy), Place)
    assert (placed.ranks[0].instance_id, placed.reason.code) == ("inst-1", "fullest")
    assert "inst-1: the fullest with room; takes" in placed.reason.text


def test_a_strategy_of_one_installed_file_decides_what_is_rented(install: Install) -> None:
    folder = install(CHEAP_ONLY, name="cheap", group="provisioning_strategies")
    path = folder / "policy.yaml"
    path.write_text("name: toy\nplacement: {order: first_fit}\nprovisioning: {strategy: cheap}\n")
    cheap, dear = offer("cheap", vcpus=4.0, usd_per_h=0.4), offer("dear", vcpus=4.0, usd_per_h=3.0)
    plan = decide(scene(job(1), cheap, dear), load_policy(path))
    assert [each.offer.instance_type.name for each in of(plan, Launch)] == ["cheap"]
    refused = decide(scene(job(1), dear), load_policy(path))
    assert not of(refused, Launch)
    assert any("strategy cheap rents up to $1 per hour" in action.reason.text for action in refused.actions)


def test_the_schema_names_orders_of_installed_packages(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.spec.validation._SCHEMAS", {})
    install(TOY)
    load_plugins()
    assert json_schema(Policy)["$defs"]["PlacementPolicy"]["properties"]["order"]["enum"][-1] == "fullest"


def test_a_policy_profiles_jobs_if_an_installed_order_needs_classifications(install: Install) -> None:
    text = TOY.replace("OrderNeeds()", "OrderNeeds(types=True)")
    path = write_policy(install(text), "fullest")
    path.write_text(path.read_text() + "provisioning: {strategy: best_value}\n")
    assert load_policy(path).profiles_when == "beside"


def test_turns_are_accepted_with_an_installed_order_that_takes_them_and_no_other(install: Install) -> None:
    turns = "placement: {order: fullest, neighbours: observed, pause_step_s: 60}\nprofiling: {when: beside}\n"
    path = write_policy(install(TOY.replace("OrderNeeds()", "OrderNeeds(turns=True)")), "fullest")
    path.write_text(turns)
    assert load_policy(path).placement.pause_step_s == 60.0
    path.write_text(turns.replace("fullest", "paragon"))
    with pytest.raises(ConfigError, match="needs order: co_schedule or fullest; with paragon no job is paused"):
        load_policy(path)


def test_an_unknown_order_is_one_sentence_with_the_known_names(install: Install) -> None:
    path = write_policy(install(TOY), "fulest")
    known = (
        "least_loaded, first_fit, random, largest_first, paragon, quasar, heterogeneity_oblivious, "
        "interference_oblivious, least_loss, sampled, paragon_sampled, tarcil, co_schedule"
    )
    expected = f"placement.order: must be one of {known}, fullest, not 'fulest'; did you mean 'fullest'?"
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    assert str(caught.value).endswith(expected)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("import no_such_module", "fullest", "No module named 'no_such_module'"),
        ("OTHER = 1", "fullest", "module 'toy_rules' has no attribute 'ORDER'"),
        (TOY, "fuller", "its name is 'fullest'"),
        (TOY.replace('"fullest"', '"quasar"'), "quasar", "there is another placement order 'quasar'"),
        ("ORDER = None", "fullest", "'NoneType' object has no attribute 'name'"),
    ],
)
def test_a_package_with_an_unusable_order_is_named(install: Install, text: str, name: str, why: str) -> None:
    path = write_policy(install(text, name=name), "quasar")
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    where = f"hcloud.placement_orders: {name}: 'toy_rules:ORDER' of package toy-rules cannot be used: "
    assert str(caught.value) == where + why


def test_policy_check_refuses_an_unknown_order_with_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hcloud.cli.main", "policy", "check", str(write_policy(tmp_path, "best"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        "policy.yaml:2: placement.order: must be one of least_loaded, first_fit, random, " in done.stderr + done.stdout
    )
