"""The life of a machine, fixed at its launch: each moment comes from its own random stream, or from the script."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hcloud.core.cpu_topology import CPUS_MAX
from hcloud.core.model import Market
from hcloud.provider import LaunchRequest
from providers.mock.catalog import MockCatalog
from providers.mock.fault_queue import FaultQueue
from providers.mock.faults import Fault, FaultKind
from providers.mock.machine import MachineRow
from providers.mock.random_streams import draws_for, lognormal_s, waiting_s

MIN_QUALITY, MAX_QUALITY = 0.25, 2.0
NEARLY_ALL = 0.99


class FailureModel:
    """Creates machines. Machines with the same seed and instance id have the same life, whatever else is launched."""

    def __init__(self, catalog: MockCatalog, faults: FaultQueue) -> None:
        self._settings = catalog.settings
        self._catalog = catalog
        self._faults = faults

    def launch(self, request: LaunchRequest, number: int, now: float) -> MachineRow:
        """Return the machine that this request launches, the ``number``-th of the cloud."""
        offer = request.offer
        late = self._fault(FaultKind.ANSWER_LATE, request)
        launched_at = now + (late.delay_s if late else 0.0)
        boot_s = self._boot_s(request)
        row = MachineRow(
            provider_id=f"mock-{number:06d}",
            instance_id=request.instance_id,
            token=request.token,
            owner=request.owner,
            zone=offer.zone,
            region=self._settings.region_of(offer.zone),
            type_name=offer.instance_type.name,
            market=offer.market,
            capacity=self._catalog.types[offer.instance_type.name].capacity,
            price_usd_per_h=self._catalog.paid_usd_per_h(offer.zone, offer.instance_type.name, offer.market, now),
            billing_minimum_s=self._settings.billing_minimum_s,
            quality=self._quality(request.instance_id),
            launched_at=launched_at,
            running_at=launched_at + boot_s,
            listed_at=launched_at + self._list_lag_s(request),
            expires_at=request.expires_at,
            lease_ends_at=launched_at + boot_s + (self._settings.lease_s or math.inf),
            tags=dict(request.tags),
            reports_cpus=self._reported_cpus(offer.instance_type.name),
        )
        return self._with_end(row, request)

    def _reported_cpus(self, type_name: str) -> int:
        vcpus, least = self._catalog.types[type_name].capacity.vcpus, self._settings.topology_from_vcpus
        return min(CPUS_MAX, math.ceil(vcpus)) if least is not None and vcpus >= least else 0

    def _fault(self, kind: FaultKind, request: LaunchRequest) -> Fault | None:
        return self._faults.take(kind, "launch", request.offer)

    def _draws(self, what: str, instance_id: str) -> np.random.Generator:
        return draws_for(self._settings.seed, what, instance_id)

    def _waiting_s(self, what: str, row: MachineRow, events_per_h: float) -> float:
        return waiting_s(self._draws(what, row.instance_id), events_per_h) if events_per_h else math.inf

    def _boot_s(self, request: LaunchRequest) -> float:
        if self._fault(FaultKind.NEVER_BOOT, request):
            return math.inf
        boot = self._settings.boot
        return lognormal_s(self._draws("boot", request.instance_id), boot.p50_s, boot.p95_s) if boot.p50_s else 0.0

    def _list_lag_s(self, request: LaunchRequest) -> float:
        if self._fault(FaultKind.LIST_LATE, request):
            return self._settings.list_lag_s * NEARLY_ALL
        lag_s = self._settings.list_lag_s
        return lag_s * float(self._draws("lag", request.instance_id).random()) if lag_s else 0.0

    def _quality(self, instance_id: str) -> float:
        spread = self._settings.quality.spread
        if not spread:
            return 1.0
        speed = math.exp(spread * self._draws("quality", instance_id).standard_normal())
        return min(MAX_QUALITY, max(MIN_QUALITY, speed))

    def _with_end(self, row: MachineRow, request: LaunchRequest) -> MachineRow:
        spot = self._settings.spot
        dies_s = self._waiting_s("death", row, self._settings.deaths_per_h)
        preempt_s = self._waiting_s("preemption", row, spot.preemptions_per_h if row.market is Market.SPOT else 0.0)
        death, preemption = self._fault(FaultKind.DIE, request), self._fault(FaultKind.PREEMPT, request)
        preempt_at = row.launched_at + (preemption.delay_s if preemption else preempt_s)
        if row.market is Market.SPOT and not preemption:
            preempt_at = min(preempt_at, self._catalog.shortages.next_at(row.zone, row.type_name, row.launched_at))
        return replace(
            row,
            dies_at=row.launched_at + (death.delay_s if death else dies_s),
            preempt_at=preempt_at,
            notice_at=max(row.launched_at, preempt_at - spot.notice_s),
        )
