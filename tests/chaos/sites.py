"""The two clouds as sites of the chaos suite: moto and the fake Compute Engine, each behind a gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs

import pytest
from botocore.loaders import JSONFileLoader, Loader

import providers.gce.project  # noqa: F401 here, and not again in every forked daemon
from hcloud.core.clock import ManualClock
from providers.ec2 import factory
from tests.chaos.every_call import BUSY, CAP_USD, Site
from tests.chaos.gateway import Answer, Gateway, Kind
from tests.chaos.scene import OWNER, START_AT, CrashPoints, FileClock, Scene
from tests.providers.ec2.ec2_bench import served_fake, settings_for
from tests.providers.ec2.ec2_scene import build_on_ec2
from tests.providers.ec2.fake_ec2 import END_OF_LIST, LOST_PAGE, FakeEc2
from tests.providers.gce.compute import FakeCompute
from tests.providers.gce.discovery import find
from tests.providers.gce.scene import build_on_gce
from tests.providers.gce.server import Server

HANGING_TIMEOUT_S, TIMEOUT_S = 1.0, 60.0
"""How long clients wait for an answer: not long where one never comes, else longer than any machine takes for one."""
BUDGET: dict[str, object] = {"budgets": {"per_day_usd": CAP_USD}}


@contextmanager
def on_ec2() -> Iterator[Site]:
    """Everything EC2 is asked, with a queue of interruptions."""
    with served_fake() as fake, _models_read_once():
        _warm(fake)
        gateway = Gateway(fake.url, _ec2_call, _ec2_error, _ec2_partial)

        def begin(home: Path) -> None:
            fake.reset(FileClock(home / "clock"))
            fake.make_queue()

        def build(home: Path, crash: CrashPoints) -> Scene:
            queue = f"{gateway.url}/123456789012/hcloud-contract-interruptions"
            settings = settings_for(
                fake, list_lag_s=10, read_attempts=1, timeout_s=_patience_s(gateway), interruption_queue=queue
            )
            made = build_on_ec2(home, crash, settings={**settings, "endpoint_url": gateway.url}, policy=BUDGET)
            return replace(made, cast=BUSY)

        try:
            yield Site(
                gateway=gateway,
                begin=begin,
                build=build,
                writes={
                    "RunInstances": "provider.launch",
                    "TerminateInstances": "provider.terminate",
                },
                problems=lambda: fake.unknown_calls,
            )
        finally:
            gateway.close()


def _patience_s(gateway: Gateway) -> float:
    trouble = gateway.trouble
    return HANGING_TIMEOUT_S if trouble is not None and trouble.kind in (Kind.HANGS, Kind.LOST) else TIMEOUT_S


@contextmanager
def _models_read_once() -> Iterator[None]:
    """Let every forked daemon find the library's descriptions of the API already parsed."""
    with pytest.MonkeyPatch.context() as patch:
        shared = JSONFileLoader()
        patch.setattr(shared, "load_file", cache(shared.load_file))
        patch.setattr(Loader, "FILE_LOADER_CLASS", lambda _loader: shared)
        yield


def _warm(fake: FakeEc2) -> None:
    """Ask everything once: moto's first answers take longer than clients here wait."""
    fake.reset(ManualClock(START_AT))
    with TemporaryDirectory() as home:
        factory("ec2", settings_for(fake), ManualClock(START_AT), OWNER, home).offers()


def _ec2_call(method: str, path: str, headers: Mapping[str, str], content: bytes) -> str:
    query = parse_qs(content.decode("utf-8", "replace"))
    target = {key.lower(): value for key, value in headers.items()}.get("x-amz-target", "")
    return query["Action"][0] if "Action" in query else target.rpartition(".")[2]


def _ec2_error(call: str, kind: Kind, headers: Mapping[str, str]) -> Answer:
    status, code = 500, "InternalError"
    if kind is Kind.DENIES:
        status, code = (
            (500, "InsufficientInstanceCapacity") if call == "RunInstances" else (403, "UnauthorizedOperation")
        )
    if any(key.lower() == "x-amz-target" for key in headers):
        return status, "application/x-amz-json-1.1", json.dumps({"__type": code, "message": "said a test"}).encode()
    error = f"<Response><Errors><Error><Code>{code}</Code><Message>said a test</Message></Error></Errors>"
    return status, "text/xml", f"{error}<RequestID>r-1</RequestID></Response>".encode()


def _ec2_partial(answer: bytes) -> bytes:
    """Return the first machine and a token for a page that cannot be had."""
    more = f"<nextToken>{LOST_PAGE}</nextToken>".encode() + END_OF_LIST
    told, closing, _ = answer.partition(b"</reservationSet>")
    if not closing:
        return answer.replace(END_OF_LIST, more)
    head, *reservations = re.split(rb"(?=<item>\s*<reservationId>)", told)
    return head + b"".join(reservations[:1]) + closing + more


@contextmanager
def on_gce() -> Iterator[Site]:
    """Everything Compute Engine is asked."""
    server = Server(FakeCompute(ManualClock(START_AT)))
    gateway = Gateway(server.endpoint, _gce_call, _gce_error, _gce_partial)

    def begin(home: Path) -> None:
        server.compute = FakeCompute(FileClock(home / "clock"))

    def build(home: Path, crash: CrashPoints) -> Scene:
        made = build_on_gce(home, crash, endpoint=gateway.url, timeout_s=_patience_s(gateway), policy=BUDGET)
        return replace(made, cast=BUSY)

    try:
        yield Site(
            gateway=gateway,
            begin=begin,
            build=build,
            writes={"instances.insert": "provider.launch", "instances.delete": "provider.terminate"},
            problems=lambda: server.compute.problems,
        )
    finally:
        gateway.close()
        server.close()


def _gce_call(method: str, path: str, headers: Mapping[str, str], content: bytes) -> str:
    found = find(method, path)
    return found[0].id if found is not None else ""


def _gce_error(call: str, kind: Kind, headers: Mapping[str, str]) -> Answer:
    code, reason = (403, "quotaExceeded" if call == "instances.insert" else "forbidden")
    if kind is not Kind.DENIES:
        code, reason = 500, "backendError"
    error = {"code": code, "message": "said a test", "errors": [{"reason": reason, "message": "said a test"}]}
    return code, "application/json", json.dumps({"error": error}).encode()


def _gce_partial(answer: bytes) -> bytes:
    """Return the list with no zone answering, as HTTP 200 tells it."""
    told = json.loads(answer)
    warning = {"code": "UNREACHABLE", "message": "said a test"}
    told["unreachables"] = sorted(told["items"])
    told["items"] = {scope: {"warning": warning} for scope in told["items"]}
    return json.dumps(told).encode()
