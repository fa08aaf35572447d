"""A fake EC2 over real HTTP: moto, and in front of it what moto lacks, with every trouble a cloud can make.

What moto lacks, seen by trying: idempotent launches, machines that take time to boot and to end, machines that do what
their user data says, spot prices, reservations, capacity reservations, quotas, Debian's images. A call that moto does
not know is answered by an HTML page with status 500; such calls are noted in ``unknown_calls`` and must fail a test.
Time is the clock that tests move.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlencode
from xml.sax.saxutils import escape

import moto.ec2.models.amis as moto_images
import moto.ec2.models.instances as moto_instances
import moto.kms.models as moto_keys
import yaml
from moto.ec2 import ec2_backends
from moto.iam import iam_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from moto.sqs import sqs_backends
from moto.ssm import ssm_backends
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from hcloud.core.clock import Clock
from tests.providers.ec2.fake_crowd import crowded
from tests.providers.ec2.fake_savings import savings_reply

REGION = "us-east-1"
REGIONS = (REGION, "eu-west-1")
ACCOUNT = "123456789012"
QUEUE = "hcloud-contract-interruptions"
INSTANCE_PROFILE = "hcloud-worker"
TYPES = ("c5.large", "m5.large", "m5.xlarge")
USD_PER_H = {"c5.large": 0.085, "m5.large": 0.096, "m5.xlarge": 0.192}
BOOT_S, STOP_S = 20.0, 5.0
ANSWER_LATE_S = 5.0
LISTED_AFTER_END_S = 3600.0
NOTICE_S = 120.0

LOST_PAGE = "lost-page"
END_OF_LIST = b"</DescribeInstancesResponse>"
TRUTH_PATH = "/truth"
"""Where other processes learn what is true of the machines, and move their expiry as their workers would."""

# With all its images moto takes a tenth of a second to begin a fresh account in a region; one image is enough.
moto_images.AMIS[1:] = []
moto_images.load_resource = lambda *_: []
# The first disk of an account needs a key, which is the same in all.
moto_keys.generate_private_key = cache(moto_keys.generate_private_key)

Environment = dict[str, Any]
StartResponse = Callable[..., object]
Reply = tuple[str, list[tuple[str, str]], bytes]

ERRORS: Mapping[str, tuple[str, str, str]] = {
    "throttle": ("503 Service Unavailable", "RequestLimitExceeded", "Request limit exceeded."),
    "stockout": (
        "500 Internal Server Error",
        "InsufficientInstanceCapacity",
        "We currently do not have sufficient capacity in the Availability Zone you requested.",
    ),
    "quota": ("400 Bad Request", "VcpuLimitExceeded", "You have requested more vCPU capacity than your limit of 32."),
    "internal": ("500 Internal Server Error", "InternalError", "An internal error has occurred"),
    "unavailable": ("503 Service Unavailable", "Unavailable", "The server is overloaded."),
    "forbidden": (
        "403 Forbidden",
        "UnauthorizedOperation",
        "You are not authorized to perform this operation. Encoded authorization failure message: c2VjcmV0",
    ),
    "no_profile": (
        "400 Bad Request",
        "InvalidParameterValue",
        "Value (hcloud-worker) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name",
    ),
    "expired": ("400 Bad Request", "ExpiredToken", "The security token included in the request is expired"),
}


@dataclass(slots=True)
class Fault:
    """What befalls the next ``times`` calls of an action (all tries of one call count once).

    ``kind``: a key of ERRORS; lose_request, lose_reply (the connection closes before, after it was carried out);
    late (it closes, and the launch happens some seconds later); hold (no answer until ``release``); partial (the first
    page tells of a second one, which fails); page (a proxy's error page). ``match``: parameters, or the ``region``.
    """

    action: str
    kind: str
    times: int = 1
    match: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One call as it arrived."""

    service: str
    action: str
    parameters: Mapping[str, str]


_TARGET = "CapacityReservationSpecification.CapacityReservationTarget"


@dataclass(slots=True)
class Body:
    """What we know of a machine beside moto: the life of its operating system."""

    born_at: float
    tags: Mapping[str, str]
    expires_at: float | None = None
    vcpus: float = 0.0
    memory_mib: int = 0
    listed_at: float = 0.0
    preempt_at: float | None = None
    ended_at: float | None = None
    reservation: str = ""
    """Id of the capacity reservation that it was launched into."""


class FakeEc2:
    """The server, in a thread of this process. ``reset`` before each test."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.RLock()
        self._server: BaseWSGIServer = make_server("127.0.0.1", 0, self._app, threaded=True, request_handler=_Silent)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fake-ec2")
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._released = threading.Event()
        _present.append(self)
        self._thread.start()

    def reset(self, clock: Clock) -> None:
        """Begin a fresh account at the present of ``clock``."""
        with self._lock:
            self.clock = clock
            for backends in (ec2_backends, iam_backends, sqs_backends, ssm_backends):
                backends.reset()
            self.bodies: dict[str, Body] = {}
            self._tokens: dict[str, tuple[str, Reply, str]] = {}
            self._late: list[tuple[float, Environment, bytes]] = []
            self._faults: list[Fault] = []
            self._befallen: dict[str, Fault] = {}
            self.calls: list[Recorded] = []
            self.unknown_calls: list[str] = []
            self.list_lag_s = 0.0
            self.spot_shares: dict[str, float] = {}
            self.reserved: list[dict[str, Any]] = []
            self.capacity: list[dict[str, Any]] = []
            self._crowd = 0
            self.savings_plans: list[dict[str, Any]] = []
            self.savings_rates: dict[str, dict[str, float]] = {}
            self.quota_vcpus = 640.0
            self._released.clear()
            iam_backends[ACCOUNT]["aws"].create_instance_profile(INSTANCE_PROFILE, "/", [])
            if not self.image_id:
                self.image_id = next(iter(ec2_backends[ACCOUNT][REGION].describe_images())).id

    image_id = ""

    def close(self) -> None:
        """Stop serving."""
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        _present.remove(self)

    # ------------------------------------------------------------------------------------------------- what tests say
    def arm(self, action: str, kind: str, times: int = 1, **match: str) -> None:
        """Let something go wrong with the next calls of an action ("*": any)."""
        with self._lock:
            self._faults.append(Fault(action, kind, times, match))

    def unused_faults(self) -> list[Fault]:
        """Return the faults that met no call."""
        return [each for each in self._faults if each.times > 0]

    def revive(self, instance_id: str) -> None:
        """Let the truth say that a machine runs on, to see whether anybody notices."""
        self.bodies[instance_id].ended_at = None

    def release(self) -> None:
        """Let held calls go on."""
        self._released.set()

    def kill(self, instance_id: str) -> None:
        """Let a machine die by itself."""
        with self._lock:
            self._end(instance_id, self.now, "Server.InternalError", "Server.InternalError: a fault of the host")

    def preempt(self, instance_id: str, queue_url: str) -> None:
        """Announce through the queue, as EventBridge does, that a machine is preempted in two minutes."""
        with self._lock:
            self.bodies[instance_id].preempt_at = self.now + NOTICE_S
            event = {
                "detail-type": "EC2 Spot Instance Interruption Warning",
                "source": "aws.ec2",
                "time": datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "detail": {"instance-id": instance_id, "instance-action": "terminate"},
            }
            name = queue_url.rpartition("/")[2]
            sqs_backends[ACCOUNT][REGION].send_message(queue_name=name, message_body=json.dumps(event))

    def make_like(self, count: int) -> None:
        """Tell of ``count`` machines more like the only one: inst-1, token-1 and so on."""
        self._crowd = count

    def make_queue(self) -> str:
        """Make a queue and return its URL."""
        with self._lock:
            queue = sqs_backends[ACCOUNT][REGION].create_queue(QUEUE, {})
            return f"{self.url}/{ACCOUNT}/{queue.name}"

    def machines(self) -> list[Any]:
        """Return the truth: moto's own objects, ended ones too."""
        with self._lock:
            self._live_on()
            return list(self._all())

    def count(self, action: str) -> int:
        """Return how many calls of an action arrived, each try counted."""
        return sum(each.action == action for each in self.calls)

    @property
    def now(self) -> float:
        """The present."""
        assert self.clock is not None
        return self.clock.now()

    # ------------------------------------------------------------------------------------------------------- the layer
    def _app(self, environ: Environment, start: StartResponse) -> Iterable[bytes]:
        content = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        query = {key: value[0] for key, value in parse_qs(content.decode("utf-8", "replace")).items()}
        action = query.get("Action") or str(environ.get("HTTP_X_AMZ_TARGET", "")).rpartition(".")[2]
        action = action or environ["PATH_INFO"].strip("/")  # a service of the kind that names its calls by path
        if environ["PATH_INFO"] == TRUTH_PATH:
            return _send(start, self._truth(content))
        with self._lock:
            parameters = query if "Action" in query else parameters_in(content)
            self.calls.append(Recorded(scope_of(environ)[1], action, parameters))
            self._live_on()
            met = {**query, "region": scope_of(environ)[0]}
            fault = self._fault(action, met, str(environ.get("HTTP_AMZ_SDK_INVOCATION_ID", "")))
            kind = fault.kind if fault is not None else ""
            if query.get("NextToken") == LOST_PAGE:
                kind = "unavailable"
            if kind in ERRORS:
                return _send(start, _error(*ERRORS[kind]))
            if kind == "page":
                return _send(start, _page("502 Bad Gateway", "<html><body>502 Bad Gateway</body></html>"))
            if kind == "lose_request":
                _hang_up(environ)
            if kind == "late":
                self._late.append((self.now + ANSWER_LATE_S, environ, content))
                _hang_up(environ)
            reply = self._answer(action, query, environ, content)
            if kind == "partial":
                reply = self._first_page(reply)
        if kind == "hold":
            self._released.wait(60)
        if kind in ("lose_reply", "hold"):
            _hang_up(environ)
        return _send(start, reply)

    def _fault(self, action: str, query: Mapping[str, str], invocation: str) -> Fault | None:
        if invocation in self._befallen:
            return self._befallen[invocation]
        for fault in self._faults:
            if fault.times > 0 and fault.action in (action, "*") and fault.match.items() <= query.items():
                fault.times -= 1
                self._befallen[invocation] = fault
                return fault
        return None

    def _answer(self, action: str, query: Mapping[str, str], environ: Environment, content: bytes) -> Reply:
        if query.get("DryRun") == "true" and action.startswith("Describe"):  # moto would tell everything
            return _error("412 Precondition Failed", "DryRunOperation", "Request would have succeeded.")
        own = {
            "DescribeSpotPriceHistory": self._spot_prices,
            "DescribeReservedInstances": self._reserved_instances,
            "DescribeCapacityReservations": self._capacity_reservations,
        }.get(action)
        if own is not None:
            return own(query)
        if action.startswith("DescribeSavingsPlan"):
            plans = [each for each in self.savings_plans if not self._over(each, "end")]
            return savings_reply(action, content, plans, self.savings_rates)
        if action == "GetServiceQuota":
            quota = {"Quota": {"QuotaCode": json.loads(content)["QuotaCode"], "Value": self.quota_vcpus}}
            return _json(quota)
        if action == "GetParameter" and json.loads(content)["Name"].startswith("/aws/service/debian/"):
            return _json({"Parameter": {"Name": json.loads(content)["Name"], "Value": self.image_id}})
        if action.startswith("DescribeInstanceType"):
            content = urlencode(expanded(query)).encode()
            environ = {**environ, "CONTENT_LENGTH": str(len(content))}
        if action == "RunInstances":
            return self._run(query, environ, content)
        if action == "DescribeInstances" and self._crowd:
            return crowded(self._crowd, query, lambda: self._forward(action, environ, content))
        return self._forward(action, environ, content)

    def _forward(self, action: str, environ: Environment, content: bytes) -> Reply:
        """Let moto answer."""
        seen: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], _error: object = None) -> None:
            seen.update(status=status, headers=headers)

        try:
            told = b"".join(self._moto({**environ, "wsgi.input": io.BytesIO(content)}, start))
        except Exception:  # whatever moto cannot do must fail the test, not look like a fault of EC2's
            self.unknown_calls.append(action)
            raise
        if told.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
            self.unknown_calls.append(action)
        return seen["status"], seen["headers"], told

    def _run(self, query: Mapping[str, str], environ: Environment, content: bytes) -> Reply:
        """Launch idempotently, as EC2 does."""
        token = query.get("ClientToken", "")
        words = json.dumps(sorted(query.items()))
        known = self._tokens.get(token)
        if known is not None:
            if self.bodies[known[2]].ended_at is not None:
                return _error("400 Bad Request", "IdempotentInstanceTerminated", f"The machine of {token} has ended.")
            if known[0] != words:
                return _error("400 Bad Request", "IdempotentParameterMismatch", "Arguments are inconsistent.")
            return known[1]
        if query["InstanceType"] not in TYPES:
            return _error("400 Bad Request", "InvalidParameterValue", f"Invalid value '{query['InstanceType']}'")
        reservation = query.get(f"{_TARGET}.CapacityReservationId", "")
        if reservation and self._left(reservation) <= 0:
            return _error(
                "400 Bad Request",
                "ReservationCapacityExceeded",
                "There is not enough available capacity in the specified Capacity Reservation for this request.",
            )
        before = {each.id for each in self.machines()}
        reply = self._forward("RunInstances", environ, content)
        for machine in self.machines():
            if machine.id not in before:
                self._tokens[token] = (words, reply, machine.id)
                self._born(machine)
                self.bodies[machine.id].reservation = reservation
        return reply

    def _over(self, commitment: Mapping[str, Any], key: str) -> bool:
        """Return whether a commitment has ended, after which only its machines go on."""
        return key in commitment and datetime.fromisoformat(commitment[key]).timestamp() <= self.now

    def reservation_uses(self) -> Counter[str]:
        """Return how many machines use each capacity reservation, by its id."""
        return Counter(each.reservation for each in self.bodies.values() if each.reservation and each.ended_at is None)

    def _left(self, reservation: str) -> int:
        found = [each for each in self.capacity if each["capacityReservationId"] == reservation]
        return sum(each["availableInstanceCount"] for each in found) - self.reservation_uses()[reservation]

    def _born(self, machine: Any) -> None:
        """A machine begins to live by its user data alone: tags are ours, not its."""
        orders = orders_in(machine.user_data)
        self.bodies[machine.id] = Body(
            born_at=self.now,
            tags={each["key"]: each["value"] for each in machine.get_tags()},
            expires_at=float(orders["expires_at"]) if orders else None,
            vcpus=orders["capacity"]["vcpus"] if orders else 0.0,
            memory_mib=orders["capacity"]["memory_mib"] if orders else 0,
            listed_at=self.now + self.list_lag_s,
        )
        self.list_lag_s = 0.0

    def _live_on(self) -> None:
        """Let everything happen that is due by now."""
        now = self.now
        for due in [each for each in self._late if each[0] <= now]:
            self._late.remove(due)
            _, environ, content = due
            query = {key: value[0] for key, value in parse_qs(content.decode()).items()}
            self._run(query, environ, content)
        for key, body in self.bodies.items():
            if body.ended_at is None and body.preempt_at is not None and now >= body.preempt_at:
                self._end(key, body.preempt_at, "Server.SpotInstanceTermination", "Spot instance termination")
            elif body.ended_at is None and body.expires_at is not None and now >= body.expires_at:
                self._end(key, body.expires_at, "Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
        for group in _groups():
            group.instances[:] = [each for each in group.instances if not self._forgotten(each.id, now)]

    def _forgotten(self, key: str, now: float) -> bool:
        ended_at = self.bodies[key].ended_at if key in self.bodies else None
        return ended_at is not None and now > ended_at + LISTED_AFTER_END_S

    def _end(self, key: str, at: float, code: str, message: str) -> None:
        machine = next(each for each in self._all() if each.id == key)
        if code.startswith("Client") and machine.instance_initiated_shutdown_behavior != "terminate":
            machine.stop()
            return
        machine.terminate()
        self.bodies[key].ended_at = at
        machine._reason = f"{message} ({datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} GMT)"
        machine.state_reason = moto_instances.StateReason(message, code)

    def _all(self) -> Iterable[Any]:
        return (each for group in _groups() for each in group.instances)

    def shown_state(self, machine: Any) -> Any:
        """Return the state EC2 tells of a machine: booting and ending take time."""
        body, state = self.bodies.get(machine.id), machine._state
        if body is None:
            return moto_instances.InstanceState("pending", 0)
        if state.name == "terminated" and self.now < (body.ended_at or 0.0) + STOP_S:
            return moto_instances.InstanceState("shutting-down", 32)
        if state.name == "running" and self.now < body.born_at + BOOT_S:
            return moto_instances.InstanceState("pending", 0)
        return state

    def note_end(self, machine: Any) -> None:
        """Remember when a machine was told to end."""
        body = self.bodies.get(machine.id)
        if body is not None and body.ended_at is None:
            body.ended_at = self.now

    def listed(self, machine_id: str) -> bool:
        """Whether listings tell of a machine yet."""
        body = self.bodies.get(machine_id)
        return body is None or self.now >= body.listed_at

    def _first_page(self, reply: Reply) -> Reply:
        told = reply[2].replace(END_OF_LIST, f"<nextToken>{LOST_PAGE}</nextToken>".encode() + END_OF_LIST)
        return reply[0], reply[1], told

    def _truth(self, content: bytes) -> Reply:
        """Move the expiry of machines (a JSON object by id); tell of all machines ever launched."""
        with self._lock:
            self._live_on()
            for key, expires_at in json.loads(content or b"{}").items():
                self.bodies[key].expires_at = expires_at
            return _json({key: self._truth_of(key) for key in self.bodies})

    def _truth_of(self, key: str) -> dict[str, Any]:
        body = self.bodies[key]
        return {
            "tags": body.tags,
            "vcpus": body.vcpus,
            "memory_mib": body.memory_mib,
            "ready_at": body.born_at + BOOT_S,
            "born_at": body.born_at,
            "expires_at": body.expires_at,
            "preempt_at": body.preempt_at,
            "ended_at": body.ended_at,
        }

    # ------------------------------------------------------------------------------------------------ what moto lacks
    def _spot_prices(self, query: Mapping[str, str]) -> Reply:
        rows = [
            {
                "availabilityZone": zone,
                "instanceType": name,
                "productDescription": "Linux/UNIX",
                "spotPrice": f"{USD_PER_H[name] * self.spot_shares.get(name, 0.3 + 0.01 * number):.6f}",
                "timestamp": datetime.fromtimestamp(self.now, UTC) - timedelta(hours=1),
            }
            for name in TYPES
            for number, zone in enumerate(
                sorted(value for key, value in query.items() if key.startswith("Filter.1.Value."))
            )
            if name in query.values()
        ]
        return _xml("DescribeSpotPriceHistory", {"spotPriceHistorySet": rows})

    def _reserved_instances(self, query: Mapping[str, str]) -> Reply:
        found = [each for each in self.reserved if not self._over(each, "end")]
        return _xml("DescribeReservedInstances", {"reservedInstancesSet": found})

    def _capacity_reservations(self, query: Mapping[str, str]) -> Reply:
        found = [
            {"totalInstanceCount": each["availableInstanceCount"]}
            | {**each, "availableInstanceCount": self._left(each["capacityReservationId"])}
            for each in self.capacity
            if not self._over(each, "endDate")
        ]
        return _xml("DescribeCapacityReservations", {"capacityReservationSet": found})


def _groups() -> Iterable[Any]:
    """Moto's reservations, in every region."""
    return [group for region in REGIONS for group in ec2_backends[ACCOUNT][region].reservations.values()]


class _Silent(WSGIRequestHandler):
    """No line per request."""

    def log_request(self, *_: object) -> None:
        """Say nothing."""


_present: list[FakeEc2] = []
"""The fake that moto's machines obey; moto keeps its accounts per process, so there is one at a time."""


def _teach_moto() -> None:
    """Make moto's machines boot, end and appear by the present fake's clock."""
    kind, backend = moto_instances.Instance, moto_instances.InstanceBackend
    end, describe = kind.terminate, backend.describe_instances

    def terminate(self: Any) -> Any:
        if self._state.name == "terminated":  # EC2 ends the ended without a word; moto then misses their interfaces
            return moto_instances.InstanceState("terminated", 48)
        before = end(self)
        _present[-1].note_end(self)
        return before

    def listed(self: Any, *args: Any, **kwargs: Any) -> Any:
        groups = describe(self, *args, **kwargs)
        return [group for group in groups if all(_present[-1].listed(each.id) for each in group.instances)]

    def utcnow() -> datetime:
        return datetime.fromtimestamp(_present[-1].now, UTC).replace(tzinfo=None)

    moto_instances.utcnow = utcnow  # type: ignore[attr-defined]
    kind.terminate = terminate  # type: ignore[method-assign]
    kind.instance_state = property(lambda self: _present[-1].shown_state(self))  # type: ignore[assignment]
    kind.state = property(lambda self: _present[-1].shown_state(self).name)  # type: ignore[assignment]
    kind.state_code = property(lambda self: _present[-1].shown_state(self).code)  # type: ignore[assignment]
    # Agents of tests run on this machine.
    kind.private_ip_address = property(lambda self: "127.0.0.1")  # type: ignore[assignment, method-assign]
    backend.describe_instances = listed  # type: ignore[method-assign]


_teach_moto()


def parameters_in(content: bytes) -> dict[str, str]:
    """Return the texts of a call in JSON, by name."""
    told = json.loads(content or b"{}") if content[:1] == b"{" else {}
    return {key: value for key, value in told.items() if isinstance(value, str)}


def expanded(query: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return a query in which patterns such as ``m5.*`` are the types they stand for: moto takes them literally."""
    found = []
    numbers = Counter[str]()
    for key, value in query.items():
        base, _, number = key.rpartition(".")
        names = [name for name in TYPES if fnmatchcase(name, value)] if "*" in value else [value]
        for name in names:
            numbers[base] += 1
            found.append((f"{base}.{numbers[base]}" if number.isdigit() else key, name))
    return found


def scope_of(environ: Environment) -> tuple[str, str]:
    """Return the region and the service a call was signed for."""
    scope = re.search(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/", str(environ.get("HTTP_AUTHORIZATION", "")))
    return (scope[1], scope[2]) if scope else ("", "")


def orders_in(user_data: object) -> dict[str, Any]:
    """Return the worker's orders in a machine's user data: when it switches itself off, what it may share out."""
    text = base64.b64decode(str(user_data)).decode() if user_data else ""
    if not text.startswith("#cloud-config"):
        return {}
    packed = {file["path"]: file["content"] for file in yaml.safe_load(text)["write_files"]}
    orders = gzip.decompress(base64.b64decode(packed["/etc/hcloud/bootstrap.json"])).decode()
    found: dict[str, Any] = json.loads(orders or "{}")
    return found


def _hang_up(environ: Environment) -> NoReturn:
    """Close the connection without a word."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError


def _send(start: StartResponse, reply: Reply) -> Iterable[bytes]:
    status, headers, told = reply
    kept = [each for each in headers if each[0].lower() != "content-length"]
    start(status, [*kept, ("Content-Length", str(len(told)))])
    return [told]


def _page(status: str, text: str) -> Reply:
    return status, [("Content-Type", "text/html")], text.encode()


def _error(status: str, code: str, message: str) -> Reply:
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{code}</Code><Message>{escape(message)}</Message>"
        "</Error></Errors><RequestID>0ab1</RequestID></Response>"
    )
    return status, [("Content-Type", "text/xml;charset=UTF-8")], text.encode()


def _json(told: object) -> Reply:
    return "200 OK", [("Content-Type", "application/x-amz-json-1.1")], json.dumps(told).encode()


def _xml(action: str, told: Mapping[str, Any]) -> Reply:
    text = f'<{action}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">{_tags(told)}</{action}Response>'
    return "200 OK", [("Content-Type", "text/xml;charset=UTF-8")], text.encode()


def _tags(told: object) -> str:
    match told:
        case dict():
            return "".join(f"<{key}>{_tags(value)}</{key}>" for key, value in told.items())
        case list():
            return "".join(f"<item>{_tags(each)}</item>" for each in told)
        case datetime():
            return f"{told:%Y-%m-%dT%H:%M:%S.000Z}"
        case _:
            return escape(str(told))
