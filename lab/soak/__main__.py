"""``python -m lab.soak``: run the real controller in small random worlds full of faults and check every invariant."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from hcloud.cli.main import main
from hcloud.cli.output import WholeRange, console, format_option, write_rows
from hcloud.cli.signals import exit_on_signal
from hcloud.core.errors import BadInput
from hcloud.simulator.pool import in_order, open_pool
from hcloud.simulator.scratch import quick_folder
from lab.soak.run import CYCLES_MAX, SoakResult, ignore, run_seed

SUMMED_COLUMNS = ("cycles", "jobs", "machines", "lives", "struck")
COLUMNS = ("seed", *SUMMED_COLUMNS, "violations", "digest")


@click.command()
@click.option("--seed", type=WholeRange(min=0), default=0, show_default=True, help="Seed of the first world.")
@click.option(
    "--worlds", type=WholeRange(min=1), default=1, show_default=True, help="Number of worlds, with consecutive seeds."
)
@click.option(
    "--cycles",
    type=WholeRange(1, CYCLES_MAX),
    default=CYCLES_MAX,
    help="Stop each world after at most this many cycles (default: at its end).",
)
@click.option(
    "--processes", type=WholeRange(1, 1024), help="Worlds to run in parallel (default: number of CPUs; 1 with -v)."
)
@click.option("-v", "--verbose", is_flag=True, help="Log every fault, with its cycle and time.")
@format_option
def soak(seed: int, worlds: int, cycles: int, processes: int | None, verbose: bool, form: str) -> int:
    """Run the daemon's own control cycle in small random worlds and check every invariant after each cycle.

    Clouds, engine, database, clocks and operators misbehave, and the daemon is killed between any two effects. Exits
    with 1 if an invariant was violated, and prints the command that reproduces the violation.
    """
    if verbose and (processes or 1) > 1:
        raise BadInput("--processes: --verbose runs one world at a time; leave out one of the two")
    at_once = 1 if verbose else min(worlds, processes or os.cpu_count() or 1)
    verdicts: list[SoakResult] = []
    try:
        with ExitStack() as within:
            leaving = within.enter_context(exit_on_signal())
            shown = within.enter_context(console(stderr=True).status("", refresh_per_second=2))
            shown.update(f"world {seed}")
            for verdict in _run(within, range(seed, seed + worlds), cycles, at_once, verbose):
                leaving.go_on()  # an interrupted run has no result
                verdicts.append(verdict)
                shown.update(
                    f"world {verdict.seed + 1}; {_count_violated(verdicts)} of {len(verdicts)} with violations"
                )
                _report_violations(verdict)
    except (KeyboardInterrupt, SystemExit):
        click.echo(
            f"stopped after {len(verdicts)} of {worlds} worlds, {_count_violated(verdicts)} with violations", err=True
        )
        raise
    _write(verdicts, form)
    return 1 if _count_violated(verdicts) else 0


def _run(within: ExitStack, seeds: Sequence[int], cycles: int, at_once: int, verbose: bool) -> Iterator[SoakResult]:
    """Yield the result of each world in order; parallel processes live as long as ``within``."""
    run = partial(run_seed, most=cycles, log=click.echo if verbose else ignore)
    if at_once == 1:
        return map(run, seeds)
    # This folder is removed with whatever terminated processes leave in it.
    run = partial(run, place=within.enter_context(quick_folder()))
    return in_order(within.enter_context(open_pool(at_once)), run, seeds, 2 * at_once)


def _count_violated(verdicts: Sequence[SoakResult]) -> int:
    return sum(bool(each.violations) for each in verdicts)


def _report_violations(verdict: SoakResult) -> None:
    """Print violations at once, with the command that reproduces them, as later worlds may never end."""
    for violation in verdict.violations:
        click.echo(f"world {verdict.seed}, cycle {verdict.cycles}: {violation}", err=True)
    if verdict.violations:
        click.echo(f"reproduce with: {verdict.replay}", err=True)


def _write(verdicts: Sequence[SoakResult], form: str) -> None:
    if form != "table" or len(verdicts) == 1:
        write_rows(form, [asdict(each) for each in verdicts], COLUMNS, _row)
    else:
        sums = [sum(getattr(each, name) for each in verdicts) for name in SUMMED_COLUMNS]
        write_rows(
            form, [(len(verdicts), *sums, _count_violated(verdicts))], ("worlds", *SUMMED_COLUMNS, "violated"), tuple
        )


def _row(verdict: dict[str, Any]) -> tuple[object, ...]:
    return tuple(len(verdict["violations"]) if name == "violations" else verdict[name] for name in COLUMNS)


if __name__ == "__main__":
    main(command=soak, prog_name="python -m lab.soak")
