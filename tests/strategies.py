"""Hypothesis strategies for the vocabulary: every field of every thing takes every kind of value it may have."""

from hypothesis import strategies as st

from hcloud.core.arrays import IdRange, TaskList, TaskRecord, with_positions
from hcloud.core.bucket_urls import BucketInput, BucketOutput
from hcloud.core.cpu_topology import typical_topology
from hcloud.core.dependencies import ENDINGS_AWAITED, Dependency
from hcloud.core.estimates import Application, Measure, Reading
from hcloud.core.model import (
    Allocation,
    Attempt,
    BatchTarget,
    BestEffortTarget,
    Checkpoint,
    CommittedCapacity,
    Constraints,
    Correction,
    EventKind,
    FailureCause,
    Gpus,
    Instance,
    InstanceState,
    InstanceType,
    Intent,
    IntentKind,
    Job,
    JobSpec,
    JobState,
    Market,
    MetricsHook,
    Nodes,
    Offer,
    ProfileRequest,
    ProgressHook,
    Resources,
    Retries,
    ServiceTarget,
    with_memory,
)
from hcloud.core.schedules import Recurrence, Schedule
from hcloud.core.task_runs import TaskEnds, TaskRun
from hcloud.planner.snapshot import OfferBackoff, RefusedQuota

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
"""Any text a JSON document can hold, NUL and emoji included."""
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12)
"""Text that both databases can hold in a column."""
moments = st.floats(min_value=0, max_value=4e9)
amounts = st.floats(min_value=0, allow_nan=False)
"""Durations and money; infinite means without limit."""
finite = st.floats(min_value=0, max_value=1e12)
maybe_moments = st.none() | moments
mappings = st.dictionaries(texts, texts, max_size=3)
tags = st.dictionaries(words, words, max_size=3)
numbers = st.integers(1, 10**6)

gpus = st.builds(Gpus, count=numbers, kind=texts, memory_gib=finite)
resources = st.builds(Resources, vcpus=finite, memory_mib=st.integers(0, 2**40), disk_gib=finite, gpus=st.none() | gpus)
targets = st.one_of(
    st.builds(BatchTarget, finish_by_at=maybe_moments, finish_within_s=st.none() | amounts),
    st.builds(ServiceTarget, requests_per_s=finite, latency_ms=finite, percentile=st.floats(0, 100)),
    st.builds(BestEffortTarget),
)
nodes = st.builds(Nodes, count=numbers, minimum=numbers, gang=st.booleans())
retries = st.builds(
    Retries,
    limits=st.dictionaries(st.sampled_from([cause.value for cause in FailureCause]), st.integers(0, 100)),
    backoff_s=amounts,
    backoff_cap_s=amounts,
    memory_factor=amounts,
)
readings = st.builds(Reading, question=words, column=words, value=finite, low=finite, high=finite, runs=numbers)
profile_requests = st.builds(
    ProfileRequest,
    job_id=numbers.map("job-{}".format),
    type_column=texts,
    steps_vcpus=st.lists(finite, max_size=2).map(tuple),
    sources=st.lists(words, max_size=2).map(tuple),
    nodes=numbers,
    run_s=finite,
    total_s=finite,
    warm_up_s=finite,
    promised_ms=st.none() | finite,
    look=st.booleans(),
    knees=st.booleans(),
    unit_id=texts,
    expected=st.lists(readings, max_size=2).map(tuple),
)
constraints = st.builds(
    Constraints,
    zones=st.lists(words, max_size=2).map(tuple),
    labels=st.lists(st.tuples(words, texts), max_size=2).map(tuple),
    apart_from=st.lists(words, max_size=2).map(tuple),
    spread=st.sampled_from(["none", "host", "zone"]),
    gang_network=st.booleans(),
)


def _id_ranges(steps: list[tuple[int, int, int]]) -> tuple[IdRange, ...]:
    """Return ranges that follow each other, from gap, count and step of each."""
    ranges, after = [], 0
    for gap, count, step in steps:
        first = after + gap
        ranges.append((first, first + (count - 1) * step, step))
        after = ranges[-1][1] + 1
    return tuple(ranges)


id_ranges = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=3).map(
    _id_ranges
)
task_lists = st.builds(
    TaskList,
    ranges=id_ranges,
    at_most=st.none() | st.integers(1, 9),
    per_unit=st.none() | st.integers(1, 9),
    matrix=st.lists(st.tuples(words, st.lists(texts, min_size=1, max_size=2).map(tuple)), max_size=2).map(tuple),
)
_intervals = st.lists(st.integers(0, 20), max_size=5, unique=True).map(lambda each: with_positions((), sorted(each)))
task_records = st.builds(
    TaskRecord,
    made=_intervals,
    succeeded=_intervals,
    failed=_intervals,
    cancelled=_intervals,
    timed=st.integers(0, 99),
    timed_s=finite,
)
task_ends = st.builds(
    TaskEnds,
    first=st.integers(0, 20),
    last=st.integers(0, 20),
    started_at=moments,
    ended_at=moments,
    exit_code=st.none() | st.integers(0, 255),
    cause=st.none() | st.sampled_from(FailureCause),
    detail=texts,
)
task_runs = st.builds(
    TaskRun,
    others=_intervals,
    begin_within_s=st.none() | finite,
    begun=_intervals,
    recorded_until=moments,
    own=st.none() | task_ends,
    cancelled=_intervals,
)
endings = st.sampled_from(ENDINGS_AWAITED)
specs = st.builds(
    JobSpec,
    name=words,
    user=words,
    command=st.lists(texts, min_size=1, max_size=3).map(tuple),
    target=targets,
    resources=resources,
    nodes=nodes,
    image=st.none() | texts,
    setup=st.none() | texts,
    workdir_sha256=st.none() | texts,
    workdir_content_sha256=st.none() | texts,
    inputs=st.lists(st.builds(BucketInput, source=words, to=words), max_size=2).map(tuple),
    outputs=st.lists(words, max_size=2).map(tuple),
    bucket_outputs=st.lists(st.builds(BucketOutput, pattern=words, to=words), max_size=2).map(tuple),
    env=mappings,
    secrets=st.lists(words, max_size=2).map(tuple),
    tags=tags,
    priority=st.integers(-(2**40), 2**40),
    stateful=st.booleans(),
    interruptible=st.booleans(),
    network=st.sampled_from(["none", "host"]),
    retries=retries,
    max_runtime_s=st.none() | amounts,
    stop_grace_s=amounts,
    budget_usd=st.none() | amounts,
    framework=st.sampled_from([None, "dask", "mpi", "torchrun"]),
    checkpoint=st.none() | st.builds(Checkpoint, path=words, every_s=finite),
    progress=st.none() | st.builds(ProgressHook, file=texts, total=finite),
    metrics=st.none()
    | st.builds(
        MetricsHook,
        url=st.none() | texts,
        probe=st.none() | st.lists(texts, max_size=2).map(tuple),
        every_s=finite,
    ),
    instance_types=st.lists(words, max_size=2).map(tuple),
    preferred_types=st.lists(words, max_size=2).map(tuple),
    slower_elsewhere=st.sampled_from([1.0, 1.5, 4.0]),
    exclusive=st.booleans(),
    profiling=st.sampled_from(["auto", "never"]),
    profile=st.none() | profile_requests,
    placement=st.none() | constraints,
    vcpus_within=st.none() | st.tuples(amounts, amounts),
    tasks=st.none() | task_lists,
    after=st.dictionaries(words, endings, max_size=2),
)

schedules = st.builds(
    Schedule,
    id=st.just(""),
    spec=specs,
    recurrence=st.builds(
        Recurrence,
        cron=texts,
        timezone=texts,
        missed=st.sampled_from(["skip", "once", "all"]),
        overlap=st.sampled_from(["skip", "queue", "allow", "replace"]),
    ),
    created_at=moments,
    next_at=maybe_moments,
    paused_by=texts,
    fired_at=maybe_moments,
    jobs=st.lists(numbers.map("job-{}".format), max_size=2).map(tuple),
    secrets=mappings,
)
causes = st.sampled_from(FailureCause)
cpu_sets = st.lists(st.integers(0, 300), max_size=3, unique=True).map(sorted).map(tuple)
allocations = st.builds(
    Allocation,
    rank=st.integers(0, 100),
    instance_id=numbers.map("inst-{}".format),
    resources=resources,
    started_at=maybe_moments,
    ended_at=maybe_moments,
    exit_code=st.none() | st.integers(-64, 255),
    cause=st.none() | causes,
    detail=texts,
    relaunch=st.integers(0, 3),
    resized_from=st.none() | resources,
    cpus=cpu_sets,
    gpus=cpu_sets,
    pinned_from=st.none() | cpu_sets,
    yielded_at=maybe_moments,
    paused_at=maybe_moments,
    paused_text=texts,
    resumed_at=maybe_moments,
    paused_s=st.floats(0, 1e6),
    refuses_pause=st.booleans(),
)
corrections = st.builds(
    Correction,
    at=moments,
    step=words,
    attempt=st.builds("job-{}.{}".format, numbers, numbers),
    instances=st.lists(numbers.map("inst-{}".format), max_size=2).map(tuple),
)
attempts = st.builds(
    Attempt,
    id=st.builds("job-{}.{}".format, numbers, numbers),
    number=numbers,
    placed_at=moments,
    allocations=st.lists(allocations, max_size=3).map(tuple),
    stop_cause=st.none() | causes,
    stop_requested_at=maybe_moments,
    mark=st.sampled_from(["", "19ab6d2f3c4"]),
)
job_progress = st.fixed_dictionaries(
    {
        "queued_at": maybe_moments,
        "not_before_at": moments,
        "awaiting": st.lists(numbers.map("inst-{}".format), max_size=2).map(tuple),
        "attempt": st.none() | attempts,
        "attempts_made": numbers,
        "failures": st.lists(causes, max_size=3).map(tuple),
        "cancelled_by": st.none() | texts,
        "wait_code": texts,
        "wait_text": texts,
        "unmet_code": texts,
        "unmet_text": texts,
        "reserved": st.lists(numbers.map("inst-{}".format), max_size=2).map(tuple),
        "finished_at": maybe_moments,
        "outcome": texts,
        "spent_usd": finite,
        "application": texts,
        "corrections": st.lists(corrections, max_size=2).map(tuple),
        "profile_runs": st.lists(numbers.map("job-{}".format), max_size=2).map(tuple),
        "task_record": st.none() | task_records,
        "run": st.none() | task_runs,
        "waits_for": st.lists(
            st.builds(Dependency, job_id=numbers.map("job-{}".format), ending=endings, name=words), max_size=2
        ).map(tuple),
        "released_at": maybe_moments,
        "needed_for": st.sampled_from(["", "job-9"]),
        "memory_mib": st.none() | numbers,
    }
)
"""All fields of a Job that change while it runs, except its state."""
jobs = st.builds(
    lambda spec, state, submitted_at, token, array, progress: Job(
        id="job-1",
        spec=with_memory(spec, progress["memory_mib"]),
        state=state,
        submitted_at=submitted_at,
        submission_token=token,
        array=array,
        **progress,
    ),
    specs,
    st.sampled_from(JobState),
    moments,
    st.none() | words,
    st.sampled_from(["", "job-0"]),
    job_progress,
)

instance_types = st.builds(
    InstanceType, provider=words, name=words, capacity=resources, boot_delay_s=amounts, labels=mappings
)
offers = st.builds(
    Offer,
    provider=words,
    region=texts,
    zone=words,
    instance_type=instance_types,
    market=st.sampled_from(Market),
    price_usd_per_h=finite,
    priced_at=moments,
    billing_minimum_s=finite,
    available=st.none() | st.integers(0, 1000),
    pool=texts,
    pool_free=st.none() | resources,
    quota=texts,
    ends_at=st.none() | moments,
    price_after_usd_per_h=st.none() | finite,
    committed=st.lists(
        st.builds(
            CommittedCapacity,
            ends_at=st.none() | moments,
            free=st.integers(0, 1000),
            used=st.integers(0, 1000),
            kind=texts,
            usd_per_h=st.none() | finite,
        ),
        max_size=3,
    ).map(tuple),
    commitment=texts,
)
instances = st.builds(
    Instance,
    id=st.just("inst-1"),
    offer=offers,
    state=st.sampled_from(InstanceState),
    token=words,
    requested_at=moments,
    expires_at=amounts,
    provider_id=st.none() | texts,
    launched_at=maybe_moments,
    ready_at=maybe_moments,
    seen_at=maybe_moments,
    idle_since=maybe_moments,
    preempt_at=maybe_moments,
    terminated_at=maybe_moments,
    for_running=st.lists(numbers.map("job-{}".format), max_size=2).map(tuple),
    reason=texts,
    addresses=st.none() | st.lists(words, max_size=2).map(tuple),
    cpu_topology=st.none() | st.integers(1, 40).map(typical_topology),
    has_wireguard=st.none() | st.booleans(),
)
intents = st.builds(
    Intent,
    token=words,
    kind=st.sampled_from(IntentKind),
    subject=texts,
    created_at=moments,
    tries=st.integers(0, 1000),
    retry_at=amounts,
)
backoffs = st.builds(
    OfferBackoff,
    provider=words,
    zone=st.just("") | words,
    instance_type=st.just("") | words,
    market=st.just("") | st.sampled_from([market.value for market in Market]),
    until_at=amounts,
    error=texts,
    failures=st.integers(1, 1000),
    losses=st.integers(0, 1000),
    lost_at=moments,
    unregistered=st.integers(0, 1000),
    unregistered_at=moments,
)
refused_quotas = st.builds(
    RefusedQuota,
    provider=words,
    region=words,
    quota=words,
    vcpus=amounts,
    instance_vcpus=amounts,
    until_at=amounts,
    periods=st.integers(0, 1000),
    retry_at=amounts,
    failures=st.integers(0, 1000),
    error=texts,
)
applications = st.builds(
    Application,
    name=words,
    program=words,
    inputs=st.dictionaries(words, finite, max_size=3),
    measure=st.none() | st.sampled_from(Measure),
    cells=st.dictionaries(words, st.dictionaries(texts, finite, max_size=3), max_size=2),
    spreads=st.dictionaries(words, st.dictionaries(texts, finite, max_size=3), max_size=2),
    use=st.lists(finite, max_size=4).map(tuple),
    type_column=texts,
    reference_vcpus=finite,
    profiled_at=maybe_moments,
    looked_at=maybe_moments,
    run_s=st.none() | finite,
    runs=st.lists(numbers.map("job-{}".format), max_size=2).map(tuple),
    missed=st.lists(st.booleans(), max_size=5).map(tuple),
)
EVENT_COLUMNS = {"kind", "job_id", "instance_id", "user", "actor", "at"}
event_values = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | amounts | texts | st.lists(texts, max_size=2)
event_fields = st.dictionaries(texts.filter(lambda name: name not in EVENT_COLUMNS), event_values, max_size=4)
event_kinds = st.sampled_from(EventKind)
