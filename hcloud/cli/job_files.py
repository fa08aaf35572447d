"""``hcloud job``: check job files without a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hcloud.cli.check import check_files, form_option
from hcloud.cli.output import gib, span, write_json
from hcloud.cli.policy import dollars
from hcloud.config import load_job
from hcloud.core.arrays import ids_text
from hcloud.core.clock import SystemClock
from hcloud.core.errors import BadInput, ConfigError
from hcloud.core.units import utc_text
from hcloud.spec.job_variables import SecretPart
from hcloud.spec.jobfile import JobFile
from hcloud.spec.validation import counted, json_schema


@click.group()
def job() -> None:
    """Check job files; print their schema."""


@job.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@form_option
def check(files: tuple[Path, ...], form: str) -> None:
    """Check job FILES (-: standard input) and say in plain words what they ask for; nothing is submitted.

    Links in work directories and inputs of this machine are checked too. What machines there are, and what buckets
    hold, is not known here: `hcloud submit --dry-run` says whether a job can run.
    """
    now = SystemClock().now()

    def load(file: Path, notes: list[str]) -> tuple[JobFile, ...]:
        jobs = load_job(file, notes, now=now, alone=True)
        _check_links(file, jobs)
        return jobs

    check_files(files, form, load, _described)


@job.command()
def schema() -> None:
    """Print the JSON Schema of job files, which is also what the API takes."""
    write_json(json_schema(JobFile))


def _check_links(file: Path, jobs: tuple[JobFile, ...]) -> None:
    from hcloud.client.workdir import check_links, local_inputs

    for each in jobs:
        local, _ = local_inputs({"inputs": each.inputs})
        if each.workdir is None and not local:
            continue
        try:
            check_links(Path(each.workdir) if each.workdir is not None else None, local)
        except BadInput as error:
            raise ConfigError(str(error), where=f"{file}: {'workdir' if not local else each.name}") from error


def _described(jobs: tuple[JobFile, ...]) -> dict[str, Any]:
    return {"jobs": [each.name for each in jobs], "summary": [line for each in jobs for line in _summary(each)]}


def _summary(asked: JobFile) -> Iterator[str]:
    need, nodes = asked.resources, asked.nodes.to_nodes()
    yield f"{asked.name}: {_promise(asked)}"
    together = "" if nodes.count == 1 else " together" if nodes.gang else f", from {nodes.minimum}"
    count = "1 node" if nodes.count == 1 else f"{nodes.count} nodes"
    yield f"  {count}{together}, each {need.vcpus:g} vCPUs, {need.memory} MiB memory, {gib(need.disk)} disk"
    if need.gpus is not None:
        yield f"  {need.gpus.to_gpus().words()} for each node"
    tasks = asked.to_tasks()
    if tasks is not None:
        at_once = f", at most {tasks.at_most} at once" if tasks.at_most is not None else ""
        values = f", each with a combination of {', '.join(asked.matrix)}" if asked.matrix else ""
        yield f"  an array of {counted(len(tasks), 'task')} ({ids_text(tasks.ranges)[:60]}){at_once}{values}"
    if asked.schedule is not None:
        rule = asked.schedule
        yield f"  submitted at {rule.cron} ({rule.timezone}); missed runs: {rule.missed}, overlap: {rule.overlap}"
    if asked.after:
        yield f"  starts once {', '.join(f'{name} has {ending}' for name, ending in asked.after.items())}"
    if asked.framework is not None:
        own = ", in a network of their own" if asked.network_or_default == "none" else ""
        yield f"  runs in {asked.framework}, which is started on all nodes{own}"
    if asked.image is not None:
        yield f"  runs in the container image {asked.image}"
    if secrets := [name for name, value in asked.env.items() if isinstance(value, SecretPart)]:
        yield f"  secret variables: {', '.join(sorted(secrets))}"
    for each in asked.inputs:
        how = "uploaded with the job" if each.is_local else "fetched by each machine"
        yield f"  input {each.to} from {each.source}, {how}"
    for output in asked.outputs:
        yield f"  output {output.source} {f'to {output.to}' if output.to is not None else 'is brought back'}"
    if asked.checkpoint is not None:
        signal = f", after {asked.checkpoint.signal}" if asked.checkpoint.signal else ""
        kept = f"{asked.checkpoint.path}, kept every {span(asked.checkpoint.every)}{signal}"
        yield f"  goes on after interruptions from {kept}"
    limits = [f"at most {span(asked.max_runtime)}"] if asked.max_runtime else []
    limits += [f"at most {dollars(asked.budget_usd)}"] if asked.budget_usd else []
    tries = asked.retries.exit_code
    if asked.retries.out_of_memory:
        again = f"tried again {counted(asked.retries.out_of_memory, 'time')} when it runs out of memory"
        limits.append(f"{again}, each with {asked.retries.memory_factor:g} times as much")
    limits.append(f"tried again {tries} times when it fails" if tries else "not tried again when it fails")
    yield f"  {', '.join(limits)}; {'may' if asked.interruptible else 'must not'} be interrupted"


def _promise(asked: JobFile) -> str:
    batch, service = asked.target.batch, asked.target.service
    if service is not None:
        latency = f"{service.percentile:g} % of answers within {service.latency_ms:g} ms"
        return f"service of {service.requests_per_s:g} requests/s, {latency}"
    if batch is None:
        return "best effort, no promise"
    limits = [f"within {span(batch.within)}"] if batch.within is not None else []
    limits += [f"by {utc_text(batch.by)}"] if batch.by is not None else []
    return f"batch, done {' and '.join(limits)}" if limits else "batch, no deadline"
