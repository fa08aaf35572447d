"""Who may change what while a plan is made: the records of a plan change by their own methods only."""

import ast
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from hcloud.planner.context import PlanContext, PlanInputs
from hcloud.planner.job_groups import GroupState, JobDemand, JobGroup
from tests.house import tree

RECORDS = {
    "reservations": {"hcloud/planner/reservations.py"},
    "decisions": {"hcloud/planner/decisions.py"},
    "waiting": {"hcloud/planner/waiting_jobs.py"},
    "fleet": {"hcloud/planner/fleet.py", "hcloud/planner/reservations.py"},
}
"""By name of a record in the context: the files that write its fields."""
SERVING = ("hcloud/planner/placement/", "hcloud/planner/provisioning/", "hcloud/planner/job_")
"""Who finds out what of a group: the stage that serves jobs, and the queue."""
MUTATORS = frozenset(
    {
        "add",
        "append",
        "clear",
        "difference_update",
        "discard",
        "extend",
        "insert",
        "pop",
        "remove",
        "setdefault",
        "update",
    }
)
"""Methods of lists, sets and dicts that change them."""


def is_written(node: ast.Attribute, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return whether the attribute is assigned, or the container in it changed."""
    parent = parents.get(node)
    if isinstance(node.ctx, ast.Store | ast.Del):
        return True
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return isinstance(parent.ctx, ast.Store | ast.Del)
    call = parents.get(parent) if parent is not None else None
    return isinstance(parent, ast.Attribute) and parent.attr in MUTATORS and isinstance(call, ast.Call)


def writes(source: str) -> Iterator[tuple[str, str, int]]:
    """Yield record, field and line of each write to a field of an object called like a record, or a group's state."""
    parsed = ast.parse(source)
    parents = {child: node for node in ast.walk(parsed) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(parsed):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
            of_group = owner == "state" and isinstance(node.value, ast.Attribute)
            if (owner in RECORDS or of_group) and is_written(node, parents):
                yield owner, node.attr, node.lineno


def may_write(path: str, record: str) -> bool:
    """Return whether the file may write fields of the record."""
    return path.startswith(SERVING) if record == "state" else path in RECORDS[record]


def violations(path: str, source: str) -> list[str]:
    """Return the writes of a file that are not its own."""
    group_fields = {field.name for field in fields(GroupState)}
    return [
        f"{path}:{line}: {record}.{name}"
        for record, name, line in writes(source)
        if not may_write(path, record) and (record != "state" or name in group_fields)
    ]


def test_only_its_own_file_changes_a_record_of_the_plan() -> None:
    found = [each for path in tree.python_files("hcloud/planner") for each in violations(_name(path), path.read_text())]
    assert not found


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("hcloud/planner/make.py", "context.reservations.used.update([1])"),
        ("hcloud/planner/placement/place.py", "state.context.reservations.held[job.id] = []"),
        ("hcloud/planner/admission.py", "context.waiting.similar = ()"),
        ("hcloud/planner/correction/correct.py", "context.decisions.actions.append(action)"),
        ("hcloud/planner/provisioning/upsizing.py", "context.fleet.placeable[at] = False"),
        ("hcloud/planner/provisioning/upsizing.py", "context.fleet.room[:, at] -= 1"),
        ("hcloud/planner/market.py", "group.state.stuck = None"),
    ],
)
def test_write_from_elsewhere_is_found(path: str, line: str) -> None:
    assert violations(path, line)


def test_context_holds_inputs_and_four_records_and_cannot_be_reassigned() -> None:
    added = {field.name for field in fields(PlanContext)} - {field.name for field in fields(PlanInputs)}
    assert added == set(RECORDS)
    kinds: list[Any] = [PlanInputs, PlanContext, JobDemand, JobGroup]
    for kind in kinds:
        assert is_dataclass(kind)
        assert kind.__dataclass_params__.frozen


def _name(path: Path) -> str:
    return str(path.relative_to(tree.ROOT))
