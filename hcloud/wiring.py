"""Putting a deployment together from its configuration; daemon and simulator differ only in what they hand in."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np

from hcloud.apply import Applier
from hcloud.apply.unit_index import UnitIndex
from hcloud.catalog import AwsPrices, CatalogFiles, GcpPrices, Limits, PriceSource, Refreshed, refresh, sources
from hcloud.classifier.library import Library
from hcloud.config import Config, EngineSettings, ProviderSettings, load_library, package_data, resolve_secret
from hcloud.controller import Controller
from hcloud.core.clock import Clock
from hcloud.core.errors import ConfigError
from hcloud.fake_runner.runner import FakeRunner
from hcloud.observe.log_archive import LogArchive
from hcloud.observe.observer import Observer
from hcloud.planner import make_plan
from hcloud.provider import MachineSource, Provider, ProviderFactory, Runner, WorkerBootstrap
from hcloud.quarantine.planning import Planner
from hcloud.spec.policy import Policy
from hcloud.spec.validation import nearest
from hcloud.store import Store


def build_providers(config: Config, clock: Clock) -> dict[str, Provider]:
    """Build every configured provider from its entry point.

    Raises:
        ConfigError: an unknown type, settings that the provider refuses, or a state directory that cannot be made.
    """
    known = {point.name: point for point in entry_points(group="hcloud.providers")}
    built: dict[str, Provider] = {}
    for wanted in config.providers:
        point = known.get(wanted.type)
        if point is None:
            hint = nearest(wanted.type, known)
            where = f"providers.{wanted.name}.type"
            raise ConfigError(f"there is no provider type {wanted.type!r}; {hint}", where=where)
        state_dir = config.state_dir / "providers" / wanted.name
        _make_directory(state_dir)
        built[wanted.name] = _build(point.load(), wanted, clock, config, state_dir)
    return built


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{error.filename or path} cannot be made: {error.strerror}", where="state_dir") from error


def load_mock_cloud() -> None:
    """Load the modules of the mock cloud, so that they are there before anything is begun that may be interrupted: an
    interrupt that comes within an import can get lost."""
    for point in entry_points(group="hcloud.providers", name="mock"):
        point.load()


def _build(
    factory: ProviderFactory, wanted: ProviderSettings, clock: Clock, config: Config, state_dir: Path
) -> Provider:
    settings = config.settings_of(wanted)
    if settings is not wanted.settings:  # it takes the catalogue's prices, which may never have been written yet
        ensure_price_files(config)
    return factory(wanted.name, settings, clock, config.owner, str(state_dir))


def ensure_price_files(config: Config) -> None:
    """Write the prices that are known for providers to read, where that has not been done, or newer ones are known.

    Without the lock: a refresh that is under way must not keep a daemon from starting, and files are replaced whole.
    """
    files = CatalogFiles(config.catalog_dir)
    if not files.price_files_are_current():
        files.write_price_files()


def price_sources(config: Config, clock: Clock) -> tuple[PriceSource, ...]:
    """Return the price lists that the configuration names; none where it names none."""
    settings = config.catalog
    return sources(AwsPrices(**asdict(settings.aws)), GcpPrices(**asdict(settings.gcp)), resolve_secret, clock)


def refresh_prices(config: Config, clock: Clock, *, accept: bool = False, dry_run: bool = False) -> Refreshed:
    """Read prices anew from the price lists the configuration names; see :func:`hcloud.catalog.refresh`."""
    settings = config.catalog
    return refresh(
        CatalogFiles(config.catalog_dir),
        price_sources(config, clock),
        clock,
        limits=Limits(price_factor=settings.price_factor_max, spot_factor=settings.spot_factor_max),
        history_days=settings.spot_history_days,
        accept=accept,
        dry_run=dry_run,
    )


def build_runner(config: Config, providers: Mapping[str, Provider], clock: Clock) -> Runner:
    """Build the engine's client: Dask over mutual TLS, or (``engine.runner: fake``) pretended work.

    Raises ConfigError for fake work on real machines.
    """
    if config.engine.runner == "fake":
        return _fake_runner(providers, clock)
    from hcloud.engine.runner import DaskRunner

    return DaskRunner(config.engine.listen, config.engine.tls_dir, clock)


def _fake_runner(providers: Mapping[str, Provider], clock: Clock) -> Runner:
    sources = [p for p in providers.values() if isinstance(p, MachineSource)]
    if len(sources) < len(providers):
        real = sorted(name for name, p in providers.items() if not isinstance(p, MachineSource))
        raise ConfigError(
            f"runner: fake works with simulated machines only, not with {real[0]!r}", where="engine.runner"
        )
    return FakeRunner(sources, clock)


def build_controller(
    config: Config,
    store: Store,
    providers: Mapping[str, Provider],
    runner: Runner,
    clock: Clock,
    policy: Policy,
    *,
    rng: np.random.Generator | None = None,
    holder: str = "",
    library: Library | None = None,
    planner: Planner = make_plan,
    logs: LogArchive | None = None,
) -> Controller:
    """Put the cycle together on the given ports.

    Without ``rng`` a fresh one, without ``holder`` this host's name, without ``library`` the shipped and imported one,
    without ``planner`` our own, without ``logs`` an archive in the state directory.

    Raises ConfigError for a profile in the library, shipped or imported, that cannot be read.
    """
    if library is None:
        library = load_library([package_data.path("profiles"), config.state_dir / "profiles"])
    logs = logs or LogArchive(folder=config.state_dir / "logs", max_mib=config.engine.max_log_mib)
    observer = _observer(config, store, providers, runner, clock, logs)
    return Controller(
        store=store,
        providers=providers,
        runner=runner,
        clock=clock,
        policy=policy,
        observer=observer,
        applier=_applier(config, store, providers, runner, clock, observer.unit_index),
        rng=np.random.default_rng() if rng is None else rng,
        library=library,
        planner=planner,
        # The same again after a restart, so that a killed daemon's successor leads at once instead of waiting for the
        # lease to run out. The lock of the socket in this directory keeps two of a name apart; two daemons with one
        # state directory may have a run_dir each.
        holder=holder or f"{socket.gethostname()}:{config.run_dir}",
    )


def _observer(
    config: Config, store: Store, providers: Mapping[str, Provider], runner: Runner, clock: Clock, logs: LogArchive
) -> Observer:
    logs.folder.mkdir(parents=True, exist_ok=True)
    return Observer(
        store=store,
        providers=providers,
        runner=runner,
        clock=clock,
        owner=config.owner,
        logs=logs,
        poll_s={provider.name: provider.poll_s for provider in config.providers},
    )


def _applier(
    config: Config,
    store: Store,
    providers: Mapping[str, Provider],
    runner: Runner,
    clock: Clock,
    unit_index: UnitIndex,
) -> Applier:
    return Applier(
        store,
        providers,
        runner,
        clock,
        owner=config.owner,
        bootstrap=_worker_bootstrap(config.engine),
        uploads_dir=config.state_dir / "uploads",
        unit_index=unit_index,
    )


def _worker_bootstrap(engine: EngineSettings) -> WorkerBootstrap:
    return WorkerBootstrap(
        scheduler_address=engine.listen,
        tls_dir=str(engine.tls_dir),
        isolation=engine.isolation,
        settings={
            "max_log_mib": str(engine.max_log_mib),
            "max_workdir_mib": str(engine.max_workdir_mib),
            "unit_uid_base": str(engine.unit_user_base),
            "worker_ports": engine.worker_ports,
        },
    )
