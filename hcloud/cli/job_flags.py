"""Flags that describe a job, and how they join what a job file says."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from hcloud.cli.output import FiniteRange, WholeRange
from hcloud.core.errors import BadInput

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = (
    click.option("--name", help="Name of the job (default: the program's name)."),
    click.option("--vcpus", type=FiniteRange(), help="vCPUs per node; fractions are allowed."),
    click.option("--memory", help="Memory per node, such as 512MiB or 2GiB."),
    click.option("--disk", help="Disk per node, such as 20GiB."),
    click.option("--gpus", help="GPUs per node: a number, or kind, memory and number: 2, l4, a100:80GB:2."),
    click.option("--nodes", help="Nodes: a number (all start together), or a range such as 2..8."),
    click.option("--array", help="Run a task for each id, such as 0-999%50 (at most 50 at once); see HCLOUD_TASK_ID."),
    click.option("--tasks-per-unit", type=int, help="Tasks of the array that run one after the other in one unit."),
    click.option("--within", help="Target: finish within this long after submission, such as 10m or 600 (seconds)."),
    click.option("--by", help="Target: finish by this time, such as 2030-05-01T18:00:00Z."),
    click.option("--rate", type=FiniteRange(), help="Target of a service: requests per second."),
    click.option("--latency-ms", type=FiniteRange(), help="Target of a service: latency at --percentile, in ms."),
    click.option("--percentile", type=FiniteRange(), help="Percentile of --latency-ms (default 99)."),
    click.option("--best-effort", is_flag=True, help="Target: no promise; runs in what is left over."),
    click.option("--env", "-e", multiple=True, metavar="NAME[=VALUE]", help="Environment; without a value, yours."),
    click.option("--after", multiple=True, metavar="JOB[=END]",
                 help="Start after a job (job-7, or one of the files) succeeded; or =finished, =failed (repeatable)."),
    click.option("--cron", help="Submit it again and again: minute hour day month weekday, or @daily."),
    click.option("--missed", type=click.Choice(["skip", "once", "all"]),
                 help="What is done for times of --cron at which no daemon ran (default: skip)."),
    click.option("--overlap", type=click.Choice(["skip", "queue", "allow", "replace"]),
                 help="What is done when --cron fires while its job before goes on (default: skip)."),
    click.option("--timezone", help="Time zone of --cron, such as Europe/Berlin (default: UTC)."),
    click.option("--secret", multiple=True, metavar="NAME[=FROM]",
                 help="Secret variable: yours, or env:NAME, file:/PATH, aws:NAME#KEY, gcp:projects/P/secrets/S."),
    click.option("--env-file", type=click.Path(path_type=Path), help="File of NAME=value lines."),
    click.option("--tag", "-t", multiple=True, metavar="NAME=VALUE", help="Tag that reports can group by."),
    click.option("--priority", type=WholeRange(), help="Higher goes first (-1000 to 1000)."),
    click.option("--input", "inputs", multiple=True, metavar="FROM[=TO]",
                 help="File or folder, here or s3://, gs://, that it finds in its work directory (repeatable)."),
    click.option("--outputs", "outputs", multiple=True, metavar="PATTERN[=URL]",
                 help="Files to bring back, such as results/ or '*.csv', or to send to s3://, gs:// (repeatable)."),
    click.option("--checkpoint", metavar="PATH",
                 help="What it writes to go on from: kept off its machine every 5 min, restored for the next attempt."),
    click.option("--checkpoint-every", help="How often it is kept, such as 30s or 10m; needs --checkpoint."),
    click.option("--checkpoint-signal", type=click.Choice(["USR1", "USR2", "HUP"]),
                 help="Signal that asks it to write one; needs --checkpoint."),
    click.option("--workdir", "-w", type=click.Path(path_type=Path), help="Directory to upload and start in."),
    click.option("--image", help="Container image to run in, such as debian:12."),
    click.option("--framework", type=click.Choice(["dask", "mpi", "torchrun"]),
                 help="What is started on all nodes, and the command in it; needs --nodes."),
    click.option("--setup", help="Shell script to run before the command, once per node."),
    click.option("--network", type=click.Choice(["none", "host"]), help="Network of the job."),
    click.option("--budget", type=FiniteRange(), help="Stop the job when it has cost this many USD."),
    click.option("--retries", type=WholeRange(), help="Tries after a non-zero exit."),
    click.option("--memory-retries", type=WholeRange(), help="Tries after it ran out of memory, each with more of it."),
    click.option("--memory-factor", type=FiniteRange(), help="How many times as much each of these gets (default 2)."),
    click.option("--max-runtime", help="Stop an attempt that runs longer, such as 2h or 7200 (seconds)."),
    click.option("--spot/--no-spot", default=None, help="Whether it may run on machines that can be preempted."),
    click.option("--type", "instance_types", multiple=True, help="Instance type it may run on; * and ? (repeatable)."),
    click.option("--zone", "zones", multiple=True, help="Zone it may run in; * and ? (repeatable)."),
    click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Label its machines must have."),
    click.option("--apart-from", multiple=True, metavar="JOB", help="Jobs it shares no machine with."),
    click.option("--spread", type=click.Choice(["none", "host", "zone"]), help="No two of its nodes on one."),
    click.option("--exclusive/--shared", default=None, help="Whether its machines are all its own."),
    click.option("--profiling", type=click.Choice(["auto", "never"]), help="Whether it may be profiled."),
)  # fmt: skip
_PLAIN = {"name": "name", "priority": "priority", "setup": "setup", "network": "network", "max_runtime": "max_runtime",
          "budget": "budget_usd", "spot": "interruptible", "exclusive": "exclusive",
          "profiling": "profiling", "array": "array", "tasks_per_unit": "tasks_per_unit",
          "image": "image", "framework": "framework"}  # fmt: skip

_PARTS = {"checkpoint": {"checkpoint": "path", "checkpoint_every": "every", "checkpoint_signal": "signal"},
          "retries": {"retries": "exit_code", "memory_retries": "out_of_memory", "memory_factor": "memory_factor"},
          "schedule": {"cron": "cron", "timezone": "timezone", "missed": "missed", "overlap": "overlap"}}  # fmt: skip


def job_options(function: F) -> F:
    """Add the flags."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def mappings_of_jobs(
    files: Sequence[Path], command: tuple[str, ...] | None, flags: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the jobs of ``files``, or of ``command``, changed by ``flags``; checked, as the API takes them.

    Raises:
        BadInput: neither or both were given, or something in a file or flag is at fault (named).
    """
    if bool(files) == (command is not None):
        wanted = (
            "name job files, or a command after --, not both" if files else "name a job file, or a command after --"
        )
        raise BadInput(f"{wanted}; see 'hcloud submit --help'")
    if command is not None:
        return [_checked(_of_command(command), flags)]
    from hcloud.config import load_job

    jobs = [job for path in files for job in load_job(path, alone=len(files) == 1)]
    if flags.get("name") and len(jobs) > 1:
        raise BadInput(f"--name: the files hold {len(jobs)} jobs, which cannot all have one name; leave it out")
    return [_checked(job.model_dump(mode="json", exclude_unset=True), flags) for job in jobs]


def _of_command(command: tuple[str, ...]) -> dict[str, Any]:
    if not command or not command[0]:
        raise BadInput("a command must follow --, such as: hcloud submit -- echo hello")
    # One word with blanks was meant for the shell: hcloud submit -- 'make && make test'
    shell = len(command) == 1 and len(command[0].split()) > 1
    program = shlex.split(command[0], posix=False)[0] if shell else command[0]
    letters = [each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in Path(program).name]
    name = "".join(letters).lstrip("._-")[:63] or "job"
    return {"name": name, "command": command[0] if shell else list(command)}


def _checked(mapping: dict[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    from hcloud.spec.jobfile import parse_job

    changed = {**mapping, **_changes(mapping, flags)}
    job = parse_job(changed, locate=_where)
    return read_secrets(job.model_dump(mode="json", exclude_unset=True))


def read_secrets(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job with the values of secrets that it names by where they are. Raises BadInput, which quotes none."""
    from hcloud.config import resolve_secret
    from hcloud.spec.job_variables import is_managed

    env = dict(job.get("env", {}))
    for name, value in env.items():
        if isinstance(value, Mapping) and (place := value.get("secret_from")) and not is_managed(place):
            try:
                env[name] = {"secret": resolve_secret(place)}
            except BadInput as error:
                raise BadInput(f"env.{name}.secret_from: {error}") from error
    return {**job, "env": env} if env else job


def _where(path: Sequence[str | int]) -> str:
    """Name the flag behind a key, where there is one."""
    from hcloud.spec.validation import key_path

    named = {"budget_usd": "--budget", "vcpus": "--vcpus", "memory": "--memory", "disk": "--disk", "within": "--within",
             "by": "--by", "requests_per_s": "--rate", "latency_ms": "--latency-ms", "env": "--env", "tags": "--tag",
             "name": "--name", "nodes": "--nodes", "max_runtime": "--max-runtime", "retries": "--retries",
             "percentile": "--percentile", "priority": "--priority", "setup": "--setup", "zones": "--zone",
             "labels": "--label", "array": "--array", "apart_from": "--apart-from", "instance_types": "--type",
             "inputs": "--input", "outputs": "--outputs", "checkpoint": "--checkpoint", "after": "--after",
             "cron": "--cron", "timezone": "--timezone", "secret_from": "--secret", "every": "--checkpoint-every",
             "memory_factor": "--memory-factor", "out_of_memory": "--memory-retries", "gpus": "--gpus",
             "tasks_per_unit": "--tasks-per-unit", "image": "--image", "framework": "--framework"}  # fmt: skip
    key = next((str(part) for part in reversed(path) if str(part) in named), "")
    return f"{key_path(tuple(path))} ({named[key]})" if key else key_path(tuple(path))


def _changes(mapping: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    flags = {**flags, **_durations(flags)}
    changes = {key: flags[flag] for flag, key in _PLAIN.items() if flags.get(flag) is not None}
    target = _target(flags)
    if target is not None:
        changes["target"] = target
    resources = {key: flags[key] for key in ("vcpus", "memory", "disk", "gpus") if flags.get(key) is not None}
    if resources:
        if (gpus := resources.get("gpus")) is not None and gpus.isdigit():
            resources["gpus"] = int(gpus)
        changes["resources"] = {**mapping.get("resources", {}), **resources}
    if flags.get("nodes") is not None:
        changes["nodes"] = int(flags["nodes"]) if flags["nodes"].isdigit() else flags["nodes"]
    if flags.get("workdir") is not None:
        changes["workdir"] = _directory(flags["workdir"])
    if flags.get("instance_types"):
        changes["instance_types"] = list(flags["instance_types"])
    if flags.get("outputs"):
        changes["outputs"] = list(map(_output, flags["outputs"]))
    if flags.get("inputs"):
        changes["inputs"] = [*mapping.get("inputs", ()), *map(_input, flags["inputs"])]
    for part, keys in _PARTS.items():
        changes |= _part(mapping, flags, part, keys)
    placement = _placement(flags)
    if placement:
        changes["placement"] = {**mapping.get("placement", {}), **placement}
    if flags.get("after"):
        if wrong := next((each for each in flags["after"] if ":" in each), None):
            raise BadInput(f"--after {wrong}: must be a job, or a job and how it ends such as job-7=finished")
        pairs = (each.partition("=") for each in flags["after"])
        after = mapping.get("after", {})
        changes["after"] = {
            **(after if isinstance(after, Mapping) else {}),
            **{f"job-{name}" if name.isdigit() else name: end or "succeeded" for name, _, end in pairs},
        }
    env = _environment(flags)
    if env:
        changes["env"] = {**mapping.get("env", {}), **env}
    if flags.get("tag"):
        changes["tags"] = {**mapping.get("tags", {}), **dict(_pair("--tag", each) for each in flags["tag"])}
    return changes


def _part(
    mapping: Mapping[str, Any], flags: Mapping[str, Any], part: str, keys: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return a part of the job with what flags (key by flag) say of it; empty if they say nothing."""
    given = {key: flags[flag] for flag, key in keys.items() if flags.get(flag) is not None}
    stated = mapping.get(part)
    return {part: {**(stated if isinstance(stated, Mapping) else {}), **given}} if given else {}


def _durations(flags: Mapping[str, Any]) -> dict[str, float | str]:
    from hcloud.cli.arguments import seconds_or_text  # 0.1 s, which help need not take

    return {
        name: seconds_or_text(flags[name])
        for name in ("within", "max_runtime", "checkpoint_every")
        if flags.get(name) is not None
    }


def _placement(flags: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {key: list(flags[key]) for key in ("zones", "apart_from") if flags.get(key)}
    if flags.get("labels"):
        changes["labels"] = dict(_pair("--label", each) for each in flags["labels"])
    if flags.get("spread"):
        changes["spread"] = flags["spread"]
    return changes


def _target(flags: Mapping[str, Any]) -> dict[str, Any] | None:
    batch = {key: flags[key] for key in ("within", "by") if flags.get(key) is not None}
    names = {"rate": "requests_per_s", "latency_ms": "latency_ms", "percentile": "percentile"}
    service = {key: flags[flag] for flag, key in names.items() if flags.get(flag) is not None}
    stated = [name for name, there in (("--within/--by", batch), ("--rate/--latency-ms", service)) if there]
    if flags.get("best_effort"):
        stated.append("--best-effort")
    if len(stated) > 1:
        raise BadInput(f"{' and '.join(stated)} are different targets; state one")
    if not stated:
        return None
    if batch:
        return {"batch": batch}
    return {"service": service} if service else {"best_effort": {}}


def _directory(path: Path) -> str:
    directory = path.expanduser().absolute()
    if not directory.is_dir():
        raise BadInput(f"--workdir: {directory} is no directory")
    return str(directory)


def _output(text: str) -> str | dict[str, str]:
    found = re.fullmatch(r"(.*)=([A-Za-z][A-Za-z0-9+.-]*://.*)", text)
    return text if found is None else {"from": found[1], "to": found[2]}


def _input(text: str) -> dict[str, str]:
    source, equals, to = text.rpartition("=")
    if not equals:
        source, to = text, ""
    if "://" not in source:
        path = Path(source).expanduser()
        if not path.exists():
            raise BadInput(f"--input: there is no file or folder {source}")
        source = str(path.absolute())
    return {"from": source, **({"to": to} if equals else {})}


def _environment(flags: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if flags.get("env_file") is not None:
        from hcloud.config import read_env_file

        found.update(read_env_file(flags["env_file"], "--env-file"))
    for each in flags.get("secret", ()):
        name, _, reference = each.partition("=")
        found[name] = {"secret_from": reference or f"env:{name}"}
    for each in flags.get("env", ()):
        name, equals, value = each.partition("=")
        if not equals and name not in os.environ:
            raise BadInput(f"--env {name}: there is no such variable in your environment; give a value: {name}=VALUE")
        found[name] = value if equals else os.environ[name]
    return found


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"{flag} {text}: must have the form NAME=VALUE")
    return name, value
