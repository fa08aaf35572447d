"""Attacks of a submitter with a token of the API: what they send is refused or bounded, and others are served."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from hcloud.api import turns
from hcloud.api.bodies import MAX_ITEM_VALUES, MAX_VALUES
from hcloud.classifier import applications
from hcloud.cli.main import cli
from hcloud.core.errors import UnitRefused
from hcloud.core.image_names import image_name
from hcloud.core.model import JobState
from hcloud.engine.images import mount_image
from hcloud.engine.sandbox import Isolation
from tests.api.deployment import sentence
from tests.threats.served import UPLOADS_BYTES, Served

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
UPLOADS = 8


@pytest.fixture
def mallory(served: Served) -> Iterator[httpx2.Client]:
    """A submitter without scruples."""
    with served.caller("mallory") as client:
        yield client


def job(**fields: Any) -> dict[str, Any]:
    return {"job": {"name": "sort", "command": ["sleep", "3"], **fields}}


def refused(served: Served, answer: httpx2.Response) -> str:
    """Return the one sentence of a refusal for bad input, after which others are served and nothing is left."""
    assert answer.status_code == 400, answer.text[:500]
    assert len(answer.content) < 2000
    assert not served.deployment.store.jobs(user="mallory", states=[JobState.SUBMITTED])
    served.others_are_served()
    words = sentence(answer)
    assert words.isprintable()
    return words


# --------------------------------------------------------------------------------------------------------- bodies
@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b'{"job":' * 100_000, "nested too deeply"),
        (b"[" + b"[]," * MAX_VALUES + b"[]]", f"more than {MAX_VALUES} values"),
        (json.dumps([{"job": dict.fromkeys(map(str, range(MAX_ITEM_VALUES)))}]).encode(), "body[0]: has more than"),
        (json.dumps([job()] * 10_001).encode(), "must have at most 10000 entries"),
        (json.dumps([job(nmae="x", comand="y")] * 1000).encode(), "did you mean 'name'?"),
        (b'[{"job": {"name": "x", "command": "y", "priority": ' + b"9" * 5000 + b"}}]", "not JSON"),
        (b'[{"job": {"name": "x", "command": "y", "max_runtime": 1e400}}]', "must be a duration"),
        (b'[{"job": {"name": "x", "command": "y", "resources": {"vcpus": NaN}}}]', "must be a finite number"),
        (json.dumps([job(resources={"vcpus": 10**400})]).encode(), "resources.vcpus"),
        (json.dumps([job(resources={"memory": "1" * 60_000})]).encode(), "must be a size"),
        (b'[{"job": {"name": "\xff"}}]', "not JSON"),
        (json.dumps([job(command={"a": 1})]).encode(), "must be text for the shell"),
        (json.dumps([job(user="ada")]).encode(), "unknown key"),
        (b"null", "must be a list"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_senseless_body_is_refused_with_one_sentence(
    served: Served, mallory: httpx2.Client, body: bytes, wanted: str
) -> None:
    for path in ("/v1/jobs", "/v1/plan"):
        answer = mallory.post(path, content=body, headers={"Content-Type": "application/json"})
        assert wanted in refused(served, answer)


@pytest.mark.parametrize(
    "fields",
    [
        {"env": {f"V{number}": "" for number in range(20_000)}},
        {"env": {f"V{number}": "x" * 100_000 for number in range(12)}},
        {"env": {"LD_PRELOAD\n": "x"}},
        {"command": ["x"] * 20_000},
        {"command": "x" * 200_000},
        {"instance_types": ["*a" * 50] * 200},
        {"instance_types": ["*a" * 50_000]},
        {"placement": {"zones": [f"z{number}" for number in range(5000)]}},
        {"tags": {f"t{number}": "x" for number in range(1000)}},
        {"metrics": {"url": "http://" + "a" * 100_000 + " b"}, "target": "best_effort"},
        {"metrics": {"url": "file:///etc/shadow"}},
        {"metrics": {"url": "http://a\r\nX: y"}},
        {"progress": {"file": "../../../etc/shadow"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_is_too_large_or_leads_elsewhere_is_refused(
    served: Served, mallory: httpx2.Client, fields: dict[str, Any]
) -> None:
    assert refused(served, mallory.post("/v1/jobs", json=[job(**fields)])).startswith("body[0].job.")


@pytest.mark.parametrize("name", ["a\nb", ESCAPE, "../../etc/passwd", "a/b", "'; drop table job; --", "$(id)", "", "é"])
def test_a_name_is_letters_and_digits(served: Served, mallory: httpx2.Client, name: str) -> None:
    refused(served, mallory.post("/v1/jobs", json=[job(name=name)]))


@contextmanager
def slow_bodies(served: Served) -> Iterator[None]:
    """More bodies of mallory's than are worked on at once, of which the first byte was sent."""
    head = (
        "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret of mallory\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n["
    )
    with ExitStack() as held:
        for _ in range(turns.IN_WORK_MAX + 4):
            plain = held.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            slow = held.enter_context(served.trusted.wrap_socket(plain, server_hostname="127.0.0.1"))
            slow.sendall(head.encode())
        yield


def test_a_body_sent_slowly_keeps_nobody_else_from_an_answer(served: Served) -> None:
    with slow_bodies(served):
        served.others_are_served()


def test_the_check_of_slow_bodies_sees_places_that_all_callers_share(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = turns.Turns.taken
    monkeypatch.setattr(turns.Turns, "taken", lambda self, name: honest(self, "everybody"))
    with slow_bodies(served), served.caller("ada") as ada, pytest.raises(httpx2.ReadTimeout):
        ada.get("/v1/status", timeout=0.5)
    monkeypatch.undo()
    served.others_are_served()


# --------------------------------------------------------------------------------------------------------- images
BAD_IMAGES = [
    "--cidfile=/etc/cron.d/x", "-v=/:/host", "dir:/etc", "dir:x", "oci-archive:x", "docker-archive:/etc/shadow",
    "containers-storage:x", "a b", "a\nb", f"a{ESCAPE}", "a;id", "$(id)", "../x", "/etc", "a:b:c", "a" * 2000,
    "A/", "a@sha256:0", "",
]  # fmt: skip


@pytest.mark.parametrize("image", BAD_IMAGES)
def test_an_image_that_is_no_name_is_refused(served: Served, mallory: httpx2.Client, image: str) -> None:
    assert "body[0].job.image: must " in refused(served, mallory.post("/v1/jobs", json=[job(image=image)]))


@pytest.mark.parametrize("image", BAD_IMAGES)
def test_a_stored_image_that_is_no_name_never_reaches_podman(tmp_path: Path, image: str) -> None:
    podman = tmp_path / "podman"
    podman.write_text(f"#!/bin/sh\necho called > {tmp_path}/called\n")
    podman.chmod(0o755)
    isolation = Isolation(root=True, bwrap=None, firewall=False, cgroup=None, podman=str(podman), pinned=False)
    with pytest.raises(UnitRefused, match="image must"):
        mount_image(isolation, image, "job-1.1.0")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    "image",
    ["debian", "debian:12", "localhost/a:1", "registry.example.org:5000/a/b-c:1.2@sha256:" + "0" * 64, "a/b__c"],
)
def test_an_image_that_is_a_name_is_taken(image: str) -> None:
    assert image_name(image) == image


# -------------------------------------------------------------------------------------------------------- uploads
def upload(client: httpx2.Client, content: bytes) -> tuple[str, httpx2.Response]:
    digest = sha256(content).hexdigest()
    return digest, client.put(f"/v1/uploads/{digest}", content=content)


def stored(served: Served) -> int:
    """Bytes on the disk."""
    return sum(path.stat().st_size for path in served.deployment.context.uploads_dir.rglob("*") if path.is_file())


def test_uploads_of_others_can_neither_be_seen_nor_used(served: Served, mallory: httpx2.Client) -> None:
    with served.caller("ada") as ada:
        digest, sent = upload(ada, b"ada's secrets")
        assert sent.status_code == 201
        assert mallory.get(f"/v1/uploads/{digest}").status_code == 404
        assert "not been uploaded by you" in refused(
            served, mallory.post("/v1/jobs", json=[job(workdir_sha256=digest)])
        )
        assert ada.get(f"/v1/uploads/{digest}").status_code == 200
        assert ada.post("/v1/plan", json=[job(workdir_sha256=digest)]).status_code == 200
    assert upload(mallory, b"ada's secrets")[1].status_code == 201  # who has the content may use it
    assert mallory.post("/v1/plan", json=[job(workdir_sha256=digest)]).status_code == 200


def test_uploads_stay_within_the_callers_share_and_leave_others_theirs(served: Served, mallory: httpx2.Client) -> None:
    with served.caller("ada") as ada:
        digest, _ = upload(ada, b"ada's own")
        before = stored(served)
        for number in range(UPLOADS):
            _, answer = upload(mallory, bytes([number]) * (UPLOADS_BYTES // 3))
            assert answer.status_code == 201
        assert stored(served) - before <= UPLOADS_BYTES
        assert mallory.get(f"/v1/uploads/{sha256(bytes([0]) * (UPLOADS_BYTES // 3)).hexdigest()}").status_code == 404
        assert ada.get(f"/v1/uploads/{digest}").status_code == 200
        assert upload(mallory, b"x" * (UPLOADS_BYTES + 1))[1].status_code == 413


def test_uploads_that_live_jobs_need_are_not_deleted_to_make_room(served: Served, mallory: httpx2.Client) -> None:
    needed, _ = upload(mallory, b"n" * (UPLOADS_BYTES * 2 // 3))
    job_id = served.submitted("mallory", workdir_sha256=needed, resources={"vcpus": 64})
    _, answer = upload(mallory, b"m" * (UPLOADS_BYTES * 2 // 3))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "refused")
    assert mallory.get(f"/v1/uploads/{needed}").status_code == 200
    mallory.post(f"/v1/jobs/{job_id}/cancel")
    served.deployment.cycle_until(lambda: served.deployment.store.job(job_id).finished_at)
    assert upload(mallory, b"m" * (UPLOADS_BYTES * 2 // 3))[1].status_code == 201


# ------------------------------------------------------------------------------------------------ others' jobs, words
def test_jobs_of_others_can_not_be_cancelled_and_names_are_not_believed(served: Served, mallory: httpx2.Client) -> None:
    theirs = served.submitted("ada", resources={"vcpus": 64}, env={"TOKEN": "do-not-tell"})
    answer = mallory.post(f"/v1/jobs/{theirs}/cancel", headers={"X-HCloud-User": "ada", "X-Remote-User": "root"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert not served.deployment.store.job(theirs).cancelled_by
    assert "do-not-tell" not in mallory.get(f"/v1/jobs/{theirs}").text
    for path in ("/v1/pause", "/v1/resume"):
        assert mallory.post(path, json={}).status_code == 403


@pytest.mark.parametrize("words", ["' OR '1'='1", "%", "_", "*", "\\", "x'; DROP TABLE job; --"])
@pytest.mark.parametrize("field", ["user", "name", "tag", "before"])
def test_filters_are_words_and_no_queries(served: Served, mallory: httpx2.Client, field: str, words: str) -> None:
    served.submitted("ada", resources={"vcpus": 64}, tags={"team": "x"})
    answer = mallory.get("/v1/jobs", params={field: words})
    assert answer.status_code in (200, 400, 404)
    if answer.status_code == 200:
        assert answer.json() == []


@pytest.mark.parametrize(
    "job_id", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "job-1%0a", "job-1.1.0", "*", "job-" + "9" * 400]
)
def test_logs_are_of_jobs_and_no_paths(served: Served, mallory: httpx2.Client, job_id: str) -> None:
    (served.deployment.home / "passwd").write_text("root")
    answer = mallory.get(f"/v1/jobs/{job_id}/logs")
    assert answer.status_code == 404
    assert "root" not in answer.text


@pytest.fixture(scope="module")
def painted(served: Served) -> str:
    """A job that asks for escape sequences wherever a job file takes text, looked at by a plan."""
    made = served.submitted(
        "mallory",
        command=["/bin/sh", "-c", f"echo {ESCAPE}"],
        tags={"team": ESCAPE},
        env={"X": ESCAPE},
        resources={"vcpus": 64},
        placement={"labels": {"room": ESCAPE}},
    )
    served.deployment.cycle()
    return made


@pytest.mark.parametrize(
    "words",
    [
        ["status"], ["status", "{}"], ["queue"], ["queue", "-o", "csv"], ["queue", "-o", "json"], ["explain", "{}"],
        ["events"], ["report", "cost", "--by", "tag:team"], ["report", "cost", "--by", "tag:team", "-o", "csv"],
        ["logs", "{}"], ["cancel", "{}"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_a_submitter_wrote_steers_nobodys_terminal(served: Served, painted: str, words: list[str]) -> None:
    arguments = [each.format(painted) for each in words]
    done = CliRunner().invoke(cli, arguments, env={"HCLOUD_SOCKET": str(served.server.socket_path)})
    assert done.exit_code == 0, done.output
    assert not {"\x1b", "\x07"} & set(done.output)


# ------------------------------------------------------------------------------------------- what plans would choke on
@pytest.mark.parametrize("line", ["`" * 130_000, "$(" * 60_000, "a;" * 60_000, "((" * 60_000, "'" * 129_999])
def test_a_shell_line_is_looked_through_no_further_than_a_bound(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    honest = applications._simple_commands

    def looked_through(line: str) -> Iterator[list[str]]:
        seen.append(line)
        return honest(line)

    monkeypatch.setattr(applications, "_simple_commands", looked_through)
    assert applications.programs_of(["/bin/sh", "-c", line])
    assert len(seen[0]) == applications.SHELL_LINE_CHARS
