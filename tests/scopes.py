"""Amounts by user, as the planner keeps them by scope."""

from collections.abc import Mapping

from hcloud.core.budget_scope import BudgetScope, user_scope


def by_user(amounts: Mapping[str, float] | Mapping[str, tuple[float, ...]]) -> dict[BudgetScope, object]:
    """Return ``amounts`` by the scope of each user."""
    return {user_scope(name): amount for name, amount in amounts.items()}
