"""The names that a policy key accepts for rules of the planner: placement orders and provisioning strategies.

A policy is checked without the planner, so the names of HCloud's own rules stand beside their key in
``hcloud.spec.policy``. Those of installed packages are added when a process starts (``hcloud.config.plugins``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticKnownError, core_schema


class RuleNames:
    """The names that one key accepts. As an annotation of the key it refuses all others."""

    def __init__(self, *, plain: Iterable[str], classified: Iterable[str], in_turns: Iterable[str] = ()) -> None:
        """Accept the names ``plain`` and, of rules that use classifications of applications, ``classified``.

        ``in_turns``: those of them by which jobs may be paused for each other.
        """
        self._classified = dict.fromkeys(plain, False) | dict.fromkeys(classified, True)
        self._in_turns = set(in_turns)

    def __iter__(self) -> Any:
        """Iterate over all names, HCloud's own first."""
        return iter(self._classified)

    def add(self, name: str, *, uses_classifications: bool, takes_turns: bool = False) -> None:
        """Accept ``name`` too.

        Raises:
            ValueError: it is accepted already, with another answer to ``uses_classifications`` or ``takes_turns``.
        """
        is_new = name not in self._classified
        if self._classified.setdefault(name, uses_classifications) is not uses_classifications:
            raise ValueError(f"the policy states that {name!r} has uses_classifications={not uses_classifications}")
        if is_new and takes_turns:
            self._in_turns.add(name)
        if self.takes_turns(name) is not takes_turns:
            raise ValueError(f"the policy states that {name!r} has takes_turns={not takes_turns}")

    def uses_classifications(self, name: str) -> bool:
        """Return whether the rule ``name`` depends on what is known about applications."""
        return self._classified[name]

    def takes_turns(self, name: str) -> bool:
        """Return whether jobs may be paused for each other by the rule ``name``."""
        return name in self._in_turns

    def _check(self, name: object) -> str:
        if isinstance(name, str) and name in self._classified:
            return name
        raise PydanticKnownError("literal_error", {"expected": ", ".join(repr(each) for each in self._classified)})

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Return a schema that looks names up at each validation, since packages may add some."""
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the names accepted at present as an enumeration."""
        return {"enum": list(self._classified), "type": "string"}
