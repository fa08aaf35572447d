"""What plans failed on lately: left out of the next ones, and tried again after a while; and what else fails."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from hcloud.core.model import JobId
from hcloud.planner.snapshot import NOTHING_LEFT_OUT, LeftOut

QUARANTINE_S = 300.0
"""For so long what planning failed on is left out; a new version, policy or measurement may have mended it by then."""
CLASSIFICATION = "classification"
"""Beside the stages of a plan: what is believed of applications, which comes before it."""
Since = dict[str, tuple[float, str]]
"""Until when something is left out, and what went wrong with it."""


@dataclass(slots=True)
class Quarantine:
    """Jobs and stages that planning failed on (or classification, before it), of one daemon: another one, or the next,
    finds out for itself."""

    jobs: Since = field(default_factory=dict)
    stages: Since = field(default_factory=dict)
    others: Since = field(default_factory=dict)
    """What fails besides, which no plan is made without: a unit's reports, a call, a row."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.jobs or self.stages or self.others)

    def left_out(self, now: float) -> LeftOut:
        """Return what is left out of a plan made ``now``."""
        if not self:
            return NOTHING_LEFT_OUT
        return LeftOut(jobs=dict(_still(self.jobs, now)), stages=dict(_still(self.stages, now)))

    def suspects(self, living: Collection[JobId]) -> LeftOut:
        """Return all that is remembered: where a plan fails, most likely one of these is to blame again."""
        jobs = {name: error for name, (_, error) in self.jobs.items() if name in living}
        return LeftOut(jobs=jobs, stages={name: error for name, (_, error) in self.stages.items()})

    def record(self, left_out: LeftOut, now: float) -> LeftOut:
        """Remember what a plan was made without; return what of it was not left out just before."""
        before = self.left_out(now)
        for kept, names in ((self.jobs, left_out.jobs), (self.stages, left_out.stages)):
            kept.update({name: (now + QUARANTINE_S, error) for name, error in names.items() if name not in kept
                         or kept[name][0] <= now})  # fmt: skip
        jobs = {name: error for name, error in left_out.jobs.items() if name not in before.jobs}
        return LeftOut(jobs=jobs, stages={n: error for n, error in left_out.stages.items() if n not in before.stages})

    def failing(self, now: float) -> dict[str, str]:
        """Return what failed lately, and with what: jobs, stages, and all else."""
        return dict(chain.from_iterable(_still(kept, now) for kept in (self.jobs, self.stages, self.others)))

    def not_yet_reported(self, others: Iterable[str], now: float) -> list[str]:
        """Return the failures outside planning that were not reported lately."""
        return [name for name in others if name not in self.others or self.others[name][0] <= now]

    def record_others(self, others: Mapping[str, str], now: float) -> None:
        """Remember the reported failures outside planning, and drop old ones."""
        self.others = dict(each for each in self.others.items() if each[1][0] > now)
        self.others.update({name: (now + QUARANTINE_S, error) for name, error in others.items()})

    def forget_recovered(self, now: float) -> None:
        """Forget what a plan that went well was not made without."""
        self.jobs = {name: each for name, each in self.jobs.items() if each[0] > now}
        self.stages = {name: each for name, each in self.stages.items() if each[0] > now}
        self.others = {name: each for name, each in self.others.items() if each[0] > now}


def _still(kept: Since, now: float) -> Iterator[tuple[str, str]]:
    return ((name, error) for name, (until, error) in kept.items() if until > now)
