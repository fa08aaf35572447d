"""A host that takes the CPU away from the whole instance for seconds, simulated by a clock that jumps."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import Measure
from hcloud.core.model import ProgressHook
from hcloud.engine.host import EngineHost
from hcloud.profiler.first_look import first_look
from hcloud.profiler.sandbox import CopyUse
from hcloud.profiler.subject import Stage, Subject

TAKEN_S = 10.0
RUN_S = 0.8


class Copy:
    """A copy that makes constant progress while it has the CPU."""

    ended, worked_s = False, 0.0

    def output_mib(self) -> float:
        return 0.0

    def cpu_s(self) -> float:
        return self.worked_s

    def use(self) -> CopyUse:
        return CopyUse(cpu_s=self.worked_s, waited_s=0.0, memory_mib=1.0, read_mib=0.0, written_mib=0.0)


class Steady(Stage):
    """A stage with such a copy; ``taken``: the polls before which the CPU is taken away."""

    speed = 0.01
    """The share of its work done per second."""

    def __init__(self, folder: Path, *taken: int) -> None:
        subject = Subject(name="steady", command=("steady",), workdir=folder, progress=ProgressHook(file="p"))
        super().__init__(subject, EngineHost(), run_s=RUN_S, deadline=1e9)
        self.now, self.copy, self._looks, self._taken = 100.0, Copy(), 0, taken

    def play(self, vcpus: float) -> Copy:  # type: ignore[override]
        return self.copy

    def watch(self, seconds: float, *also: int) -> list[int]:
        self._looks += 1
        self.now += seconds + (TAKEN_S if self._looks in self._taken else 0.0)
        self.copy.worked_s += seconds
        return []

    def attend(self, seconds: float, *also: int) -> list[int]:
        return self.watch(seconds)

    def progress(self) -> float:
        return self.speed * self.copy.worked_s


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type:
    """Stages on a clock of their own."""

    class Clocked(Steady):
        def __init__(self, *taken: int) -> None:
            super().__init__(tmp_path, *taken)
            monkeypatch.setattr("hcloud.profiler.subject.time", SimpleNamespace(monotonic=lambda: self.now))

    return Clocked


@pytest.mark.parametrize("taken", [(), (1,), (1, 2), (5,), (20,)])
def test_first_look_is_as_long_as_the_program_could_be_seen(stages: type, taken: tuple[int, ...]) -> None:
    look = first_look(stages(*taken), 0.5)
    assert (look.measure, look.duration_s, look.notes) == (Measure.PROGRESS, None, ())


@pytest.mark.parametrize("taken", [(), (1,)])
@pytest.mark.parametrize("vcpus", [0.5, 1.0])
def test_window_waits_for_a_program_that_could_do_nothing(stages: type, taken: tuple[int, ...], vcpus: float) -> None:
    assert stages(*taken).sample(Measure.PROGRESS, vcpus) == pytest.approx(Steady.speed)


def test_window_of_a_program_that_does_nothing_ends(stages: type, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stages(3)
    monkeypatch.setattr(stage, "speed", 0.0)
    with pytest.raises(Unmeasurable, match="no progress of it was observed"):
        stage.sample(Measure.PROGRESS, 0.5)
    assert stage.copy.worked_s < 4.0
