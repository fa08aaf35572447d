"""What the daemon clears up of long ago."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import cast

import pytest

from hcloud.api import ApiServer
from hcloud.api.errors import Unauthenticated
from hcloud.config import TcpSettings, limits_of, load_config
from hcloud.core.errors import BadInput
from hcloud.core.model import CommittedCapacity, EventKind, JobState, Market
from hcloud.daemon import ACCEPTED, Daemon
from hcloud.planner.snapshot import OfferBackoff
from tests.daemon.home import Home
from tests.planner.scenes import offer
from tests.store.samples import submit, walk


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that was built and does not run."""
    home = Home(tmp_path / "home")
    home.set_up()
    made = Daemon(load_config(home.path / "config.yaml"))
    yield made
    made.store.close()
    made.runner.close()


def test_of_long_ago_events_jobs_logs_and_uploads_go_and_what_lives_stays(daemon: Daemon) -> None:
    old, _ = submit(daemon.store, count=2, now=10.0)
    (late,) = submit(daemon.store, now=daemon.clock.now())
    walk(daemon.store, old, JobState.FAILED, finished_at=20.0)
    log, upload = daemon.controller.observer.logs.folder / f"{old.id}.1.0.stdout", daemon.uploads_dir / "ab.tar.gz"
    for each in (log, upload):
        each.write_text("of then")
        os.utime(each, (30.0, 30.0))
    daemon._housekeeping()
    assert [job.id for job in daemon.store.jobs()] == [late.id, "job-2"]
    assert [event.job_id for event in daemon.store.events(kinds=[EventKind.JOB_SUBMITTED])] == ["job-2", late.id]
    assert not log.exists() and not upload.exists()


class Api:
    """An API that takes up work, or does not."""

    def __init__(self) -> None:
        self.is_stuck = False

    def responds(self, timeout_s: float) -> bool:
        """Answer at once."""
        return not self.is_stuck


def test_systemd_is_not_notified_while_the_api_takes_up_no_work(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        api = Api()
        daemon._beat(cast(ApiServer, api))
        assert systemd.recv(64) == b"WATCHDOG=1"
        api.is_stuck = True
        daemon._beat(cast(ApiServer, api))
        with pytest.raises(BlockingIOError):
            systemd.recv(64)


def test_a_provider_is_tried_again_once_its_settings_have_changed(daemon: Daemon) -> None:
    name, now = daemon.config.providers[0].name, daemon.clock.now()
    daemon._resume_changed_providers()
    with daemon.store.transaction(now) as txn:
        txn.put_backoff(OfferBackoff(provider=name, until_at=now + 3000.0, error="no such role"))
    daemon._resume_changed_providers()
    assert "no such role" in daemon.status()["providers"][name]["stopped"]
    [settings] = [each for each in daemon.config.providers if each.name == name]
    changed = replace(settings, settings={**settings.settings, "labels": {"a": "b"}})
    daemon.config = replace(daemon.config, providers=(changed,))
    daemon._resume_changed_providers()
    assert daemon.status()["providers"][name]["stopped"] == ""


def test_a_policy_that_lost_its_budget_spends_no_more_until_that_is_accepted(daemon: Daemon) -> None:
    file, keep = daemon.config.policy, "name: kept\ncaps: {max_instances: 3}\n"

    def now_says(text: str) -> float | None:
        file.write_text(text)
        daemon._reload.set()
        daemon._reload_policy()
        return daemon.controller.policy.budgets.per_day_usd

    assert now_says(keep + "budgets: {per_day_usd: 5}\n") == 5.0
    assert now_says(keep) == 5.0  # cut off at a line
    assert daemon.controller.policy.name == "kept" and daemon.controller.policy.caps.max_instances == 3
    assert daemon.status()["unaccepted_changes"] == ["budgets.per_day_usd from 5 to none"]
    again = Daemon(load_config(file.parent.parent / "config.yaml"))  # a restart accepts nothing
    assert again.controller.policy.budgets.per_day_usd == 5.0
    with pytest.raises(BadInput, match="has changed since"):
        again._accept(["budgets.per_day_usd from 4 to none"], "root")
    again._accept(["budgets.per_day_usd from 5 to none"], "root")
    daemon._reload_policy()  # the other daemon, too
    assert daemon.controller.policy.budgets.per_day_usd is None and daemon.status()["unaccepted_changes"] == []
    assert [event.actor for event in daemon.store.events(kinds=[EventKind.DAEMON])][-1] == "root"
    again.store.close()
    again.runner.close()


def test_a_policy_that_lost_its_caps_buys_no_more_until_that_is_accepted(daemon: Daemon) -> None:
    file, changes = daemon.config.policy, ["caps.max_jobs_per_user from 2 to none"]
    for text in ("caps: {max_instances: 3, max_jobs_per_user: 2}\n", "caps: {max_instances: 2}\n"):
        file.write_text(text)
        daemon._reload.set()
        daemon._reload_policy()
    caps = daemon.controller.policy.caps
    assert (caps.max_instances, caps.max_jobs_per_user) == (2, 2)  # what is stricter holds at once
    assert daemon.status()["unaccepted_changes"] == changes
    daemon._accept(changes, "root")
    daemon._reload_policy()
    assert daemon.controller.policy.caps.max_jobs_per_user is None


def test_looser_isolation_and_roles_wait_over_a_restart(daemon: Daemon) -> None:
    plain = daemon.config
    wider = replace(plain, api=replace(plain.api, admins=(*plain.api.admins, "nobody")))

    def started() -> Daemon:
        made = Daemon(wider)
        made.store.close()
        made.runner.close()
        return made

    again = started()
    assert "nobody" not in again.config.api.admins
    assert again.status()["unaccepted_changes"] == ["api.admins with nobody"]
    wanted = limits_of(daemon.controller.policy, wider, ())
    daemon.store.set_meta(ACCEPTED, wanted.to_json())
    last = started()
    assert "nobody" in last.config.api.admins and last.status()["unaccepted_changes"] == []


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """What a test adds is closed after it."""
    with ExitStack() as stack:
        yield stack


def test_a_new_token_waits_until_it_is_accepted_and_a_removed_one_is_forgotten(
    daemon: Daemon, tmp_path: Path, closing: ExitStack
) -> None:
    def entries(*names: str) -> str:
        return "".join(f"{name}:{sha256(name.encode()).hexdigest()}:{role}\n" for name, role in
                       (each.split("/") for each in names))  # fmt: skip

    file = tmp_path / "tokens"
    tcp = TcpSettings(listen="127.0.0.1:1", certificate=tmp_path / "c", key=tmp_path / "k", tokens_file=file)
    config = replace(daemon.config, api=replace(daemon.config.api, tcp=tcp))

    def reread(served: Daemon) -> list[str]:
        served._reload.set()
        served._reload_policy()
        return list(served.status()["unaccepted_changes"])

    def role(served: Daemon, token: str) -> str | None:
        assert served.tokens is not None
        found = served.tokens.find(token)
        return found.role if found is not None else None

    daemon.store.set_meta(ACCEPTED, limits_of(daemon.controller.policy, config, None).to_json())
    file.write_text(entries("ann/submitter"))
    former = Daemon(config)  # an earlier version did not watch tokens: what is there is taken
    closing.callback(former.store.close)
    closing.callback(former.runner.close)
    assert role(former, "ann") == "submitter"
    file.write_text(entries("ann/admin", "bob/reader"))
    waiting = ["api.tcp.tokens_file: ann from submitter to admin", "api.tcp.tokens_file: new token of bob (reader)"]
    assert reread(former) == waiting
    assert role(former, "ann") == "submitter"
    served = Daemon(config)  # a restart accepts nothing
    closing.callback(served.store.close)
    closing.callback(served.runner.close)
    assert served.status()["unaccepted_changes"] == waiting
    with pytest.raises(Unauthenticated):
        role(served, "bob")
    file.write_text("rubbish")
    assert reread(served) == []
    with pytest.raises(BadInput):
        served._accept(waiting, "root")
    served._accept([], "root")  # of a file that cannot be read, nothing is accepted
    file.write_text(entries("ann/admin", "bob/reader"))
    assert reread(served) == waiting
    served._accept(waiting, "root")
    assert reread(served) == []
    assert role(served, "bob") == "reader"
    file.write_text(entries("ann/admin"))
    assert reread(served) == [] and role(served, "bob") is None
    file.write_text(entries("ann/admin", "bob/reader"))
    assert reread(served) == ["api.tcp.tokens_file: new token of bob (reader)"]


def test_commitments_that_end_within_30_days_are_named(daemon: Daemon) -> None:
    now = daemon.clock.now()
    soon = offer(market=Market.RESERVED, ends_at=now + 86_400.0)
    later = offer(market=Market.RESERVED, zone="b", ends_at=now + 40 * 86_400.0)
    daemon.controller.offers.by_provider = {"mock": (soon, later)}
    [note] = daemon._ending_commitments()
    assert note.startswith("the commitment for small in a (mock) ends at ")
    several = replace(later, committed=tuple(CommittedCapacity(ends_at=each.ends_at, free=1) for each in (later, soon)))
    daemon.controller.offers.by_provider = {"mock": (several,)}
    [note] = daemon._ending_commitments()  # also while another is used first
    assert note.startswith("the commitment for small in b (mock) ends at ")
