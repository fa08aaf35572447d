"""What a budget is for: everything, the jobs of one user, or the jobs with one tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class BudgetScope(NamedTuple):
    """Whose cost a budget limits."""

    kind: Literal["total", "user", "tag"]
    name: str
    """The user, or the tag as ``KEY=VALUE``; empty for everything."""

    def __str__(self) -> str:
        return f"tag {self.name}" if self.kind == "tag" else self.name


TOTAL = BudgetScope("total", "")


def user_scope(user: str) -> BudgetScope:
    """Return the scope of a user's jobs."""
    return BudgetScope("user", user)


def tag_scope(tag: str) -> BudgetScope:
    """Return the scope of the jobs with a tag, ``KEY=VALUE``."""
    return BudgetScope("tag", tag)


def scopes_of(user: str, tags: Mapping[str, str]) -> tuple[BudgetScope, ...]:
    """Return the scopes in which a job of ``user`` with ``tags`` counts, besides the total."""
    if not tags:
        return (user_scope(user),)
    return (user_scope(user), *(tag_scope(f"{key}={value}") for key, value in sorted(tags.items())))
