"""Provider port for one region of Amazon EC2: offers, launches, listings and terminations."""

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
from hcloud.core.paging import EndlessList, checked
from hcloud.provider import CloudInstance, CommitmentUse, Finding, LaunchRequest, Listing
from providers.ec2.account_checks import check_account
from providers.ec2.catalog import Ec2Catalog
from providers.ec2.clients import Clients
from providers.ec2.errors import (
    LIBRARY_ERRORS,
    NO_SUCH_INSTANCE,
    TOKEN_ENDED,
    TOKEN_REUSED,
    Call,
    error_code,
    to_provider_error,
    translating_errors,
)
from providers.ec2.instance_mapping import OWNER, TOKEN, to_cloud_instance, type_zone_market
from providers.ec2.interruption_notices import InterruptionNotices
from providers.ec2.launch import LaunchBuilder
from providers.ec2.launch_tokens import SentTokens
from providers.ec2.settings import Ec2Settings

TERMINATE_BATCH = 500
PAGE = 1000
_INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,17}")


class Ec2Provider:
    """Instances of one region. Each terminates itself at its expiry, without the daemon.

    The state directory caches which tokens were sent and holds interruption warnings. Losing it is harmless.
    """

    def __init__(self, name: str, settings: Ec2Settings, clock: Clock, owner: str, state_dir: str) -> None:
        """Create the provider without any call. Raises ConfigError: the profile or the state directory is unusable."""
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
        self._catalog = Ec2Catalog(name, settings, self.clients, clock)
        self._builder = LaunchBuilder(name, settings)
        self._notices = InterruptionNotices(self.clients, settings.interruption_queue, directory)
        self._ended: dict[str, float] = {}

    # ---------------------------------------------------------------------------------------------------------- offers
    def offers(self) -> tuple[Offer, ...]:
        """Return an offer for every type, zone and market with a known price."""
        return self._catalog.offers()

    # ---------------------------------------------------------------------------------------------------------- launch
    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch one instance under the request's token; the port documents the errors.

        The instance of a token that was sent before is looked up first: EC2 forgets client tokens after about a
        day.
        """
        repeated = self._sent.contains(request.token)
        if repeated:
            known = self._find(request)
            if known is not None:
                return known
        self._check_request(request)
        with self._counting(request, repeated=repeated):
            arguments = self._run_instances_arguments(request)
            self._sent.add(request.token)
            try:
                return self._run_instances(request, arguments)
            except (InsufficientCapacity, QuotaExceeded, LaunchRejected):
                if not repeated:  # this attempt launched nothing; an earlier one may have
                    self._sent.forget(request.token)
                raise

    @contextmanager
    def _counting(self, request: LaunchRequest, *, repeated: bool) -> Iterator[None]:
        """Count the launch against quotas and commitments before it is sent, since other launches run concurrently.

        Raises InsufficientCapacity or QuotaExceeded if nothing is left. Not for a repeated launch, which may
        itself have used the last unit.
        """
        try:
            missing = self._catalog.count_launch(request.token, request.offer)
            if missing == "reserved" and not repeated:
                raise InsufficientCapacity(f"{self.name}: every reserved {_label(request.offer)} is in use")
            if missing == "quota" and not repeated:
                raise QuotaExceeded(f"{self.name}: the account's vCPU quota does not allow {_label(request.offer)}")
            yield
        except OutcomeUnknown:
            raise
        except ProviderError:
            self._catalog.uncount_launch(request.token)
            raise

    def _run_instances(self, request: LaunchRequest, arguments: Mapping[str, Any]) -> CloudInstance:
        """Send the request once."""
        what = f"{self.name}: launch of {_label(request.offer)}"
        try:
            answer = self.clients.writing().run_instances(**arguments)
        except ClientError as error:
            if error_code(error) in (TOKEN_REUSED, TOKEN_ENDED):
                return self._find_earlier_launch(request, error)
            raise to_provider_error(error, Call.WRITE, what) from error
        except LIBRARY_ERRORS as error:
            raise to_provider_error(error, Call.WRITE, what) from error
        if not answer.get("Instances"):
            raise OutcomeUnknown(f"{what}: the response contains no instance")
        return self._require_same_launch(request, self._to_cloud_instance(answer["Instances"][0], {}))

    def _check_request(self, request: LaunchRequest) -> None:
        """Reject an invalid request before anything is sent."""
        offer, type_name = request.offer, request.offer.instance_type.name
        if not (request.owner and request.instance_id and request.token):
            raise LaunchRejected(f"{self.name}: a launch needs an owner, an instance id and a token")
        if request.expires_at <= self._clock.now():
            raise LaunchRejected(f"{self.name}: {request.instance_id} would expire before it is launched")
        region = self._catalog.region_info()
        if (
            (offer.zone, type_name) not in region.offered
            or type_name not in region.types
            or offer.zone not in region.subnets
        ):
            raise LaunchRejected(f"{self.name} has no {_label(offer)}; see its offers")
        if offer.market is Market.RESERVED:
            self._catalog.read_unread_parts()

    def _run_instances_arguments(self, request: LaunchRequest) -> dict[str, Any]:
        reservation = self._catalog.capacity_reservation(request.token)
        return self._builder.run_instances_arguments(request, self._catalog.region_info(), reservation)

    def _find_earlier_launch(self, request: LaunchRequest, error: ClientError) -> CloudInstance:
        """Find the instance of a token that EC2 knows from a different request or from an instance that has ended."""
        known = self._find(request)
        if known is not None:
            return known
        if error_code(error) == TOKEN_ENDED:
            raise LaunchRejected(
                f"{self.name}: the instance of {request.instance_id} has ended and is no longer listed"
            )
        raise OutcomeUnknown(f"{self.name}: the instance of {request.instance_id} exists but is not listed yet")

    def _find(self, request: LaunchRequest) -> CloudInstance | None:
        """Return the instance of the request's token if EC2 lists it; a new one may be missing for a while."""
        with translating_errors(Call.READ, f"{self.name}: looking up the instance of {request.instance_id}"):
            found = list(self._described([{"Name": f"tag:{TOKEN}", "Values": [request.token]}]))
        if not found:
            return None
        return self._require_same_launch(
            request, self._to_cloud_instance(found[0], self._notices.poll(self._clock.now()))
        )

    def _require_same_launch(self, request: LaunchRequest, machine: CloudInstance) -> CloudInstance:
        if (machine.owner, machine.instance_id) != (request.owner, request.instance_id):
            raise LaunchRejected(
                f"{self.name}: token {request.token} was used for {machine.instance_id} of {machine.owner}"
            )
        return machine

    # --------------------------------------------------------------------------------------------------------- listing
    def instances(self, owner: str) -> Listing:
        """List an owner's instances. If a later page fails, the pages before it are returned as incomplete."""
        notices = self._notices.poll(self._clock.now())
        found: dict[str, CloudInstance] = {}
        complete = True
        try:
            with translating_errors(Call.READ, f"{self.name}: listing instances"):
                for machine in self._described([{"Name": f"tag:{OWNER}", "Values": [owner]}]):
                    found[str(machine["InstanceId"])] = self._to_cloud_instance(machine, notices)
        except ProviderError as error:
            if not found or isinstance(error, EndlessList):
                raise
            complete = False
        else:
            # EC2 lists terminated instances for about an hour; forget them afterwards.
            self._ended = {key: at for key, at in self._ended.items() if key in found}
        return Listing(
            instances=tuple(found[key] for key in sorted(found)),
            complete=complete,
            unanswered=() if complete else self._catalog.known_zones(),
            consistent_after_s=self.settings.list_lag_s,
        )

    def _described(self, filters: list[dict[str, Any]]) -> Iterator[Mapping[str, Any]]:
        paginator = self.clients.reading().get_paginator("describe_instances")
        pages = paginator.paginate(Filters=filters, PaginationConfig={"PageSize": PAGE})
        for page in checked(pages, "the list of instances"):
            for group in page["Reservations"]:
                yield from group["Instances"]

    def _to_cloud_instance(self, machine: Mapping[str, Any], notices: Mapping[str, float]) -> CloudInstance:
        key = str(machine["InstanceId"])
        ended_at = None
        if machine["State"]["Name"] == "terminated":
            ended_at = self._ended.setdefault(key, self._clock.now())
        type_name, zone, market = type_zone_market(machine)
        price = self._catalog.price_usd_per_h(zone, type_name, market)
        return to_cloud_instance(machine, price_usd_per_h=price, ended_at=ended_at, preempt_at=notices.get(key))

    # ------------------------------------------------------------------------------------------------------------- end
    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Terminate instances, in batches. Ids that EC2 does not know are dropped from the batch."""
        ids = [each for each in dict.fromkeys(provider_ids) if _INSTANCE_ID.fullmatch(each)]
        errors = [
            provider_error
            for first in range(0, len(ids), TERMINATE_BATCH)
            for provider_error in self._terminate(ids[first : first + TERMINATE_BATCH])
        ]
        self._catalog.request_recount()
        if errors:
            raise errors[0]

    def _terminate(self, ids: Sequence[str]) -> list[ProviderError]:
        """Return the errors.

        A batch that is rejected as a whole is halved, so that one bad id blocks no other instance.
        """
        if not ids:
            return []
        try:
            self.clients.writing().terminate_instances(InstanceIds=list(ids))
        except ClientError as error:
            named = set(_INSTANCE_ID.findall(str(error)))
            known = [each for each in ids if each not in named]
            if error_code(error) in NO_SUCH_INSTANCE and len(known) < len(ids):
                return self._terminate(known)
            provider_error = to_provider_error(error, Call.WRITE, f"{self.name}: terminating {len(ids)} instances")
            if isinstance(provider_error, LaunchRejected) and len(ids) > 1:
                half = len(ids) // 2
                return [*self._terminate(ids[:half]), *self._terminate(ids[half:])]
            return [provider_error]
        except LIBRARY_ERRORS as error:
            return [to_provider_error(error, Call.WRITE, f"{self.name}: terminating {len(ids)} instances")]
        return []

    def examine(self) -> Sequence[Finding]:
        """Check the account without side effects."""
        return tuple(check_account(self.clients, self.settings, self._catalog, self._clock, self._dry_run_arguments))

    def _dry_run_arguments(self) -> Mapping[str, Any]:
        """Return launch arguments for the dry run: the cheapest on-demand instance."""
        plain = [each for each in self.offers() if each.market is Market.ON_DEMAND]
        if not plain:
            raise ProviderUnavailable(f"{self.name}: no on-demand offer to test a launch with")
        return self._run_instances_arguments(
            LaunchRequest(
                token=str(uuid.uuid4()),
                instance_id="inst-0",
                owner=self._owner,
                offer=min(plain, key=lambda each: (each.price_usd_per_h, each.key)),
                expires_at=self._clock.now() + 600.0,
            )
        )

    def why_no_images(self) -> str:
        """Return that the default image, Debian's own, has no podman and none is installed; empty for other images."""
        has_podman = self.settings.image or self.settings.container_images
        return "" if has_podman else "its default image has no podman; set `container_images: true`"

    def commitments(self) -> Mapping[str, Sequence[CommitmentUse]]:
        """Return Reserved Instances, capacity reservations and Savings Plans by kind, without any call."""
        return self._catalog.commitments()

    def facts(self) -> Mapping[str, str]:
        """Return region, image, quotas and what could not be read, without any call."""
        settings = self.settings
        facts = {
            "region": settings.region,
            "image": settings.image_or_default,
            "address": "public" if settings.public_ip else "private only",
            "interruptions": "queue and metadata" if settings.interruption_queue else "metadata only",
        }
        facts["zones"] = ", ".join(self._catalog.known_zones())
        for (market, kind), vcpus in sorted(self._catalog.quotas.items()):
            facts[f"quota {market} {kind}"] = f"{vcpus:g} vCPU"
        for plan in self._catalog.plans:
            facts[f"savings plan {plan.id}"] = f"{plan.usd_per_h:g} USD/h, used before on-demand instances"
        for part, error in self._catalog.read_errors.items():
            facts[f"unread {part}"] = error
        if self._notices.error:
            facts["unread queue"] = self._notices.error
        return facts


def _label(offer: Offer) -> str:
    return f"{offer.instance_type.name} in {offer.zone} ({offer.market})"
