"""Job documents: friendly spellings mean what they say, impossible promises are refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hcloud.config import load_job
from hcloud.core.errors import ConfigError
from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Constraints,
    FailureCause,
    Gpus,
    JobSpec,
    Nodes,
    Retries,
    ServiceTarget,
)
from hcloud.core.units import parse_utc_s
from hcloud.spec.jobfile import JobFile, parse_job
from hcloud.spec.validation import json_schema
from tests.config.entry import Hcloud, complaint

NOW = parse_utc_s("2030-01-01T00:00:00Z")
LEAST = {"name": "a", "command": "sleep 1"}


def spec(**keys: Any) -> JobSpec:
    return parse_job({**LEAST, **keys}, now=NOW).to_spec("al", NOW)


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        spec(**keys)
    return str(refused.value)


def test_least_job_means_what_the_model_means_by_default() -> None:
    plain = JobSpec(name="a", user="al", command=("/bin/sh", "-c", "sleep 1"), target=BestEffortTarget())
    assert spec() == plain


def test_command_is_a_shell_line_or_a_program_with_arguments() -> None:
    assert spec(command="a | b").command == ("/bin/sh", "-c", "a | b")
    assert spec(command=["a", "| b", ""]).command == ("a", "| b", "")


@pytest.mark.parametrize(
    ("written", "target"),
    [
        ("best_effort", BestEffortTarget()),
        ({"best_effort": None}, BestEffortTarget()),
        ("batch", BatchTarget()),
        ({"batch": {"within": "10m"}}, BatchTarget(finish_within_s=600)),
        ({"batch": {"by": "2030-01-02T00:00:00Z"}}, BatchTarget(finish_by_at=NOW + 86400)),
        (
            {"service": {"requests_per_s": 50, "latency_ms": "0.2s"}},
            ServiceTarget(requests_per_s=50, latency_ms=200, percentile=99),
        ),
        (
            {"service": {"requests_per_s": 0.5, "latency_ms": 20, "percentile": 99.9}, "batch": None},
            ServiceTarget(requests_per_s=0.5, latency_ms=20, percentile=99.9),
        ),
    ],
)
def test_target_is_read(written: object, target: object) -> None:
    assert spec(target=written).target == target


@pytest.mark.parametrize(
    ("written", "nodes"),
    [
        (4, Nodes(count=4, minimum=4, gang=True)),
        ("2..8", Nodes(count=8, minimum=2, gang=False)),
        ("8..8", Nodes(count=8, minimum=8, gang=True)),
        ({"count": 4}, Nodes(count=4, minimum=4, gang=True)),
        ({"count": 4, "gang": False}, Nodes(count=4, minimum=1, gang=False)),
        ({"count": 4, "minimum": 2}, Nodes(count=4, minimum=2, gang=False)),
        ({"count": 4, "minimum": 4, "gang": True}, Nodes(count=4, minimum=4, gang=True)),
    ],
)
def test_nodes_are_read(written: object, nodes: Nodes) -> None:
    assert spec(nodes=written).nodes == nodes


def test_resources_take_units_and_round_memory_up() -> None:
    need = spec(resources={"vcpus": 0.5, "memory": "1.5GiB", "disk": "512MiB"}).resources
    assert (need.vcpus, need.memory_mib, need.disk_gib) == (0.5, 1536, 0.5)
    need = spec(resources={"memory": 700, "disk": 20}).resources
    assert (need.memory_mib, need.disk_gib) == (700, 20)
    assert spec(resources={"memory": "1MB"}).resources.memory_mib == 1


def test_retries_default_to_the_model_and_a_number_is_about_exit_codes() -> None:
    assert dict(spec().retries.limits) == dict(Retries().limits)
    assert spec(retries=3).retries.limits["exit_code"] == 3
    assert "preempted" not in spec(retries={"preempted": 0}).retries.limits


def test_every_failure_cause_can_be_given_retries() -> None:
    limits = spec(retries={cause.value: 1 for cause in FailureCause}).retries.limits
    assert limits == {cause.value: 1 for cause in FailureCause}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"target": {"batch": {"by": "2029-12-31T00:00:00Z"}}}, "target.batch.by: is in the past: 2029-12-31T00:00"),
        ({"target": {"batch": {"by": "2030-01-01T00:00:00Z"}}}, "target.batch.by: is in the past"),
        ({"target": {"batch": {"by": "2031-01-01"}}}, "target.batch.by: must say its time zone"),
        ({"target": {"batch": {"within": 0}}}, "target.batch.within: must be more than 0"),
        ({"target": {"batch": {"within": "-5m"}}}, "target.batch.within: must be a duration"),
        ({"target": {"batch": {}, "service": {"requests_per_s": 1, "latency_ms": 1}}}, "target: must name exactly one"),
        ({"target": {}}, "target: must name exactly one of batch, service and best_effort; it names none"),
        ({"target": "bach"}, "target: must be one of batch, service, best_effort, not 'bach'; did you mean 'batch'?"),
        ({"target": "service"}, "target.service.requests_per_s: is required"),
        ({"target": {"service": {"requests_per_s": 0, "latency_ms": 1}}}, "requests_per_s: must be more than 0, not 0"),
        ({"target": {"service": {"requests_per_s": -2, "latency_ms": 1}}}, "requests_per_s: must be more than 0, not"),
        ({"target": {"service": {"requests_per_s": 1, "latency_ms": 0}}}, "service.latency_ms: must be more than 0"),
        (
            {"target": {"service": {"requests_per_s": 1, "latency_ms": 1, "percentile": 100}}},
            "target.service.percentile: must be less than 100, not 100",
        ),
        (
            {"target": {"service": {"requests_per_s": 1, "latency_ms": 1, "percentile": 0}}},
            "target.service.percentile: must be more than 0, not 0",
        ),
        ({"target": {"servce": {}}}, "target.servce: unknown key; did you mean 'service'?"),
        ({"nodes": 0}, "nodes.count: must be at least 1, not 0"),
        ({"nodes": "8..2"}, "nodes.minimum: must not be more than count (2), but is 8"),
        ({"nodes": "2..8x"}, "nodes: must be a number such as 4 or a range such as 2..8, not '2..8x'"),
        ({"nodes": {"count": 3, "minimum": 4}}, "nodes.minimum: must not be more than count (3), but is 4"),
        ({"nodes": {"count": 3, "minimum": 2, "gang": True}}, "nodes.gang: starts all 3 nodes or none, so minimum"),
        ({"resources": {"memory": "2G"}}, "resources.memory: is ambiguous: write 2GiB (binary) or 2GB (decimal)"),
        ({"resources": {"memory": 0}}, "resources.memory: must be more than 0"),
        ({"resources": {"cpus": 2}}, "resources.cpus: unknown key; did you mean 'vcpus'?"),
        ({"resources": {"vcpus": 0}}, "resources.vcpus: must be at least 0.001, not 0"),
        ({"command": ""}, "command: must name a program to run"),
        ({"command": []}, "command: must name a program to run"),
        ({"command": ["", "x"]}, "command: must name a program to run"),
        ({"command": ["a", 3]}, "command[1]: must be text (put it in quotes), not 3"),
        ({"command": 5}, "command: must be text for the shell or a list of a program and its arguments, not 5"),
        ({"command": "a\0b"}, "command[2]: must not contain a NUL character"),
        ({"command": ["x" * 140_000]}, "command[0]: must be at most 131071 bytes long"),
        ({"name": "a b"}, "name: must be 1 to 63 letters a-z or A-Z, digits"),
        ({"name": "a\n"}, "name: must be 1 to 63 letters a-z or A-Z, digits"),
        ({"env": {"1A": "x"}}, "env.1A: must be a variable name"),
        ({"env": {"A": 1.10}}, "env.A: must be text (put it in quotes), not 1.1"),
        ({"env": {"A": True}}, "env.A: must be text (put it in quotes), not true"),
        ({"env": ["A=b"]}, "env: must be a mapping of keys, not a list"),
        ({"tags": {"team": "a\nb"}}, "tags.team: must be one line of at most 255 characters"),
        ({"tags": {str(n): "x" for n in range(60)}}, "tags: must have at most 50 entries"),
        ({"network": "hots"}, "network: must be one of none, host, not 'hots'; did you mean 'host'?"),
        ({"retries": -1}, "retries.exit_code: must be at least 0, not -1"),
        ({"retries": {"exit_cod": 1}}, "retries.exit_cod: unknown key; did you mean 'exit_code'?"),
        ({"retries": {"backoff": "1h"}}, "retries.backoff_cap: must be at least backoff (3600 s), but is 300 s"),
        (
            {"retries": {"out_of_memory": 1, "memory_factor": 1}},
            "retries.memory_factor: must be above 1, such as 2: with the same memory it would run out again",
        ),
        ({"env": {"HCLOUD_IMAGE_LOGIN": "a:b"}}, "env: has HCLOUD_IMAGE_LOGIN, the login for an image's registry"),
        ({"image": "x:1", "env": {"HCLOUD_IMAGE_LOGIN": "a:b"}}, "env: has HCLOUD_IMAGE_LOGIN as plain text; make it"),
        ({"image": "x:1", "env": {"HCLOUD_IMAGE_LOGIN": {"secret": "ab"}}}, "env: has HCLOUD_IMAGE_LOGIN without"),
        ({"framework": "mpi"}, "framework: mpi is started on several nodes; set nodes, such as 2, or leave it out"),
        ({"framework": "dsk", "nodes": 2}, "framework: must be one of dask, mpi, torchrun, not 'dsk'; did you mean"),
        ({"framework": "dask", "nodes": "2..4"}, "nodes: must be one number: all nodes of dask start together"),
        ({"checkpoint": "/var/state"}, "checkpoint.path: must be below the work directory, such as results/ or *.csv"),
        ({"checkpoint": {"path": "a/../.."}}, "checkpoint.path: must be below the work directory"),
        ({"checkpoint": {"every": "1m"}}, "checkpoint.path: is required"),
        ({"checkpoint": {"path": "state", "every": "1s"}}, "checkpoint.every: must be at least 5, not '1s'"),
        (
            {"checkpoint": {"path": "state", "signal": "KILL"}},
            "checkpoint.signal: must be one of USR1, USR2, HUP, not 'KILL'",
        ),
        ({"budget_usd": 0}, "budget_usd: must be more than 0, not 0"),
        ({"metrics": {}}, "metrics: must have exactly one of url and probe"),
        ({"metrics": {"url": "ftp://x"}}, "metrics.url: must be a http:// or https:// address, not 'ftp://x'"),
        ({"target": "batch", "metrics": {"url": "http://x"}}, "metrics: has no meaning for a batch job"),
        (
            {"target": {"service": {"requests_per_s": 1, "latency_ms": 1}}, "progress": {"file": "p"}},
            "progress: has no meaning for a service",
        ),
        ({"progress": {"file": "../p"}}, "progress.file: must be a path inside the work directory, not '../p'"),
        ({"progress": {"file": "/p"}}, "progress.file: must be a path inside the work directory, not '/p'"),
        ({"workdir": "here"}, "workdir: must be uploaded first"),
        ({"workdir_sha256": "xyz"}, "workdir_sha256: must be 64 hex digits, not 'xyz'"),
        ({"env_file": "x.env"}, "env_file: is read by `hcloud submit`"),
        ({"stop_grace": "2h"}, "stop_grace: must be at most 3600, not '2h'"),
        ({"priority": 10**30}, "priority: must be at most 1000"),
    ],
)  # fmt: skip
def test_impossible_or_contradictory_job_is_refused_with_a_sentence(keys: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(**keys)


def test_job_survives_the_way_to_the_daemon_unchanged() -> None:
    target = {"batch": {"within": "10m", "by": "2030-06-01T12:00:00.250000+02:00"}}
    probe = {"probe": "curl x", "every": "1m"}
    for keys in (
        {"target": target, "nodes": "2..8", "retries": 3, "env": {"A": 3}},
        {"metrics": probe, "tags": {"a": "b"}},
    ):
        job = parse_job({**LEAST, **keys, "resources": {"memory": "1GB", "disk": "1GB"}})
        sent = json.loads(json.dumps(job.model_dump(mode="json", exclude_unset=True)))
        assert parse_job(sent) == job
        assert parse_job(sent).to_spec("al", NOW) == job.to_spec("al", NOW)


def test_schema_of_jobs_explains_every_key() -> None:
    schema = json_schema(JobFile)
    for name, node in [("job", schema), *schema["$defs"].items()]:
        for key, child in node.get("properties", {}).items():
            assert child.get("description"), f"{name}.{key}"


def test_file_may_hold_several_jobs_and_errors_name_the_right_line(tmp_path: Path, hcloud: Hcloud) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("name: a\ncommand: x\n---\nname: b\ncommand: y\ntarget:\n  batch: {within: 5m}\n---\n")
    assert [job.name for job in load_job(file)] == ["a", "b"]
    file.write_text(file.read_text().replace("within", "wihtin"))
    said = complaint(hcloud("job", "check", file))
    assert said == f"{file}:7: target.batch.wihtin: unknown key; did you mean 'within'?"
    file.write_text("name: a\ncomand: x\n---\nname: b\ncommand: y\n---\nname: c\ncommand: z\nnodes: none\n")
    with pytest.raises(ConfigError) as refused:
        load_job(file)
    (other,) = [note for note in refused.value.__notes__ if "nodes" in note]  # of all documents
    assert f"{file}:2: comand" in str(refused.value) and other.startswith(f"{file}:9: nodes: ")


def test_tags_of_yaml_are_refused_wherever_they_are(tmp_path: Path) -> None:
    for value in ("!secret x", "!list [x]", "!map {x: y}"):
        (tmp_path / "job.yaml").write_text(f"name: a\ncommand: x\ntags: {value}\n")
        with pytest.raises(ConfigError, match=r"job.yaml:3: tags: has a tag '![a-z]+' that is not supported"):
            load_job(tmp_path / "job.yaml")


def test_a_tag_in_one_document_hides_no_fault_of_another(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("command: !run x\n---\ncommand: x\nnodes: many\n")
    with pytest.raises(ConfigError, match=r":1: command: has a tag '!run'") as refused:
        load_job(file)
    assert any(":4: nodes" in note for note in refused.value.__notes__)


def test_deadline_in_the_past_names_its_line(tmp_path: Path, hcloud: Hcloud) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\ncommand: x\ntarget:\n  batch:\n    by: 2001-01-01T00:00:00Z\n")
    said = complaint(hcloud("job", "check", file))
    assert said.startswith(f"{file}:5: target.batch.by: is in the past: 2001-01-01T00:00:00Z, and it is 20")


def test_work_directory_is_beside_the_job_file_and_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "jobs" / "job.yaml"
    (tmp_path / "jobs" / "work").mkdir(parents=True)
    file.write_text("name: a\ncommand: x\nworkdir: work\n")
    assert load_job(file)[0].workdir == str(tmp_path / "jobs" / "work")
    file.write_text("name: a\ncommand: x\nworkdir: work\nframework: mpi\nnodes: 2\n")
    assert load_job(file)[0].framework == "mpi"  # a network that was left out is not one that was named
    file.write_text("name: a\ncommand: x\n\nworkdir: wrok\n")
    with pytest.raises(ConfigError) as refused:
        load_job(file)
    assert str(refused.value) == f"{file}:4: workdir: is not a directory: {tmp_path}/jobs/wrok"


def test_env_file_is_read_and_env_wins(tmp_path: Path) -> None:
    (tmp_path / "x.env").write_text("# all of it\n\nA=1\nexport B='two words'\nC = 3\n".replace("C = 3", "C=x=y"))
    file = tmp_path / "job.yaml"
    file.write_text("name: a\ncommand: x\nenv_file: x.env\nenv: {A: mine}\n")
    job = load_job(file)[0]
    assert dict(job.env) == {"A": "mine", "B": "two words", "C": "x=y"}
    assert job.env_file is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "job.yaml:3: env_file: {dir}/x.env: no such file"),
        ("A=1\nB 2\n", "{dir}/x.env:2: must be a line NAME=value, not 'B 2'"),
        ("1A=1\n", "{dir}/x.env:1: must be a line NAME=value, not '1A=1'"),
    ],
)
def test_wrong_env_file_is_refused(content: str | None, sentence: str, tmp_path: Path, hcloud: Hcloud) -> None:
    if content is not None:
        (tmp_path / "x.env").write_text(content)
    file = tmp_path / "job.yaml"
    file.write_text("name: a\ncommand: x\nenv_file: x.env\n")
    assert sentence.format(dir=tmp_path) in complaint(hcloud("job", "check", file))


def test_types_solitude_and_profiling_are_read_and_a_profiling_run_is_never_a_users() -> None:
    asked = spec(instance_types=["m5.*"], exclusive=True, profiling="never")
    assert (asked.instance_types, asked.exclusive, asked.profiling) == (("m5.*",), True, "never")
    assert "profiling: " in refusal(profiling="sometimes")
    assert "profile: unknown key" in refusal(profile={"job_id": "job-1"})
    assert "instance_types" in refusal(instance_types="m5.large")


def test_preferred_types_are_read_with_how_much_slower_the_job_is_elsewhere() -> None:
    asked = spec(preferred_types=["m5.*"])
    assert (asked.preferred_types, asked.slower_elsewhere, asked.stretch_on("c5.large")) == (("m5.*",), 1.5, 1.5)
    assert spec(preferred_types=["m5.*"], slower_elsewhere=2).stretch_on("m5.large") == 1.0
    assert spec().stretch_on("c5.large") == 1.0
    assert "slower_elsewhere: has no meaning without preferred_types" in refusal(slower_elsewhere=2)
    assert "slower_elsewhere" in refusal(preferred_types=["m5.*"], slower_elsewhere=0.5)


def test_demands_on_machines_are_read_and_refused_in_one_sentence() -> None:
    asked = spec(nodes=2, placement={"zones": ["a*"], "labels": {"disk": "ssd", "gpus": 2}, "spread": "zone"})
    assert asked.placement == Constraints(zones=("a*",), labels=(("disk", "ssd"), ("gpus", "2")), spread="zone")
    assert spec(placement={"apart_from": ["db", "cache-*"]}).placement == Constraints(apart_from=("db", "cache-*"))
    assert spec(placement={}).placement is None
    assert "placement: spread: host has no meaning for one node; set nodes" in refusal(placement={"spread": "host"})
    assert "placement.zone: unknown key; did you mean 'zones'?" in refusal(placement={"zone": ["a"]})
    assert "placement.spread: " in refusal(placement={"spread": "rack"}, nodes=2)
    assert "placement.zones" in refusal(placement={"zones": "a"})


def test_a_choice_of_vcpus_is_read_and_must_include_what_is_asked_for() -> None:
    assert spec().vcpus_within is None
    assert spec(resources={"vcpus": 2, "vcpus_max": 8}).vcpus_within == (2.0, 8.0)
    assert spec(resources={"vcpus": 2, "vcpus_min": 0.5}).vcpus_within == (0.5, 2.0)
    assert "resources.vcpus_max: must be at least vcpus (2), but is 1" in refusal(
        resources={"vcpus": 2, "vcpus_max": 1}
    )
    assert "resources.vcpus_min: must not be more than vcpus (1), but is 3" in refusal(resources={"vcpus_min": 3})
    assert "leave out vcpus_min and vcpus_max" in refusal(resources={"vcpus_max": 3}, exclusive=True)


def test_secret_is_in_the_job_as_it_is_sent_and_in_no_text_about_it(recwarn: pytest.WarningsRecorder) -> None:
    env = {"TOKEN": {"secret": "hunter2"}, "KEY": {"secret_from": "file:/k"}, "PLAIN": "visible"}
    parsed = parse_job({**LEAST, "env": env})
    for unset in (True, False):
        assert parsed.model_dump(mode="json", exclude_unset=unset)["env"] == env
    # What earlier tests left unclosed may be found, and warned of, meanwhile.
    ours = [each for each in recwarn.list if each.category is not ResourceWarning]
    assert not ours and "hunter2" not in repr(parsed)
    spec = parsed.to_spec("al", NOW)
    assert (spec.secrets, spec.env) == (("KEY", "TOKEN"), {"PLAIN": "visible"})
    assert parse_job({**LEAST, "env": {"TOKEN": {"secret": 7}}}).secret_values() == {"TOKEN": "7"}
    with pytest.raises(ConfigError, match=r"env.KEY.secret_from: is read by `hcloud submit`"):
        parsed.secret_values()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (2, Gpus(count=2)),
        ("l4", Gpus(kind="l4")),
        ("NVIDIA-A100:80GiB:2", Gpus(count=2, kind="a100", memory_gib=80.0)),
        ({"count": 4, "kind": "a100*", "memory": 40}, Gpus(count=4, kind="a100*", memory_gib=40.0)),
    ],
)
def test_gpus_are_a_number_text_or_a_mapping(given: object, wanted: Gpus) -> None:
    asked = spec(resources={"gpus": given})
    assert asked.resources.gpus == wanted
    assert asked.profiling == "never"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (0, "resources.gpus.count: must be at least 1, not 0"),
        ("1.5", "must be a number, or kind, memory and number such as a100:80GB:2, not '1.5'"),
        ("a100:a100", "must be a number, or kind, memory and number such as a100:80GB:2, not 'a100:a100'"),
        ("", "must be a number, or kind, memory and number"),
        ({"kind": "a/b"}, "must be a kind of GPU such as a100 or l4"),
        ({"count": 65}, "64"),
        ({"memory": 0}, "must be more than 0"),
    ],
)
def test_gpus_that_cannot_be_are_refused_in_one_sentence(given: object, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        spec(resources={"gpus": given})
    assert "resources.gpus" in str(refused.value)
