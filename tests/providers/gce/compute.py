"""A fake Compute Engine: zones, machines, operations and reservations whose state follows a clock.

Requests arrive through :meth:`FakeCompute.answer`, checked before and after by the API's own description. Nothing
happens in between: each request first lets happen what was due.
"""

from __future__ import annotations

import heapq
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from hcloud.core.clock import Clock
from tests.providers.gce.answers import (
    ACCELERATORS,
    BASE,
    CUSTOM,
    TYPES,
    Json,
    Refusal,
    invalid,
    machine_type,
    missing,
    quota_exceeded,
    reservation_full,
    stamp,
    stockout,
    warning,
)
from tests.providers.gce.discovery import Method, find

ZONES = ("us-central1-a", "us-central1-b", "europe-west1-d")
PROJECT = "hcloud-testing"
ADDRESS = "127.0.0.1"
"""Of all machines: agents of tests run on this one."""
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY, _LABEL_VALUE = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[a-z0-9_-]{0,63}")


@dataclass(slots=True)
class Fault:
    """Trouble for requests of one method (None: any) and zone, ``times`` times (None: until it is taken away)."""

    kind: str
    method: str | None = None
    zone: str | None = None
    times: int | None = 1
    code: str = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"

    def meets(self, method: str, zone: str | None) -> bool:
        return self.times != 0 and self.method in (None, method) and (self.zone is None or self.zone == zone)


@dataclass(slots=True)
class Seen:
    """One request, for counting calls and the permissions they need."""

    method: str
    zone: str | None
    query: Mapping[str, str]
    body: Json


@dataclass(slots=True)
class Truth:
    """A machine that was really launched. ``expires_at`` is when its worker switches it off; it can be renewed."""

    provider_id: str
    labels: Mapping[str, str]
    type_name: str
    has_worker: bool
    born_at: float
    expires_at: float
    ready_at: float | None = None
    ended_at: float | None = None


@dataclass(slots=True)
class FakeCompute:
    """The whole of it. Times are seconds of the clock."""

    clock: Clock
    operation_s: float = 2.0
    stop_s: float = 2.0
    lag_s: float = 8.0
    quota_cpus: float = 240.0
    quota_spot_cpus: float = 0.0
    """A quota of their own for spot vCPUs; 0: the project was granted none."""
    checked: bool = True
    """Whether answers are checked by the API's description, which takes longer than making them."""
    machines: dict[tuple[str, str], Json] = field(default_factory=dict)
    operations: dict[tuple[str, str], Json] = field(default_factory=dict)
    reservations: list[Json] = field(default_factory=list)
    reserved_uses: dict[str, Json] = field(default_factory=dict)
    """The reservation that a machine uses, by the machine's id."""
    commitments: list[Json] = field(default_factory=list)
    regions_with_nat: tuple[str, ...] = ("europe-west1", "us-central1")
    """Where a Cloud Router of the default network has a NAT."""
    firewall_rules: list[Json] = field(
        default_factory=lambda: [firewall_rule("default-allow-internal", priority=65534)]
    )
    """As Google makes them for a network ``default``, but for those of logins."""
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    truths: dict[str, Truth] = field(default_factory=dict)
    chance: Callable[[str, str], str] = lambda method, path: ""
    """Which kind of trouble of the network a request meets by chance."""
    not_granted: set[str] = field(default_factory=set)
    """Permissions the caller lacks, as the Resource Manager tells."""
    refusal: Refusal | None = None
    """What the Resource Manager answers instead."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _hidden_until: dict[str, float] = field(default_factory=dict)
    _by_request: dict[str, tuple[Json, str]] = field(default_factory=dict)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _now: float = 0.0
    _numbers: int = 0

    # ---------------------------------------------------------------------------------------------------- requests
    def answer(self, http: str, path: str, query: Mapping[str, str], body: Json | None) -> Json:
        """Carry out one request; raises Refusal. What breaks the API's description is remembered in ``problems``."""
        with self.lock:
            self.settle()
            found = find(http, path)
            if found is None:
                self.problems.append(f"there is no method {http} {path}")
                raise missing(path)
            method, parts = found
            self.seen.append(Seen(method.id, parts.get("zone"), query, body or {}))
            wrong = method.problems(query, body or {})
            if wrong:
                self.problems += wrong
                raise Refusal(400, "badRequest", f"Invalid JSON payload received. {wrong[0]}")
            handler = self._handler(method)
            answer = handler(parts, query, body or {})
            if not self.checked:
                return answer
            self.problems += method.answer_problems(answer)
            return json.loads(json.dumps(answer))  # type: ignore[no-any-return]

    def take(self, kind: str, method: str, zone: str | None = None) -> Fault | None:
        """Use up one fault of a kind that meets the request."""
        for each in self.faults:
            if each.kind == kind and each.meets(method, zone):
                each.times = None if each.times is None else each.times - 1
                return each
        return None

    def later(self, after_s: float, act: Callable[[], None]) -> None:
        """Let something happen after a time."""
        self._at(self._now + after_s, act)

    def settle(self) -> None:
        """Let happen what was due by now."""
        with self.lock:
            now = self.clock.now()
            while self._due and self._due[0][0] <= now:
                at, _, act = heapq.heappop(self._due)
                self._now = at
                act()
            self._now = now

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, self._number(), act))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _handler(self, method: Method) -> Callable[[Mapping[str, str], Mapping[str, str], Json], Json]:
        known = {
            "instances.insert": self._insert,
            "instances.get": self._get,
            "instances.delete": self._delete,
            "instances.aggregatedList": self._aggregated_instances,
            "zoneOperations.get": self._operation,
            "zoneOperations.list": self._operations,
            "machineTypes.get": self._machine_type,
            "machineTypes.list": self._machine_types,
            "regions.get": self._region,
            "reservations.aggregatedList": self._aggregated_reservations,
            "regionCommitments.aggregatedList": self._aggregated_commitments,
            "routers.aggregatedList": self._aggregated_routers,
            "firewalls.list": self._firewalls,
        }
        if method.id not in known:
            self.problems.append(f"the fake does not know {method.id}")
            raise Refusal(501, "notImplemented", method.id)
        return known[method.id]

    # ------------------------------------------------------------------------------------------------------ insert
    def _insert(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        zone, name, asked = parts["zone"], body.get("name", ""), json.dumps(body, sort_keys=True)
        request_id = query.get("requestId")
        if request_id in self._by_request:
            operation, before = self._by_request[request_id]
            if before != asked:
                raise invalid(f"Request ID {request_id} was used for another request")
            return operation
        self._judge(zone, name, body)
        operation = self._insert_operation(zone, name, body)
        if request_id:
            self._by_request[request_id] = (operation, asked)
            operation["clientOperationId"] = request_id
        return operation

    def _judge(self, zone: str, name: str, body: Json) -> None:
        if zone not in ZONES:
            raise invalid(f"Invalid value for field 'zone': '{zone}'. Unknown zone.")
        if not _NAME.fullmatch(name):
            raise invalid(f"Invalid value for field 'resource.name': '{name}'.")
        if (zone, name) in self.machines:
            raise Refusal(409, "alreadyExists", f"The resource '{_path(zone, name)}' already exists")
        wanted = body.get("machineType", "")
        if machine_type(_zone(zone), wanted.rpartition("/")[2]) is None:
            raise invalid(f"Invalid value for field 'resource.machineType': '{wanted}'. The type does not exist.")
        labels = body.get("labels", {})
        if len(labels) > 64 or not all(
            _LABEL_KEY.fullmatch(k) and _LABEL_VALUE.fullmatch(v) for k, v in labels.items()
        ):
            raise invalid(f"Invalid value for field 'resource.labels': '{labels}'.")
        self._judge_scheduling(body.get("scheduling", {}))
        scheduling, bound = body.get("scheduling", {}), wanted.rpartition("/")[2] in ACCELERATORS
        if bound and scheduling.get("onHostMaintenance") != "TERMINATE":
            raise invalid("Instances with guest accelerators do not support live migration.")
        self._judge_reservation(zone, body)
        if not body.get("disks") or not body.get("networkInterfaces"):
            raise invalid("A boot disk and a network interface are needed.")
        if self.take("quota_403", "instances.insert", zone):
            raise Refusal(403, "quotaExceeded", "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1.")

    def _judge_scheduling(self, scheduling: Json) -> None:
        limits = [key for key in ("terminationTime", "maxRunDuration") if key in scheduling]
        if len(limits) > 1:
            raise invalid("Only one of maxRunDuration and terminationTime may be given.")
        if limits and "instanceTerminationAction" not in scheduling:
            raise invalid("A limit of the run time needs an instanceTerminationAction.")
        if scheduling.get("provisioningModel") == "SPOT" and scheduling.get("automaticRestart", True):
            raise invalid("Invalid value for field 'scheduling.automaticRestart': 'true'.")

    def _judge_reservation(self, zone: str, body: Json) -> None:
        affinity = body.get("reservationAffinity", {})
        if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
            return
        names, field_name = affinity.get("values", []), "Invalid value for field 'resource.reservationAffinity'"
        found = [each for each in self._reservations_of(zone, body["machineType"]) if each["name"] in names]
        if affinity.get("key") != "compute.googleapis.com/reservation-name" or len(names) != 1:
            raise invalid(f"{field_name}: '{affinity}'.")
        if not found:
            raise invalid(f"{field_name}: '{affinity}'. Specified reservations {names} do not exist.")
        if not found[0]["specificReservationRequired"]:
            raise invalid(
                f"{field_name}: '{affinity}'. Specified reservations {names} can not be targeted as "
                "specificReservationRequired is not set"
            )

    def _reservations_of(self, zone: str, machine_type: str) -> list[Json]:
        name = machine_type.rpartition("/")[2]
        return [
            each
            for each in self.reservations
            if not self._over(each.get("deleteAtTime"))
            and each["zone"] == _zone(zone)
            and each["specificReservation"]["instanceProperties"]["machineType"] == name
        ]

    def _take_reserved(self, machine: Json) -> bool:
        """Let a machine use a reservation as its affinity says; return False if the one that it names is full."""
        affinity = machine.get("reservationAffinity", {})
        kind, spot = affinity.get("consumeReservationType", "ANY_RESERVATION"), machine["scheduling"]["preemptible"]
        if kind == "NO_RESERVATION" or spot:
            return True
        named, zone = kind == "SPECIFIC_RESERVATION", machine["zone"].rpartition("/")[2]
        for each in self._reservations_of(zone, machine["machineType"]):
            sku = each["specificReservation"]
            meant = each["name"] in affinity["values"] if named else not each["specificReservationRequired"]
            if meant and int(sku["inUseCount"]) < int(sku["count"]):
                sku["inUseCount"] = str(int(sku["inUseCount"]) + 1)
                self.reserved_uses[machine["id"]] = each
                return True
        return not named

    def _give_back_reserved(self, machine: Json) -> None:
        each = self.reserved_uses.pop(machine["id"], None)
        if each is not None:
            sku = each["specificReservation"]
            sku["inUseCount"] = str(int(sku["inUseCount"]) - 1)

    def _insert_operation(self, zone: str, name: str, body: Json) -> Json:
        key, machine = (zone, name), self._machine(zone, name, body)
        late = self.take("list_late", "instances.insert", zone)
        operation = self._new_operation(zone, name, "insert")
        if late:
            self._hidden_until[name] = self._now + self.lag_s
        fault = self.take("stockout", "instances.insert", zone)
        quota = self.take("quota", "instances.insert", zone)
        type_name = body["machineType"].rpartition("/")[2]
        self.machines[key] = machine  # also before a stockout: it shows up for a moment, then it is gone
        full = not (fault or quota or self._take_reserved(machine))
        if fault or quota or full:
            error = stockout(PROJECT, zone, type_name, fault.code) if fault else quota_exceeded(zone[:-2])
            error = reservation_full(machine["reservationAffinity"]["values"][0]) if full else error
            self.later(self.operation_s, lambda: self._fail(operation, key, error))
            return operation
        truth = self.truths[machine["id"]] = _truth(zone, machine, self._now)
        self._at(truth.expires_at, lambda: self._switch_off(key, machine, truth))
        self.later(self.operation_s / 2, lambda: _step(machine, "PROVISIONING", "STAGING"))
        self.later(self.operation_s, lambda: self._run(operation, key, machine))
        return operation

    def _fail(self, operation: Json, key: tuple[str, str], error: Json) -> None:
        self.machines.pop(key, None)
        self._finish(operation)
        operation["error"] = {"errors": [error]}
        operation["httpErrorStatusCode"], operation["httpErrorMessage"] = 503, "SERVICE UNAVAILABLE"

    def _run(self, operation: Json, key: tuple[str, str], machine: Json) -> None:
        self._finish(operation)
        if machine["status"] != "STAGING":
            return
        machine["status"], machine["lastStartTimestamp"] = "RUNNING", stamp(self._now)
        self.truths[machine["id"]].ready_at = self._now
        scheduling = machine["scheduling"]
        if "maxRunDuration" in scheduling:
            ends_at = self._now + float(scheduling["maxRunDuration"]["seconds"])
        elif "terminationTime" in scheduling:
            ends_at = _seconds(scheduling["terminationTime"])
        else:
            return
        machine["resourceStatus"] = {"scheduling": {"terminationTimestamp": stamp(ends_at)}}
        self._at(max(ends_at, self._now), lambda: self._end(key, machine, "compute.instances.terminateOnTimeLimit"))

    def _machine(self, zone: str, name: str, body: Json) -> Json:
        spot = body["scheduling"].get("provisioningModel") == "SPOT"
        maintenance = "TERMINATE" if spot else "MIGRATE"
        return {
            **body,
            "kind": "compute#instance",
            "id": str(10**15 + self._number()),
            "creationTimestamp": stamp(self._now),
            "networkInterfaces": [{**each, "networkIP": ADDRESS} for each in body["networkInterfaces"]],
            "status": "PROVISIONING",
            "zone": _zone(zone),
            "selfLink": BASE + _path(zone, name),
            "machineType": f"{_zone(zone)}/machineTypes/{body['machineType'].rpartition('/')[2]}",
            "labelFingerprint": "42WmSpB8rSM=",
            "fingerprint": "mVnP7nCy1OQ=",
            "cpuPlatform": "Intel Cascade Lake",
            "deletionProtection": False,
            "scheduling": {"onHostMaintenance": maintenance, "preemptible": spot, **body["scheduling"]},
        }

    # ------------------------------------------------------------------------------------------------ other methods
    def _get(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        found = self.machines.get((parts["zone"], parts["instance"]))
        if found is None:
            raise missing(_path(parts["zone"], parts["instance"]))
        return found

    def _delete(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        machine, key = self._get(parts, query, body), (parts["zone"], parts["instance"])
        machine["status"] = "STOPPING"
        operation = self._new_operation(*key, "delete")
        self.later(self.stop_s, lambda: self._gone(operation, key, machine))
        return operation

    def _end(self, key: tuple[str, str], machine: Json, kind: str, after_s: float = 0.0) -> None:
        """Compute Engine itself ends a machine, by deletion."""
        if self.machines.get(key) is not machine or machine["status"] == "STOPPING":
            return
        machine["status"] = "STOPPING"
        operation = self._new_operation(*key, kind)
        self.later(after_s or self.stop_s, lambda: self._gone(operation, key, machine))

    def _gone(self, operation: Json, key: tuple[str, str], machine: Json) -> None:
        self._finish(operation)
        if self.machines.get(key) is machine:
            del self.machines[key]
            self._ended(machine)

    def _switch_off(self, key: tuple[str, str], machine: Json, truth: Truth) -> None:
        """The machine's own guard ends it, unless it was renewed meanwhile; Compute Engine keeps it, stopped."""
        if self._now < truth.expires_at:
            self._at(truth.expires_at, lambda: self._switch_off(key, machine, truth))
        elif truth.has_worker and self.machines.get(key) is machine and machine["status"] == "RUNNING":
            self.crash(*key)

    def _ended(self, machine: Json) -> None:
        self._give_back_reserved(machine)
        truth = self.truths[machine["id"]]
        truth.ended_at = self._now if truth.ended_at is None else truth.ended_at

    def _operation(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        found = self.operations.get((parts["zone"], parts["operation"]))
        if found is None:
            raise missing(f"projects/{PROJECT}/zones/{parts['zone']}/operations/{parts['operation']}")
        return found

    def _operations(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        wanted = re.fullmatch(r'targetLink eq "(.*)"', query.get("filter", ""))
        if wanted is None:
            raise invalid(f"Invalid value for field 'filter': '{query.get('filter')}'.")
        found = [
            each
            for (zone, _), each in self.operations.items()
            if zone == parts["zone"]
            and re.fullmatch(wanted[1], each["targetLink"])
            and self._listed(each["targetLink"])
        ]
        return _page("compute#operationList", found, query)

    def _machine_type(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        found = machine_type(_zone(parts["zone"]), parts["machineType"])
        if found is None or (CUSTOM.fullmatch(found["name"]) and parts["zone"].startswith("europe")):
            raise missing(f"projects/{PROJECT}/zones/{parts['zone']}/machineTypes/{parts['machineType']}")
        return found

    def _machine_types(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        if self.take("types_unavailable", "machineTypes.list", parts["zone"]):
            raise Refusal(503, "backendError", "Backend Error")
        found = [machine_type(_zone(parts["zone"]), name) for name in TYPES]
        return _page("compute#machineTypeList", [each for each in found if each is not None], query)

    def _region(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        name = parts["region"]
        held = [each for (zone, _), each in self.machines.items() if zone.startswith(name)]
        spot = [each for each in held if self.quota_spot_cpus and each["scheduling"]["provisioningModel"] == "SPOT"]
        cpus = sum(_cpus(each) for each in held if each not in spot)
        return {
            "kind": "compute#region",
            "name": name,
            "id": "1000",
            "status": "UP",
            "quotas": [
                {"metric": "CPUS", "limit": self.quota_cpus, "usage": cpus},
                {"metric": "N2_CPUS", "limit": self.quota_cpus, "usage": 0.0},
                {"metric": "PREEMPTIBLE_CPUS", "limit": self.quota_spot_cpus, "usage": sum(map(_cpus, spot))},
                {"metric": "INSTANCES", "limit": 20_000.0, "usage": float(len(held))},
            ],
        }

    # ---------------------------------------------------------------------------------------------- aggregated lists
    def _aggregated_instances(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        if query.get("filter") == 'status = "RUNNING"':
            running = [(f"zones/{zone}", each) for (zone, _), each in sorted(self.machines.items())]
            found = [(scope, each) for scope, each in running if each["status"] == "RUNNING"]
            return self._aggregated("compute#instanceAggregatedList", "instances", found, query)
        label = re.fullmatch(r'labels\.([\w-]+) = "([\w-]*)"', query.get("filter", ""))
        if label is None:
            raise invalid(f"Invalid value for field 'filter': '{query.get('filter')}'.")
        found = [
            (f"zones/{zone}", each)
            for (zone, name), each in sorted(self.machines.items())
            if each.get("labels", {}).get(label[1]) == label[2] and self._listed(name)
        ]
        return self._aggregated("compute#instanceAggregatedList", "instances", found, query)

    def _aggregated_reservations(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        kept = [each for each in self.reservations if not self._over(each.get("deleteAtTime"))]
        found = [(f"zones/{each['zone'].rpartition('/')[2]}", each) for each in kept]
        return self._aggregated("compute#reservationAggregatedList", "reservations", found, query)

    def _aggregated_commitments(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        told = [
            {**each, "status": "EXPIRED"} if self._over(each.get("endTimestamp")) else each for each in self.commitments
        ]
        found = [(f"regions/{each['region'].rpartition('/')[2]}", each) for each in told]
        return self._aggregated("compute#commitmentAggregatedList", "commitments", found, query)

    def _over(self, end: str | None) -> bool:
        """Return whether a commitment has ended, after which only its machines go on."""
        return end is not None and _seconds(end) <= self._now

    def _aggregated_routers(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        made = {
            "name": "router",
            "network": "https://www.googleapis.com/compute/v1/projects/p/global/networks/default",
            "nats": [{"name": "nat"}],
        }
        found = [(f"regions/{region}", made) for region in self.regions_with_nat]
        return self._aggregated("compute#routerAggregatedList", "routers", found, query)

    def _firewalls(self, parts: Mapping[str, str], query: Mapping[str, str], body: Json) -> Json:
        return _page("compute#firewallList", self.firewall_rules, query)

    def _aggregated(self, kind: str, member: str, found: list[tuple[str, Json]], query: Mapping[str, str]) -> Json:
        page = _page(kind, [{"scope": scope, "it": each} for scope, each in found], query)
        scopes: dict[str, Json] = {}
        for each in page.pop("items", []):
            scopes.setdefault(each["scope"], {member: []})[member].append(each["it"])
        for zone in ZONES:
            scope = f"zones/{zone}"
            scopes.setdefault(scope, warning(scope, "NO_RESULTS_ON_PAGE", f"There are no results for scope '{scope}'."))
            if self.take("unreachable", "instances.aggregatedList", zone):
                scopes[scope] = warning(scope, "UNREACHABLE", f"The scope '{scope}' is unreachable.")
                page.setdefault("unreachables", []).append(scope)
        return {**page, "items": scopes}

    def _listed(self, link: str) -> bool:
        return self._hidden_until.get(link.rpartition("/")[2], 0.0) <= self._now

    # ------------------------------------------------------------------------------------------- what tests bring on
    def preempt(self, zone: str, name: str) -> None:
        """Take a spot machine back: it stops for 30 s, then it is gone."""
        self.settle()
        self._end((zone, name), self.machines[zone, name], "compute.instances.preempted", after_s=30.0)

    def crash(self, zone: str, name: str) -> None:
        """Let a machine power off: Compute Engine keeps it, stopped."""
        machine = self.machines[zone, name]
        machine["status"], machine["lastStopTimestamp"] = "TERMINATED", stamp(self._now)
        self._ended(machine)

    def shut_down_gracefully(self, zone: str, name: str, after_s: float) -> None:
        """Announce the machine's end, as a graceful shutdown does that somebody asked for."""
        self.settle()
        key, machine = (zone, name), self.machines[zone, name]
        machine["status"] = "PENDING_STOP"
        machine.setdefault("resourceStatus", {})["shutdownDetails"] = {
            "requestTimestamp": stamp(self._now),
            "maxDuration": {"seconds": str(round(after_s))},
            "stopState": "PENDING_STOP",
            "targetState": "DELETED",
        }
        self.later(after_s, lambda: self._end(key, machine, "delete"))

    def reserve(
        self, name: str, zone: str, type_name: str, count: int, in_use: int = 0, named: bool = False, **more: object
    ) -> None:
        """Make a reservation. ``more``: fields as the API writes them."""
        self.reservations.append(
            {
                **more,
                "kind": "compute#reservation",
                "name": name,
                "zone": _zone(zone),
                "status": "READY",
                "specificReservationRequired": named,
                "specificReservation": {
                    "count": str(count),
                    "inUseCount": str(in_use),
                    "instanceProperties": {"machineType": type_name},
                },
            }
        )

    def renew(self, expiries: Mapping[str, float]) -> list[Json]:
        """Tell machines, by id, how long they are paid ahead; return the truth about all."""
        with self.lock:
            self.settle()
            for truth in self.truths.values():
                truth.expires_at = expiries.get(truth.provider_id, truth.expires_at)
            return [asdict(truth) for truth in self.truths.values()]

    def inserts(self) -> Iterator[Seen]:
        """Every insert that arrived."""
        return (each for each in self.seen if each.method == "instances.insert")

    # -------------------------------------------------------------------------------------------------- operations
    def _new_operation(self, zone: str, name: str, kind: str) -> Json:
        number = self._number()
        made: Json = {
            "kind": "compute#operation",
            "id": str(10**15 + number),
            "name": f"operation-{number}",
            "zone": _zone(zone),
            "operationType": kind,
            "targetLink": BASE + _path(zone, name),
            "targetId": "1",
            "user": "hcloud@example.org",
            "status": "RUNNING",
            "progress": 0,
            "insertTime": stamp(self._now),
            "startTime": stamp(self._now),
            "selfLink": f"{_zone(zone)}/operations/operation-{number}",
        }
        self.operations[zone, made["name"]] = made
        return made

    def _finish(self, operation: Json) -> None:
        operation.update(status="DONE", progress=100, endTime=stamp(self._now))


def firewall_rule(name: str, *, action: str = "allowed", ports: Sequence[str] = ("0-65535",), **others: Any) -> Json:
    """Return a rule for UDP and TCP between the machines of a network; ``others``: as the API names them."""
    parts = [{"IPProtocol": protocol, "ports": list(ports)} for protocol in ("tcp", "udp")]
    network = "https://www.googleapis.com/compute/v1/projects/p/global/networks/default"
    rule = {"name": name, "network": network, "direction": "INGRESS", "priority": 1000, action: parts}
    return {**rule, **({} if "sourceTags" in others else {"sourceRanges": ["10.128.0.0/9"]}), **others}


def _page(kind: str, items: list[Any], query: Mapping[str, str]) -> Json:
    size, start = int(query.get("maxResults", 500)), int(query.get("pageToken") or 0)
    page: Json = {"kind": kind, "id": "list", "items": items[start : start + size], "selfLink": BASE}
    if start + size < len(items):
        page["nextPageToken"] = str(start + size)
    return page


def _step(machine: Json, before: str, after: str) -> None:
    if machine["status"] == before:
        machine["status"] = after


def _truth(zone: str, machine: Json, now: float) -> Truth:
    return Truth(
        provider_id=f"{zone}/{machine['name']}",
        labels=machine["labels"],
        type_name=machine["machineType"].rpartition("/")[2],
        has_worker=any(item["key"] == "user-data" for item in machine["metadata"]["items"]),
        born_at=now,
        expires_at=float(machine["labels"]["hcloud-expires-at"]),
    )


def _zone(zone: str) -> str:
    return f"{BASE}projects/{PROJECT}/zones/{zone}"


def _path(zone: str, name: str) -> str:
    return f"projects/{PROJECT}/zones/{zone}/instances/{name}"


def _cpus(machine: Json) -> float:
    found = machine_type("", machine["machineType"].rpartition("/")[2])
    return float(found["guestCpus"]) if found else 0.0


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
