"""The job document: what people write in a job file and clients post to the API, checked and made a ``JobSpec``.

Keys are friendly (``within: 10m``, ``memory: 1.5GiB``); bare numbers are in the unit each field states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from hcloud.core.errors import ConfigError
from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Constraints,
    JobSpec,
    MetricsHook,
    Nodes,
    ProfileRequest,
    ProgressHook,
    Resources,
    Retries,
    ServiceTarget,
    Target,
)
from hcloud.core.units import (
    Flag,
    NonEmptyText,
    Number,
    PositiveGib,
    PositiveMib,
    PositiveMilliseconds,
    PositiveSeconds,
    PositiveUsd,
    Seconds,
    Text,
    UtcSeconds,
    shown,
    utc_text,
)
from hcloud.spec.key_changes import KEY_CHANGES, translate_keys
from hcloud.spec.validation import AtKey, KeyPath, key_path, nearest, parse

ARGUMENT_BYTES_MAX: Final = 128 * 1024 - 1
"""Linux starts no program with a longer argument or environment entry."""
SETUP_S: Final = 600.0
"""How long a measured job's setup and start may take, where it does not say how long it may run."""
NODES_MOST: Final = 10_000
VCPUS_MOST: Final = 4096
REQUESTS_MOST: Final = 1e9
"""Of a job's nodes, of one node's vCPUs, and of a service's requests per second: more is a slip of the pen."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_TAG = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
_RANGE = re.compile(r"([0-9]{1,6})\s*\.\.\s*([0-9]{1,6})")
_TARGETS = ("batch", "service", "best_effort")


def _spelled(pattern: str, wanted: str) -> Callable[[str], str]:
    """Return a check that text has the form ``wanted`` describes."""

    def check(text: str) -> str:
        """Return ``text`` as it is. Raises ValueError where it does not match."""
        if not re.fullmatch(pattern, text) or text.endswith("\n"):
            raise ValueError(f"must be {wanted}, not {shown(text)}")
        return text

    return check


def _fits_a_program(text: str) -> str:
    if len(text.encode()) > ARGUMENT_BYTES_MAX:
        raise ValueError(f"must be at most {ARGUMENT_BYTES_MAX} bytes long; put it into a file of the work directory")
    return text


def _whole_number_as_text(value: object) -> object:
    """Let ``THREADS: 4`` be written without quotes; 1.10, true and null mean different things to different people."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**40:
        return str(value)
    return value


def _shell_line(value: object) -> object:
    """Read text as a line for the shell."""
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"must be text for the shell or a list of a program and its arguments, not {shown(value)}")
    if not value or (isinstance(value, str) and not value.strip()) or value[0] == "":
        raise ValueError("must name a program to run")
    return ["/bin/sh", "-c", value] if isinstance(value, str) else value


def _target_from_word(value: object) -> object:
    """Read ``target: best_effort`` and ``target: {batch: }`` as the mapping they mean."""
    if isinstance(value, str):
        if value not in _TARGETS:
            raise ValueError(f"must be one of {', '.join(_TARGETS)}, not {shown(value)}; {nearest(value, _TARGETS)}")
        return {value: {}}
    if isinstance(value, Mapping) and len(value) == 1 and next(iter(value.values())) is None:
        return {name: {} for name in value}
    return value


def _nodes_from_number(value: object) -> object:
    """Read ``nodes: 4`` and ``nodes: 2..8`` as the mapping they mean."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    if isinstance(value, str):
        bounds = _RANGE.fullmatch(value.strip())
        if bounds is None:
            raise ValueError(f"must be a number such as 4 or a range such as 2..8, not {shown(value)}")
        return {"minimum": int(bounds[1]), "count": int(bounds[2])}
    return value


def _retries_from_number(value: object) -> object:
    """Read ``retries: 3`` as three more tries after a failure of the program itself."""
    return {"exit_code": value} if isinstance(value, int) and not isinstance(value, bool) else value


Argument = Annotated[Text, AfterValidator(_fits_a_program)]
Command = Annotated[
    tuple[Argument, ...],
    BeforeValidator(_shell_line, json_schema_input_type=NonEmptyText | Annotated[list[str], Field(min_length=1)]),
]
JobName = Annotated[
    Text,
    AfterValidator(
        _spelled(_NAME, "1 to 63 letters a-z or A-Z, digits, dots, dashes or underscores, a letter or digit first")
    ),
    Field(json_schema_extra={"pattern": _NAME}),
]
Variable = Annotated[
    Text,
    AfterValidator(
        _spelled(_VARIABLE, "a variable name of letters a-z or A-Z, digits and underscores, no digit first")
    ),
    Field(json_schema_extra={"pattern": _VARIABLE}),
]
TagName = Annotated[
    Text,
    AfterValidator(_spelled(_TAG, "1 to 63 letters a-z or A-Z, digits, dots, slashes, dashes or underscores")),
    Field(json_schema_extra={"pattern": _TAG}),
]
Value = Annotated[Argument, BeforeValidator(_whole_number_as_text, json_schema_input_type=str | int)]
TagValue = Annotated[
    Text,
    AfterValidator(_spelled(r"^[^\n\r]{0,255}$", "one line of at most 255 characters")),
    BeforeValidator(_whole_number_as_text, json_schema_input_type=str | int),
]
Tries = Annotated[int, Field(strict=True, ge=0, le=1000)]


class _JobFilePart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def parts() -> list[type]:
    """Return the classes that job files are made of."""
    return list[type](_JobFilePart.__subclasses__())


class BatchPart(_JobFilePart):
    """Finish by a time or within a span; with neither, just finish."""

    within: PositiveSeconds | None = None
    """Finish within this long after submission, for example 10m; a bare number is seconds."""
    by: UtcSeconds | None = None
    """Finish by this moment, with its time zone, for example 2030-05-01T18:00:00Z."""


class ServicePart(_JobFilePart):
    """Serve a rate of requests with a latency percentile at or below a bound."""

    requests_per_s: Annotated[Number, Field(gt=0, le=1e9)]
    """Requests to be served per second."""
    latency_ms: PositiveMilliseconds
    """Latency bound, for example 50ms; a bare number is milliseconds."""
    percentile: Annotated[Number, Field(gt=0, lt=100)] = 99.0
    """Which percentile of the latencies the bound is for."""


class BestEffortPart(_JobFilePart):
    """No promise: runs in what is left over and is evicted first."""


class TargetPart(_JobFilePart):
    """What is promised: exactly one of the three."""

    batch: BatchPart | None = None
    """Finish by a time."""
    service: ServicePart | None = None
    """Serve at a latency."""
    best_effort: BestEffortPart | None = None
    """No promise."""

    @model_validator(mode="after")
    def _exactly_one(self) -> TargetPart:
        stated = [name for name in _TARGETS if getattr(self, name) is not None]
        if len(stated) != 1:
            found = " and ".join(stated) or "none"
            raise ValueError(f"must name exactly one of batch, service and best_effort; it names {found}")
        return self

    def to_target(self) -> Target:
        """Return the target in the words of the model."""
        if self.batch is not None:
            return BatchTarget(finish_by_at=self.batch.by, finish_within_s=self.batch.within)
        if self.service is not None:
            return ServiceTarget(
                requests_per_s=self.service.requests_per_s,
                latency_ms=self.service.latency_ms,
                percentile=self.service.percentile,
            )
        return BestEffortTarget()


class ResourcesPart(_JobFilePart):
    """What one node needs; hints, not a machine type."""

    vcpus: Annotated[Number, Field(gt=0, le=VCPUS_MOST)] = 1.0
    """Virtual CPUs; fractions are allowed."""
    vcpus_min: Annotated[Number, Field(gt=0, le=VCPUS_MOST)] | None = None
    """With this or vcpus_max the number is chosen for the job: the least that meets its target, at least this many."""
    vcpus_max: Annotated[Number, Field(gt=0, le=VCPUS_MOST)] | None = None
    """And at most this many. What a vCPU more is worth must be known of the job; until then it gets `vcpus`."""
    memory: PositiveMib = 512
    """Memory, for example 1.5GiB; a bare number is MiB."""
    disk: PositiveGib = 1.0
    """Disk, for example 20GiB; a bare number is GiB."""

    @model_validator(mode="after")
    def _in_order(self) -> ResourcesPart:
        low, high = self.vcpus_min or self.vcpus, self.vcpus_max or self.vcpus
        if low > self.vcpus:
            raise AtKey("vcpus_min", f"must not be more than vcpus ({self.vcpus:g}), but is {low:g}")
        if high < self.vcpus:
            raise AtKey("vcpus_max", f"must be at least vcpus ({self.vcpus:g}), but is {high:g}")
        return self

    @property
    def vcpus_within(self) -> tuple[float, float] | None:
        """Between what the number of vCPUs may be chosen, or None where it may not."""
        if self.vcpus_min is None and self.vcpus_max is None:
            return None
        return self.vcpus_min or self.vcpus, self.vcpus_max or self.vcpus


class NodesPart(_JobFilePart):
    """On how many nodes the job runs."""

    count: Annotated[int, Field(strict=True, ge=1, le=NODES_MOST)] = 1
    """Nodes wanted."""
    minimum: Annotated[int, Field(strict=True, ge=1, le=NODES_MOST)] | None = None
    """Nodes to start with; more join as there is room. Default: all of them, with `gang: false` one."""
    gang: Flag | None = None
    """All nodes start together or none. Default: true unless `minimum` is less than `count`."""

    @model_validator(mode="after")
    def _possible(self) -> NodesPart:
        if self.minimum is not None and self.minimum > self.count:
            raise AtKey("minimum", f"must not be more than count ({self.count}), but is {self.minimum}")
        if self.gang and self.minimum not in (None, self.count):
            raise AtKey("gang", f"starts all {self.count} nodes or none, so minimum must be {self.count} or left out")
        return self

    def to_nodes(self) -> Nodes:
        """Return the nodes with what was left out filled in."""
        gang = self.gang if self.gang is not None else self.minimum in (None, self.count)
        return Nodes(count=self.count, minimum=self.minimum or (self.count if gang else 1), gang=gang)


class RetriesPart(_JobFilePart):
    """How often each cause of failure may be retried, and how long to wait in between."""

    exit_code: Tries = 0
    """The program ended with a non-zero code."""
    out_of_memory: Tries = 0
    """It used more memory than it may."""
    out_of_disk: Tries = 0
    """It used more disk than it may."""
    timeout: Tries = 0
    """It ran longer than max_runtime."""
    preempted: Tries = 100
    """A spot machine was taken back."""
    instance_lost: Tries = 10
    """The machine died."""
    start_refused: Tries = 1
    """It could not be started."""
    evicted: Tries = 100
    """It was stopped to make room or to keep the budget."""
    backoff: Seconds = 5.0
    """Wait this long before the second try; doubled each time."""
    backoff_cap: Seconds = 300.0
    """But at most this long."""

    @model_validator(mode="after")
    def _possible(self) -> RetriesPart:
        if self.backoff_cap < self.backoff:
            raise AtKey("backoff_cap", f"must be at least backoff ({self.backoff:g} s), but is {self.backoff_cap:g} s")
        return self

    def to_retries(self) -> Retries:
        """Return the table; causes that are never retried are left out."""
        limits = self.model_dump(exclude={"backoff", "backoff_cap"})
        return Retries(
            limits={cause: tries for cause, tries in limits.items() if tries},
            backoff_s=self.backoff,
            backoff_cap_s=self.backoff_cap,
        )


class ProgressPart(_JobFilePart):
    """How far a batch job is: the last line of a file, a number or done/total."""

    file: NonEmptyText
    """A file in the work directory."""
    total: Annotated[Number, Field(gt=0)] = 1.0
    """What the number is when the job is done."""

    @model_validator(mode="after")
    def _inside(self) -> ProgressPart:
        path = PurePosixPath(self.file)
        if path.is_absolute() or ".." in path.parts:
            raise AtKey("file", f"must be a path inside the work directory, not {shown(self.file)}")
        return self


class MetricsPart(_JobFilePart):
    """How a service's rate and latency are read: from a metrics URL or by a probe command."""

    url: NonEmptyText | None = None
    """Prometheus text, as the job itself reaches it, for example http://127.0.0.1:9000/metrics."""
    probe: Command | None = None
    """Prints one JSON object {"requests_per_s": r, "latency_ms": {"50": .., "99": ..}} as its last line."""
    every: PositiveSeconds = 5.0
    """How often to read."""

    @model_validator(mode="after")
    def _one_way(self) -> MetricsPart:
        if (self.url is None) == (self.probe is None):
            raise ValueError("must have exactly one of url and probe")
        if self.url is not None and not re.match(r"https?://[^/\s]+\S*$", self.url):
            raise AtKey("url", f"must be a http:// or https:// address, not {shown(self.url)}")
        return self


class PlacementPart(_JobFilePart):
    """What is demanded of the machines of a job beside types and size; it waits until that is met."""

    zones: tuple[NonEmptyText, ...] = ()
    """Zones it may run in, with * and ? as wildcards, for example [eu-west-1a, eu-west-1b]. Default: any."""
    labels: Mapping[TagName, TagValue] = Field(default_factory=dict, max_length=50)
    """Labels its machines must have, with * and ? in values; provider, region, type and market are labels of all."""
    apart_from: tuple[NonEmptyText, ...] = ()
    """Names of your jobs (with * and ?) that it shares no machine with, nor they with it; its own: its nodes too."""
    spread: Literal["none", "host", "zone"] = "none"
    """host: no two of its nodes on one machine; zone: no two in one zone."""

    def to_constraints(self) -> Constraints | None:
        """Return the demands in the words of the model, or None where there are none."""
        labels = tuple(sorted(self.labels.items()))
        found = Constraints(zones=self.zones, labels=labels, apart_from=self.apart_from, spread=self.spread)
        return found if found != Constraints() else None


class MeasurePart(_JobFilePart):
    """Measure the command instead of running it once: how fast it is at each size, and how it bears and troubles
    neighbours. What is found stands in the job's log and in its `job_profiled` event."""

    on: Annotated[
        Text, AfterValidator(_spelled(r"^[^/\s*?]+/[^/\s*?]+$", "PROVIDER/TYPE, for example local/local.large"))
    ]
    """The instance type to measure on."""
    sizes: Annotated[tuple[Annotated[Number, Field(gt=0)], ...], Field(min_length=1, max_length=16)]
    """At how many vCPUs; the most are taken for the whole machine."""
    sources: Annotated[tuple[NonEmptyText, ...], Field(max_length=32)] = ()
    """Sources of interference, by name, to measure it beside at one vCPU."""
    seconds: Annotated[Seconds, Field(ge=5, le=3600)] = 75.0
    """About how long it takes."""

    def to_request(self) -> ProfileRequest:
        """Return what the engine is asked for."""
        return ProfileRequest(
            job_id="",
            type_column=self.on,
            steps_vcpus=tuple(sorted(set(self.sizes), reverse=True)),
            sources=self.sources,
            run_s=self.seconds / 28,
            total_s=3 * self.seconds + 30,
        )


class JobFile(_JobFilePart):
    """One job as people write it. Only ``name`` and ``command`` must be there."""

    name: JobName
    """What lists and reports call it; need not be unique."""
    command: Command
    """Text is run by /bin/sh -c; a list is a program and its arguments, no shell."""
    target: Annotated[
        TargetPart,
        BeforeValidator(_target_from_word, json_schema_input_type=TargetPart | Literal["batch", "best_effort"]),
    ] = TargetPart(best_effort=BestEffortPart())
    """What is promised. Default: best_effort."""
    resources: ResourcesPart = ResourcesPart()
    """What one node needs."""
    nodes: Annotated[
        NodesPart,
        BeforeValidator(_nodes_from_number, json_schema_input_type=NodesPart | Annotated[int, Field(ge=1)] | str),
    ] = NodesPart()
    """On how many nodes it runs: a number, a range such as 2..8, or a mapping."""
    workdir: NonEmptyText | None = None
    """A directory, beside the job file unless absolute; `hcloud submit` uploads it, each node starts in a copy."""
    workdir_sha256: Annotated[Text, AfterValidator(_spelled(r"^[0-9a-f]{64}$", "64 hex digits"))] | None = None
    """The uploaded work directory; filled in by `hcloud submit`."""
    env: Mapping[Variable, Value] = Field(default_factory=dict)
    """Environment variables."""
    env_file: NonEmptyText | None = None
    """A file of NAME=value lines, beside the job file unless absolute; `env` wins over it."""
    setup: Annotated[NonEmptyText, AfterValidator(_fits_a_program)] | None = None
    """A shell script run before the command, once per node."""
    image: NonEmptyText | None = None
    """A container image to run in."""
    tags: Mapping[TagName, TagValue] = Field(default_factory=dict, max_length=50)
    """Names and values that reports can group by."""
    priority: Annotated[int, Field(strict=True, ge=-1000, le=1000)] = 0
    """Higher goes first."""
    stateful: Flag = False
    """It keeps state that a move would lose."""
    interruptible: Flag = True
    """It may be stopped and started again from the beginning."""
    network: Literal["none", "host"] = "none"
    """none: only its own loopback; host: the machine's network."""
    retries: Annotated[
        RetriesPart,
        BeforeValidator(
            _retries_from_number, json_schema_input_type=RetriesPart | Annotated[int, Field(ge=0, le=1000)]
        ),
    ] = RetriesPart()
    """How often to try again: a number (after a non-zero exit) or a mapping by cause."""
    max_runtime: PositiveSeconds | None = None
    """Stop an attempt that runs longer, for example 2h."""
    stop_grace: Annotated[Seconds, Field(le=3600)] = 10.0
    """Time between the request to stop and the kill."""
    budget_usd: PositiveUsd | None = None
    """The job is stopped when it has cost this much."""
    progress: ProgressPart | None = None
    """How far a batch job is."""
    metrics: MetricsPart | None = None
    """How a service's rate and latency are read."""
    instance_types: tuple[NonEmptyText, ...] = ()
    """Names of the instance types it may run on, with * and ? as wildcards. Default: any."""
    exclusive: Flag = False
    """Nobody else on its machines while it runs; all of each is its own."""
    placement: PlacementPart = PlacementPart()
    """Zones and labels of its machines, jobs it is kept apart from, how its nodes spread."""
    profiling: Literal["auto", "never"] = "auto"
    """auto: profiled if the policy says so and it is not known yet; never: not profiled."""
    measure: MeasurePart | None = None
    """Measure the command on a machine of its own instead of running it once."""

    @model_validator(mode="before")
    @classmethod
    def _with_todays_keys(cls, given: object) -> object:
        try:
            return translate_keys(given, KEY_CHANGES["job"])[0]
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _possible(self) -> JobFile:
        if self.measure is not None and self.nodes.count > 1:
            raise AtKey("nodes", f"must be 1 for a job that is measured, not {self.nodes.count}")
        if self.measure is not None and self.image is not None:
            raise AtKey("image", "goes not with measure: a program in a container image cannot be copied safely")
        if self.progress is not None and self.target.service is not None:
            raise AtKey("progress", "has no meaning for a service, which never finishes; use metrics")
        if self.metrics is not None and self.target.batch is not None:
            raise AtKey("metrics", "has no meaning for a batch job, which serves nobody; use progress")
        if self.exclusive and self.resources.vcpus_within is not None:
            raise AtKey("exclusive", "gives each node a whole machine; leave out vcpus_min and vcpus_max")
        if self.placement.spread != "none" and self.nodes.count == 1:
            raise AtKey(
                "placement",
                f"spread: {self.placement.spread} has no meaning for one node; state nodes, or leave it out",
            )
        return self

    def impossible(self, now: float) -> tuple[KeyPath, str] | None:
        """Return where and why the job cannot be fulfilled if submitted at ``now``, or None."""
        batch = self.target.batch
        if batch is not None and batch.by is not None and batch.by <= now:
            past, present = utc_text(batch.by), utc_text(round(now))
            return ("target", "batch", "by"), f"is in the past: {past}, and it is {present} now"
        return None

    def to_spec(self, user: str, now: float | None = None) -> JobSpec:
        """Return what the daemon stores. With ``now`` (submission), a deadline in the past is refused.

        Raises:
            ConfigError: the deadline is over, or a work directory or environment file was not resolved by the client.
        """
        trouble = self.impossible(now) if now is not None else None
        if trouble is not None:
            raise ConfigError(trouble[1], where=key_path(trouble[0]))
        if self.workdir is not None and self.workdir_sha256 is None:
            raise ConfigError(
                "must be uploaded first and named by workdir_sha256; `hcloud submit` does so", where="workdir"
            )
        if self.env_file is not None:
            raise ConfigError("is read by `hcloud submit`; put the variables into env", where="env_file")
        spec = JobSpec(user=user, **self._plain_fields(), **self._parts())
        return spec if self.measure is None else _measured(spec, self.measure.to_request())

    def _plain_fields(self) -> dict[str, Any]:
        """Return what the model names and holds in the same way."""
        same = (
            "name",
            "command",
            "image",
            "setup",
            "workdir_sha256",
            "priority",
            "stateful",
            "interruptible",
            "network",
            "instance_types",
            "exclusive",
            "profiling",
        )
        fields: dict[str, Any] = {name: getattr(self, name) for name in same}
        return fields | {"env": dict(self.env), "tags": dict(self.tags), "budget_usd": self.budget_usd}

    def _parts(self) -> dict[str, Any]:
        """Return what the model names or holds differently."""
        need, progress, metrics = self.resources, self.progress, self.metrics
        return {
            "target": self.target.to_target(),
            "resources": Resources(vcpus=need.vcpus, memory_mib=need.memory, disk_gib=need.disk),
            "nodes": self.nodes.to_nodes(),
            "retries": self.retries.to_retries(),
            "max_runtime_s": self.max_runtime,
            "stop_grace_s": self.stop_grace,
            "progress": progress and ProgressHook(file=progress.file, total=progress.total),
            "metrics": metrics and MetricsHook(url=metrics.url, probe=metrics.probe, every_s=metrics.every),
            "placement": self.placement.to_constraints(),
            "vcpus_within": need.vcpus_within,
        }


def _measured(spec: JobSpec, request: ProfileRequest) -> JobSpec:
    """Return the job as one that is measured: on a whole machine of that type, and not for ever."""
    return replace(
        spec,
        instance_types=(request.type_column.partition("/")[2],),
        exclusive=True,
        interruptible=False,
        profiling="never",
        max_runtime_s=spec.max_runtime_s or request.total_s + SETUP_S,
        profile=request,
    )


def parse_job(mapping: object, *, locate: Callable[[KeyPath], str] = key_path, now: float | None = None) -> JobFile:
    """Return the job that ``mapping`` states. ``locate`` turns a key path into the ``where`` of an error.

    Raises:
        ConfigError: an unknown key, a value of the wrong kind, a contradiction, or a deadline before ``now``.
    """
    job = parse(JobFile, mapping, locate)
    trouble = job.impossible(now) if now is not None else None
    if trouble is not None:
        raise ConfigError(trouble[1], where=locate(trouble[0]))
    return job
