"""`hcloud drain` and `hcloud destroy`, with a daemon and without one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hcloud import wiring
from hcloud.cli import drain
from hcloud.cli.drain import MachinesStillUp, show_plan, wait_until_gone
from hcloud.core.clock import ManualClock
from hcloud.core.errors import ProviderUnavailable, Refused
from hcloud.core.model import EventKind
from hcloud.planner.snapshot import OfferBackoff
from hcloud.provider import CloudInstance, CloudState, Listing
from hcloud.store import Store
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell
from tests.cli.terminal import at_terminal
from tests.waiting import wait_until

OWNER = "hcloud-a"


def test_drain_and_destroy_from_the_shell(shell: Shell, deployment: Deployment) -> None:
    shell.run("submit", "--", "sleep", "1000000")
    wait_until(lambda: any(i.ready_at for i in deployment.store.live().instances), 60)
    assert shell.run("drain")[0] == "none\n"
    _, err = shell.run("drain", "inst-1", "--deadline", "soon", exit_code=2)
    assert "soon" in err
    [order] = json.loads(shell.run("drain", "inst-1", "--deadline", "3600", "-o", "json")[0])
    assert order["deadline_at"] > deployment.clock.now()
    out, _ = shell.run("destroy", "inst-1", "--dry-run")
    assert "1 machine(s) end" in out and "runs again from its beginning" in out
    _, err = shell.run("destroy", "inst-1", exit_code=2)
    assert "no terminal to ask at" in err
    _, err = shell.run("destroy", "--all", "--without-daemon", "--yes", exit_code=4, HCLOUD_CONFIG=configured(shell))
    assert "a daemon answers" in err
    out, _ = shell.run("destroy", "--all", "--yes", "--wait", "60", "-o", "json")
    assert json.loads(out)["ordered"]
    assert deployment.store.live().instances == ()


def test_a_stopped_provider_is_resumed_by_name(shell: Shell, deployment: Deployment) -> None:
    now = deployment.clock.now()
    with deployment.store.transaction(now) as txn:
        txn.put_backoff(OfferBackoff(provider="mock", until_at=now + 3000.0, error="no such role"))
    assert shell.run("provider", "resume", "mock")[0] == "mock is tried again\n"
    assert shell.run("provider", "resume", "mock")[0] == "mock was not stopped\n"
    _, err = shell.run("provider", "resume", "mok", exit_code=2)
    assert "unknown provider 'mok'; did you mean 'mock'?" in err
    [order] = deployment.store.events(kinds=[EventKind.OPERATOR_ORDER])
    assert (order.fields["what"], order.fields["name"]) == ("resume", "mock")


def test_without_a_daemon_bad_input_is_told_first_and_the_other_way_is_named(lonely: Shell) -> None:
    _, err = lonely.run("drain", "inst-1", "--deadline", "soon", exit_code=2)
    assert "soon" in err
    _, err = lonely.run("destroy", "--all", "--yes", exit_code=3)
    assert "--without-daemon" in err


def test_at_a_terminal_the_number_of_machines_must_be_typed(shell: Shell, deployment: Deployment) -> None:
    shell.run("submit", "--", "sleep", "1000000")
    wait_until(lambda: bool(deployment.store.live().instances), 60)
    with at_terminal(shell, "destroy", "--all") as terminal:
        terminal.until("Type 'destroy 1'")
        terminal.press("yes\r")
        assert terminal.ended() == 130
    assert not deployment.store.live().directives


def configured(shell: Shell) -> str:
    home = shell.directory
    (home / "p.yaml").write_text("name: p\n")
    text = f"owner: {OWNER}\nstate_dir: state\npolicy: p.yaml\nengine: {{programs: simulated}}\n"
    (home / "config.yaml").write_text(text + "providers: [{name: m, type: mock}]\n")
    return str(home / "config.yaml")


class Cloud:
    """A provider with two machines of ours and one of somebody else that a careless listing tells of too."""

    name = "m"

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.complete = True
        self.away = self.deaf = False

    def instances(self, owner: str) -> Listing:
        if self.away:
            raise ProviderUnavailable("m: no answer")
        owners = {"a1": owner, "a2": owner, "b1": "hcloud-b"}
        found = tuple(self._machine(key, who) for key, who in owners.items())
        return Listing(instances=found, complete=self.complete, unanswered=() if self.complete else ("east-1b",))

    def _machine(self, key: str, owner: str) -> CloudInstance:
        return CloudInstance(
            provider_id=key,
            instance_id=f"inst-{key}",
            token=f"token-{key}",
            owner=owner,
            state=CloudState.TERMINATED if key in self.ended else CloudState.RUNNING,
            zone="east-1a",
            launched_at=1_000.0,
            price_usd_per_h=0.5,
        )

    def terminate(self, provider_ids: Sequence[str]) -> None:
        if self.deaf:
            raise ProviderUnavailable("m: no answer")
        self.ended += provider_ids


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    cloud = Cloud()
    monkeypatch.setenv("HCLOUD_CONFIG", configured(Shell(directory=tmp_path)))
    monkeypatch.setenv("HCLOUD_SOCKET", str(tmp_path / "none.sock"))
    monkeypatch.setattr(wiring, "build_providers", lambda config, clock: {"m": cloud})
    monkeypatch.setattr("hcloud.client.connection.PATIENCE_S", 0.0)
    (tmp_path / "state").mkdir()
    return cloud


def destroy(**changes: Any) -> int:
    given = {"yes": True, "dry_run": False, "wait_s": None, "form": "table", **changes}
    return drain.destroy_everything((), clock=ManualClock(5_000.0), **given)


def test_without_a_daemon_all_of_ours_end_and_nothing_else_and_a_later_daemon_is_told(
    cloud: Cloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert destroy(dry_run=True) == 0
    assert cloud.ended == []
    for _ in range(2):  # repeating it is harmless
        assert destroy(wait_s=0.0) == 0
    assert cloud.ended == ["a1", "a2"]
    assert "2 machine(s) end" in capsys.readouterr().out
    store = Store.open(f"sqlite:///{tmp_path / 'state' / 'hcloud.db'}")
    assert "without the daemon" in (store.get_meta("paused") or "")
    assert [e.fields["provider_id"] for e in store.events(kinds=[EventKind.ORPHAN])] == ["a1", "a2"]
    assert store.acquire_lease("somebody else", 5_000.0, 10.0) is not None  # the lease was given back
    store.close()


def test_nothing_is_ended_unless_everything_was_listed(cloud: Cloud) -> None:
    cloud.complete = False
    with pytest.raises(drain.NotAllSeen, match="east-1b"):
        destroy()
    cloud.complete, cloud.away = True, True
    with pytest.raises(drain.NotAllSeen, match="nothing was changed"):
        destroy()
    assert cloud.ended == []


def test_a_provider_that_does_not_take_the_order_is_told_and_can_be_asked_again(cloud: Cloud) -> None:
    cloud.deaf = True
    with pytest.raises(drain.NotAllEnded, match="say it again"):
        destroy()
    cloud.deaf = False
    assert destroy() == 0
    assert cloud.ended == ["a1", "a2"]


def test_records_that_cannot_be_read_do_not_keep_machines_alive(cloud: Cloud, tmp_path: Path) -> None:
    (tmp_path / "state" / "hcloud.db").write_text("this is no database\n" * 100)
    assert destroy() == 0
    assert cloud.ended == ["a1", "a2"]


def test_a_daemon_that_leads_elsewhere_keeps_the_right_to_end(cloud: Cloud, tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'state' / 'hcloud.db'}")
    store.acquire_lease("another host", 4_999.0, 60.0)
    with pytest.raises(Refused, match="another host"):
        destroy()
    assert cloud.ended == []
    store.close()


def test_a_plan_says_what_ends_what_is_saved_and_who_loses_what(capsys: pytest.CaptureFixture[str]) -> None:
    machine = {
        "id": "inst-1", "state": "ready", "provider": "m", "zone": "z", "instance_type": "t", "market": "spot",
        "price_usd_per_h": 0.25, "up_s": 120.0, "spent_usd": 0.5, "jobs": ["job-1", "job-2"],
    }  # fmt: skip
    job = {"name": "n", "user": "ada", "target": "batch", "instances": ["inst-1"], "lost_s": 60.0}
    jobs = [{**job, "id": "job-1", "runs_again": True}, {**job, "id": "job-2", "runs_again": False}]
    show_plan({"machines": [machine], "jobs": jobs, "price_usd_per_h": 0.25}, every=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line]
    assert lines[1::2] == [
        "inst-1 ready m z t spot 0.2500 2m00s $0.5000 job-1 job-2",
        "job-1 n ada batch inst-1 1m00s runs again from its beginning",
        "1 machine(s) end, which saves $0.2500/h; 2 job(s) lose 2m00s of work",
    ]
    assert lines[4] == "job-2 n ada batch inst-1 1m00s fails: no retries are left"


def test_waiting_tells_what_has_not_ended_in_time() -> None:
    wait_until_gone({"a"}, 0.0, lambda: {"b"})
    with pytest.raises(MachinesStillUp, match="1 of 2"):
        wait_until_gone({"a", "c"}, 0.0, lambda: {"a"})
