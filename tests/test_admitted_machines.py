"""The engine is given the machines that live now, each as its row is now."""

from __future__ import annotations

from dataclasses import replace

from hcloud.controller import AdmittedMachines
from hcloud.core.model import Instance
from hcloud.core.rows import RowJournal, number_of
from tests.planner.scenes import machine


def test_machines_come_change_and_go_with_their_rows() -> None:
    journal, admitted = RowJournal[Instance](), AdmittedMachines()
    first, second = (machine(number, ready_at=None) for number in (1, 2))
    journal.write({number_of(each.id): each for each in (first, second)})
    assert [each.instance_id for each in admitted.of(journal.snapshot())] == ["inst-1", "inst-2"]
    journal.write({1: None, 2: replace(second, ready_at=5.0)})
    (left,) = admitted.of(journal.snapshot())
    assert (left.instance_id, left.has_registered) == ("inst-2", True)
    assert admitted.of(()) == ()
