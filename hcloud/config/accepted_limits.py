"""Limits that were accepted: a change that loosens one waits until an admin accepts it (``hcloud policy accept``).

A file that was cut off, or a line deleted by mistake, would else lift a budget without a word. What makes a limit
stricter holds at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Any, Literal

from hcloud.config.settings import Config
from hcloud.core.budget_scope import BudgetScope, tag_scope, user_scope
from hcloud.spec.policy import Budgets, Caps, Policy, ScopeBudget

ROLES = ("reader", "submitter", "admin")
"""Of API tokens; each may do more than the one before."""
PERIODS = ("per_hour_usd", "per_day_usd", "per_month_usd")
_SCOPE_PERIODS = ("per_day_usd", "per_month_usd")
PER_TYPE = "max_instances_per_type"
Isolation = Literal["require", "best_effort"] | None
_STRICTNESS: Mapping[Isolation, int] = {"best_effort": 0, None: 1, "require": 2}
"""Of ``engine.isolation``; null requires isolation on rented machines only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntry:
    """One API token, by its SHA-256. The token itself is not stored."""

    name: str
    digest: str
    role: str
    """One of ``ROLES``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedLimits:
    """What protects money, hosts and users from each other, of policy and configuration."""

    budgets: Budgets
    isolation: Isolation
    admins: tuple[str, ...]
    readers: tuple[str, ...]
    caps: Caps | None = None
    """None: stored by a version that did not watch them, so that those of the policy hold."""
    tokens: tuple[TokenEntry, ...] | None = None
    """Of ``api.tcp.tokens_file``. None, of accepted limits: stored by a version that did not watch them; of the files:
    that file cannot be read now."""

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self), sort_keys=True)


def limits_of(policy: Policy, config: Config, tokens: tuple[TokenEntry, ...] | None) -> AcceptedLimits:
    """Return the limits that policy, configuration and the tokens file state."""
    api = config.api
    return AcceptedLimits(
        budgets=policy.budgets,
        isolation=config.engine.isolation,
        admins=tuple(sorted(api.admins)),
        readers=tuple(sorted(api.readers)),
        caps=policy.caps,
        tokens=tokens,
    )


def parse_limits(text: str) -> AcceptedLimits:
    """Return what ``to_json`` wrote."""
    plain = json.loads(text)
    budgets = plain["budgets"]
    # Limits stored by a version without budgets per tag have none.
    scopes = {
        key: {name: ScopeBudget(**each) for name, each in budgets.get(key, {}).items()}
        for key in ("per_user", "per_tag")
    }
    return AcceptedLimits(
        budgets=Budgets(**{**budgets, **scopes}),
        isolation=plain["isolation"],
        admins=tuple(plain["admins"]),
        readers=tuple(plain["readers"]),
        caps=Caps(**plain["caps"]) if plain.get("caps") is not None else None,
        tokens=tuple(TokenEntry(**each) for each in plain["tokens"]) if plain.get("tokens") is not None else None,
    )


def loosened(accepted: AcceptedLimits, wanted: AcceptedLimits) -> tuple[str, ...]:
    """Return what ``wanted`` allows and ``accepted`` does not, a few words each; empty if nothing."""
    return tuple(_loosened(accepted, wanted))


def _loosened(accepted: AcceptedLimits, wanted: AcceptedLimits) -> Iterator[str]:
    for key in PERIODS:
        before, after = getattr(accepted.budgets, key), getattr(wanted.budgets, key)
        if _or_inf(after) > _or_inf(before):
            yield f"budgets.{key} from {before:g} to {_or_none(after)}"
    for scope in _scopes(accepted, wanted):
        for key in _SCOPE_PERIODS:
            before = getattr(accepted.budgets.for_scope(scope), key)
            after = getattr(wanted.budgets.for_scope(scope), key)
            if _or_inf(after) > _or_inf(before):
                yield f"budgets.per_{scope.kind}.{scope.name}.{key} from {before:g} to {_or_none(after)}"
    if _STRICTNESS[wanted.isolation] < _STRICTNESS[accepted.isolation]:
        yield f"engine.isolation from {accepted.isolation or 'null'} to {wanted.isolation or 'null'}"
    if accepted.caps is not None and wanted.caps is not None:
        for name, before, after in _cap_changes(accepted.caps, wanted.caps):
            if _or_inf(after) > _or_inf(before):
                yield f"caps.{name} from {before:g} to {_or_none(after)}"
    for name in sorted(set(wanted.admins) - set(accepted.admins)):
        yield f"api.admins with {name}"
    for name in sorted(set(accepted.readers) - set(wanted.readers)):
        yield f"api.readers without {name}"
    if accepted.tokens is not None and wanted.tokens is not None:
        yield from _loosened_tokens(accepted.tokens, wanted.tokens)


def stricter(accepted: AcceptedLimits, wanted: AcceptedLimits) -> AcceptedLimits:
    """Return the limits in force: of each the stricter one."""
    before, after = accepted.budgets, wanted.budgets
    scopes: dict[str, dict[str, ScopeBudget]] = {"user": {}, "tag": {}}
    for scope in _scopes(accepted, wanted):
        least = _least(before.for_scope(scope), after.for_scope(scope), _SCOPE_PERIODS)
        scopes[scope.kind][scope.name] = ScopeBudget(**least)
    isolation = max((accepted.isolation, wanted.isolation), key=lambda each: _STRICTNESS[each])
    readers = set(wanted.readers) | set(accepted.readers)
    return AcceptedLimits(
        budgets=Budgets(**_least(before, after, PERIODS), per_user=scopes["user"], per_tag=scopes["tag"]),
        isolation=isolation,
        admins=tuple(sorted((set(wanted.admins) & set(accepted.admins)) - readers)),
        readers=tuple(sorted(readers)),
        caps=_stricter_caps(accepted.caps, wanted.caps),
        tokens=_stricter_tokens(accepted.tokens, wanted.tokens),
    )


def with_limits(policy: Policy, limits: AcceptedLimits) -> Policy:
    """Return the policy with these budgets and caps."""
    caps = policy.caps if limits.caps is None else limits.caps
    same = (policy.budgets, policy.caps) == (limits.budgets, caps)
    return policy if same else replace(policy, budgets=limits.budgets, caps=caps)


def _cap_changes(before: Caps, after: Caps) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield name and both values of each cap, of all types that one of the two names."""
    for each in fields(Caps):
        if each.name != PER_TYPE:
            yield each.name, getattr(before, each.name), getattr(after, each.name)
    for kind in sorted({*before.max_instances_per_type, *after.max_instances_per_type}):
        yield f"{PER_TYPE}.{kind}", before.max_instances_per_type.get(kind), after.max_instances_per_type.get(kind)


def _stricter_caps(before: Caps | None, after: Caps | None) -> Caps | None:
    if before is None or after is None:
        return before or after
    least: dict[str, Any] = {
        name: min((each for each in values if each is not None), default=None)
        for name, *values in _cap_changes(before, after)
    }
    kinds = {name: least.pop(name) for name in [*least] if name.startswith(f"{PER_TYPE}.")}
    return Caps(**least, max_instances_per_type={name.partition(".")[2]: count for name, count in kinds.items()})


def _loosened_tokens(before: Iterable[TokenEntry], after: Iterable[TokenEntry]) -> Iterator[str]:
    known = {each.digest: each for each in before}
    for token in sorted(after, key=lambda each: (each.name, each.role)):
        former = known.get(token.digest)
        if former is None:
            yield f"api.tcp.tokens_file: new token of {token.name} ({token.role})"
        elif former.name != token.name:  # it would act as someone else
            yield f"api.tcp.tokens_file: token of {former.name} becomes one of {token.name} ({token.role})"
        elif _rank(token) > _rank(former):
            yield f"api.tcp.tokens_file: {token.name} from {former.role} to {token.role}"


def _stricter_tokens(
    before: tuple[TokenEntry, ...] | None, after: tuple[TokenEntry, ...] | None
) -> tuple[TokenEntry, ...] | None:
    if before is None or after is None:
        return after if before is None else before
    known = {(each.digest, each.name): each for each in before}
    both = [(known[each.digest, each.name], each) for each in after if (each.digest, each.name) in known]
    return tuple(sorted((min(pair, key=_rank) for pair in both), key=lambda each: (each.name, each.digest)))


def _rank(token: TokenEntry) -> int:
    return ROLES.index(token.role)


def _least(before: object, after: object, keys: Sequence[str]) -> dict[str, float | None]:
    """Return the smaller limit for each of ``keys``, shortest period first; none is above that of a longer period."""
    least: dict[str, float | None] = {}
    bound = inf
    for key in reversed(keys):
        bound = min(bound, _or_inf(getattr(before, key)), _or_inf(getattr(after, key)))
        stated = getattr(before, key) is not None or getattr(after, key) is not None
        least[key] = bound if stated else None
    return least


def _scopes(accepted: AcceptedLimits, wanted: AcceptedLimits) -> list[BudgetScope]:
    """Return all users and tags that one of the two names."""
    users = {"default", *accepted.budgets.per_user, *wanted.budgets.per_user}
    tags = {*accepted.budgets.per_tag, *wanted.budgets.per_tag}
    return [*map(user_scope, sorted(users)), *map(tag_scope, sorted(tags))]


def _or_inf(limit: float | None) -> float:
    return inf if limit is None else limit


def _or_none(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:g}"
