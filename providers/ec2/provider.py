"""The Provider port on one region of Amazon EC2."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from hcloud.core.clock import Clock
from hcloud.core.errors import (
    ConfigError,
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
)
from hcloud.core.model import Market, Offer
from hcloud.provider import CloudInstance, Finding, LaunchRequest, Listing
from providers.cloud_init import WorkerSetup, render_user_data
from providers.ec2.catalogue import Ec2Catalogue
from providers.ec2.clients import Clients
from providers.ec2.credential import Credential
from providers.ec2.examination import examine
from providers.ec2.failures import (
    FAILURES,
    NO_SUCH_INSTANCE,
    TOKEN_ENDED,
    TOKEN_REUSED,
    Call,
    calling,
    error_code,
    translated,
)
from providers.ec2.machines import OWNER, TOKEN, tags_of, told, type_zone_market
from providers.ec2.notices import Notices
from providers.ec2.settings import Ec2Settings
from providers.ec2.tokens import SentTokens, client_token

TERMINATE_BATCH = 500
PAGE = 1000
USER_DATA_BYTES_MAX = 16_384
_INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,17}")


class Ec2Provider:
    """Machines of one region. Nothing of the daemon's is needed to end them: each ends itself at its expiry.

    The state directory only saves calls (which tokens were sent) and keeps interruption warnings; losing it is
    harmless.
    """

    def __init__(self, name: str, settings: Ec2Settings, clock: Clock, owner: str, state_dir: str) -> None:
        """Raises ConfigError: a named profile or the state directory is not usable."""
        self.name = name
        self.settings = settings
        self.launches_at_once = settings.launches_at_once
        self._clock, self._owner = clock, owner
        directory = Path(state_dir)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._sent = SentTokens(directory / "tokens", clock)
        except OSError as error:
            raise ConfigError(f"cannot write to {directory}: {error.strerror}", where=f"providers.{name}") from error
        self.clients = Clients(name, settings)
        self._catalogue = Ec2Catalogue(name, settings, self.clients, clock)
        self._credential = Credential(self.clients, settings, name)
        self._notices = Notices(self.clients, settings.interruption_queue, directory)
        self._ended: dict[str, float] = {}

    # ---------------------------------------------------------------------------------------------------------- offers
    def offers(self) -> tuple[Offer, ...]:
        """Return every type in every zone and market that has a price."""
        return self._catalogue.offers()

    # ---------------------------------------------------------------------------------------------------------- launch
    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch one machine under the request's token; see the port for what each error means.

        A token that was sent before is looked up first: Amazon forgets tokens after a day or so.
        """
        repeated = self._sent.contains(request.token)
        if repeated:
            known = self._find(request)
            if known is not None:
                return known
        self._judge(request)
        with self._counted(request, repeated=repeated):
            order = self._order(request)
            self._sent.add(request.token)
            try:
                return self._run(request, order)
            except (InsufficientCapacity, QuotaExceeded, LaunchRejected):
                if not repeated:  # certainly nothing was launched; of an earlier try that is not known
                    self._sent.forget(request.token)
                raise

    @contextmanager
    def _counted(self, request: LaunchRequest, *, repeated: bool) -> Iterator[None]:
        """Count the machine against quotas and what is reserved before it is asked for: others are launched meanwhile.

        Raises InsufficientCapacity, QuotaExceeded where nothing is left. A repeated launch may have used up the last
        one itself, so that is not held against it.
        """
        try:
            lacks = self._catalogue.take(request.token, request.offer)
            if lacks == "reserved" and not repeated:
                raise InsufficientCapacity(f"{self.name}: every reserved {_named(request.offer)} is in use")
            if lacks == "quota" and not repeated:
                raise QuotaExceeded(f"{self.name}: the account's vCPU quota has no room for {_named(request.offer)}")
            yield
        except OutcomeUnknown:
            raise
        except ProviderError:
            self._catalogue.give_back(request.token)
            raise

    def _run(self, request: LaunchRequest, order: Mapping[str, Any]) -> CloudInstance:
        """Send the order once."""
        what = f"{self.name}: launch of {_named(request.offer)}"
        try:
            answer = self.clients.writing().run_instances(**order)
        except ClientError as error:
            if error_code(error) in (TOKEN_REUSED, TOKEN_ENDED):
                return self._launched_before(request, error)
            raise translated(error, Call.WRITE, what) from error
        except FAILURES as error:
            raise translated(error, Call.WRITE, what) from error
        if not answer.get("Instances"):
            raise OutcomeUnknown(f"{what}: the answer names no machine")
        return self._checked(request, self._told(answer["Instances"][0], {}))

    def _judge(self, request: LaunchRequest) -> None:
        """Refuse what cannot be launched, before anything is sent."""
        offer, type_name = request.offer, request.offer.instance_type.name
        if not (request.owner and request.instance_id and request.token):
            raise LaunchRejected(f"{self.name}: a machine needs an owner, an instance id and a token")
        if request.expires_at <= self._clock.now():
            raise LaunchRejected(f"{self.name}: {request.instance_id} would expire before it is launched")
        site = self._catalogue.site()
        if (offer.zone, type_name) not in site.offered or type_name not in site.types or offer.zone not in site.subnets:
            raise LaunchRejected(f"{self.name} has no {_named(offer)}; see its offers")
        if offer.market is Market.RESERVED:
            self._catalogue.read_all()

    def _order(self, request: LaunchRequest) -> dict[str, Any]:
        """Return the arguments of RunInstances."""
        site, settings, offer = self._catalogue.site(), self.settings, request.offer
        volume: dict[str, Any] = {
            "Encrypted": True,
            "VolumeSize": max(site.image.smallest_disk_gib, round(settings.disk_gib)),
            "VolumeType": "gp3",
            "DeleteOnTermination": True,
        }
        interface: dict[str, Any] = {
            "DeviceIndex": 0,
            "SubnetId": site.subnets[offer.zone],
            "AssociatePublicIpAddress": settings.public_ip,
            "DeleteOnTermination": True,
        }
        if settings.kms_key:
            volume["KmsKeyId"] = settings.kms_key
        if settings.security_groups:
            interface["Groups"] = list(settings.security_groups)
        tags = tags_of(request, settings)
        return {
            "ClientToken": client_token(request.token),
            "MinCount": 1,
            "MaxCount": 1,
            "ImageId": site.image.id,
            "InstanceType": offer.instance_type.name,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1},
            "BlockDeviceMappings": [{"DeviceName": site.image.root_device, "Ebs": volume}],
            "NetworkInterfaces": [interface],
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume", "network-interface")
            ],
            "UserData": self._user_data(request),
            **self._placed(offer),
            **self._identity(),
        }

    def _placed(self, offer: Offer) -> dict[str, Any]:
        if offer.market is Market.SPOT:
            spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": spot}}
        room = None
        if offer.market is Market.RESERVED:
            room = self._catalogue.reserved_room(offer.zone, offer.instance_type.name)
        if room is None:
            return {}
        return {"CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": room.id}}}

    def _identity(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if self.settings.instance_profile:
            given["IamInstanceProfile"] = {"Name": self.settings.instance_profile}
        if self.settings.key_name:
            given["KeyName"] = self.settings.key_name
        return given

    def _user_data(self, request: LaunchRequest) -> str:
        settings, orders = self.settings, request.bootstrap
        command, in_plain = "", dict[str, str]()
        if orders is not None:
            self._credential.publish(request.owner, orders.tls_dir)
            command = self._credential.command(request.owner)
            in_plain = self._credential.in_user_data(orders.tls_dir)
        text = render_user_data(
            WorkerSetup(
                request=request,
                capacity=request.offer.instance_type.capacity,
                scheduler_address=settings.scheduler_address or "",
                package=settings.package,
                package_index=settings.package_index,
                system_packages=settings.system_packages,
                credential_command=command,
                credential=in_plain,
                notice="ec2" if request.offer.market is Market.SPOT else "none",
                heed_rebalance=settings.rebalance == "leave",
                boot_timeout_s=settings.boot_timeout_s,
            )
        )
        if len(text.encode()) > USER_DATA_BYTES_MAX:
            raise LaunchRejected(f"{self.name}: the user data has {len(text)} bytes; EC2 takes {USER_DATA_BYTES_MAX}")
        return text

    def _launched_before(self, request: LaunchRequest, error: ClientError) -> CloudInstance:
        """EC2 knows the token, from a request with other words or of a machine that has ended: find that machine."""
        known = self._find(request)
        if known is not None:
            return known
        if error_code(error) == TOKEN_ENDED:
            raise LaunchRejected(f"{self.name}: the machine of {request.instance_id} has ended and is listed no more")
        raise OutcomeUnknown(f"{self.name}: the machine of {request.instance_id} is known but not listed yet")

    def _find(self, request: LaunchRequest) -> CloudInstance | None:
        """Return the machine of the request's token, if EC2 lists it (a new one may be missing for a while)."""
        with calling(Call.READ, f"{self.name}: looking for the machine of {request.instance_id}"):
            found = list(self._described([{"Name": f"tag:{TOKEN}", "Values": [request.token]}]))
        if not found:
            return None
        return self._checked(request, self._told(found[0], self._notices.look(self._clock.now())))

    def _checked(self, request: LaunchRequest, machine: CloudInstance) -> CloudInstance:
        if (machine.owner, machine.instance_id) != (request.owner, request.instance_id):
            raise LaunchRejected(
                f"{self.name}: token {request.token} was used for {machine.instance_id} of {machine.owner}"
            )
        return machine

    # --------------------------------------------------------------------------------------------------------- listing
    def instances(self, owner: str) -> Listing:
        """List an owner's machines; when a later page fails, what came before is returned as incomplete."""
        notices = self._notices.look(self._clock.now())
        found: dict[str, CloudInstance] = {}
        complete = True
        try:
            with calling(Call.READ, f"{self.name}: listing machines"):
                for machine in self._described([{"Name": f"tag:{OWNER}", "Values": [owner]}]):
                    found[str(machine["InstanceId"])] = self._told(machine, notices)
        except ProviderError:
            if not found:
                raise
            complete = False
        else:
            # EC2 lists what ended for about an hour; nobody asks about it after that.
            self._ended = {key: at for key, at in self._ended.items() if key in found}
        return Listing(
            instances=tuple(found[key] for key in sorted(found)),
            complete=complete,
            unanswered=() if complete else self._catalogue.known_zones(),
            consistent_after_s=self.settings.list_lag_s,
        )

    def _described(self, filters: list[dict[str, Any]]) -> Iterator[Mapping[str, Any]]:
        paginator = self.clients.reading().get_paginator("describe_instances")
        for page in paginator.paginate(Filters=filters, PaginationConfig={"PageSize": PAGE}):
            for group in page["Reservations"]:
                yield from group["Instances"]

    def _told(self, machine: Mapping[str, Any], notices: Mapping[str, float]) -> CloudInstance:
        key = str(machine["InstanceId"])
        ended_at = None
        if machine["State"]["Name"] == "terminated":
            ended_at = self._ended.setdefault(key, self._clock.now())
        type_name, zone, market = type_zone_market(machine)
        price = self._catalogue.price_usd_per_h(zone, type_name, market)
        return told(machine, price_usd_per_h=price, ended_at=ended_at, preempt_at=notices.get(key))

    # ------------------------------------------------------------------------------------------------------------- end
    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Begin to end machines, in batches; those EC2 does not know are left out of the next try."""
        ids = [each for each in dict.fromkeys(provider_ids) if _INSTANCE_ID.fullmatch(each)]
        troubles = [
            trouble
            for first in range(0, len(ids), TERMINATE_BATCH)
            for trouble in self._terminate(ids[first : first + TERMINATE_BATCH])
        ]
        self._catalogue.count_again()
        if troubles:
            raise troubles[0]

    def _terminate(self, ids: Sequence[str]) -> list[ProviderError]:
        """Return what went wrong. A batch that is refused as a whole is halved, so that one machine spoils no other."""
        if not ids:
            return []
        try:
            self.clients.writing().terminate_instances(InstanceIds=list(ids))
        except ClientError as error:
            named = set(_INSTANCE_ID.findall(str(error)))
            known = [each for each in ids if each not in named]
            if error_code(error) in NO_SUCH_INSTANCE and len(known) < len(ids):
                return self._terminate(known)
            trouble = translated(error, Call.WRITE, f"{self.name}: end of {len(ids)} machines")
            if isinstance(trouble, LaunchRejected) and len(ids) > 1:
                half = len(ids) // 2
                return [*self._terminate(ids[:half]), *self._terminate(ids[half:])]
            return [trouble]
        except FAILURES as error:
            return [translated(error, Call.WRITE, f"{self.name}: end of {len(ids)} machines")]
        return []

    def examine(self) -> Sequence[Finding]:
        """Look the account over, without any effect."""
        return tuple(examine(self.clients, self.settings, self._catalogue, self._clock, self._order_to_try))

    def _order_to_try(self) -> Mapping[str, Any]:
        """Return the arguments of a launch that is only tried: the cheapest on-demand machine there is."""
        plain = [each for each in self.offers() if each.market is Market.ON_DEMAND]
        if not plain:
            raise ProviderUnavailable(f"{self.name}: there is nothing on demand to try a launch with")
        return self._order(
            LaunchRequest(
                token=str(uuid.uuid4()),
                instance_id="inst-0",
                owner=self._owner,
                offer=min(plain, key=lambda each: (each.price_usd_per_h, each.key)),
                expires_at=self._clock.now() + 600.0,
            )
        )

    def facts(self) -> Mapping[str, str]:
        """Say which region and image, what the account may rent, and what could not be read; without any call."""
        settings = self.settings
        told_facts = {
            "region": settings.region,
            "image": settings.image_or_default,
            "address": "public" if settings.public_ip else "private only",
            "credential": _CREDENTIAL_WORDS[settings.credential],
            "interruptions": "queue and metadata" if settings.interruption_queue else "metadata only",
        }
        told_facts["zones"] = ", ".join(self._catalogue.known_zones())
        for (market, kind), vcpus in sorted(self._catalogue.quotas.items()):
            told_facts[f"quota {market} {kind}"] = f"{vcpus:g} vCPU"
        for plan in self._catalogue.plans:
            told_facts[f"savings plan {plan.id}"] = f"{plan.usd_per_h:g} USD/h, used before on-demand machines"
        for part, trouble_text in self._catalogue.troubles.items():
            told_facts[f"unread {part}"] = trouble_text
        if self._notices.trouble:
            told_facts["unread queue"] = self._notices.trouble
        return told_facts


_CREDENTIAL_WORDS = {
    "ssm": "workers fetch their key from an encrypted parameter",
    "user_data": "the worker's key stands in the user data, readable by whoever may describe machines",
    "image": "the image holds the worker's key",
}


def _named(offer: Offer) -> str:
    return f"{offer.instance_type.name} in {offer.zone} ({offer.market})"
