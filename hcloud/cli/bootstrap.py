"""``hcloud profile bootstrap``: measure reference programs on this machine, or by jobs of the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import click

from hcloud.classifier.profiles import ReferenceProfile
from hcloud.cli.output import FiniteRange, WholeRange
from hcloud.cli.progress_bar import progress
from hcloud.config import package_data, read_documents
from hcloud.config.profiles import load_profiles, write_profile
from hcloud.core.clock import SystemClock
from hcloud.core.errors import BadInput, HCloudError, UnitRefused
from hcloud.engine.host import EngineHost
from hcloud.profiler.bootstrap import confidence, measure_recipe, plan_for
from hcloud.profiler.recipes import Recipe, missing_packages, parse_recipes, recipe_named
from hcloud.profiler.reference_runs import MeasurementPlan
from hcloud.spec.validation import counted


@click.command()
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("profiles"), show_default=True,
              help="Directory for the profiles, one file per program.")  # fmt: skip
@click.option("--recipes", "folder", type=click.Path(path_type=Path, file_okay=False),
              help="Directory of recipes (default: the shipped ones).")  # fmt: skip
@click.option("--provider", default="local", show_default=True, help="Provider of this machine.")
@click.option("--type", "types", multiple=True, metavar="TYPE",
              help="Instance type of this machine (default: local slices); with --on: type to measure on "
              "(repeatable).")  # fmt: skip
@click.option(
    "--on", "elsewhere", metavar="PROVIDER", help="Measure by jobs of the daemon on machines of PROVIDER, not here."
)
@click.option("--at-once", type=WholeRange(min=1, max=1000), default=1, show_default=True,
              help="With --on: number of concurrent jobs, each on a machine of its own.")  # fmt: skip
@click.option("--again", is_flag=True, help="With --on: repeat measurements that earlier jobs have made.")
@click.option("--seconds", type=FiniteRange(min=5), default=75.0, show_default=True,
              help="Approximate time per program.")  # fmt: skip
@click.option("--most-seconds", type=FiniteRange(min=0), default=300.0, show_default=True,
              help="Longest time per program: after --seconds what is least sure about sources felt across cores is "
              "measured again, until half of it is within 25 points.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Skip programs that already have a file in --out.")
def bootstrap(
    names: tuple[str, ...],
    out: Path,
    folder: Path | None,
    provider: str,
    types: tuple[str, ...],
    elsewhere: str | None,
    at_once: int,
    again: bool,
    seconds: float,
    most_seconds: float,
    resume: bool,
) -> None:
    """Measure reference programs (NAMES; default: all) on this machine, which should be otherwise idle.

    Each program is measured at several sizes, and at one vCPU together with every source of interference: what it
    tolerates and what it causes. Its file is written as soon as it is finished, so --resume continues after an
    interruption. To measure an instance type of a cloud, run this on such a machine with --provider and --type, then
    `hcloud profile import` the files where the daemon runs.

    With --on, the daemon measures each program by jobs on machines of that provider, one per --type, within the
    policy's budgets: everything on the first type, only speed on the others. Earlier measurements are reused, and a
    restarted command follows the jobs of the previous one.
    """
    recipes = load_recipes(folder or package_data.path("profiles") / "recipes")
    chosen = {name: recipe_named(recipes, name) for name in (names or recipes)}
    if resume:
        files = {name: out / f"{name}.yaml" for name in chosen}
        finished = {name for name, file in files.items() if file.exists() and load_profiles(file)}
        chosen = {name: recipe for name, recipe in chosen.items() if name not in finished}
    if elsewhere is not None:
        results = _measure_by_daemon(chosen, elsewhere, types, out, seconds, at_once=at_once, again=again)
        _report(results, len(chosen))
        return
    _check_options(provider, types, again=again, at_once=at_once)
    _check_packages(chosen)
    plan = plan_for(provider, types[0] if types else None, seconds, most_s=most_seconds)
    if chosen:
        click.echo(_time_text(len(chosen), plan))
    _report(_measure_here(chosen, plan, out), len(chosen))


def load_recipes(folder: Path) -> Mapping[str, Recipe]:
    """Return the recipes in a directory, by name.

    Raises:
        ConfigError: invalid recipe; the message has file, line, key and what would be right.
        BadInput: duplicate recipe name, or no recipe at all.
    """
    recipes: dict[str, Recipe] = {}
    for path in sorted(folder.glob("*.yaml")):
        for each in read_documents(path):
            for name, recipe in parse_recipes(each.value, each.where).items():
                if name in recipes:
                    raise BadInput(f"{path}: recipe {name!r} is also in another file; keep one of them")
                recipes[name] = recipe
    if not recipes:
        raise BadInput(f"{folder}: there are no recipes; the directory must contain .yaml files")
    return recipes


def _measure_by_daemon(
    recipes: Mapping[str, Recipe],
    provider: str,
    types: Sequence[str],
    out: Path,
    seconds: float,
    *,
    at_once: int,
    again: bool,
) -> Iterable[tuple[str, ReferenceProfile | HCloudError]]:
    from hcloud.cli.references import measure_by_jobs, parts_on
    from hcloud.client.connection import Connection

    client = Connection()
    parts = parts_on(client, provider, types)
    results = measure_by_jobs(client, recipes, parts, seconds=seconds, at_once=at_once, again=again)
    for name, result in results:
        if isinstance(result, ReferenceProfile):
            write_profile(out, result)
        yield name, result


def _check_options(provider: str, types: Sequence[str], *, again: bool, at_once: int) -> None:
    if len(types) > 1 or again or at_once != 1:
        raise BadInput("--again, --at-once and several --type need --on PROVIDER; this machine has one type")
    known = sorted({point.name for point in entry_points(group="hcloud.providers")})
    if provider not in known:
        raise BadInput(f"there is no provider {provider!r}; known providers: {', '.join(known)}")
    if provider != "local" and not types:
        raise BadInput(f"--provider {provider} needs --type, the instance type of this machine")


def _check_packages(recipes: Mapping[str, Recipe]) -> None:
    missing = missing_packages(recipes.values())
    if missing:
        affected = sorted(name for name, recipe in recipes.items() if set(recipe.packages) & set(missing))
        raise UnitRefused(
            f"not installed: {', '.join(missing)} (apt-get install {' '.join(missing)}); needed for "
            f"{', '.join(affected) or 'all recipes'}; install them, or name other recipes"
        )


def _measure_here(
    recipes: Mapping[str, Recipe], plan: MeasurementPlan, out: Path
) -> Iterable[tuple[str, ReferenceProfile | HCloudError]]:
    """Measure one program after the other; yield its profile, or the error if it cannot be measured."""
    clock, host = SystemClock(), EngineHost()
    with progress(len(recipes) * plan.questions) as advance:
        for number, (name, recipe) in enumerate(recipes.items(), 1):
            # `label` is bound as a default, so that the callback keeps the label of its own program.
            def advance_question(question: str, label: str = f"{number}/{len(recipes)} {name}") -> None:
                advance(f"{label}: {question}")

            try:
                profile = measure_recipe(name, recipe, plan, host, now=clock.now(), advance=advance_question)
            except HCloudError as error:
                yield name, error
            else:
                write_profile(out, profile)
                yield name, profile


def _time_text(programs: int, plan: MeasurementPlan) -> str:
    least_min, most_min = (programs * each / 60 for each in (plan.seconds, max(plan.seconds, plan.most_s)))
    times = f"{least_min:.0f} to {most_min:.0f} minutes"
    return f"{counted(programs, 'program')}: {times}; --resume goes on after an interruption"


def _report(results: Iterable[tuple[str, ReferenceProfile | HCloudError]], count: int) -> None:
    """Print one line per program of ``count``, then a summary. Raises HCloudError if one was not measured."""
    failed: list[str] = []
    widths: list[Mapping[str, float]] = []
    for name, result in results:
        if isinstance(result, ReferenceProfile):
            widths.append(confidence(result))
            took_s = result.provenance.took_s if result.provenance is not None else 0.0
            click.echo(f"{name}: {took_s:.0f} s, 95 % limits {_limits_text(widths[-1])}")
        else:
            failed.append(name)
            click.echo(f"{name}: not measured: {result}", err=True)
    if widths:
        keys = sorted({key for each in widths for key in each})
        by_key = {key: sorted(each[key] for each in widths if key in each) for key in keys}
        medians = {key: values[len(values) // 2] for key, values in by_key.items()}
        click.echo(f"{len(widths)} of {count} programs measured; median 95 % limits {_limits_text(medians)}")
    elif count == 0:
        click.echo("nothing to measure: every program already has a file")
    if failed:
        raise HCloudError(f"{len(failed)} of {count} programs could not be measured: {', '.join(failed)}")


def _limits_text(widths: Mapping[str, float]) -> str:
    units = {"performance_percent": "performance ±{:.1f} %", "tolerated_points": "tolerated ±{:.0f} points",
             "caused_points": "caused ±{:.0f} points",
             "across_cores_points": "across cores ±{:.0f} points"}  # fmt: skip
    return ", ".join(text.format(widths[key]) for key, text in units.items() if key in widths)
