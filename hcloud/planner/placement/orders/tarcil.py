"""The best of a few instances of the buckets that match a job, or a bounded wait for one of these (Tarcil, Dissertation
§7.4).

Buckets are made of types and of classes of quality. Those printed, by the cosine of pressures, show which resource is
pressed and not how hard. A job that waits is bound late: to whichever instance of its buckets is free first, where the
print queues it at the best two of its sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hcloud.core.model import Number, Reason
from hcloud.planner.fit.interference import Floats, PressureState, Sensitivity
from hcloud.planner.fit.paragon import Selection
from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference
from hcloud.planner.placement.orders.interference_oblivious import BEST_TYPE
from hcloud.planner.placement.orders.least_loss import least_loss_choice
from hcloud.planner.placement.orders.sampled import drawn, sample_size
from hcloud.planner.text import seconds

if TYPE_CHECKING:
    from hcloud.core.model import Job
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup

NEAR_BEST = 0.05
"""Types match on which a job loses at most this part of its performance on the best one."""
FREE_BY = 0.95
"""Probability with which an instance is free by the estimated end of a wait; the print's "approximates 1"."""
FEWEST_KNOWN = 5
"""With fewer recent run times no wait is estimated, and no job waits."""


class TarcilOrder:
    """Like sampled, but from the buckets that match, for which a job waits if that is likely to be short."""

    name = "tarcil"
    needs = OrderNeeds(interference=True, types=True, waits=True)

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the instance with the least expected total loss of those drawn from the matching ones of ``fits``.

        If none matches: -1 while the job waits, else the best of those drawn from ``fits``.
        """
        count = sample_size(context.policy.placement.sampled_quantile)

        def search(
            pressure: PressureState, newcomer: Sensitivity, among: Mask, preference: Floats | None
        ) -> Selection | None:
            near_best = _near_best(context, group, among, preference)
            matching = among & near_best & _quiet(pressure, newcomer)
            if not np.count_nonzero(matching):
                job = context.suitability.sought
                if job is not None and _wait(context, job, near_best & ~among) is not None:
                    return None
                matching = among
            return least_loss_choice(pressure, newcomer, drawn(context.rng, matching, count), preference)

        return context.suitability.select(group.application, fits, search)

    def wait(self, context: PlanContext, job: Job, group: JobGroup, fits: Mask) -> Reason | None:
        """Return that ``job`` waits for a busy instance that matches, as one is likely to be free soon; else None."""
        suit = context.suitability
        newcomer, pressure = suit.sensitivity_of(group.application), suit.pressure
        if newcomer is None or pressure is None:
            return None
        near_best = _near_best(context, group, fits, suit.preference(group.application))
        if np.count_nonzero(fits & near_best & _quiet(pressure, newcomer)):
            return None
        return _wait(context, job, near_best & ~fits)

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return whether interference was known and counted, or the type alone, and how many were drawn."""
        if context.suitability.sensitivity_of(group.application) is None:
            return BEST_TYPE
        count = sample_size(context.policy.placement.sampled_quantile)
        text = f"least expected loss of up to {count} machines drawn, of types and quality that match if any has room"
        return Preference("tarcil", text)


def _quiet(pressure: PressureState, newcomer: Sensitivity) -> Mask:
    """Return the instances of the quality class of a job, or a better one."""
    found: Mask = pressure.level >= pressure.classes.level(newcomer.quality)
    return found


def _near_best(context: PlanContext, group: JobGroup, fits: Mask, preference: Floats | None) -> Mask:
    """Return the instances, busy or in ``fits``, that the jobs may use and of a type near the best one of these."""
    from hcloud.planner.placement.open_instances import suited  # which imports the context, which imports orders

    large = context.fleet.placeable & context.fleet.large_enough(group.demand)
    found = fits | suited(context, group, large)
    if preference is None or not np.count_nonzero(found):
        return found
    near: Mask = found & (preference <= preference[found].min() - np.log1p(-NEAR_BEST))
    return near


def _wait(context: PlanContext, job: Job, busy: Mask) -> Reason | None:
    """Return that ``job`` waits, if one of the ``busy`` instances is expected to be free within the mean and two
    standard deviations of how long instances are busy, of which it has not waited longer, and in time for its deadline.
    """
    # How quiet a full instance is will be known once a resident has left, so all of a matching type count.
    count = int(np.count_nonzero(busy))
    recent_s = context.snapshot.fleet_stats.busy_s
    if not count or len(recent_s) < FEWEST_KNOWN:
        return None
    longest_s = float(np.mean(recent_s) + 2.0 * np.std(recent_s))
    left_s = longest_s - (context.now - context.queued_at(job))
    if job.deadline_at is not None:
        limits = context.run_times.limits(job)
        left_s = min(left_s, job.deadline_at - context.now - (0.0 if limits is None else limits.long_s))
    if left_s <= 0.0:
        return None
    free_s = context.suitability.free_within_s(busy, FREE_BY, longest_s)
    if free_s >= left_s:
        return None
    text = (
        f"every machine with room is of a worse type or has too loud neighbours; one of {count} better ones is "
        f"expected to be free in {seconds(free_s)} at the latest; accepts any in {seconds(left_s)}"
    )
    numbers: dict[str, Number] = {"free_in_s": round(free_s, 3), "goes_down_in_s": round(left_s, 3)}
    return Reason(code="holds_out", text=text, numbers=numbers)


ORDER: Final[PlacementOrder] = TarcilOrder()
