"""Checks of an AWS account without side effects: credentials, clock, permissions, image, quotas.

Permissions are tested with ``DryRun`` requests, which EC2 evaluates without executing. Actions without a dry run are
executed if they only read, otherwise reported as not tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from ipaddress import ip_network
from typing import Any

from hcloud.core.clock import Clock
from hcloud.core.errors import LaunchRejected, ProviderError
from hcloud.core.paging import checked
from hcloud.provider import GANG_PORTS, Finding
from providers.ec2.catalog import Ec2Catalog
from providers.ec2.clients import Clients
from providers.ec2.errors import LIBRARY_ERRORS, NOT_ALLOWED, Call, error_code, to_provider_error, translating_errors
from providers.ec2.settings import Ec2Settings

ALLOWED = "DryRunOperation"
LAUNCH, REJECTED = "ec2:RunInstances", "rejected: "
FORBIDDEN = 403
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 240.0
"""AWS rejects requests signed with a clock that is five minutes off."""
READS = (
    "describe_capacity_reservations",
    "describe_images",
    "describe_instance_type_offerings",
    "describe_instance_types",
    "describe_instances",
    "describe_reserved_instances",
    "describe_spot_price_history",
    "describe_subnets",
)
NOT_TRIED = ("ec2:TerminateInstances",)
"""Actions that cannot be tested without a side effect or an existing instance."""
FIX_PERMISSIONS = "attach deploy/iam/ec2-daemon.json to the daemon's role; see docs/aws.md"
_PERFORM = re.compile(r"perform: ([\w-]+:\w+)(?: on resource: (\S+))?")


def check_account(
    clients: Clients,
    settings: Ec2Settings,
    catalog: Ec2Catalog,
    clock: Clock,
    launch_arguments: Callable[[], Mapping[str, Any]],
) -> Iterator[Finding]:
    """Yield one finding per check. ``launch_arguments`` returns the RunInstances arguments for the dry run."""
    identity = _caller_identity(clients)
    if isinstance(identity, Finding):
        yield identity
        return
    yield Finding(check="credentials", verdict="ok", finding=f"valid: {identity['Arn']}")
    yield from _clock(identity, clock)
    yield from _permissions(clients, settings, launch_arguments)
    yield from _region(catalog)
    yield from _routes(clients, settings, catalog)
    yield from _gang_ports(clients, settings, catalog)
    yield from _quotas(catalog)


def _caller_identity(clients: Clients) -> Mapping[str, Any] | Finding:
    try:
        answer: Mapping[str, Any] = clients.reading("sts").get_caller_identity()
    except LIBRARY_ERRORS as error:
        do = "give the daemon a valid role or access key; see docs/aws.md"
        return Finding(check="credentials", verdict="fail", finding=_line(error), do=do)
    return answer


def _clock(identity: Mapping[str, Any], clock: Clock) -> Iterator[Finding]:
    date = identity.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if not date:
        return
    skew_s = clock.now() - parsedate_to_datetime(date).timestamp()
    yield skew_finding(skew_s, "AWS")


def skew_finding(skew_s: float, cloud: str) -> Finding:
    """Return the finding for a clock that differs from the cloud's by ``skew_s`` seconds."""
    if abs(skew_s) <= SKEW_WARN_S:
        return Finding(check="clock", verdict="ok", finding=f"in sync with {cloud}")
    finding = f"differs from {cloud} by {abs(skew_s):.0f} s"
    verdict = "fail" if abs(skew_s) >= SKEW_FAIL_S else "warn"
    return Finding(check="clock", verdict=verdict, finding=finding, do="synchronise the clock (NTP)")  # type: ignore[arg-type]


def _permissions(
    clients: Clients, settings: Ec2Settings, launch_arguments: Callable[[], Mapping[str, Any]]
) -> Iterator[Finding]:
    client = clients.reading()
    tries: dict[str, Callable[[], object]] = {
        f"ec2:{_camel(name)}": lambda name=name: getattr(client, name)(DryRun=True)  # type: ignore[misc]
        for name in READS
    }
    tries[LAUNCH] = lambda: clients.writing().run_instances(**launch_arguments(), DryRun=True)
    if settings.interruption_queue:
        tries["sqs:ReceiveMessage"] = lambda: clients.reading("sqs").receive_message(
            QueueUrl=settings.interruption_queue, MaxNumberOfMessages=1, VisibilityTimeout=0, WaitTimeSeconds=0
        )
    missing, untried, rejected = [], {}, ""
    for action, attempt in tries.items():
        verdict = _tried(action, attempt)
        if verdict == "":
            continue
        if verdict.startswith("!"):
            missing.append(verdict[1:])
        elif verdict.startswith(REJECTED) and action == LAUNCH:
            rejected = verdict.removeprefix(REJECTED)
        else:
            untried[action] = verdict.removeprefix(REJECTED)
    for each in missing:
        yield Finding(check="permission", verdict="fail", finding=f"{each} is not allowed", do=FIX_PERMISSIONS)
    if rejected:
        do = "fix what it names in the account or in the provider's settings; see docs/aws.md"
        yield Finding(check="launch", verdict="fail", finding=f"the dry run of a launch fails: {rejected}", do=do)
    for action, why in untried.items():
        yield Finding(check="permission", verdict="warn", finding=f"{action} could not be tested: {why}")
    if not missing and not rejected:
        finding = f"{len(tries) - len(untried)} actions are allowed; not tested: {', '.join(NOT_TRIED)}"
        yield Finding(check="permissions", verdict="ok", finding=finding)


def _tried(action: str, attempt: Callable[[], object]) -> str:
    """Return "" if the action is allowed, ``!`` and the missing permission, or why the result is unknown.

    That begins with REJECTED if the request as such can never succeed.
    """
    try:
        attempt()
    except LIBRARY_ERRORS as error:
        code = error_code(error)
        if code == ALLOWED:
            return ""
        if code in NOT_ALLOWED or _status(error) == FORBIDDEN:
            named = _PERFORM.search(str(error))
            return f"!{named[1]}" + (f" on {named[2]}" if named[2] else "") if named else f"!{action}"
        rejected = isinstance(to_provider_error(error, Call.WRITE, action), LaunchRejected)
        return (REJECTED if rejected else "") + _line(error)
    except ProviderError as error:
        return (REJECTED if isinstance(error, LaunchRejected) else "") + str(error)
    return ""


def _region(catalog: Ec2Catalog) -> Iterator[Finding]:
    try:
        region = catalog.region_info()
    except ProviderError as error:
        do = "fix the provider's settings image, subnets and zones; see docs/aws.md"
        yield Finding(check="region", verdict="fail", finding=str(error), do=do)
        return
    yield Finding(check="image", verdict="ok", finding=f"{region.image.id} exists")
    yield Finding(check="region", verdict="ok", finding=f"{len(region.subnets)} zones, {len(region.types)} types")


def _routes(clients: Clients, settings: Ec2Settings, catalog: Ec2Catalog) -> Iterator[Finding]:
    """Yield whether instances reach the internet, from which they install packages."""
    try:
        subnets = catalog.region_info().subnets
        with translating_errors(Call.READ, "reading routes"):
            client = clients.reading()
            described = client.describe_subnets(SubnetIds=sorted(subnets.values()))["Subnets"]
            vpc_of = {str(each["SubnetId"]): str(each["VpcId"]) for each in described}
            request = {"Filters": [{"Name": "vpc-id", "Values": sorted(set(vpc_of.values()))}]}
            pages = client.get_paginator("describe_route_tables").paginate(**request)
            tables = [each for page in checked(pages, "the list of route tables") for each in page["RouteTables"]]
    except ProviderError as error:
        do = "allow ec2:DescribeRouteTables (deploy/iam/ec2-daemon.json), so that this can be looked at"
        yield Finding(check="routes", verdict="warn", finding=f"not looked at: {error}", do=do)
        return
    cut_off = [(name, why) for name in sorted(vpc_of) if (why := _no_way_out(tables, name, vpc_of[name], settings))]
    for name, why in cut_off:
        finding = f"{name} {why}; instances there can install no packages, and reach no gateway outside their network"
        do = "set `public_ip: true`, or give the subnet a NAT gateway; see docs/aws.md"
        # An image with all packages inside, and a gateway in the same network, need no way out.
        verdict = "fail" if settings.system_packages else "warn"
        yield Finding(check="routes", verdict=verdict, finding=finding, do=do)  # type: ignore[arg-type]
    if not cut_off:
        yield Finding(check="routes", verdict="ok", finding=f"{len(vpc_of)} subnets have a way out")


def _no_way_out(tables: Sequence[Mapping[str, Any]], subnet: str, vpc: str, settings: Ec2Settings) -> str:
    """Return why instances in a subnet do not reach the internet, or ""."""
    of_vpc = [each for each in tables if each["VpcId"] == vpc]
    own = [each for each in of_vpc if any(a.get("SubnetId") == subnet for a in each.get("Associations", ()))]
    main = [each for each in of_vpc if any(a.get("Main") for a in each.get("Associations", ()))]
    routes = [route for table in (own or main)[:1] for route in table.get("Routes", ())]
    default = next((each for each in routes if each.get("DestinationCidrBlock") == "0.0.0.0/0"), None)
    if default is None:
        return "has no default route"
    if str(default.get("GatewayId", "")).startswith("igw-") and not settings.public_ip:
        return "leads to an internet gateway, and instances get no public address (`public_ip: false`)"
    return ""


def _gang_ports(clients: Clients, settings: Ec2Settings, catalog: Ec2Catalog) -> Iterator[Finding]:
    """Yield whether instances reach each other by the ports of gangs that have a network of their own."""
    check, ports = "gang network", f"UDP {GANG_PORTS[0]} to {GANG_PORTS[-1]}"
    try:
        subnets = sorted(catalog.region_info().subnets.values())
        with translating_errors(Call.READ, "reading security groups"):
            client = clients.reading()
            described = client.describe_subnets(SubnetIds=subnets)["Subnets"]
            networks = sorted({str(each["VpcId"]) for each in described})
            of_default = [{"Name": "vpc-id", "Values": networks}, {"Name": "group-name", "Values": ["default"]}]
            own = list(settings.security_groups)
            request: dict[str, Any] = {"GroupIds": own} if own else {"Filters": of_default}
            groups = client.describe_security_groups(**request)["SecurityGroups"]
    except ProviderError as error:
        do = "allow ec2:DescribeSecurityGroups (deploy/iam/ec2-daemon.json), so that this can be looked at"
        yield Finding(check=check, verdict="warn", finding=f"not looked at: {error}", do=do)
        return
    blocks = [str(each["CidrBlock"]) for each in described]
    used_together = [groups] if settings.security_groups else [[each] for each in groups]
    for each in used_together:
        names = [str(group["GroupId"]) for group in each]
        for which, rules in (("in", "IpPermissions"), ("out", "IpPermissionsEgress")):
            permissions = [permission for group in each for permission in group.get(rules, ())]
            if missing := set(GANG_PORTS).difference(*(_open_ports(rule, names, blocks) for rule in permissions)):
                some = "" if len(missing) == len(GANG_PORTS) else f"{len(missing)} ports of "
                finding = f"{', '.join(names)} does not let instances reach each other by {some}{ports} ({which})"
                do = "for gangs with `network: none` on several instances allow that from the group to itself"
                yield Finding(check=check, verdict="warn", finding=finding, do=f"{do}; see docs/aws.md")
                break
        else:
            finding = f"{', '.join(names)} lets instances reach each other by {ports}"
            if not settings.system_packages:
                finding += "; the image must hold wireguard-tools (`system_packages: false`)"
            yield Finding(check=check, verdict="ok", finding=finding)


def _open_ports(rule: Mapping[str, Any], groups: Sequence[str], blocks: Sequence[str]) -> set[int]:
    """Return which ports of gangs a rule of a security group opens between instances of these groups and subnets."""
    is_between = any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs", ()))
    ranges = [ip_network(each["CidrIp"], strict=False) for each in rule.get("IpRanges", ())]
    is_between |= all(any(ip_network(block).subnet_of(each) for each in ranges) for block in blocks)  # type: ignore[arg-type]
    if not is_between or str(rule.get("IpProtocol")) not in ("-1", "udp", "17"):
        return set()
    first, last = (int(rule.get(name, -1)) for name in ("FromPort", "ToPort"))
    return set(GANG_PORTS) if first < 0 else set(GANG_PORTS) & set(range(first, last + 1))


def _quotas(catalog: Ec2Catalog) -> Iterator[Finding]:
    quotas = catalog.quotas
    if not quotas:
        why = catalog.read_errors.get("quotas", "not read")
        yield Finding(check="quotas", verdict="warn", finding=f"unknown: {why}", do=FIX_PERMISSIONS)
    for (market, kind), vcpus in sorted(quotas.items()):
        none = vcpus < 1
        do = "request an increase at Service Quotas, or remove this market from `markets`" if none else ""
        finding = f"{vcpus:g} vCPUs of {market} instances ({kind}) may run at a time"
        yield Finding(check="quota", verdict="warn" if none else "ok", finding=finding, do=do)


def _status(error: Exception) -> int:
    response: Mapping[str, Any] = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _line(error: Exception) -> str:
    return " ".join(str(error).split(" Encoded authorization failure message:")[0].split())[:500]
