"""ExpectedSlowdown from what is known of programs run alone (ESP, algorithm 1).

Features are those of the program and the sums of those of its neighbours. An elastic net selects linear ones; all their
pairwise products are added; a second elastic net is the model. As printed it predicts the share of speed that is left;
with a logarithmic link errors are relative, so that strong slowdowns count as much as weak ones.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hcloud.classifier.slowdown.elastic_net import ElasticNet, Floats, LinearModel
from hcloud.classifier.slowdown.table import CoRunQuestion, CoRunTable, ExpectedSlowdown

LEAST_ROWS = 60
"""Fewer observations of programs with features are not fitted."""
_LEAST_SPEED = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Esp:
    """The model."""

    log_link: bool
    """Predict the logarithm of the speed, not the speed itself (as printed)."""
    most_selected: int = 20
    """Linear features whose products are added, at most; those with the largest coefficients."""
    net: ElasticNet = field(default_factory=ElasticNet)
    extrapolates: bool = False
    """Whether it answers beside more neighbours than it was fitted to, where sums of features are far from all seen."""

    def fit(self, table: CoRunTable) -> FittedEsp:
        """Fit both elastic nets to the rows of programs with features."""
        features = table.features
        rows = [row for row, each in enumerate(table.questions) if _is_described(each, features)]
        if len(rows) < LEAST_ROWS:
            return FittedEsp(self.log_link, features, None, 0)
        x = _linear([table.questions[row] for row in rows], features)
        y = -table.log_longer[rows]
        y = y if self.log_link else np.minimum(np.exp(y), 1.0)
        groups = table.groups
        own_groups = [groups[row] for row in rows]
        first = self.net.fit(x, y, own_groups)
        weight = np.abs(first.coefficients)
        selected = np.sort(np.argsort(-weight, kind="stable")[: min(self.most_selected, int((weight > 0.0).sum()))])
        products = _with_products(first, x, selected)
        second = self.net.fit(products, y, own_groups)
        error = float(np.std(y - second.predict(products)))
        seen = max(len(table.questions[row].neighbours) for row in rows)
        most = sys.maxsize if self.extrapolates else seen
        return FittedEsp(self.log_link, features, _EspNets(first, selected, second, error), most)


@dataclass(frozen=True, slots=True)
class _EspNets:
    first: LinearModel
    selected: npt.NDArray[np.intp]
    """Linear features whose products are added."""
    second: LinearModel
    error: float
    """Standard deviation of what the second leaves unexplained."""


@dataclass(frozen=True, slots=True)
class FittedEsp:
    """See :class:`Esp`."""

    log_link: bool
    features: Mapping[str, Floats]
    nets: _EspNets | None
    """None: too little was observed."""
    most_neighbours: int
    """Beside more it does not answer."""

    def slowdown(self, question: CoRunQuestion) -> ExpectedSlowdown | None:
        """Return the expected slowdown; None if a program has no features, too little was observed, or among more."""
        nets = self.nets
        if nets is None or len(question.neighbours) > self.most_neighbours:
            return None
        if not _is_described(question, self.features):
            return None
        x = _linear([question], self.features)
        predicted = float(nets.second.predict(_with_products(nets.first, x, nets.selected))[0])
        if self.log_link:
            return ExpectedSlowdown(max(0.0, -predicted), nets.error)
        speed = min(1.0, max(_LEAST_SPEED, predicted))
        return ExpectedSlowdown(-math.log(speed), nets.error / speed)


def _is_described(question: CoRunQuestion, features: Mapping[str, Floats]) -> bool:
    return question.application in features and all(name in features for name in question.neighbours)


def _linear(questions: Sequence[CoRunQuestion], features: Mapping[str, Floats]) -> Floats:
    """Return features of the programs beside the sums of those of their neighbours, (n x 2 F)."""
    none = np.zeros_like(next(iter(features.values())))
    own = np.array([features[each.application] for each in questions])
    beside = np.array([sum((features[name] for name in each.neighbours), none) for each in questions])
    return np.hstack([own, beside])


def _with_products(first: LinearModel, x: Floats, selected: npt.NDArray[np.intp]) -> Floats:
    """Return the selected features, standardised, and all products of two of them."""
    standard = ((x - first.centre) / first.scale)[:, selected]
    a, b = np.triu_indices(len(selected))
    return np.hstack([standard, standard[:, a] * standard[:, b]])
