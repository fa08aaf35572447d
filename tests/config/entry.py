"""Run the real command line in this process, and check the form of its error messages."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from hcloud.cli.main import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str


Hcloud = Callable[..., Done]


def caller(capsys: pytest.CaptureFixture[str]) -> Hcloud:
    """Return a function that runs `hcloud ARGUMENTS` as the console script does."""

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        written = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Done(code=code, out=written.out, err=written.err)

    return call


def complaint(done: Done) -> str:
    """The one line a refused command wrote; nothing else may have been written, and it must have ended with 2."""
    assert done.code == 2, done
    assert "Traceback" not in done.err
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert lines[0].startswith("hcloud: ")
    assert not any(jargon in lines[0] for jargon in ("Input should", "validation error", "errors.pydantic", "pydantic"))
    return lines[0].removeprefix("hcloud: ")
