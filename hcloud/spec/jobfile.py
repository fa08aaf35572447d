"""Job files: the document that users write and clients post to the API, and its conversion to a ``JobSpec``.

Field names are the keys of the YAML. The text under each field is its description in ``hcloud job schema``. Values may
have units (``within: 10m``, ``memory: 1.5GiB``); bare numbers are in the unit that the field states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    model_validator,
)

from hcloud.core.arrays import FORMS, TASKS_MOST, TaskList, matrix_size, parse_ids
from hcloud.core.cron import check_cron
from hcloud.core.dependencies import DEPENDENCIES_MOST, ENDINGS_AWAITED, Ending
from hcloud.core.errors import ConfigError
from hcloud.core.image_names import IMAGE_LOGIN, image_name
from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Constraints,
    Framework,
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
from hcloud.core.schedules import Recurrence
from hcloud.core.task_runs import RUN_TASKS_MOST
from hcloud.core.units import (
    Flag,
    Name,
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
    plain_text,
    shown,
    utc_text,
)
from hcloud.spec.file_parts import (
    CheckpointPart,
    InputParts,
    OutputParts,
    brought_back,
    bucket_inputs,
    bucket_outputs,
    check_inputs,
    checkpoint_from_path,
)
from hcloud.spec.gpu_parts import GpusPart, gpus_from_text
from hcloud.spec.job_variables import (
    REFERENCE_MARK,
    JobFilePart,
    SecretPart,
    VariableValue,
    fits_a_program,
    whole_number_as_text,
)
from hcloud.spec.key_changes import KEY_CHANGES, translate_keys
from hcloud.spec.validation import AtKey, KeyPath, key_path, nearest, parse

ENTRIES_MOST: Final = 10_000
PROGRAM_BYTES_MAX: Final = 1024 * 1024
"""Limits of arguments and of environment variables, in number and together; Linux starts no program with 2 MiB."""
PATTERNS_MOST: Final = 100
SLOWER_ELSEWHERE: Final = 1.5
"""How many times as long a job runs on types that it does not prefer, unless it says otherwise (3Sigma §5)."""
"""Limit of each list of names and patterns: each is compared in every plan."""
URL_MOST: Final = 2048
SETUP_S: Final = 600.0
"""Time for the setup and start of a measured job without max_runtime."""
NODES_MOST: Final = 10_000
VCPUS_LEAST: Final = 0.001
VCPUS_MOST: Final = 4096
REQUESTS_MOST: Final = 1e9
"""Plausibility limits of nodes per job, vCPUs per node and requests per second; more is a typing error."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_TAG = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
_RANGE = re.compile(r"([0-9]{1,6})\s*\.\.\s*([0-9]{1,6})")
_TARGETS = ("batch", "service", "best_effort")


def _spelled(pattern: str, wanted: str) -> Callable[[str], str]:
    """Return a validator for text that matches ``pattern``; ``wanted`` describes the form in its error message."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text) or text.endswith("\n"):
            raise ValueError(f"must be {wanted}, not {shown(text)}")
        return text

    return check


def _shell_line(value: object) -> object:
    """Turn text into a command for the shell."""
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"must be text for the shell or a list of a program and its arguments, not {shown(value)}")
    if not value or (isinstance(value, str) and not value.strip()) or value[0] == "":
        raise ValueError("must name a program to run")
    return ["/bin/sh", "-c", value] if isinstance(value, str) else value


def _target_from_word(value: object) -> object:
    """Turn the short forms ``target: best_effort`` and ``target: {batch: }`` into a mapping."""
    if isinstance(value, str):
        if value not in _TARGETS:
            raise ValueError(f"must be one of {', '.join(_TARGETS)}, not {shown(value)}; {nearest(value, _TARGETS)}")
        return {value: {}}
    if isinstance(value, Mapping) and len(value) == 1 and next(iter(value.values())) is None:
        return {name: {} for name in value}
    return value


def _nodes_from_number(value: object) -> object:
    """Turn the short forms ``nodes: 4`` and ``nodes: 2..8`` into a mapping."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    if isinstance(value, str):
        bounds = _RANGE.fullmatch(value.strip())
        if bounds is None:
            raise ValueError(f"must be a number such as 4 or a range such as 2..8, not {shown(value)}")
        return {"minimum": int(bounds[1]), "count": int(bounds[2])}
    return value


def _retries_from_number(value: object) -> object:
    """Turn the short form ``retries: 3`` into retries after a non-zero exit code."""
    return {"exit_code": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _few_entries(value: object) -> object:
    """Refuse a collection that is too large before each of its entries is looked at."""
    if isinstance(value, list | tuple | Mapping) and len(value) > ENTRIES_MOST:
        raise ValueError(f"must have at most {ENTRIES_MOST} entries, not {len(value)}; put them into a file")
    return value


Argument = Annotated[Text, AfterValidator(fits_a_program)]
Command = Annotated[
    tuple[Argument, ...],
    BeforeValidator(_few_entries),
    BeforeValidator(_shell_line, json_schema_input_type=NonEmptyText | Annotated[list[str], Field(min_length=1)]),
]
Patterns = Annotated[tuple[Name, ...], Field(max_length=PATTERNS_MOST)]
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
TagValue = Annotated[
    Text,
    AfterValidator(_spelled(r"^[^\n\r]{0,255}$", "one line of at most 255 characters")),
    BeforeValidator(whole_number_as_text, json_schema_input_type=str | int),
]
Tries = Annotated[int, Field(strict=True, ge=0, le=1000)]


def _array_text(value: object) -> object:
    """Accept ``array: 7`` without quotes, and refuse what names no tasks."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"must be {FORMS}, not {shown(value)}")
    parse_ids(value)
    return value


def _tasks_per_unit(value: object) -> object:
    """Refuse what is no number of tasks."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value != "auto" and not (is_number and 1 <= value <= RUN_TASKS_MOST):  # type: ignore[operator]
        raise ValueError(f"must be auto or a number from 1 to {RUN_TASKS_MOST}, not {shown(value)}")
    return value


def _matrix_value(value: object) -> str:
    """Return a value of a matrix as the environment has it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"must be a number or text (put it in quotes), not {shown(value)}")
    return fits_a_program(plain_text(value))


def _after_from_names(value: object) -> object:
    """Turn the short forms ``after: prepare`` and ``after: [prepare, fetch]`` into a mapping."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return dict.fromkeys(value, "succeeded")
    return value


def _ending(value: object) -> object:
    if not isinstance(value, str) or value not in ENDINGS_AWAITED:
        raise ValueError(f"must be one of {', '.join(ENDINGS_AWAITED)}, not {shown(value)}")
    return value


MatrixValue = Annotated[str, PlainValidator(_matrix_value, json_schema_input_type=str | int | float)]
MatrixValues = Annotated[tuple[MatrixValue, ...], BeforeValidator(_few_entries), Field(min_length=1)]


def parts() -> list[type]:
    """Return the classes of the parts of a job file."""
    return list[type](JobFilePart.__subclasses__())


class BatchPart(JobFilePart):
    """Finish by a deadline. Without one, just finish."""

    within: PositiveSeconds | None = None
    """Deadline relative to the submission, for example 10m; a bare number is seconds."""
    by: UtcSeconds | None = None
    """Absolute deadline with its time zone, for example 2030-05-01T18:00:00Z."""


class ServicePart(JobFilePart):
    """Serve a request rate with a latency percentile at or below a bound."""

    requests_per_s: Annotated[Number, Field(gt=0, le=1e9)]
    """Requests per second."""
    latency_ms: PositiveMilliseconds
    """Bound on the latency, for example 50ms; a bare number is milliseconds."""
    percentile: Annotated[Number, Field(gt=0, lt=100)] = 99.0
    """The percentile of the latencies that must meet the bound."""


class BestEffortPart(JobFilePart):
    """No promise: runs on spare capacity and is evicted first."""


class TargetPart(JobFilePart):
    """The performance target: exactly one of the three."""

    batch: BatchPart | None = None
    """Finish, by a deadline or without one."""
    service: ServicePart | None = None
    """Serve a request rate at a latency."""
    best_effort: BestEffortPart | None = None
    """No promise."""

    @model_validator(mode="after")
    def _exactly_one(self) -> TargetPart:
        given = [name for name in _TARGETS if getattr(self, name) is not None]
        if len(given) != 1:
            names = " and ".join(given) or "none"
            raise ValueError(f"must name exactly one of batch, service and best_effort; it names {names}")
        return self

    def to_target(self) -> Target:
        """Return the target as the model's class."""
        if self.batch is not None:
            return BatchTarget(finish_by_at=self.batch.by, finish_within_s=self.batch.within)
        if self.service is not None:
            return ServiceTarget(
                requests_per_s=self.service.requests_per_s,
                latency_ms=self.service.latency_ms,
                percentile=self.service.percentile,
            )
        return BestEffortTarget()


class ResourcesPart(JobFilePart):
    """What one node requests; a size, not an instance type."""

    vcpus: Annotated[Number, Field(ge=VCPUS_LEAST, le=VCPUS_MOST)] = 1.0
    """Virtual CPUs; fractions are allowed."""
    vcpus_min: Annotated[Number, Field(ge=VCPUS_LEAST, le=VCPUS_MOST)] | None = None
    """With vcpus_min or vcpus_max, HCloud chooses the fewest vCPUs that meet the target: at least this many."""
    vcpus_max: Annotated[Number, Field(ge=VCPUS_LEAST, le=VCPUS_MOST)] | None = None
    """At most this many. Until the job is classified, it gets `vcpus`."""
    memory: PositiveMib = 512
    """Memory, for example 1.5GiB; a bare number is MiB."""
    disk: PositiveGib = 1.0
    """Disk, for example 20GiB; a bare number is GiB."""
    gpus: (
        Annotated[
            GpusPart,
            BeforeValidator(gpus_from_text, json_schema_input_type=GpusPart | Annotated[int, Field(ge=1)] | str),
        ]
        | None
    ) = None
    """GPUs: a number, text such as l4 or a100:80GB:2 (kind, memory, number), or a mapping. Default: none."""

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
        """Limits between which the number of vCPUs may be chosen, or None for exactly ``vcpus``."""
        if self.vcpus_min is None and self.vcpus_max is None:
            return None
        return self.vcpus_min or self.vcpus, self.vcpus_max or self.vcpus


class NodesPart(JobFilePart):
    """Number of nodes, and how they start."""

    count: Annotated[int, Field(strict=True, ge=1, le=NODES_MOST)] = 1
    """Number of nodes."""
    minimum: Annotated[int, Field(strict=True, ge=1, le=NODES_MOST)] | None = None
    """Nodes to start with. More are launched only if the target needs them; otherwise they join where room is idle, and
    give way to jobs with a target. Default: `count`, or 1 with `gang: false`."""
    gang: Flag | None = None
    """Start all nodes together or none. Default: true, unless `minimum` is less than `count`."""

    @model_validator(mode="after")
    def _possible(self) -> NodesPart:
        if self.minimum is not None and self.minimum > self.count:
            raise AtKey("minimum", f"must not be more than count ({self.count}), but is {self.minimum}")
        if self.gang and self.minimum not in (None, self.count):
            raise AtKey("gang", f"starts all {self.count} nodes or none, so minimum must be {self.count} or left out")
        return self

    def to_nodes(self) -> Nodes:
        """Return the nodes with the defaults filled in."""
        gang = self.gang if self.gang is not None else self.minimum in (None, self.count)
        return Nodes(count=self.count, minimum=self.minimum or (self.count if gang else 1), gang=gang)


class RetriesPart(JobFilePart):
    """Retries by cause of failure, and the back-off in between."""

    exit_code: Tries = 0
    """The program ended with a non-zero code."""
    out_of_memory: Tries = 0
    """It exceeded its memory; it gets more with each retry (`memory_factor`)."""
    memory_factor: Annotated[Number, Field(ge=1, le=16)] = 2.0
    """By so much its memory grows when it is tried again after it exceeded it, up to the largest machine it may use."""
    out_of_disk: Tries = 0
    """It exceeded its disk."""
    timeout: Tries = 0
    """It ran longer than max_runtime."""
    preempted: Tries = 100
    """The provider reclaimed its spot instance."""
    instance_lost: Tries = 10
    """Its instance failed."""
    start_refused: Tries = 1
    """It could not be started."""
    inputs: Tries = 3
    """Its inputs could not be fetched."""
    evicted: Tries = 100
    """It was stopped to make room for other jobs or to keep a budget."""
    backoff: Seconds = 5.0
    """Delay before the first retry; doubled with each further one."""
    backoff_cap: Seconds = 300.0
    """Longest delay."""

    @model_validator(mode="after")
    def _possible(self) -> RetriesPart:
        if self.backoff_cap < self.backoff:
            raise AtKey("backoff_cap", f"must be at least backoff ({self.backoff:g} s), but is {self.backoff_cap:g} s")
        if self.out_of_memory and self.memory_factor == 1:
            raise AtKey("memory_factor", "must be above 1, such as 2: with the same memory it would run out again")
        return self

    def to_retries(self) -> Retries:
        """Return the retries as the model's class, without causes that are never retried."""
        limits = self.model_dump(exclude={"backoff", "backoff_cap", "memory_factor"})
        return Retries(
            limits={cause: tries for cause, tries in limits.items() if tries},
            backoff_s=self.backoff,
            backoff_cap_s=self.backoff_cap,
            memory_factor=self.memory_factor,
        )


class ProgressPart(JobFilePart):
    """Progress of a batch job: the last line of a file, as a number or done/total."""

    file: NonEmptyText
    """A file in the work directory."""
    total: Annotated[Number, Field(gt=0)] = 1.0
    """The number that means done."""

    @model_validator(mode="after")
    def _inside(self) -> ProgressPart:
        path = PurePosixPath(self.file)
        if path.is_absolute() or ".." in path.parts:
            raise AtKey("file", f"must be a path inside the work directory, not {shown(self.file)}")
        return self


class MetricsPart(JobFilePart):
    """How a service's request rate and latency are read: from a metrics URL or by a probe command."""

    url: NonEmptyText | None = None
    """Metrics in Prometheus text format, as the job itself reaches them: http://127.0.0.1:9000/metrics."""
    probe: Command | None = None
    """A command that prints as last line a JSON object {"requests_per_s": r, "latency_ms": {"50": .., "99": ..}}."""
    every: PositiveSeconds = 5.0
    """Time between two readings. Below 5 s the service is also sampled and judged as often."""

    @model_validator(mode="after")
    def _one_way(self) -> MetricsPart:
        if (self.url is None) == (self.probe is None):
            raise ValueError("must have exactly one of url and probe")
        if self.url is not None and not (len(self.url) <= URL_MOST and re.fullmatch(r"https?://[^/\s]\S*", self.url)):
            raise AtKey("url", f"must be a http:// or https:// address, not {shown(self.url)}")
        return self


class PlacementPart(JobFilePart):
    """Constraints on the job's instances; the job waits until they are met."""

    zones: Patterns = ()
    """Zones it may run in; * and ? are wildcards, for example [eu-west-1a, eu-west-1b]. Default: any."""
    labels: Mapping[TagName, TagValue] = Field(default_factory=dict, max_length=50)
    """Labels its instances must have; values may contain * and ?. All have provider, region, type and market."""
    apart_from: Patterns = ()
    """Names of your jobs (* and ? are wildcards) that it shares no instance with; its own name separates its nodes."""
    spread: Literal["none", "host", "zone"] = "none"
    """host: no two of its nodes on one instance; zone: no two in one zone."""

    def to_constraints(self) -> Constraints | None:
        """Return the constraints as the model's class, or None without any."""
        labels = tuple(sorted(self.labels.items()))
        constraints = Constraints(zones=self.zones, labels=labels, apart_from=self.apart_from, spread=self.spread)
        return constraints if constraints != Constraints() else None


class SchedulePart(JobFilePart):
    """Submit the job again and again instead of once."""

    cron: Annotated[Text, Field(max_length=200)]
    """When: minute hour day month weekday, for example 30 2 * * 1-5; or @hourly, @daily, @weekly, @monthly."""
    timezone: Annotated[Text, Field(max_length=64)] = "UTC"
    """Time zone of cron, for example Europe/Berlin."""
    missed: Literal["skip", "once", "all"] = "skip"
    """Runs that were due while no daemon ran: skip, run the last one once, or run all."""
    overlap: Literal["skip", "queue", "allow", "replace"] = "skip"
    """A run is due and the one before has not ended: skip it, queue it (one at most), allow both, or replace the one
    before, which is cancelled."""

    @model_validator(mode="after")
    def _fires(self) -> SchedulePart:
        for key, timezone in (("cron", "UTC"), ("timezone", self.timezone)):
            try:
                check_cron(self.cron, timezone)
            except ValueError as error:
                raise AtKey(key, str(error)) from None
        return self


class MeasurePart(JobFilePart):
    """Measure the command instead of running it once: its performance at each size, and the interference it tolerates
    and causes. The results are in the job's log and in its `job_profiled` event."""

    on: Annotated[
        Text, AfterValidator(_spelled(r"^[^/\s*?]+/[^/\s*?]+$", "PROVIDER/TYPE, for example local/local.large"))
    ]
    """The instance type to measure on."""
    sizes: Annotated[tuple[Annotated[Number, Field(gt=0)], ...], Field(min_length=1, max_length=16)]
    """Numbers of vCPUs to measure at; the largest counts as the whole instance."""
    sources: Annotated[tuple[NonEmptyText, ...], Field(max_length=32)] = ()
    """Interference sources to measure it with, at one vCPU."""
    seconds: Annotated[Seconds, Field(ge=5, le=3600)] = 75.0
    """Approximate duration."""

    def to_request(self) -> ProfileRequest:
        """Return the request to the engine."""
        return ProfileRequest(
            job_id="",
            type_column=self.on,
            steps_vcpus=tuple(sorted(set(self.sizes), reverse=True)),
            sources=self.sources,
            run_s=self.seconds / 28,
            total_s=3 * self.seconds + 30,
        )


class JobFile(JobFilePart):
    """One job. Only ``name`` and ``command`` are required."""

    name: JobName
    """Shown in listings and reports; need not be unique."""
    command: Command
    """Text runs with /bin/sh -c; a list is a program and its arguments, without a shell."""
    target: Annotated[
        TargetPart,
        BeforeValidator(_target_from_word, json_schema_input_type=TargetPart | Literal["batch", "best_effort"]),
    ] = TargetPart(best_effort=BestEffortPart())
    """The performance target. Default: best_effort."""
    resources: ResourcesPart = ResourcesPart()
    """What one node requests."""
    nodes: Annotated[
        NodesPart,
        BeforeValidator(_nodes_from_number, json_schema_input_type=NodesPart | Annotated[int, Field(ge=1)] | str),
    ] = NodesPart()
    """Number of nodes: a number, a range such as 2..8, or a mapping."""
    workdir: NonEmptyText | None = None
    """A directory, relative to the job file; `hcloud submit` uploads it, and each node starts in a copy."""
    workdir_sha256: Annotated[Text, AfterValidator(_spelled(r"^[0-9a-f]{64}$", "64 hex digits"))] | None = None
    """Digest of the uploaded work directory; set by `hcloud submit`."""
    workdir_content_sha256: Annotated[Text, AfterValidator(_spelled(r"^[0-9a-f]{64}$", "64 hex digits"))] | None = None
    """Digest of what is in it, without times of files; set by `hcloud submit`."""
    inputs: InputParts = ()
    """Files that it finds in its work directory: `{from: PATH or s3://BUCKET/KEY or gs://BUCKET/KEY, to: PATH}`."""
    outputs: OutputParts = ()
    """Files to bring back, as patterns below the work directory: results/, "*.csv", "models/**/best.pt"; or to send:
    `{from: results/, to: "s3://BUCKET/FOLDER"}`."""
    checkpoint: (
        Annotated[
            CheckpointPart,
            BeforeValidator(checkpoint_from_path, json_schema_input_type=CheckpointPart | NonEmptyText),
        ]
        | None
    ) = None
    """What the job writes so that its next attempt goes on from there: a path, or a mapping."""
    framework: Framework | None = None
    """Start Dask, MPI (Open MPI) or torchrun on all nodes, and run the command in it."""
    env: Annotated[Mapping[Variable, VariableValue], BeforeValidator(_few_entries)] = Field(default_factory=dict)
    """Environment variables: text, or for a secret `{secret: VALUE}` or `{secret_from: env:NAME}`."""
    array: Annotated[Text, BeforeValidator(_array_text, json_schema_input_type=str | int)] | None = None
    """Run a task for each id, for example 0-999%50: at most 50 at once. HCLOUD_TASK_ID has its id."""
    tasks_per_unit: Annotated[
        Literal["auto"] | int,
        BeforeValidator(
            _tasks_per_unit, json_schema_input_type=Literal["auto"] | Annotated[int, Field(ge=1, le=RUN_TASKS_MOST)]
        ),
    ] = "auto"
    """How many tasks run one after the other on one place of a machine: auto (as many as run in 30 s) or a number."""
    matrix: Annotated[Mapping[Variable, MatrixValues], Field(max_length=20)] = Field(default_factory=dict)
    """Run a task for each combination of these variables' values, for example {lr: [0.1, 0.2], seed: [1, 2]}."""
    after: Annotated[
        Mapping[JobName, Annotated[Ending, BeforeValidator(_ending)]],
        Field(max_length=DEPENDENCIES_MOST),
        BeforeValidator(
            _after_from_names, json_schema_input_type=Mapping[str, Ending] | str | Annotated[list[str], Field()]
        ),
    ] = Field(default_factory=dict)
    """Start once other jobs have ended: name in the same submission, or id, to succeeded, finished or failed."""
    schedule: SchedulePart | None = None
    """Submit it again and again, at the times of a cron expression."""
    env_file: NonEmptyText | None = None
    """A file of NAME=value lines, relative to the job file; `env` takes precedence."""
    setup: Annotated[NonEmptyText, AfterValidator(fits_a_program)] | None = None
    """A shell script that runs once per node before the command."""
    image: Annotated[NonEmptyText, AfterValidator(image_name)] | None = None
    """Container image to run in, for example debian:12."""
    tags: Mapping[TagName, TagValue] = Field(default_factory=dict, max_length=50)
    """Names and values that reports group by."""
    priority: Annotated[int, Field(strict=True, ge=-1000, le=1000)] = 0
    """Jobs with higher priority are scheduled first."""
    stateful: Flag = False
    """The job keeps state that a restart loses."""
    interruptible: Flag = True
    """The job may be stopped and started again from the beginning."""
    network: Literal["none", "host"] = "none"
    """none: only its own loopback, which nodes of a framework share; host: the instance's network."""
    retries: Annotated[
        RetriesPart,
        BeforeValidator(
            _retries_from_number, json_schema_input_type=RetriesPart | Annotated[int, Field(ge=0, le=1000)]
        ),
    ] = RetriesPart()
    """Retries: a number (after a non-zero exit code) or a mapping by cause."""
    max_runtime: PositiveSeconds | None = None
    """Attempts that run longer are stopped, for example 2h."""
    stop_grace: Annotated[Seconds, Field(le=3600)] = 10.0
    """Time between SIGTERM and SIGKILL when the job is stopped."""
    budget_usd: PositiveUsd | None = None
    """The job is stopped once its cost exceeds this."""
    progress: ProgressPart | None = None
    """How a batch job reports its progress."""
    metrics: MetricsPart | None = None
    """How a service's request rate and latency are read."""
    instance_types: Patterns = ()
    """Instance types it may run on; * and ? are wildcards. Default: any."""
    preferred_types: Patterns = ()
    """Instance types on which it runs fastest; * and ? are wildcards. It runs on others too."""
    slower_elsewhere: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] | None = None
    """How many times as long it runs on types that are not among preferred_types. Default: 1.5."""
    exclusive: Flag = False
    """Each node gets a whole instance, shared with no other job."""
    placement: PlacementPart = PlacementPart()
    """Zones and labels of its instances, anti-affinity, and the spread of its nodes."""
    profiling: Literal["auto", "never"] = "auto"
    """auto: profiled if the policy says so and the program is unknown; never: not profiled."""
    measure: MeasurePart | None = None
    """Measure the command on an instance of its own instead of running it once."""

    @model_validator(mode="before")
    @classmethod
    def _translate_old_keys(cls, given: object) -> object:
        # Also here, for clients of the previous version that post to the API.
        try:
            return translate_keys(given, KEY_CHANGES["job"])[0]
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _startable(self) -> JobFile:
        env = sum(
            len(name.encode()) + (value.size_bytes if isinstance(value, SecretPart) else len(value.encode()))
            for name, value in self.env.items()
        )
        if env + sum(len(each.encode()) for each in self.command) > PROGRAM_BYTES_MAX:
            limit = f"{PROGRAM_BYTES_MAX >> 20} MiB"
            raise AtKey("env", f"and command must be at most {limit} long together; put large values into a file")
        if IMAGE_LOGIN in self.env:
            self._check_login(self.env[IMAGE_LOGIN])
        return self

    def _check_login(self, login: str | SecretPart) -> None:
        if self.image is None:
            raise AtKey("env", f"has {IMAGE_LOGIN}, the login for an image's registry; name the image, or leave it out")
        if not isinstance(login, SecretPart):
            raise AtKey("env", f"has {IMAGE_LOGIN} as plain text; make it a secret, {{secret_from: env:NAME}}")
        if login.secret is not None and ":" not in login.secret:
            raise AtKey("env", f"has {IMAGE_LOGIN} without a colon; it must be USER:PASSWORD")

    @model_validator(mode="after")
    def _possible(self) -> JobFile:
        if self.measure is not None and self.nodes.count > 1:
            raise AtKey("nodes", f"must be 1 for a job that is measured, not {self.nodes.count}")
        if self.measure is not None and self.resources.gpus is not None:
            raise AtKey("measure", "measures no GPUs; leave out resources.gpus, or measure")
        if self.progress is not None and self.target.service is not None:
            raise AtKey("progress", "has no meaning for a service, which never finishes; use metrics")
        if self.metrics is not None and self.target.batch is not None:
            raise AtKey("metrics", "has no meaning for a batch job, which serves no requests; use progress")
        if self.exclusive and self.resources.vcpus_within is not None:
            raise AtKey("exclusive", "gives each node a whole machine; leave out vcpus_min and vcpus_max")
        check_inputs(self.inputs)
        if self.schedule is not None:
            self._check_schedule()
        if self.framework is not None:
            self._check_framework(self.framework)
        if self.name in self.after:
            raise AtKey("after", f"names {self.name}, the job itself, which can never start so")
        if self.slower_elsewhere is not None and not self.preferred_types:
            raise AtKey("slower_elsewhere", "has no meaning without preferred_types; name these, or leave it out")
        if self.placement.spread != "none" and self.nodes.count == 1:
            raise AtKey(
                "placement",
                f"spread: {self.placement.spread} has no meaning for one node; set nodes, or leave it out",
            )
        return self

    @model_validator(mode="after")
    def _countable(self) -> JobFile:
        if not self.matrix and "matrix" in self.model_fields_set:
            raise AtKey("matrix", "names no variable; name one, such as lr: [0.1, 0.2], or leave it out")
        if self.array is None and not self.matrix:
            if self.tasks_per_unit != "auto":
                raise AtKey("tasks_per_unit", "is for the tasks of an array; set array or matrix, or leave it out")
            return self
        if self.measure is not None:
            raise AtKey("measure", "measures one job; leave out array and matrix")
        if self.budget_usd is not None:
            raise AtKey("budget_usd", "is the limit of one job; limit an array by its tags (budgets.per_tag)")
        size = matrix_size(self.matrix)
        if self.matrix and size > TASKS_MOST:
            raise AtKey("matrix", f"has {size:,} combinations; at most {TASKS_MOST:,} are possible")
        for name, values in self.matrix.items():
            if name in self.env or name.startswith("HCLOUD_"):
                whose = "in env too" if name in self.env else "a name that HCloud itself sets"
                raise AtKey("matrix", f"has {name}, which is {whose}; use another name")
            if len(set(values)) < len(values):
                twice = next(each for at, each in enumerate(values) if each in values[:at])
                raise AtKey("matrix", f"has {twice} twice in {name}; name each value once")
        ranges, _ = parse_ids(self.array) if self.array is not None else ((), None)
        if not ranges and not self.matrix:
            raise AtKey("array", f"must name its tasks, such as 0-999{self.array}")
        highest = max((last for _, last, _ in ranges), default=0)
        if self.matrix and highest >= size:
            raise AtKey("array", f"names task {highest}, but the matrix has the tasks 0-{size - 1}")
        return self

    def _check_schedule(self) -> None:
        batch = self.target.batch
        if self.after:
            raise AtKey("after", "is for jobs that are submitted once; of a schedule, use overlap: queue")
        if batch is not None and batch.by is not None:
            raise AtKey("target", "batch.by is one moment, and a schedule has many; use batch.within")

    def _check_framework(self, name: str) -> None:
        nodes = self.nodes.to_nodes()
        if nodes.count == 1:
            raise AtKey("framework", f"{name} is started on several nodes; set nodes, such as 2, or leave it out")
        if not nodes.gang:
            raise AtKey("nodes", f"must be one number: all nodes of {name} start together")

    @property
    def network_or_default(self) -> Literal["none", "host"]:
        """The network that was asked for, or what is usual: ``host`` of a framework."""
        return "host" if self.framework is not None and "network" not in self.model_fields_set else self.network

    def _to_constraints(self) -> Constraints | None:
        constraints = self.placement.to_constraints()
        if self.framework is None or self.network_or_default != "none":
            return constraints
        return replace(constraints or Constraints(), gang_network=True)

    def to_recurrence(self) -> Recurrence | None:
        """Return when it is submitted again; None: it is submitted once."""
        part = self.schedule
        if part is None:
            return None
        return Recurrence(cron=part.cron, timezone=part.timezone, missed=part.missed, overlap=part.overlap)

    def to_tasks(self) -> TaskList | None:
        """Return the tasks of an array, or None for an ordinary job."""
        ranges, at_most = parse_ids(self.array) if self.array is not None else ((), None)
        if not ranges and not self.matrix:
            return None
        ranges = ranges or ((0, matrix_size(self.matrix) - 1, 1),)
        per_unit = None if self.tasks_per_unit == "auto" else self.tasks_per_unit
        return TaskList(ranges=ranges, at_most=at_most, per_unit=per_unit, matrix=tuple(self.matrix.items()))

    def impossible(self, now: float) -> tuple[KeyPath, str] | None:
        """Return the key and the reason why the job cannot succeed if submitted at ``now``, or None."""
        batch = self.target.batch
        if batch is not None and batch.by is not None and batch.by <= now:
            past, present = utc_text(batch.by), utc_text(round(now))
            return ("target", "batch", "by"), f"is in the past: {past}, and it is {present} now"
        return None

    def to_spec(self, user: str, now: float | None = None) -> JobSpec:
        """Return the job as the daemon stores it.

        Raises:
            ConfigError: the deadline is before ``now``, or the client did not upload the work directory or read
                ``env_file``.
        """
        problem = self.impossible(now) if now is not None else None
        if problem is not None:
            raise ConfigError(problem[1], where=key_path(problem[0]))
        if self.workdir is not None and self.workdir_sha256 is None:
            raise ConfigError(
                "must be uploaded first and named by workdir_sha256; `hcloud submit` does so", where="workdir"
            )
        if self.env_file is not None:
            raise ConfigError("is read by `hcloud submit`; put the variables into env", where="env_file")
        spec = JobSpec(user=user, **self._plain_fields(), **self._parts())
        return spec if self.measure is None else _measured(spec, self.measure.to_request())

    def secret_values(self) -> dict[str, str]:
        """Return the secret environment variables, which are not part of the ``JobSpec``; references with a mark.

        Raises:
            ConfigError: the client did not read one.
        """
        values = {name: each for name, each in self.env.items() if isinstance(each, SecretPart)}
        for name, each in values.items():
            if each.secret is None and not each.reference:
                raise ConfigError(
                    "is read by `hcloud submit`; send the value as secret", where=f"env.{name}.secret_from"
                )
        return {
            name: f"{REFERENCE_MARK}{each.reference}" if each.reference else each.secret or ""
            for name, each in values.items()
        }

    def secret_references(self) -> dict[str, str]:
        """Return where secret managers keep variables' values, by name."""
        return {
            name: each.reference for name, each in self.env.items() if isinstance(each, SecretPart) and each.reference
        }

    def _plain_fields(self) -> dict[str, Any]:
        """Return the fields that have the same name and type in ``JobSpec``."""
        same = (
            "name",
            "command",
            "image",
            "setup",
            "workdir_sha256",
            "workdir_content_sha256",
            "framework",
            "priority",
            "stateful",
            "interruptible",
            "network",
            "instance_types",
            "preferred_types",
            "exclusive",
            "profiling",
        )
        fields: dict[str, Any] = {name: getattr(self, name) for name in same}
        env = {name: each for name, each in self.env.items() if isinstance(each, str)}
        secrets = tuple(sorted(self.env.keys() - env.keys()))
        if self.preferred_types:
            fields["slower_elsewhere"] = self.slower_elsewhere or SLOWER_ELSEWHERE
        fields |= {"env": env, "secrets": secrets, "tags": dict(self.tags), "budget_usd": self.budget_usd}
        if self.framework is not None:  # a profile of one node alone would say nothing
            fields["profiling"] = "never"
            fields["network"] = self.network_or_default
        if self.resources.gpus is not None:  # copies would need GPUs, and vCPUs are not what it is fast by
            fields["profiling"] = "never"
        return fields | {"after": dict(self.after)}

    def _parts(self) -> dict[str, Any]:
        """Return the fields that ``JobSpec`` names or represents differently."""
        need, progress, metrics = self.resources, self.progress, self.metrics
        return {
            "target": self.target.to_target(),
            "resources": Resources(
                vcpus=need.vcpus,
                memory_mib=need.memory,
                disk_gib=need.disk,
                gpus=need.gpus.to_gpus() if need.gpus else None,
            ),
            "nodes": self.nodes.to_nodes(),
            "retries": self.retries.to_retries(),
            "max_runtime_s": self.max_runtime,
            "stop_grace_s": self.stop_grace,
            "inputs": bucket_inputs(self.inputs),
            "outputs": brought_back(self.outputs),
            "bucket_outputs": bucket_outputs(self.outputs),
            "checkpoint": self.checkpoint and self.checkpoint.to_checkpoint(),
            "progress": progress and ProgressHook(file=progress.file, total=progress.total),
            "metrics": metrics and MetricsHook(url=metrics.url, probe=metrics.probe, every_s=metrics.every),
            "placement": self._to_constraints(),
            "vcpus_within": need.vcpus_within,
            "tasks": self.to_tasks(),
        }


def _measured(spec: JobSpec, request: ProfileRequest) -> JobSpec:
    """Return the job as a measurement: on a whole instance of that type, with a limit on its run time."""
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
    """Return the job in ``mapping``. ``locate`` turns a key path into the ``where`` of an error.

    Raises:
        ConfigError: an unknown key, a value of the wrong type, a contradiction, or a deadline before ``now``.
    """
    job = parse(JobFile, mapping, locate)
    problem = job.impossible(now) if now is not None else None
    if problem is not None:
        raise ConfigError(problem[1], where=locate(problem[0]))
    return job
