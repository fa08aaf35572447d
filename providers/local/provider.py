"""Provider port for slices of this host."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import cast

from hcloud.core.clock import Clock
from hcloud.core.errors import ConfigError, InsufficientCapacity, LaunchRejected, OutcomeUnknown, ProviderUnavailable
from hcloud.core.model import InstanceType, Market, Offer, Resources
from hcloud.provider import CloudInstance, CloudState, LaunchRequest, Listing
from providers.local.cgroups import CgroupSetup, SliceLimits, find_cgroups
from providers.local.host import has_disk_for, isolation_facts, measure_host
from providers.local.settings import LocalSettings, LocalType, parse_settings
from providers.local.slices import SliceDirectory, SliceRecord, boot_id, sync_directory, write_json
from providers.local.supervisor import ALREADY_SUPERVISED, worker_environment

REGION = "local"
ZONE = "local-a"
_USERS_PER_SLICE = 64
_SUPERVISOR_START_TIMEOUT_S = 30.0


class LocalProvider:
    """Slices of this host. All state is in files below ``state_dir``, shared by objects and processes."""

    def __init__(self, name: str, settings: Mapping[str, object], clock: object, owner: str, state_dir: str) -> None:
        self.name = name
        self._clock = cast(Clock, clock)
        self._owner = owner
        self._settings: LocalSettings = parse_settings(name, settings)
        self._instances_dir = Path(state_dir).absolute() / "instances"
        try:
            self._instances_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot create {self._instances_dir}: {error.strerror}", where=f"providers: {name}"
            ) from error
        self._host = measure_host(self._settings, self._instances_dir)
        self._cgroups = (
            find_cgroups(self._settings.cgroup_parent)
            if self._settings.cgroups
            else CgroupSetup(unavailable_reason="disabled by setting")
        )
        self._boot_id = boot_id()
        self._facts: Mapping[str, str] = {}

    @staticmethod
    def check_settings(name: str, settings: Mapping[str, object]) -> None:
        """Raise ConfigError as the constructor would, without creating anything."""
        parse_settings(name, settings)

    # ---------------------------------------------------------------------------------------------------------- offers
    def offers(self) -> tuple[Offer, ...]:
        """Return every size that fits this host, in every market, with how many more of it fit now."""
        live = self._live_records()
        now = self._clock.now()
        found = [
            self._offer(type_name, size, market, live, now)
            for type_name, size in self._settings.types.items()
            for market in self._markets(type_name)
            if self._host.room_for(size.vcpus, size.memory_mib, ()) > 0 and not self._why_no_gpus(size)
        ]
        return tuple(sorted(found, key=lambda each: each.key))

    def _why_no_gpus(self, size: LocalType) -> str:
        """Return why this host has not the GPUs of a size; empty: it has, or the size has none."""
        wanted = 0 if size.gpus is None else size.gpus.count
        devices = Path(self._settings.gpu_root) / "dev"
        there = next(number for number in itertools.count() if not (devices / f"nvidia{number}").exists())
        return "" if wanted <= there else f"its driver shows {there} of {wanted} GPUs"

    def _markets(self, type_name: str) -> tuple[Market, ...]:
        reserved = (Market.RESERVED,) if self._settings.reserved.get(type_name) else ()
        return (*self._settings.markets, *reserved)

    def _offer(self, type_name: str, size: LocalType, market: Market, live: Sequence[SliceRecord], now: float) -> Offer:
        return Offer(
            provider=self.name,
            region=REGION,
            zone=ZONE,
            instance_type=InstanceType(
                provider=self.name,
                name=type_name,
                capacity=Resources(
                    vcpus=size.vcpus,
                    memory_mib=size.memory_mib,
                    disk_gib=min(size.disk_gib, self._host.disk_gib),
                    gpus=size.gpus,
                ),
                boot_delay_s=self._settings.boot_delay_s,
                labels={**self._settings.labels, **size.labels},
            ),
            market=market,
            price_usd_per_h=self._price(size, market),
            priced_at=now,
            available=self._room_for(type_name, market, live),
            pool=f"{self.name}/host",
            pool_free=self._free(live),
        )

    def _free(self, live: Sequence[SliceRecord]) -> Resources:
        # Disk is not divided among slices, so any amount counts as free.
        vcpus, memory_mib = self._host.free(live)
        return Resources(vcpus=max(0.0, vcpus), memory_mib=max(0, memory_mib), disk_gib=1e9)

    def _price(self, size: LocalType, market: Market) -> float:
        price_factors = {
            Market.ON_DEMAND: 1.0,
            Market.SPOT: self._settings.spot_price_fraction,
            Market.RESERVED: self._settings.reserved_price_fraction,
        }
        return round(size.nominal_usd_per_h * price_factors[market], 6)

    def _room_for(self, type_name: str, market: Market, live: Sequence[SliceRecord]) -> int:
        size = self._settings.types[type_name]
        room = self._host.room_for(size.vcpus, size.memory_mib, live)
        # A full disk is temporary; it does not limit what this host can run in general.
        room = room if has_disk_for(size.disk_gib, self._instances_dir) else 0
        if size.gpus is not None:  # units count GPUs from 0, and would meet on the same ones
            room = min(room, 0 if any(map(self._has_gpus, live)) else 1)
        if market is not Market.RESERVED:
            return room
        in_use = sum(each.market == market.value and each.type_name == type_name for each in live)
        return max(0, min(room, self._settings.reserved.get(type_name, 0) - in_use))

    def _has_gpus(self, record: SliceRecord) -> bool:
        size = self._settings.types.get(record.type_name)
        return size is not None and size.gpus is not None

    # ---------------------------------------------------------------------------------------------------------- launch
    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Create the slice of this token, finish creating it, or return it as it is.

        A kill -9 at any point leaves nothing, or a directory that the same token completes.
        """
        directory = self._directory_of(request.owner, request.token)
        with _as_unavailable("cannot create a slice"):
            with self._locked():
                record = directory.record()
                if record is None:
                    record = self._create_directory(directory, request)
                if not self._was_started(directory, record):
                    self._start(directory, record)
            return self._view(directory, record)

    def _directory_of(self, owner: str, token: str) -> SliceDirectory:
        digest = hashlib.sha256(f"{owner}\0{token}".encode()).hexdigest()[:20]
        return SliceDirectory(self._instances_dir / f"local-{digest}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # One launch at a time, across threads and processes, checks the free capacity and takes its part.
        handle = os.open(self._instances_dir.parent / "launch.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _create_directory(self, directory: SliceDirectory, request: LaunchRequest) -> SliceRecord:
        """Write the directory under a temporary name, then rename it: it exists completely or not at all."""
        record = self._new_record(directory.path.name, request)
        draft = SliceDirectory(self._instances_dir / f".new-{directory.path.name}")
        shutil.rmtree(draft.path, ignore_errors=True)
        draft.machine.mkdir(parents=True)
        # Units run as other users: they may traverse these directories, not list them.
        draft.path.chmod(0o711)
        draft.machine.chmod(0o711)
        draft.write_record(record)
        if request.bootstrap is not None:
            write_json(draft.bootstrap_file, self._bootstrap(directory, record, request))
        os.rename(draft.path, directory.path)
        sync_directory(self._instances_dir)
        return record

    def _new_record(self, provider_id: str, request: LaunchRequest) -> SliceRecord:
        offer, market = request.offer, request.offer.market
        live = self._live_records()
        size = self._size_with_room(offer, live)
        groups = self._cgroups.groups(provider_id)
        argv = self._worker_argv(provider_id) if request.bootstrap is not None else ()
        return SliceRecord(
            provider_id=provider_id,
            instance_id=request.instance_id,
            token=request.token,
            owner=request.owner,
            type_name=offer.instance_type.name,
            zone=offer.zone,
            market=market.value,
            price_usd_per_h=self._price(size, market),
            vcpus=size.vcpus,
            memory_mib=size.memory_mib,
            launched_at=self._clock.now(),
            expires_at=request.expires_at,
            boot_id=self._boot_id,
            cpus=self._host.pick_cpus(size.vcpus, live) if self._settings.pinning else (),
            memory_limit_mib=size.memory_mib + self._settings.worker_memory_mib,
            pids_max=self._settings.pids_max,
            place=next(number for number in itertools.count() if number not in {each.place for each in live}),
            cgroup_paths=groups.paths,
            cgroup_procs_files=groups.procs_files,
            worker_argv=argv,
            end_argv=(*argv, "--end") if argv and not self._settings.worker_command else (),
            tags=dict(request.tags),
        )

    def _size_with_room(self, offer: Offer, live: Sequence[SliceRecord]) -> LocalType:
        """Return the size of an offer. Raises LaunchRejected (never offered), InsufficientCapacity (no room now)."""
        name, market = offer.instance_type.name, offer.market
        size = self._settings.types.get(name)
        if size is None or market not in self._markets(name) or offer.zone != ZONE:
            known = sorted(self._settings.types)
            raise LaunchRejected(f"{self.name} has no {market.value} {name} in {offer.zone}; its types: {known}")
        if why := self._why_no_gpus(size):
            raise LaunchRejected(f"{self.name} cannot make a {name} here: {why}")
        if not self._room_for(name, market, live):
            free_vcpus, free_memory_mib = self._host.free(live)
            raise InsufficientCapacity(
                f"no room for {market.value} {name} ({size.vcpus:g} vCPU, {size.memory_mib} MiB): "
                f"{free_vcpus:g} vCPU and {free_memory_mib} MiB are free on this host"
            )
        return size

    def _worker_argv(self, provider_id: str) -> tuple[str, ...]:
        command = self._settings.worker_command or (sys.executable, "-m", "hcloud.agent", "worker")
        return (*command, "--bootstrap", str(self._instances_dir / provider_id / "bootstrap.json"))

    def _bootstrap(self, directory: SliceDirectory, record: SliceRecord, request: LaunchRequest) -> dict[str, object]:
        bootstrap = request.bootstrap
        assert bootstrap is not None
        capacity = Resources(
            vcpus=record.vcpus, memory_mib=record.memory_mib, disk_gib=self._settings.types[record.type_name].disk_gib
        )
        return {
            "instance_id": record.instance_id,
            "token": record.token,
            "owner": record.owner,
            **bootstrap.at(),
            "authority_pem": bootstrap.authority_pem,
            "enrolment_secret": bootstrap.enrolment_secret,
            "state_dir": str(directory.machine),
            "capacity": asdict(capacity),
            "cpus": list(record.cpus) or None,
            "cgroup": {"version": self._cgroups.version, "paths": record.cgroup_paths} if record.cgroup_paths else None,
            "expires_at": record.expires_at,
            "lease_s": bootstrap.lease_s,
            "isolation": bootstrap.isolation or "best_effort",
            "unit_uid_base": int(bootstrap.settings.get("unit_uid_base", 61000)) + record.place * _USERS_PER_SLICE,
            "settings": {
                **bootstrap.settings,
                "preempt_file": str(directory.notice_file),
                "gpu_root": self._settings.gpu_root,
            },
        }

    def _was_started(self, directory: SliceDirectory, record: SliceRecord) -> bool:
        """Return whether the slice was started before, or can never be."""
        over = directory.stopping() or directory.ended() or record.boot_id != self._boot_id
        return bool(over) or directory.supervisor() is not None

    def _start(self, directory: SliceDirectory, record: SliceRecord) -> None:
        try:
            self._cgroups.create(record.provider_id, _limits(record))
        except OSError as error:  # the directory exists: the same token completes it
            raise OutcomeUnknown(f"cannot create control groups: {error}") from error
        command = [sys.executable, "-m", "providers.local.supervisor", str(directory.path)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=worker_environment(directory.path),
                timeout=_SUPERVISOR_START_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OutcomeUnknown(f"the supervisor of {record.instance_id} did not respond: {error}") from error
        if done.returncode not in (0, ALREADY_SUPERVISED):
            text = done.stderr.decode(errors="replace").strip().splitlines()
            why = text[-1] if text else f"exit code {done.returncode}, see {directory.path}/supervisor.log"
            raise OutcomeUnknown(f"the supervisor of {record.instance_id} did not start: {why}")

    # --------------------------------------------------------------------------------------------------------- listing
    def instances(self, owner: str) -> Listing:
        """List the slices of ``owner``. One with a dead supervisor is powered off before it counts as ended.

        A slice without a supervisor is left out: what is listed counts as launched, and only its token starts it.
        """
        with _as_unavailable("cannot list slices"):
            found = [self._view(directory, record) for directory, record in self._all() if record.owner == owner]
        started = [each for each in found if each.state is not CloudState.PENDING]
        return Listing(instances=tuple(sorted(started, key=lambda each: each.provider_id)))

    def _all(self) -> list[tuple[SliceDirectory, SliceRecord]]:
        with _as_unavailable("cannot list slices"):
            names = sorted(os.listdir(self._instances_dir))
        found = []
        for name in names:
            if not name.startswith("local-"):
                continue
            directory = SliceDirectory(self._instances_dir / name)
            record = directory.record()
            if record is not None and not self._delete_if_old(directory):
                found.append((directory, record))
        return found

    def _delete_if_old(self, directory: SliceDirectory) -> bool:
        """Delete the record of a slice that ended long ago; return whether it was deleted."""
        ended = directory.ended()
        if ended is None or self._clock.now() - float(ended["at"]) < self._settings.keep_ended_s:
            return False
        shutil.rmtree(directory.path, ignore_errors=True)
        return True

    def _live_records(self) -> list[SliceRecord]:
        """Return slices of any owner that use a part of the host."""
        return [
            record for directory, record in self._all() if directory.ended() is None and record.boot_id == self._boot_id
        ]

    def _view(self, directory: SliceDirectory, record: SliceRecord) -> CloudInstance:
        state = self._state(directory, record)
        ended = directory.ended() if state is CloudState.TERMINATED else None
        return CloudInstance(
            provider_id=record.provider_id,
            instance_id=record.instance_id,
            token=record.token,
            owner=record.owner,
            state=state,
            zone=record.zone,
            launched_at=record.launched_at,
            price_usd_per_h=record.price_usd_per_h,
            terminated_at=float(ended["at"]) if ended else None,
            preempt_at=directory.preempt_at(),
            expires_at=directory.expires_at(record),
            detail=str(ended["reason"]) if ended else "",
        )

    def _state(self, directory: SliceDirectory, record: SliceRecord) -> CloudState:
        # Read the supervisor first: it may be writing the end right now, and the other order would report it as died.
        supervisor = directory.supervisor()
        alive = supervisor is not None and supervisor.alive()
        if directory.ended() is not None:
            return CloudState.TERMINATED
        stopping = directory.stopping()
        if stopping is not None:
            return self._ended_or_stopping(directory, reason=str(stopping["reason"]), at=float(stopping["at"]))
        if alive:
            return CloudState.RUNNING
        if record.boot_id == self._boot_id and supervisor is None and self._clock.now() < record.expires_at:
            return CloudState.PENDING
        last_alive_at = max(record.launched_at, directory.alive_at() or 0.0)
        return self._ended_or_stopping(
            directory, reason=self._cause_of_death(record, supervisor is None), at=last_alive_at
        )

    def _cause_of_death(self, record: SliceRecord, never_started: bool) -> str:
        if record.boot_id != self._boot_id:
            return "the host was restarted"
        return "expired before it was started" if never_started else "its supervisor died"

    def _ended_or_stopping(self, directory: SliceDirectory, *, reason: str, at: float) -> CloudState:
        return CloudState.TERMINATED if directory.power_off(reason=reason, at=at) else CloudState.STOPPING

    # ------------------------------------------------------------------------------------------------------------- end
    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Power off slices of our owner: kill every process, remove control groups and work files."""
        ours = [directory for directory, record in self._all() if record.owner == self._owner]
        to_stop = [each for each in ours if each.path.name in provider_ids and each.ended() is None]
        now = self._clock.now()
        if to_stop:
            with _as_unavailable("cannot terminate slices"), ThreadPoolExecutor(len(to_stop)) as pool:
                list(pool.map(lambda each: each.power_off(reason="terminated on request", at=now), to_stop))

    def why_no_images(self) -> str:
        """Return which of root, podman and bubblewrap this host lacks for container images; empty if none."""
        if os.geteuid() != 0:
            return "the daemon does not run as root"
        return next((f"{name} is not installed" for name in ("podman", "bwrap") if shutil.which(name) is None), "")

    def why_no_gang_network(self) -> str:
        """Return which of root and nsenter this host lacks; empty if none."""
        if os.geteuid() != 0:
            return "the daemon does not run as root"
        return "" if shutil.which("nsenter") is not None else "nsenter is not installed"

    def facts(self) -> Mapping[str, str]:
        """Return which isolation is in force and what this host lacks; computed once, by trying."""
        if not self._facts:
            self._facts = {
                "host": f"{self._host.vcpus:g} vCPU and {self._host.memory_mib} MiB to share, prices are nominal",
                **isolation_facts(self._cgroups, self._host, pinning=self._settings.pinning),
                **{
                    name: f"not offered: {why}"
                    for name, size in self._settings.types.items()
                    if (why := self._why_no_gpus(size))
                },
            }
        return self._facts


def _limits(record: SliceRecord) -> SliceLimits:
    return SliceLimits(vcpus=record.vcpus, memory_mib=record.memory_limit_mib, pids=record.pids_max, cpus=record.cpus)


@contextlib.contextmanager
def _as_unavailable(what: str) -> Iterator[None]:
    """Raise OSErrors as ProviderUnavailable: nothing was done, and nothing may be concluded."""
    try:
        yield
    except OSError as error:
        raise ProviderUnavailable(f"{what}: {error.strerror or error} ({error.filename})") from error
