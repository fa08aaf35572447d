"""Builds the arguments of ``RunInstances``: image, network, disk, tags, market and the user data of the worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hcloud.core.errors import AccountRejected
from hcloud.core.model import Market
from hcloud.provider import LaunchRequest
from providers.cloud_init import WorkerSetup, render_user_data
from providers.ec2.instance_mapping import tags_of
from providers.ec2.launch_tokens import client_token
from providers.ec2.region_info import RegionInfo
from providers.ec2.settings import Ec2Settings

USER_DATA_BYTES_MAX = 16_384


class LaunchBuilder:
    """Builds launch requests for one provider."""

    def __init__(self, provider: str, settings: Ec2Settings) -> None:
        self._provider, self._settings = provider, settings

    def run_instances_arguments(
        self, request: LaunchRequest, region: RegionInfo, reservation: str | None
    ) -> dict[str, Any]:
        """Return the arguments of RunInstances. A repeated request gives equal arguments, as its client token requires.

        ``reservation``: id of the capacity reservation to launch into, if any.

        Raises AccountRejected: the user data is too long, or the gateway cannot be reached from an instance.
        """
        tags = tags_of(request, self._settings)
        return {
            "ClientToken": client_token(request.token),
            "MinCount": 1,
            "MaxCount": 1,
            "ImageId": region.image.id,
            "InstanceType": request.offer.instance_type.name,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {
                "HttpTokens": "required",
                "HttpEndpoint": "enabled",
                "HttpPutResponseHopLimit": 1,
                "InstanceMetadataTags": "disabled",  # in the metadata, keys of tags may hold fewer characters
            },
            "BlockDeviceMappings": [{"DeviceName": region.image.root_device, "Ebs": self._root_volume(region)}],
            "NetworkInterfaces": [self._network_interface(region.subnets[request.offer.zone])],
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume", "network-interface")
            ],
            "UserData": self._user_data(request),
            **_market_options(request.offer.market, reservation),
            **self._identity(),
        }

    def _root_volume(self, region: RegionInfo) -> Mapping[str, Any]:
        volume: dict[str, Any] = {
            "Encrypted": True,
            "VolumeSize": max(region.image.smallest_disk_gib, round(self._settings.disk_gib)),
            "VolumeType": "gp3",
            "DeleteOnTermination": True,
        }
        if self._settings.kms_key:
            volume["KmsKeyId"] = self._settings.kms_key
        return volume

    def _network_interface(self, subnet: str) -> Mapping[str, Any]:
        interface: dict[str, Any] = {
            "DeviceIndex": 0,
            "SubnetId": subnet,
            "AssociatePublicIpAddress": self._settings.public_ip,
            "DeleteOnTermination": True,
        }
        if self._settings.security_groups:
            interface["Groups"] = list(self._settings.security_groups)
        return interface

    def _identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = {}
        if self._settings.instance_profile:
            identity["IamInstanceProfile"] = {"Name": self._settings.instance_profile}
        if self._settings.key_name:
            identity["KeyName"] = self._settings.key_name
        return identity

    def _user_data(self, request: LaunchRequest) -> str:
        settings = self._settings
        text = render_user_data(
            WorkerSetup(
                request=request,
                capacity=request.offer.instance_type.capacity,
                gateway_addresses=settings.gateway_addresses,
                system_packages=settings.system_packages,
                container_images=settings.container_images,
                notice="ec2" if request.offer.market is Market.SPOT else "none",
                heed_rebalance=settings.rebalance == "leave",
                boot_timeout_s=settings.boot_timeout_s,
            )
        )
        if len(text.encode()) > USER_DATA_BYTES_MAX:
            raise AccountRejected(
                f"{self._provider}: the user data has {len(text)} bytes; EC2 accepts at most {USER_DATA_BYTES_MAX}"
            )
        return text


def _market_options(market: Market, reservation: str | None) -> dict[str, Any]:
    if market is Market.SPOT:
        spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": spot}}
    if reservation is None:
        return {}
    target = {"CapacityReservationId": reservation}
    return {"CapacityReservationSpecification": {"CapacityReservationTarget": target}}
