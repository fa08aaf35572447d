"""Each placement order is one file, the strategies another: no other code compares their names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.planner.placement import orders
from hcloud.planner.provisioning.strategies import strategy_named
from hcloud.spec.policy import ORDERS, STRATEGIES
from tests.house import tree

ORDER_FILES = tree.ROOT / "hcloud/planner/placement/orders"
WORDS = {"random", "sampled"}
"""Names that are also plain words of other things."""


def nodes(source: str, names: set[str]) -> Iterator[ast.AST]:
    """Yield the nodes of a file; none if it has none of ``names`` in quotes, which saves parsing it."""
    quoted = (mark + name + mark for name in names for mark in "\"'")
    return ast.walk(ast.parse(source)) if any(each in source for each in quoted) else iter(())


def compared_names(path: Path, source: str, names: set[str]) -> Iterator[str]:
    """Yield where a file decides by one of ``names``: it compares or matches it, or looks it up in a table."""
    for node in nodes(source, names):
        tested: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            tested = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            tested = [node.value]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Dict)
        ):
            tested = [key for key in node.func.value.keys if key is not None]
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            tested = [key for key in node.value.keys if key is not None]
        for expression in tested:
            for part in ast.walk(expression):
                if isinstance(part, ast.Constant) and part.value in names:
                    yield f"{tree.relative(path)}:{part.lineno}: {part.value!r}"


def named_anywhere(path: Path, source: str, names: set[str]) -> Iterator[str]:
    """Yield where a file has one of ``names`` as a string."""
    for node in nodes(source, names):
        if isinstance(node, ast.Constant) and node.value in names:
            yield f"{tree.relative(path)}:{node.lineno}: {node.value!r}"


def test_each_order_a_policy_may_name_is_one_file() -> None:
    files = {path.stem for path in ORDER_FILES.glob("*.py")} - {"__init__"}
    assert files == set(ORDERS)
    assert {name: orders.order_named(name).name for name in ORDERS} == {name: name for name in ORDERS}
    assert all(orders.order_named(name).needs.classifications is ORDERS.uses_classifications(name) for name in ORDERS)
    assert all(orders.order_named(name).needs.turns is ORDERS.takes_turns(name) for name in ORDERS)


def test_each_strategy_a_policy_may_name_is_registered() -> None:
    assert {name: strategy_named(name).name for name in STRATEGIES} == {name: name for name in STRATEGIES}
    assert all(strategy_named(name).maps_jobs is STRATEGIES.uses_classifications(name) for name in STRATEGIES)


def test_the_planner_names_a_strategy_only_in_the_file_of_strategies() -> None:
    home = tree.ROOT / "hcloud/planner/provisioning/strategies.py"
    others = [path for path in tree.python_files("hcloud/planner") if path != home]
    assert not [each for path in others for each in named_anywhere(path, path.read_text(), set(STRATEGIES))]


def test_the_planner_names_an_order_only_in_its_file() -> None:
    found = [
        each
        for path in tree.python_files("hcloud/planner")
        for each in named_anywhere(
            path, path.read_text(), set(ORDERS) - WORDS - ({path.stem} if path.parent == ORDER_FILES else set())
        )
    ]
    assert not found


def test_no_code_compares_the_name_of_an_order_or_a_strategy() -> None:
    names = {*ORDERS, *STRATEGIES} - WORDS
    found = [
        each
        for path in tree.python_files("hcloud", "providers", "lab", "bench")
        if path.parent != ORDER_FILES
        for each in compared_names(path, path.read_text(), names)
    ]
    assert not found


@pytest.mark.parametrize(
    "bad",
    [
        "if order == 'quasar': pass",
        "if order in ('paragon', 'best'): pass",
        "if order not in {'least_loss'}: pass",
        "match order:\n    case 'quasar': pass",
        "words = {'first_fit': 'first'}.get(order)",
        "words = {'first_fit': 'first'}[order]",
    ],
)
def test_a_comparison_with_an_order_is_seen(bad: str) -> None:
    assert list(compared_names(tree.ROOT / "hcloud/x.py", bad, set(ORDERS)))
