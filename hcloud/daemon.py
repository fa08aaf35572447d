"""The daemon process: builds the parts, runs cycles on a real clock, and shuts down cleanly.

Starting and recovering are the same: the daemon needs only the store, the providers' listings and the engine's reports.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from apscheduler.schedulers.background import BackgroundScheduler

from hcloud import __version__, sd_notify
from hcloud.api.auth import user_name
from hcloud.api.context import ApiContext, DaemonStatus, EngineStatus, ProviderStatus, SpendStatus
from hcloud.api.server import ApiServer, serve
from hcloud.api.telemetry import Telemetry
from hcloud.api.tokens import TokenFile
from hcloud.api.uploads import prune as prune_uploads
from hcloud.apply import ApplyResult
from hcloud.apply.kept_checkpoints import CHECKPOINTS_FOLDER, drop_checkpoints
from hcloud.apply.machines import resume_provider
from hcloud.catalog import CatalogFiles
from hcloud.config import (
    AcceptedLimits,
    Config,
    PolicyWatch,
    limits_of,
    loosened,
    new_defaults_note,
    parse_limits,
    stricter,
    with_limits,
)
from hcloud.config.watch import SETTLE_S
from hcloud.controller import CycleReport
from hcloud.core.budget_scope import BudgetScope, tag_scope
from hcloud.core.clock import Clock, SignalledEvent, SystemClock
from hcloud.core.errors import (
    BadInput,
    ConfigError,
    HCloudError,
    Refused,
    StaleWrite,
    StoreError,
    WorkerUnreachable,
    defect_text,
)
from hcloud.core.gc_tuning import infrequent_gc
from hcloud.core.model import EventKind, Instance, Job, JobSpec, Market, Offer
from hcloud.core.pricing import oldest_prices
from hcloud.core.units import utc_text
from hcloud.engine.wire import PROTOCOL
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.forecast.use_history import UseHistory
from hcloud.observe.output_archive import OUTPUTS_FOLDER
from hcloud.planner.fit.job_run_times import JobRunTimes
from hcloud.planner.snapshot import Spend
from hcloud.preview import describe_preview
from hcloud.provider import GangNetworkSupport, ImageSupport, NewsSource, Provider
from hcloud.spec.key_changes import DEFAULTS_SINCE
from hcloud.spec.policy import Budgets, Caps
from hcloud.store import Store
from hcloud.web.pages import WebPages
from hcloud.wiring import (
    bucket_access,
    build_controller,
    build_gateway,
    build_outboxes,
    build_providers,
    build_runner,
    image_registries,
    price_sources,
    refresh_prices,
    secret_keys,
)

_log = logging.getLogger("hcloud")
DAY_S = 86_400.0
MIN_PAUSE_S = 0.05
"""Minimum pause between cycles."""
STANDBY_PAUSE_S = 0.1
"""How often a standby looks whether it may lead: when the leader ends in order, it takes over within this time."""
ERROR_PAUSE_S = 2.0
"""Pause after a failed cycle."""
NEWS_TIMEOUT_S = 30.0
HOUSEKEEPING_EVERY_S = 3600.0
MAX_PRICES_TEXT = 2000
"""Maximum length of the event text of a price refresh."""
FIRST_HOUSEKEEPING_AFTER_S = 60.0
"""Soon after the start, so that a daemon that is restarted often also cleans up."""
OWNER = "owner"
"""Metadata key of the owner tag that instances carry."""
DEFAULTS = "policy_defaults"
"""Metadata key of the version whose changed policy defaults were named."""
ENDING_WITHIN_S = 30 * DAY_S
"""How long before its end a commitment is named in the status."""
ACCEPTED = "accepted_limits"
"""Metadata key of the limits that were accepted."""
PROVIDER_SETTINGS = "provider_settings"
"""Metadata key, followed by a provider's name, of the digest of its settings."""
AGENTS = "agent_protocol"
"""Metadata key of the protocol that the agents of instances speak."""
STALLED_AFTER_S = 60.0
"""If a cycle takes longer, the watchdog is no longer notified and systemd restarts the daemon."""
API_RESPONDS_WITHIN_S = 10.0
"""The same holds while the API takes up no work for so long."""


def refuse_full_queue(caps: Caps, jobs: Sequence[Job], specs: Sequence[JobSpec]) -> None:
    """Check that ``specs`` may join the ``jobs`` that have not ended. Raises Refused, naming the limit."""
    waiting = len(jobs)
    if waiting + len(specs) > caps.max_queued_jobs:
        raise Refused(
            f"the queue is full: {waiting} jobs have not ended, {len(specs)} more would exceed "
            f"caps.max_queued_jobs {caps.max_queued_jobs}"
        )
    limit = caps.max_queued_jobs_per_user
    if limit is None or waiting + len(specs) <= limit:
        return
    for user, count in Counter(each.user for each in specs).items():
        own = sum(job.spec.user == user for job in jobs)
        if own + count > limit:
            raise Refused(
                f"{own} jobs of {user} have not ended, {count} more would exceed caps.max_queued_jobs_per_user {limit}"
            )


def refuse_images(providers: Mapping[str, Provider], specs: Sequence[JobSpec]) -> None:
    """Check that some provider may run the container images of ``specs``. Raises BadInput, naming each one's reason."""
    wanted = next((at for at, spec in enumerate(specs) if spec.image is not None), None)
    if wanted is None or not providers:
        return
    reasons = {name: each.why_no_images() if isinstance(each, ImageSupport) else "" for name, each in providers.items()}
    if all(reasons.values()):
        why = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
        raise BadInput(f"body[{wanted}].job.image: can never run here: no provider's machines run images ({why})")


def refuse_gang_networks(
    providers: Mapping[str, Provider],
    offers: Sequence[Offer],
    specs: Sequence[JobSpec],
    instances: Iterable[Instance] = (),
) -> None:
    """Check that nodes of gangs with a network of their own can only come to where they reach each other: into one
    region of one provider, which can give them one. ``instances``: those that there are. Raises BadInput."""
    reasons = {each.offer.provider: "its machines name no addresses" for each in instances if each.addresses == ()}
    reasons |= {
        name: each.why_no_gang_network() for name, each in providers.items() if isinstance(each, GangNetworkSupport)
    }
    for at, spec in enumerate(specs):
        if spec.framework is None or spec.network != "none":
            continue
        places = sorted({(each.provider, each.region) for each in offers if spec.may_use(each)})
        able = [place for place in places if not reasons.get(place[0])]
        if len(places) == len(able) <= 1:  # without a place the plan says what is missing
            continue
        where = f"body[{at}].job.network: none gives the nodes of {spec.framework} a network of their own"
        if not able:
            why = "; ".join(f"{name}: {reasons[name]}" for name in sorted({name for name, _ in places}))
            raise BadInput(f"{where}, which no machine here can ({why}); use network: host")
        shown = ", ".join(f"{provider} in {region}" for provider, region in places)
        labels = f"{{provider: {able[0][0]}, region: {able[0][1]}}}"
        raise BadInput(
            f"{where} in one region of one provider, but they may run in {shown}; set placement.labels: {labels}"
        )


class Daemon:
    """One running daemon. ``run`` returns after a signal."""

    def __init__(
        self,
        config: Config,
        clock: Clock | None = None,
        notes: Sequence[str] = (),
        *,
        abandon: bool = False,
        gateway: Path | None = None,
    ) -> None:
        """Build the parts. ``notes``: a sentence for each renamed or removed configuration key. ``abandon``: units of
        agents that this version cannot reach are given up. ``gateway``: the Unix socket of a gateway that runs on its
        own; None: this daemon starts one.

        Raises ConfigError: configuration, policy, provider settings or database are unusable, live instances carry
        another owner's tag, or units run that this version cannot reach. Raises AlreadyServing: another daemon serves
        this socket.
        """
        self.config = config
        self.clock = clock or SystemClock()
        self.started_at = self.clock.now()
        self.watch = PolicyWatch(config.policy)
        self.providers = build_providers(config, self.clock)
        self.runner = build_runner(config, self.providers, self.clock, gateway)
        self.gateway = build_gateway(config) if gateway is None else None
        self.store = Store.open(config.database)
        with close_on_error(self.store):
            self.notes = (*notes, *new_defaults_notes(self.store, config))
            record_owner(self.store, config.owner)
            self.tokens = TokenFile(config.api.tcp.tokens_file) if config.api.tcp is not None else None
            self._configured, self._wanted = config, self._stated_limits(config)
            self._unaccepted_changes: tuple[str, ...] = ()
            limits = self._limits_in_force()
            self.config = config = _limited(config, limits)
            if config.engine.programs == "real":
                record_protocol(self.store, abandon=abandon)
        self.controller = build_controller(
            config,
            self.store,
            self.providers,
            self.runner,
            self.clock,
            with_limits(self.watch.status.policy, limits),
        )
        self.outboxes = build_outboxes(config, self.store, self.clock, lambda: self.controller.lease is not None)
        self.controller.schedules.admit = self._admit
        self.telemetry, self.use_history = Telemetry(self.providers), UseHistory()
        self.controller.followers = (self.telemetry, self.use_history)
        self.uploads_dir = config.state_dir / "uploads"
        self._keys = secret_keys(config)
        self.last_cycle = CycleReport()
        self._wake = SignalledEvent()
        self._stop = SignalledEvent()
        self._reload = SignalledEvent()
        self._cycle_began_at: float | None = None
        self._price_refresh: threading.Thread | None = None
        self._prices_notes: list[str] = []
        self._was_leader: bool | None = None

    # ------------------------------------------------------------------------------------------------------------ run
    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; units and instances keep running. Returns the exit code."""
        with ExitStack() as closing:
            closing.callback(self.store.close)
            closing.callback(self.runner.close)
            with log_errors():  # before a new job can get the number of an old one
                self._move_foreign_logs()
            api = serve(self._api_context(), self.config, self.tokens, WebPages())
            closing.callback(api.stop)
            if self.gateway is not None:
                closing.callback(self.gateway.stop)
                self.gateway.start()
            ticks = self._start_ticks(api)
            closing.callback(ticks.shutdown)
            self._install_signals()
            if (archive := self.controller.observer.outputs) is not None:
                archive.on_done = self._wake.set
            if (checkpoints := self.controller.observer.units.checkpoints) is not None:
                checkpoints.on_done = self._wake.set
            if (inputs := self.controller.applier.units.inputs) is not None:
                inputs.on_done = self._wake.set
            if isinstance(self.runner, NewsSource):
                threading.Thread(target=self._await_news, args=(self.runner,), name="news", daemon=True).start()
            for outbox in self.outboxes:
                name = f"notifications {outbox.name}"
                threading.Thread(target=outbox.run, args=(self._stop,), name=name, daemon=True).start()
            self._record("started")
            self._reencrypt_secrets()
            self._resume_changed_providers()
            sd_notify.ready(f"serving {api.socket_path}")
            _log.info("hcloud %s listening on %s; policy %s", __version__, api.socket_path, self.controller.policy.name)
            for note in (*self.notes, *self.watch.status.notes):
                _log.warning("%s", note)
            self._log_unaccepted()
            with infrequent_gc():
                self._loop(api)
            sd_notify.stopping()
            self._record("stopped")
            self._release()
        return 0 if self._stop.is_set() else 1

    def _loop(self, api: ApiServer) -> None:
        while not self._stop.is_set():
            if not api.alive:
                _log.critical("the API thread died; exiting so that the supervisor restarts the daemon")
                return
            self._wake.clear()
            pause_s = self._cycle_once()
            if self.watch.is_settling or (self.tokens is not None and self.tokens.is_settling):
                pause_s = min(pause_s, SETTLE_S)
            self.clock.wait(self._stop, min(MIN_PAUSE_S, pause_s))
            if pause_s > MIN_PAUSE_S:
                self.clock.wait(self._wake, pause_s - MIN_PAUSE_S)

    def _await_news(self, source: NewsSource) -> None:
        """Begin a cycle when the engine has news. Without an answer the interval between cycles has to do."""
        while not self._stop.is_set():
            try:
                if source.await_news(NEWS_TIMEOUT_S):
                    self._wake.set()
            except WorkerUnreachable:
                self.clock.wait(self._stop, ERROR_PAUSE_S)

    def _cycle_once(self) -> float:
        """Run one cycle; return the pause before the next, in seconds."""
        self._reload_policy()
        self._cycle_began_at = began_at = self.clock.now()
        try:
            outcome = self.controller.cycle()
        except StaleWrite as error:
            _log.warning("cycle abandoned: %s", error)
            self.controller.lease = None
            return self._record_cycle(began_at, error=str(error))
        except StoreError as error:
            _log.error("cycle failed: database unavailable: %s", error)
            return self._record_cycle(began_at, error=str(error))
        except Exception as error:  # noqa: BLE001 top of the loop: a failed cycle must not end the daemon
            _log.exception("cycle failed")
            return self._record_cycle(began_at, error=defect_text(error))
        finally:
            self._cycle_began_at = None
        return self._record_cycle(began_at, outcome)

    def _record_cycle(self, began_at: float, outcome: ApplyResult | None = None, error: str = "") -> float:
        duration_s = self.clock.now() - began_at
        refused = len(outcome.refused) if outcome else 0
        left_out, log_error = self._quarantined(began_at), self.controller.observer.storing_trouble
        if log_error and log_error != self.last_cycle.error:
            _log.error("%s", log_error)
        self.last_cycle = CycleReport(
            at=began_at,
            duration_s=duration_s,
            actions=outcome.applied if outcome else 0,
            refused=refused,
            error=error or log_error,
            left_out=left_out,
        )
        if self.controller.lease is not None or error:
            self.telemetry.record_cycle(duration_s)
        self._log_leadership()
        if outcome is None:
            return ERROR_PAUSE_S
        for refusal in outcome.refused:
            _log.info("refused %s: %s", type(refusal.action).__name__, refusal.why)
        if self.controller.lease is None:
            return min(STANDBY_PAUSE_S, self.config.cycle_interval_s)
        return MIN_PAUSE_S if outcome.moved else self.config.cycle_interval_s

    def _log_leadership(self) -> None:
        is_leader = self.controller.lease is not None
        if is_leader != self._was_leader:
            others = "standby: another daemon on this database is the leader"
            _log.info("this daemon is the leader" if is_leader else others)
        self._was_leader = is_leader

    def _quarantined(self, now: float) -> Mapping[str, str]:
        """Return quarantined stages, calls and live jobs, each with its error."""
        quarantine = self.controller.quarantine
        living = {job.id for job in self.controller.last_snapshot.jobs} if quarantine.jobs else ()
        failing = quarantine.failing(now)
        return {name: error for name, error in failing.items() if name not in quarantine.jobs or name in living}

    def _reload_policy(self) -> None:
        now, force = self.clock.now(), self._reload.is_set()
        self._reload.clear()
        status = self.watch.poll(now, force=force)
        has_other_tokens = self.tokens is not None and self.tokens.poll(now, force=force)
        # What waits may have been accepted, perhaps through another daemon.
        if not (status.changed or has_other_tokens or self._unaccepted_changes):
            return
        waited, self._wanted = self._unaccepted_changes, self._stated_limits(self._configured)
        self.controller.policy = with_limits(status.policy, self._limits_in_force())
        if self._unaccepted_changes != waited:
            self._log_unaccepted()
        if not status.changed:
            return
        if status.error:
            _log.warning(
                "policy file rejected; policy %s %s stays in force: %s", status.policy.name, status.digest, status.error
            )
        else:
            _log.info("policy %s %s is in force", status.policy.name, status.digest)
            for note in status.notes:
                _log.warning("%s", note)
        text = status.error or "in force"
        name, digest, ok = status.policy.name, status.digest, not status.error
        with log_errors(), self.store.transaction(self.clock.now()) as txn:
            txn.emit(EventKind.POLICY_CHANGED, name=name, digest=digest, ok=ok, text=text)

    def _stated_limits(self, config: Config) -> AcceptedLimits:
        return limits_of(self.watch.status.policy, config, self.tokens.complete if self.tokens is not None else ())

    def _log_unaccepted(self) -> None:
        for change in self._unaccepted_changes:
            _log.warning("not in force until 'hcloud policy accept': %s", change)

    def _limits_in_force(self) -> AcceptedLimits:
        """Return the limits of policy and configuration, without what nobody accepted; note what waits."""
        text = self.store.get_meta(ACCEPTED)
        accepted = self._wanted if text is None else parse_limits(text)
        limits = stricter(accepted, self._wanted)
        self._unaccepted_changes = loosened(accepted, self._wanted)
        if text != limits.to_json():
            with log_errors():  # the cycles report a full disk
                self.store.set_meta(ACCEPTED, limits.to_json())
        if self.tokens is not None:
            self.tokens.accept(limits.tokens or ())
        return limits

    def _accept(self, changes: Sequence[str], actor: str) -> None:
        """Accept what waits. Called by API threads. Raises BadInput if that is not ``changes`` any more."""
        wanted, waiting = self._wanted, self._unaccepted_changes
        if sorted(changes) != sorted(waiting):
            raise BadInput("what waits has changed since it was shown; look at it again")
        with self.store.transaction(self.clock.now()) as txn:
            before = txn.meta(ACCEPTED)
            if wanted.tokens is None and before is not None:  # the file cannot be read now: its tokens are not accepted
                wanted = replace(wanted, tokens=parse_limits(before).tokens)
            txn.put_meta(ACCEPTED, wanted.to_json())
            txn.emit(EventKind.DAEMON, actor=actor, what="accepted", text="; ".join(waiting))
        self._wake.set()

    # ---------------------------------------------------------------------------------------------------------- ticks
    def _start_ticks(self, api: ApiServer) -> BackgroundScheduler:
        ticks = BackgroundScheduler(timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1})
        soon = datetime.fromtimestamp(self.clock.now() + FIRST_HOUSEKEEPING_AFTER_S, tz=UTC)
        ticks.add_job(self._housekeeping, "interval", seconds=HOUSEKEEPING_EVERY_S, next_run_time=soon)
        beat_s = sd_notify.watchdog_interval_s()
        if beat_s is not None:
            ticks.add_job(self._beat, "interval", [api], seconds=max(0.5, beat_s / 2))
        every_s = self.config.catalog.refresh_every_s
        if every_s is not None and price_sources(self.config, self.clock):
            due_at = max(self.clock.now(), CatalogFiles(self.config.catalog_dir).refreshed_at() + every_s)
            due = datetime.fromtimestamp(due_at, tz=UTC)
            begin = self._start_price_refresh
            ticks.add_job(begin, "interval", seconds=every_s, next_run_time=due, misfire_grace_time=None)
        ticks.start()
        return ticks

    def _start_price_refresh(self) -> None:
        """Refresh prices in a thread: it may take minutes, and shutdown must not wait for it."""
        if self._price_refresh is None or not self._price_refresh.is_alive():
            self._price_refresh = threading.Thread(target=self._refresh_prices, name="prices", daemon=True)
            self._price_refresh.start()
        else:
            self._report_prices("the price refresh before is still running; prices are unchanged", ok=False)

    def _refresh_prices(self) -> None:
        try:
            done = refresh_prices(self.config, self.clock)
        except Exception as error:  # noqa: BLE001 top of the thread: the old prices stay in use
            _log.exception("price refresh failed")
            text, ok = f"price refresh failed: {error}", False
        else:
            text, ok = "; ".join(done.sentences())[:MAX_PRICES_TEXT], not (done.errors or done.refused)
            _log.log(logging.INFO if ok else logging.WARNING, "%s", text)
        self._report_prices(text, ok=ok)

    def _report_prices(self, text: str, *, ok: bool) -> None:
        """Record the result of a price refresh; a failed one is in ``hcloud status`` until one succeeds."""
        self._prices_notes = [] if ok else [f"prices were not refreshed: {text}"]
        with log_errors(), self.store.transaction(self.clock.now()) as txn:
            txn.emit(EventKind.DAEMON, what="prices", ok=ok, text=text)

    def _beat(self, api: ApiServer) -> None:
        began_at = self._cycle_began_at
        if began_at is not None and self.clock.now() - began_at >= STALLED_AFTER_S:
            return
        if api.responds(API_RESPONDS_WITHIN_S):
            sd_notify.watchdog()
        else:
            _log.error("the API has taken up no work for %g s", API_RESPONDS_WITHIN_S)

    def _housekeeping(self) -> None:
        now, kept = self.clock.now(), self.config.retention
        with log_errors():
            events = self.store.prune_events(now - kept.events_days * DAY_S, now)
            rows = self.store.prune_rows(now - max(kept.events_days, kept.logs_days) * DAY_S)
            samples = self.store.prune_samples(now - kept.samples_days * DAY_S, now)
            with self.store.transaction(now) as txn:
                txn.clear_backoffs(now - DAY_S)
            logs = self.controller.observer.logs.prune(now - kept.logs_days * DAY_S)
            if (archive := self.controller.observer.outputs) is not None:
                logs += archive.prune(now - kept.logs_days * DAY_S)
            live = {job.id for job in self.store.live().jobs}
            drop_checkpoints(self.config.state_dir / CHECKPOINTS_FOLDER, lambda job, _: job not in live, now - DAY_S)
            in_use = [job.spec.workdir_sha256 or "" for job in self.store.live().submitted]
            in_use += [each.spec.workdir_sha256 or "" for each in self.store.schedules()]
            uploads = prune_uploads(self.uploads_dir, set(in_use), now - kept.logs_days * DAY_S)
            text = "housekeeping: deleted %d events, %d jobs and machines, %d samples, %d logs, %d uploads"
            _log.info(text, events, rows, samples, logs, uploads)
            self._log_audit_head()
        self._reencrypt_secrets()

    def _reencrypt_secrets(self) -> None:
        """Encrypt with the first key what other keys encrypted, so that these can be dropped."""
        with log_errors():
            used, known = self.store.secret_key_counts(), self._keys.ids()
            if known and used.keys() - {known[0]}:
                count = self.store.reencrypt_secrets(known[0], self._keys.reseal)
                _log.info("encrypted %d secrets of jobs anew with key %s", count, known[0])
            for key_id in sorted(used.keys() - set(known)):
                text = "%d secrets of jobs cannot be decrypted: their key %s is not in %s"
                _log.warning(text, used[key_id], key_id, self._keys.path)

    def _log_audit_head(self) -> None:
        # In the system's log, out of reach of those who can only write the database.
        _log.info("audit log: its head is %s; 'hcloud doctor --audit-head' verifies it", self.store.audit_head())

    def _move_foreign_logs(self) -> None:
        newest = self.store.newest_job_number()
        made = {job.id: job.attempts_made for job in self.store.live().jobs}

        def foreign(unit: str) -> bool:
            # A job or attempt number that this database has not assigned yet.
            job, attempt, _ = f"{unit}..".split(".")[:3]
            number = job.removeprefix("job-")
            if not (number.isdigit() and attempt.isdigit()):
                return False
            return int(number) > newest or int(attempt) > made.get(job, int(attempt))

        count = self.controller.observer.logs.set_aside(foreign)
        if (archive := self.controller.observer.outputs) is not None:
            count += archive.set_aside(foreign)
        drop_checkpoints(self.config.state_dir / CHECKPOINTS_FOLDER, lambda _, kept: foreign(kept.unit), 0.0)
        if count:
            _log.warning(
                "moved %d logs and outputs of jobs that this database does not know to earlier/ beside them", count
            )

    def _install_signals(self) -> None:
        def stop(signum: int, frame: FrameType | None) -> None:
            # Set flags only: a signal may interrupt any code. The current cycle is completed.
            self._stop.set()
            self._wake.set()

        def reload(signum: int, frame: FrameType | None) -> None:

            self._reload.set()
            self._wake.set()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, reload)

    def _record(self, what: str) -> None:
        with log_errors():
            with self.store.transaction(self.clock.now()) as txn:
                txn.emit(EventKind.DAEMON, what=what, version=__version__, holder=self.controller.holder)
            self._log_audit_head()

    def _release(self) -> None:
        with log_errors():
            self.controller.release()

    # --------------------------------------------------------------------------------------------------- API context
    def _expected_run_time(self, job: Job) -> RunTimes | None:
        controller = self.controller
        tolerance = controller.policy.placement.neighbour_tolerance
        return JobRunTimes(controller.last_snapshot, neighbour_tolerance=tolerance).anew(job)

    def _api_context(self) -> ApiContext:
        return ApiContext(
            store=self.store,
            runner=self.runner,
            clock=self.clock,
            wake=self._wake.set,
            status=self.status,
            offers=lambda: self.controller.offers.all,
            preview=self._preview,
            run_times=lambda: self.controller.last_snapshot.run_times,
            expected_run_time=self._expected_run_time,
            planned_starts=lambda: self.controller.planned_starts,
            unprofiled=lambda: self.controller.unprofiled,
            due_times=lambda: self.controller.due_times.by_job,
            fair_share=self.controller.fair_share,
            admit=self._admit,
            accept=self._accept,
            seal=self._keys.seal,
            check_secrets=self.controller.applier.units.references.check,
            buckets=bucket_access(self.config, self.clock),
            images=image_registries(self.config, self.clock),
            seen_at=lambda: self.controller.observer.seen_at,
            telemetry=self.telemetry,
            use_history=self.use_history,
            snapshot=lambda: self.controller.last_snapshot,
            socket_path=self.config.socket_path,
            classifications=lambda names: self.controller.beliefs.of_rows(names, self.controller.lease),
            uploads_dir=self.uploads_dir,
            logs_dir=self.config.state_dir / "logs",
            outputs_dir=self.config.state_dir / OUTPUTS_FOLDER,
            checkpoints_dir=self.config.state_dir / CHECKPOINTS_FOLDER,
            readers=frozenset(self.config.api.readers),
            admins=frozenset(self.config.api.admins),
            has_exec=self.config.api.exec,
            max_upload_bytes=self.config.engine.max_workdir_mib * 2**20,
            max_user_upload_bytes=self.config.api.max_uploads_mib * 2**20,
        )

    def _preview(self, specs: Sequence[JobSpec]) -> Sequence[Mapping[str, object]]:
        return describe_preview(self.controller.preview(specs), self.controller.policy)

    def _admit(self, specs: Sequence[JobSpec]) -> None:
        refuse_images(self.providers, specs)
        refuse_gang_networks(self.providers, self.controller.offers.all, specs, self.store.live().instances)
        refuse_full_queue(self.controller.policy.caps, self.store.live().submitted, specs)

    def status(self) -> DaemonStatus:
        """Return the daemon's status. Called by API threads."""
        controller = self.controller
        return {
            "event_seq": self.store.newest_event_seq(),
            "started_at": self.started_at,
            "leader": controller.lease is not None,
            "holder": controller.holder,
            "policy": {
                "name": controller.policy.name,
                "digest": controller.policy.digest,
                "path": str(self.config.policy),
                "error": self.watch.status.error or "",
            },
            "cycle": {**asdict(self.last_cycle)},  # type: ignore[typeddict-item]
            "engine": self._engine_status(),
            "providers": {name: self._provider_status(name) for name in self.providers} | self._missing_providers(),
            "spend": self._spend_status(),
            "notes": [
                *self.notes,
                *self.watch.status.notes,
                *self._ending_commitments(),
                *self._prices_notes,
                *self._notification_notes(),
            ],
            "unaccepted_changes": list(self._unaccepted_changes),
        }

    def _engine_status(self) -> EngineStatus:
        seen, live = self.controller.last_seen, {instance.id for instance in self.store.live().instances}
        return {
            "reachable": seen.engine_reachable,
            "workers": len(seen.reachable),
            # The engine also remembers workers of terminated instances.
            "silent": len(self.controller.observer.silent & live),
            "refused": dict(seen.refused),
            "facts": self.runner.facts(),
        }

    def _provider_status(self, name: str) -> ProviderStatus:
        offers = self.controller.offers
        return {
            "ok": name not in offers.errors,
            "error": offers.errors.get(name, ""),
            "offers": len(offers.by_provider.get(name, ())),
            "priced_at": oldest_prices(offers.by_provider.get(name, ())),
            "facts": self.providers[name].facts(),
            "stopped": self._why_stopped(name),
            "without_wireguard": sum(
                each.offer.provider == name and each.lacks_gang_network for each in self.store.live().instances
            ),
        }

    def _notification_notes(self) -> list[str]:
        return [f"notifications to {each.name} are not taken: {each.trouble}" for each in self.outboxes if each.trouble]

    def _ending_commitments(self) -> list[str]:
        """Return a sentence for each commitment that ends within ``ENDING_WITHIN_S``."""
        soon_at = self.clock.now() + ENDING_WITHIN_S
        reserved = [each for each in self.controller.offers.all if each.market is Market.RESERVED]
        reserved += [each.offer for each in self.store.live().instances if each.offer.market is Market.RESERVED]
        ends = {
            (each.key, at)
            for each in reserved
            for at in (each.ends_at, *(part.ends_at for part in each.committed))
            if at is not None and at < soon_at
        }
        return [
            f"the commitment for {kind} in {zone} ({provider}) ends at {utc_text(round(at))}; on demand after that"
            for (provider, zone, kind, _), at in sorted(ends)
        ]

    def _why_stopped(self, name: str) -> str:
        now = self.clock.now()
        stops = [b for b in self.store.live().backoffs if b.provider == name and b.stops_provider and b.until_at > now]
        return f"until {utc_text(round(stops[0].until_at))}: {stops[0].error}" if stops else ""

    def _resume_changed_providers(self) -> None:
        """Try providers again whose settings have changed since they refused launches."""
        with log_errors(), self.store.transaction(self.clock.now()) as txn:
            for each in self.config.providers:
                plain = json.dumps(self.config.settings_of(each), sort_keys=True, default=str)
                key, digest = f"{PROVIDER_SETTINGS}.{each.name}", hashlib.sha256(plain.encode()).hexdigest()
                known = txn.meta(key)
                if known == digest:
                    continue
                txn.put_meta(key, digest)
                if known is not None and resume_provider(txn, each.name, self.store.live(), "configuration"):
                    _log.info("the settings of %s have changed: it is tried again", each.name)

    def _missing_providers(self) -> dict[str, ProviderStatus]:
        """Return a status for providers that are no longer configured but still have live instances."""
        living = Counter(instance.offer.provider for instance in self.store.live().instances)
        return {
            name: {
                "ok": False,
                "error": f"not configured, but {count} of its machines may be running and billed; they cannot be "
                "managed or terminated; restore the provider until they are terminated",
                "offers": 0,
                "priced_at": {},
                "facts": {},
                "stopped": "",
                "without_wireguard": 0,
            }
            for name, count in living.items()
            if name not in self.providers
        }

    def _spend_status(self) -> SpendStatus:
        spent, budgets = self.controller.last_spend, self.controller.policy.budgets
        return {
            "day_usd": spent.day_usd,
            "month_usd": spent.month_usd,
            "per_hour_limit_usd": budgets.per_hour_usd,
            "per_day_limit_usd": budgets.per_day_usd,
            "per_month_limit_usd": budgets.per_month_usd,
            "by_tag": [
                {
                    "tag": scope.name,
                    "day_usd": spent.by_scope_day_usd.get(scope, 0.0),
                    "month_usd": spent.by_scope_month_usd.get(scope, 0.0),
                    "per_day_limit_usd": budgets.for_scope(scope).per_day_usd,
                    "per_month_limit_usd": budgets.for_scope(scope).per_month_usd,
                }
                for scope in self._tags_with_budget(spent, budgets)
            ],
        }

    def _tags_with_budget(self, spent: Spend, budgets: Budgets) -> list[BudgetScope]:
        """Return the tags that the policy limits by name, and those of jobs that cost something this month."""
        named = {tag_scope(tag) for tag in budgets.per_tag if "=" in tag}
        return sorted(named | {scope for scope in spent.by_scope_month_usd if scope.kind == "tag"})


def new_defaults_notes(store: Store, config: Config) -> list[str]:
    """Return, once per database of an earlier version, a sentence for each default that changed under its user."""
    if store.get_meta(DEFAULTS) == DEFAULTS_SINCE:
        return []
    served_before = store.get_meta(OWNER) is not None
    with log_errors():  # the cycles report a full disk
        store.set_meta(DEFAULTS, DEFAULTS_SINCE)
    if not served_before:
        return []
    note, own = new_defaults_note(config.policy), user_name(os.geteuid())
    notes = [note] if note is not None else []
    if os.geteuid() != 0 and own not in config.api.admins:
        notes.append(
            f"since {DEFAULTS_SINCE} the daemon's own user ({own}) is no admin by itself; name it in api.admins"
        )
    if config.engine.isolation is None and any(each.type not in ("local", "mock") for each in config.providers):
        notes.append(
            f"since {DEFAULTS_SINCE} rented machines refuse jobs that they cannot isolate; to run these all the same,"
            " set engine.isolation: best_effort"
        )
    return notes


def _limited(config: Config, limits: AcceptedLimits) -> Config:
    engine = replace(config.engine, isolation=limits.isolation)
    return replace(config, engine=engine, api=replace(config.api, admins=limits.admins, readers=limits.readers))


def record_owner(store: Store, owner: str) -> None:
    """Record the owner tag that instances carry from now on.

    Raises ConfigError if live instances carry another tag: listings would not contain them, so they would count as
    lost, their jobs would run twice, and they would keep costing money.
    """
    before, living = store.get_meta(OWNER), store.live().instances
    if before is not None and before != owner and living:
        raise ConfigError(
            f"owner is {owner!r}, but {_machine_names(living)} of this database carry the tag {before!r}; "
            "restore that until 'hcloud instances' shows none",
            where="owner",
        )
    if before != owner:
        with log_errors():  # the cycles report a full disk
            store.set_meta(OWNER, owner)


def record_protocol(store: Store, *, abandon: bool) -> None:
    """Record the protocol that agents speak from now on.

    Raises ConfigError if units run under agents of another one, which cannot be reached any more. With ``abandon`` they
    are given up: their instances count as unreachable, and their jobs are retried elsewhere.
    """
    if store.get_meta(AGENTS) == str(PROTOCOL):
        return
    holding = [job.id for job in store.live().jobs if job.attempt is not None and not job.attempt.over]
    if holding and not abandon:
        more = f" and {len(holding) - 3} more jobs" if len(holding) > 3 else ""
        raise ConfigError(
            f"{', '.join(holding[:3])}{more} run under agents of an earlier HCloud, which this one cannot reach; let "
            "them end under that version, or run 'hcloud daemon --abandon', which retries them elsewhere",
            where="engine",
        )
    with log_errors():  # the cycles report a full disk
        store.set_meta(AGENTS, str(PROTOCOL))


def _machine_names(living: Sequence[Instance]) -> str:
    names = ", ".join(each.id for each in living[:3])
    return f"{names} and {len(living) - 3} more machines" if len(living) > 3 else names


@contextmanager
def close_on_error(store: Store) -> Iterator[None]:
    """Close the store if the block raises HCloud's own errors."""
    try:
        yield
    except HCloudError:
        store.close()
        raise


@contextmanager
def log_errors() -> Iterator[None]:
    """Log HCloud's own errors and continue; for records that may be lost without harm."""
    try:
        yield
    except HCloudError as error:
        _log.warning("%s", error)


def run_daemon(config: Config, notes: Sequence[str] = (), *, abandon: bool = False, gateway: Path | None = None) -> int:
    """Run the daemon until it is asked to stop; return the exit code."""
    logging.basicConfig(level=config.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    for chatty in ("alembic", "apscheduler"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return Daemon(config, notes=notes, abandon=abandon, gateway=gateway).run()
