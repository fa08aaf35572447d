"""What makes a new machine a worker: its metadata, where its keys come from, and what an unfit image does."""

import base64
import gzip
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from hcloud.core.errors import LaunchRejected
from hcloud.provider import WorkerBootstrap
from providers.cloud_init import CREDENTIAL_FILES
from providers.gce.worker_metadata import FETCH_SECRET, WITHOUT_CLOUD_INIT
from tests.providers.gce.bench import GceBench
from tests.providers.gce.test_launching import asked, offer_in

SECRET = "projects/hcloud-testing/secrets/worker-tls/versions/latest"
KEYS = {name: f"contents of {name}\n" for name in CREDENTIAL_FILES}


@dataclass
class Google:
    """The metadata server and Secret Manager, as far as a machine needs them for its keys."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, headers: Any) -> Any:
        self.requests.append((path, headers.get("Authorization", "")))
        if path.endswith("/service-accounts/default/token"):
            return (
                {"access_token": "short-lived", "expires_in": 600} if headers["Metadata-Flavor"] == "Google" else None
            )
        if path == f"/v1/{SECRET}:access" and headers.get("Authorization") == "Bearer short-lived":
            return {"name": SECRET, "payload": {"data": base64.b64encode(json.dumps(KEYS).encode()).decode()}}
        return None


@pytest.fixture
def google() -> Iterator[Google]:
    made = Google()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = made.answer(self.path, self.headers)
            content = json.dumps(answer).encode()
            self.send_response(200 if answer is not None else 403)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


def _engine(tls_dir: object) -> WorkerBootstrap:
    return WorkerBootstrap(scheduler_address="engine.example.org:8786", tls_dir=str(tls_dir))


def _metadata(bench: GceBench) -> dict[str, str]:
    return {item["key"]: item["value"] for item in asked(bench)["metadata"]["items"]}


def _keys(tmp_path: Path) -> Path:
    tls = tmp_path / "tls"
    tls.mkdir()
    for name, text in KEYS.items():
        (tls / name).write_text(text)
    return tls


def test_machine_is_told_by_cloud_init_how_to_become_a_worker(bench: GceBench) -> None:
    bench.provider.launch(bench.request(offer=offer_in(bench), bootstrap=_engine("/nowhere")))
    assert _metadata(bench)["user-data"].startswith("#cloud-config\n")


def test_keys_stand_in_the_metadata_only_if_asked(bench: GceBench, tmp_path: Path) -> None:
    engine, file = _engine(_keys(tmp_path)), "/etc/hcloud/credential.json"
    bench.plain().launch(bench.request(offer=offer_in(bench), bootstrap=engine))
    assert _unpacked(_metadata(bench)["user-data"])[file] == ""
    bench.compute.seen.clear()
    bench.plain(worker={"tls_in_metadata": True}).launch(bench.request(offer=offer_in(bench), bootstrap=engine))
    assert json.loads(_unpacked(_metadata(bench)["user-data"])[file]) == KEYS


def test_missing_keys_are_named_before_anything_is_launched(bench: GceBench) -> None:
    with pytest.raises(LaunchRejected, match=r"ca\.pem"):
        bench.plain(worker={"tls_in_metadata": True}).launch(
            bench.request(offer=offer_in(bench), bootstrap=_engine("/nowhere"))
        )
    assert list(bench.compute.inserts()) == []


def test_machine_fetches_its_keys_with_its_own_identity(bench: GceBench, google: Google) -> None:
    provider = bench.plain(worker={"tls_secret": SECRET}, service_account="worker@example.org")
    provider.launch(bench.request(offer=offer_in(bench), bootstrap=_engine("/nowhere")))
    machine_env = _unpacked(_metadata(bench)["user-data"])["/etc/hcloud/machine.env"]
    script = f'{machine_env}\nbash -c "$CREDENTIAL_COMMAND"'
    done = _run(script, google)
    assert json.loads(done.stdout) == KEYS
    assert [auth for _, auth in google.requests] == ["", "Bearer short-lived"]


def test_secret_that_may_not_be_read_fails_and_prints_no_keys(google: Google) -> None:
    done = _run(FETCH_SECRET.format(secret="projects/other/secrets/x/versions/1"), google)
    assert done.returncode != 0
    assert done.stdout == ""


@pytest.mark.parametrize(("programs", "calls"), [(("cloud-init", "systemctl"), ""), (("systemctl",), "poweroff\n")])
def test_image_without_cloud_init_switches_off(tmp_path: Path, programs: tuple[str, ...], calls: str) -> None:
    called = tmp_path / "called"
    called.touch()
    for name in programs:
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "$@" >>{called}\n')
        program.chmod(0o755)
    subprocess.run(["/bin/sh", "-c", WITHOUT_CLOUD_INIT], env={"PATH": str(tmp_path)}, check=True)
    assert called.read_text() == calls


def _run(script: str, google: Google) -> subprocess.CompletedProcess[str]:
    urls = {"METADATA_URL": google.url, "SECRETS_URL": google.url}
    return subprocess.run(
        ["bash", "-c", script], env={**os.environ, **urls}, capture_output=True, text=True, check=False
    )


def _unpacked(user_data: str) -> dict[str, str]:
    """The files that cloud-init writes."""
    files = yaml.safe_load(user_data)["write_files"]
    packed = [each for each in files if each.get("encoding") == "gz+b64"]
    return {each["path"]: gzip.decompress(base64.b64decode(each["content"])).decode() for each in packed}
