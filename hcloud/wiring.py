"""Assemble a deployment from its configuration; daemon and simulator differ only in the arguments they pass."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hcloud.apply import Applier
from hcloud.apply.kept_checkpoints import CHECKPOINTS_FOLDER
from hcloud.apply.unit_index import UnitIndex
from hcloud.buckets import BucketAccess, BucketGrant, InputPreparer
from hcloud.catalog import AwsPrices, CatalogFiles, GcpPrices, Limits, PriceSource, Refreshed, refresh, sources
from hcloud.classifier.library import Library
from hcloud.config import (
    Config,
    EngineSettings,
    NotificationTarget,
    ProviderSettings,
    load_library,
    load_plugins,
    package_data,
    resolve_secret,
)
from hcloud.controller import Controller
from hcloud.core.bucket_urls import parse_bucket_url
from hcloud.core.clock import Clock
from hcloud.core.errors import ConfigError, ProviderUnavailable
from hcloud.fake_runner.runner import FakeRunner
from hcloud.image_registries import ImageRegistries
from hcloud.notifications import Outbox, Sender
from hcloud.observe.bucket_outputs import BucketOutputs
from hcloud.observe.checkpoint_archive import CheckpointArchive
from hcloud.observe.instances import InstanceObserver
from hcloud.observe.log_archive import LogArchive
from hcloud.observe.observer import Observer
from hcloud.observe.output_archive import OUTPUTS_FOLDER, OutputArchive
from hcloud.observe.units import UnitObserver
from hcloud.planner import make_plan
from hcloud.provider import (
    ArchiveSource,
    BootstrapOf,
    BucketSender,
    MachineSource,
    Provider,
    ProviderFactory,
    Runner,
    WorkerBootstrap,
)
from hcloud.quarantine import Planner
from hcloud.secret_keys import SecretKeys
from hcloud.secret_references import GCP_ENDPOINT, AwsSecretManager, GcpSecretManager, SecretReferences
from hcloud.spec.policy import Policy
from hcloud.spec.validation import nearest
from hcloud.store import Store

if TYPE_CHECKING:
    from hcloud.engine.gateway_process import GatewayProcess


def build_providers(config: Config, clock: Clock) -> dict[str, Provider]:
    """Return every configured provider by name, built from its entry point.

    Raises ConfigError for an unknown type, refused settings, or a state directory that cannot be created.
    """
    known = {point.name: point for point in entry_points(group="hcloud.providers")}
    built: dict[str, Provider] = {}
    for settings in config.providers:
        point = known.get(settings.type)
        if point is None:
            hint = nearest(settings.type, known)
            where = f"providers.{settings.name}.type"
            raise ConfigError(f"there is no provider type {settings.type!r}; {hint}", where=where)
        state_dir = config.state_dir / "providers" / settings.name
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            path = error.filename or state_dir
            raise ConfigError(f"{path} cannot be created: {error.strerror}", where="state_dir") from error
        built[settings.name] = _build(point.load(), settings, clock, config, state_dir)
    return built


def _build(
    factory: ProviderFactory, provider: ProviderSettings, clock: Clock, config: Config, state_dir: Path
) -> Provider:
    settings = config.settings_of(provider)
    if settings is not provider.settings:  # they name the catalogue's price files, which may not be written yet
        ensure_price_files(config)
    return factory(provider.name, settings, clock, config.owner, str(state_dir))


def ensure_price_files(config: Config) -> None:
    """Write the price files that providers read, unless they are current."""
    # No lock: a refresh in progress must not keep a daemon from starting, and files are replaced atomically.
    files = CatalogFiles(config.catalog_dir)
    if not files.price_files_are_current():
        files.write_price_files()


def build_sender(target: NotificationTarget) -> Sender:
    """Return what sends the messages of a target. Raises ConfigError: its address or key cannot be read."""
    url = target.url
    if url.startswith(("env:", "file:")):
        url = resolve_secret(url)
        if not url.startswith(("https://", "http://")):
            raise ConfigError("must contain an address such as https://hooks.example.com/...", where=target.url)
    key = resolve_secret(target.key) if target.key is not None else ""
    return Sender(url=url, is_slack=target.form == "slack", key=key)


def build_outboxes(config: Config, store: Store, clock: Clock, leads: Callable[[], bool]) -> tuple[Outbox, ...]:
    """Return the outbox of each target of notifications. Raises ConfigError."""
    return tuple(
        Outbox(
            store=store,
            clock=clock,
            owner=config.owner,
            name=target.name,
            send=build_sender(target).send,
            kinds=target.events,
            users=target.users,
            leads=leads,
        )
        for target in config.notifications
    )


def price_sources(config: Config, clock: Clock) -> tuple[PriceSource, ...]:
    """Return the price lists that the configuration names, or else those of the regions of its EC2 providers."""
    settings = config.catalog
    aws = AwsPrices(**asdict(settings.aws))
    if not aws.regions:  # running EC2 providers read their spot prices themselves
        aws = replace(aws, regions=config.default_price_regions(), spot=False)
    return sources(aws, GcpPrices(**asdict(settings.gcp)), resolve_secret, clock)


def refresh_prices(config: Config, clock: Clock, *, accept: bool = False, dry_run: bool = False) -> Refreshed:
    """Read prices again from the configured price lists; see :func:`hcloud.catalog.refresh`."""
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


def build_runner(
    config: Config, providers: Mapping[str, Provider], clock: Clock, gateway: Path | None = None
) -> Runner:
    """Return the gateway's client, or simulated work (``engine.programs: simulated``).

    ``gateway``: the Unix socket of one that runs on its own. Raises ConfigError for simulated work on real machines.
    """
    if config.engine.programs == "simulated":
        return _fake_runner(providers, clock)
    from hcloud.engine.runner import LEAD_S, GatewayRunner
    from hcloud.engine.tls import launch_key

    # A standby's gateway must not take over the agents between two cycles.
    settings = {"lead_s": max(LEAD_S, 3 * config.cycle_interval_s)}
    return GatewayRunner(gateway or config.gateway_socket, launch_key(config.engine.tls_dir), clock, settings)


def build_gateway(config: Config) -> GatewayProcess | None:
    """Return the gateway that the daemon starts; None where no programs run."""
    if config.engine.programs == "simulated":
        return None
    from hcloud.engine.gateway_process import GatewayProcess, GatewaySettings

    return GatewayProcess(
        GatewaySettings(
            listen=config.engine.listen,
            enrolment_listen=config.engine.enrolment_listen,
            socket=config.gateway_socket,
            keys=config.engine.tls_dir,
            archives=config.state_dir / "agents" if _rents_machines(config) else None,
            translated=config.engine.translated_addresses,
        )
    )


def _rents_machines(config: Config) -> bool:
    """Return whether a provider's machines need the agent's archive; those of this host have the program."""
    return any(provider.type not in ("local", "mock") for provider in config.providers)


def _fake_runner(providers: Mapping[str, Provider], clock: Clock) -> Runner:
    sources = [p for p in providers.values() if isinstance(p, MachineSource)]
    if len(sources) < len(providers):
        real = sorted(name for name, p in providers.items() if not isinstance(p, MachineSource))
        text = f"simulated work needs simulated machines; provider {real[0]!r} has real ones"
        raise ConfigError(text, where="engine.programs")
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
    """Return a controller on the given ports.

    Defaults: a random ``rng``; as ``holder`` the host and run directory; the shipped and imported ``library``; the
    product's ``planner``; ``logs`` and outputs in the state directory. Raises ConfigError for a profile that cannot
    be read, or a rule of an installed package that cannot be used.
    """
    load_plugins()
    if library is None:
        library = load_library([package_data.path("profiles"), config.state_dir / "profiles"])
    outputs = None if logs is not None else _output_archive(config, runner, clock)
    logs = logs or LogArchive(folder=config.state_dir / "logs", max_mib=config.engine.max_log_mib)
    observer, keys = _observer(config, store, providers, runner, clock, logs, outputs), secret_keys(config)
    return Controller(
        store=store,
        providers=providers,
        runner=runner,
        clock=clock,
        policy=policy,
        observer=observer,
        applier=_applier(config, store, providers, runner, clock, observer.unit_index, keys),
        keys_version=keys.version,
        rng=np.random.default_rng() if rng is None else rng,
        library=library,
        planner=planner,
        # The same after a restart, so that the successor of a killed daemon leads at once instead of waiting for the
        # lease to expire. Two daemons on one state directory may have a run_dir each; the socket's lock keeps two
        # daemons from sharing one.
        holder=holder or f"{socket.gethostname()}:{config.run_dir}",
    )


def _output_archive(config: Config, runner: Runner, clock: Clock) -> OutputArchive:
    folder = config.state_dir / OUTPUTS_FOLDER
    return OutputArchive(
        folder=folder,
        read=runner.read_outputs,
        clock=clock,
        max_mib=config.engine.max_outputs_mib,
        max_user_mib=config.engine.max_user_outputs_mib,
        buckets=BucketOutputs(folder, runner, bucket_access(config, clock), clock)
        if isinstance(runner, BucketSender)
        else None,
    )


def _checkpoint_archive(config: Config, runner: Runner, clock: Clock) -> CheckpointArchive:
    return CheckpointArchive(
        folder=config.state_dir / CHECKPOINTS_FOLDER,
        read=runner.read_checkpoint,
        clock=clock,
        max_mib=config.engine.max_outputs_mib,
        max_user_mib=config.engine.max_user_outputs_mib,
    )


def _observer(
    config: Config,
    store: Store,
    providers: Mapping[str, Provider],
    runner: Runner,
    clock: Clock,
    logs: LogArchive,
    outputs: OutputArchive | None,
) -> Observer:
    logs.folder.mkdir(parents=True, exist_ok=True)
    unit_index = UnitIndex()
    instances = InstanceObserver(
        store=store,
        clock=clock,
        providers=providers,
        owner=config.owner,
        poll_s={provider.name: provider.poll_s for provider in config.providers},
        unit_index=unit_index,
    )
    checkpoints = None if outputs is None else _checkpoint_archive(config, runner, clock)
    units = UnitObserver(runner=runner, logs=logs, unit_index=unit_index, outputs=outputs, checkpoints=checkpoints)
    return Observer(store=store, clock=clock, instances=instances, units=units, unit_index=unit_index)


def image_registries(config: Config, clock: Clock) -> ImageRegistries:
    """Return what asks registries for images."""
    images = config.images
    accepts = images.unanswered == "accept"
    return ImageRegistries(clock, images.private_registries, images.ask_registries, accepts_unanswered=accepts)


def bucket_access(config: Config, clock: Clock) -> BucketAccess:
    """Return the buckets that jobs may use. Asks nothing yet."""
    grants = [
        BucketGrant(
            url=parse_bucket_url(each.url),
            users=frozenset(each.users),
            may_write=each.access == "read_write",
            endpoint=each.endpoint,
            region=each.region,
            profile=each.profile,
        )
        for each in config.files.buckets
    ]
    return BucketAccess(grants, clock)


def _input_preparer(config: Config, clock: Clock) -> InputPreparer | None:
    if config.engine.programs == "simulated":
        return None
    preparer = InputPreparer(config.state_dir / "inputs", bucket_access(config, clock))
    preparer.clear()
    return preparer


def _applier(
    config: Config,
    store: Store,
    providers: Mapping[str, Provider],
    runner: Runner,
    clock: Clock,
    unit_index: UnitIndex,
    keys: SecretKeys,
) -> Applier:
    return Applier(
        store,
        providers,
        runner,
        clock,
        owner=config.owner,
        bootstrap=_bootstrap_of(config.engine, runner),
        uploads_dir=config.state_dir / "uploads",
        checkpoints_dir=config.state_dir / CHECKPOINTS_FOLDER,
        unit_index=unit_index,
        unseal=keys.unseal,
        inputs=_input_preparer(config, clock),
        references=_secret_references(config),
    )


def _secret_references(config: Config) -> SecretReferences:
    """Return what reads secrets from secret managers. Connects to nothing yet."""
    settings = config.secrets
    return SecretReferences(
        allowed=settings.references,
        managers={
            "aws": AwsSecretManager(settings.aws_region, settings.aws_endpoint),
            "gcp": GcpSecretManager(settings.gcp_endpoint or GCP_ENDPOINT),
        },
    )


def secret_keys(config: Config) -> SecretKeys:
    """Return the keys that encrypt secrets of jobs. Reads nothing yet."""
    return SecretKeys(config.secrets_key_file, config.state_dir)


def _bootstrap_of(engine: EngineSettings, runner: Runner) -> BootstrapOf:
    """Return what instances need to become workers. Where no programs run, they need no keys."""
    addresses = engine.gateway_addresses or (engine.listen,)
    settings = {
        "max_log_mib": str(engine.max_log_mib),
        "max_outputs_mib": str(engine.max_outputs_mib),
        "max_workdir_mib": str(engine.max_workdir_mib),
        "unit_uid_base": str(engine.unit_user_base),
    }
    base = WorkerBootstrap(
        gateway_addresses=addresses,
        enrolment_port_offset=engine.enrolment_port_offset,
        authority_pem="",
        isolation=engine.isolation,
        settings=settings,
    )
    if engine.programs == "simulated":
        return lambda token: base
    from hcloud.engine.tls import authority_pem, enrolment_secret, launch_key

    base, key = replace(base, authority_pem=authority_pem(engine.tls_dir)), launch_key(engine.tls_dir)
    agents_of = runner.agents if isinstance(runner, ArchiveSource) else dict

    def bootstrap(token: str) -> WorkerBootstrap:
        """Return what the instance of that launch needs. Raises ProviderUnavailable: archives are not known yet."""
        agents = agents_of()
        if agents is None:  # an instance without an agent would be paid for nothing
            raise ProviderUnavailable("the gateway has not named the agent's archives yet")
        return replace(base, enrolment_secret=enrolment_secret(key, token), agents=agents)

    return bootstrap
