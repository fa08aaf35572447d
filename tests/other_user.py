"""Work done in a process without privileges, as an ordinary user would: root may read and do what users may not."""

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

NOBODY = 65534
_fork = multiprocessing.get_context("fork")


def as_ordinary_user(work: Callable[[], object]) -> Any:
    """Do the work in a forked process without privileges; return what it returned.

    Raises AssertionError where it raised; its trace stands in the test's standard error.
    """
    reader, writer = _fork.Pipe(duplex=False)

    def answer() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        writer.send(work())

    child = _fork.Process(target=answer)
    child.start()
    writer.close()
    try:
        return reader.recv()
    except EOFError as nothing:
        raise AssertionError("the work failed; see the trace on standard error") from nothing
    finally:
        child.join()
