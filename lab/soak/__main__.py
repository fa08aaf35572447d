"""``python -m lab.soak``: small random worlds full of faults, with every promise checked after each cycle."""

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
@click.option("--seed", type=WholeRange(min=0), default=0, show_default=True, help="The first world.")
@click.option("--worlds", type=WholeRange(min=1), default=1, show_default=True, help="How many, seed after seed.")
@click.option(
    "--cycles",
    type=WholeRange(1, CYCLES_MAX),
    default=CYCLES_MAX,
    help="Stop each world after so many cycles; by default at its end.",
)
@click.option("--processes", type=WholeRange(1, 1024), help="So many worlds at the same time (default: CPUs; -v: 1).")
@click.option("-v", "--verbose", is_flag=True, help="Tell what befalls each world, and when.")
@format_option
def soak(seed: int, worlds: int, cycles: int, processes: int | None, verbose: bool, form: str) -> int:
    """Run the daemon's own cycle in small random worlds where clouds, engine, database, clocks and operators make
    trouble and the daemon is killed between any two effects, and check after each cycle what must always hold.

    Ends with 1 where a promise was broken, and says which command shows it again.
    """
    if verbose and (processes or 1) > 1:
        raise BadInput("--processes: what befalls worlds is told of one after the other; leave it out beside --verbose")
    at_once = 1 if verbose else min(worlds, processes or os.cpu_count() or 1)
    verdicts: list[SoakResult] = []
    try:
        with ExitStack() as within:
            leaving = within.enter_context(exit_on_signal())
            shown = within.enter_context(console(stderr=True).status("", refresh_per_second=2))
            shown.update(f"world {seed}")
            for verdict in _run(within, range(seed, seed + worlds), cycles, at_once, verbose):
                leaving.go_on()  # where it was broken off, what it says is of no world
                verdicts.append(verdict)
                shown.update(f"world {verdict.seed + 1}, {_count_broken(verdicts)} of {len(verdicts)} broken")
                _report_violations(verdict)
    except (KeyboardInterrupt, SystemExit):
        click.echo(
            f"ended after {len(verdicts)} of {worlds} worlds, {_count_broken(verdicts)} of them broken", err=True
        )
        raise
    _write(verdicts, form)
    return 1 if _count_broken(verdicts) else 0


def _run(within: ExitStack, seeds: Sequence[int], cycles: int, at_once: int, verbose: bool) -> Iterator[SoakResult]:
    """Return what became of each world, in their order; processes for several at once live as long as ``within``."""
    run = partial(run_seed, most=cycles, tell=click.echo if verbose else ignore)
    if at_once == 1:
        return map(run, seeds)
    # What processes leave that are ended is removed with this.
    run = partial(run, place=within.enter_context(quick_folder()))
    return in_order(within.enter_context(open_pool(at_once)), run, seeds, 2 * at_once)


def _count_broken(verdicts: Sequence[SoakResult]) -> int:
    return sum(bool(each.violations) for each in verdicts)


def _report_violations(verdict: SoakResult) -> None:
    """Say at once what was broken and how to see it again: the worlds to come may never end."""
    for violation in verdict.violations:
        click.echo(f"world {verdict.seed}, cycle {verdict.cycles}: {violation}", err=True)
    if verdict.violations:
        click.echo(f"see it again: {verdict.replay}", err=True)


def _write(verdicts: Sequence[SoakResult], form: str) -> None:
    if form != "table" or len(verdicts) == 1:
        write_rows(form, [asdict(each) for each in verdicts], COLUMNS, _row)
    else:
        sums = [sum(getattr(each, name) for each in verdicts) for name in SUMMED_COLUMNS]
        write_rows(
            form, [(len(verdicts), *sums, _count_broken(verdicts))], ("worlds", *SUMMED_COLUMNS, "broken"), tuple
        )


def _row(told: dict[str, Any]) -> tuple[object, ...]:
    return tuple(len(told["violations"]) if name == "violations" else told[name] for name in COLUMNS)


if __name__ == "__main__":
    main(command=soak, prog_name="python -m lab.soak")
