"""Rules of the planner by the name that a policy gives them: placement orders and provisioning strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from hcloud.spec.rule_names import RuleNames


class Named(Protocol):
    """A rule with a name."""

    @property
    def name(self) -> str:
        """What policies call it."""


Rule = TypeVar("Rule", bound=Named)


class Registry(Generic[Rule]):
    """The rules of one kind, HCloud's own first, in order of registration."""

    def __init__(
        self,
        kind: str,
        accepted: RuleNames,
        uses_classifications: Callable[[Rule], bool],
        takes_turns: Callable[[Rule], bool] = lambda _: False,
    ) -> None:
        """``kind`` names the rules in messages; ``accepted`` are the names that the policy's key accepts."""
        self._kind, self._accepted, self._uses_classifications = kind, accepted, uses_classifications
        self._takes_turns = takes_turns
        self._rules: dict[str, Rule] = {}

    def __iter__(self) -> Iterator[Rule]:
        """Iterate over all rules."""
        return iter(self._rules.values())

    def register(self, rule: Rule) -> None:
        """Make ``rule`` known to policies and plans; registering it again changes nothing.

        Raises:
            ValueError: another rule has the same name, or the policy states something else about it.
        """
        if self._rules.setdefault(rule.name, rule) is not rule:
            raise ValueError(f"there is another {self._kind} {rule.name!r}")
        self._accepted.add(
            rule.name, uses_classifications=self._uses_classifications(rule), takes_turns=self._takes_turns(rule)
        )

    def named(self, name: str) -> Rule:
        """Return the rule that a policy calls ``name``. Raises KeyError; a checked policy names none that is not
        registered."""
        return self._rules[name]
