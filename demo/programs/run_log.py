"""One line per start in the work directory: a job that were started twice would say so."""

import os


def begin(what: str) -> None:
    """Append to the run log and print how many starts it tells of."""
    with open("runs.log", "a+", encoding="ascii") as log:
        log.write(f"{os.getpid()} {what}\n")
        log.flush()
        os.fsync(log.fileno())
        log.seek(0)
        print(f"run-log: start {len(log.readlines())} of {what}", flush=True)


def progress(part: float) -> None:
    """Say how far the job is, from 0 to 1."""
    with open("progress", "a", encoding="ascii") as log:
        log.write(f"{part:.3f}\n")
