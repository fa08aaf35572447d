"""``hcloud profile bootstrap``: measure the reference programs of the recipes on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import click

from hcloud.classifier.profiles import ReferenceProfile
from hcloud.cli.compare import progress
from hcloud.cli.output import FiniteRange, WholeRange
from hcloud.config import package_data, read_documents
from hcloud.config.profiles import load_profiles, write_profile
from hcloud.core.clock import SystemClock
from hcloud.core.errors import BadInput, HCloudError, UnitRefused
from hcloud.engine.host import EngineHost
from hcloud.profiler.bootstrap import MeasurementPlan, confidence, measure_recipe, plan_for
from hcloud.profiler.recipes import Recipe, missing_packages, parse_recipes, recipe_named


@click.command()
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("profiles"), show_default=True,
              help="Write one file per program there.")  # fmt: skip
@click.option("--recipes", "folder", type=click.Path(path_type=Path, file_okay=False), help="Read recipes from there.")
@click.option("--provider", default="local", show_default=True, help="Whose machine this is.")
@click.option("--type", "types", multiple=True, metavar="TYPE",
              help="Which type this machine is (else local slices); with --on: on which to measure.")  # fmt: skip
@click.option(
    "--on", "elsewhere", metavar="PROVIDER", help="Not here: by jobs of the daemon, on this provider's machines."
)
@click.option("--at-once", type=WholeRange(min=1, max=1000), default=1, show_default=True,
              help="With --on: so many jobs at one time, each on a machine of its own.")  # fmt: skip
@click.option("--again", is_flag=True, help="With --on: measure anew what the daemon's jobs have found already.")
@click.option("--seconds", type=FiniteRange(min=5), default=75.0, show_default=True, help="Per program, about.")
@click.option("--resume", is_flag=True, help="Leave out programs that have a file already.")
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
    resume: bool,
) -> None:
    """Measure reference programs (NAMES: only these) on this machine, which should have nothing else to do.

    Each program is measured at several sizes, and at one vCPU beside every source of interference, both ways. Its file
    is written when it is finished: after a kill, --resume goes on with the others. To measure an instance type of a
    cloud, run this on such a machine with --provider and --type, and `hcloud profile import` the files at home.

    Or let the daemon do it: with --on, each program is measured by jobs on machines of that provider, one per --type
    (the first in full, on the others only how fast it is), within the policy's budgets. What jobs have found is not
    measured again, and a command that is started anew finds the jobs of the one before.
    """
    recipes = load_recipes(folder or package_data.path("profiles") / "recipes")
    chosen = {name: recipe_named(recipes, name) for name in (names or recipes)}
    if resume:
        chosen = {name: recipe for name, recipe in chosen.items() if not _finished(out, name)}
    if elsewhere is not None:
        _report(_through_daemon(chosen, elsewhere, types, out, seconds, at_once=at_once, again=again), len(chosen))
        return
    _refuse_unknown(provider, types, again=again, at_once=at_once)
    _refuse_missing(chosen)
    _report(_measured(chosen, plan_for(provider, types[0] if types else None, seconds), out), len(chosen))


def load_recipes(folder: Path) -> Mapping[str, Recipe]:
    """Return the recipes in a directory by name.

    Raises:
        ConfigError: names file, line, key, what is wrong and what would be right.
        BadInput: two files hold one name, or there is no recipe.
    """
    found: dict[str, Recipe] = {}
    for path in sorted(folder.glob("*.yaml")):
        for each in read_documents(path):
            for name, recipe in parse_recipes(each.value, each.where).items():
                if name in found:
                    raise BadInput(f"{path}: recipe {name!r} stands in another file too; keep one of them")
                found[name] = recipe
    if not found:
        raise BadInput(f"{folder}: there are no recipes; it must hold .yaml files")
    return found


def _through_daemon(
    recipes: Mapping[str, Recipe],
    provider: str,
    types: Sequence[str],
    out: Path,
    seconds: float,
    *,
    at_once: int,
    again: bool,
) -> Iterable[tuple[str, ReferenceProfile | HCloudError]]:
    from hcloud.cli.client import Client
    from hcloud.cli.references import measured_elsewhere, parts_on

    client = Client()
    parts = parts_on(client, provider, types)
    found = measured_elsewhere(client, recipes, parts, seconds=seconds, at_once=at_once, again=again)
    for name, result in found:
        if isinstance(result, ReferenceProfile):
            write_profile(out, result)
        yield name, result


def _refuse_unknown(provider: str, types: Sequence[str], *, again: bool, at_once: int) -> None:
    if len(types) > 1 or again or at_once != 1:
        raise BadInput("several --type, --again and --at-once go with --on PROVIDER; this machine is of one type")
    known = sorted({point.name for point in entry_points(group="hcloud.providers")})
    if provider not in known:
        raise BadInput(f"there is no provider {provider!r}; there are {', '.join(known)}")
    if provider != "local" and not types:
        raise BadInput(f"--provider {provider} goes with --type, the instance type that this machine is")


def _refuse_missing(recipes: Mapping[str, Recipe]) -> None:
    missing = missing_packages(recipes.values())
    if missing:
        without = sorted(name for name, recipe in recipes.items() if set(recipe.packages) & set(missing))
        raise UnitRefused(
            f"not installed: {', '.join(missing)} (apt-get install {' '.join(missing)}); needed for "
            f"{', '.join(without) or 'all'}; name other recipes to do without"
        )


def _finished(out: Path, name: str) -> bool:
    path = out / f"{name}.yaml"
    return path.exists() and bool(load_profiles(path))


def _measured(
    recipes: Mapping[str, Recipe], plan: MeasurementPlan, out: Path
) -> Iterable[tuple[str, ReferenceProfile | HCloudError]]:
    """Measure one after the other; a program that cannot be measured does not keep the others from it."""
    clock, host = SystemClock(), EngineHost()
    with progress(len(recipes) * plan.questions) as advance:
        for number, (name, recipe) in enumerate(recipes.items(), 1):

            def told(what: str, at: str = f"{number}/{len(recipes)} {name}") -> None:
                """Advance the bar by one question; ``at`` is bound here, so that it stays this program's."""
                advance(f"{at}: {what}")

            try:
                profile = measure_recipe(name, recipe, plan, host, now=clock.now(), advance=told)
            except HCloudError as error:
                yield name, error
            else:
                write_profile(out, profile)
                yield name, profile


def _report(results: Iterable[tuple[str, ReferenceProfile | HCloudError]], wanted: int) -> None:
    failed, widths = list[str](), list[Mapping[str, float]]()
    for name, result in results:
        if isinstance(result, ReferenceProfile):
            widths.append(confidence(result))
            click.echo(f"{name}: {result.provenance.took_s:.0f} s, 95 % limits {_told(widths[-1])}")
        else:
            failed.append(name)
            click.echo(f"{name}: not measured: {result}", err=True)
    if widths:
        keys = sorted({key for each in widths for key in each})
        typical = {key: _middle([each[key] for each in widths if key in each]) for key in keys}
        click.echo(f"{len(widths)} of {wanted} programs measured; typical 95 % limits {_told(typical)}")
    elif wanted == 0:
        click.echo("every program has its file already")
    if failed:
        raise HCloudError(f"{len(failed)} of {wanted} programs could not be measured: {', '.join(failed)}")


def _told(widths: Mapping[str, float]) -> str:
    units = {"performance_percent": "performance +-{:.1f} %", "tolerated_points": "tolerated +-{:.0f} points",
             "caused_points": "caused +-{:.0f} points"}  # fmt: skip
    return ", ".join(text.format(widths[key]) for key, text in units.items() if key in widths)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
