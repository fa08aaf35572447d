"""``hcloud profile bootstrap``: measure the reference programs of the recipes on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import click

from hcloud import shipped
from hcloud.classifier.profiles import Profile
from hcloud.cli.measuring import progress
from hcloud.clock import SystemClock
from hcloud.config import read_documents
from hcloud.config.profiles import load_profiles, write_profile
from hcloud.engine.host import EngineHost
from hcloud.errors import BadInput, HCloudError, UnitRefused
from hcloud.profiler.bootstrap import Plan, confidence, measure_recipe, plan_for
from hcloud.profiler.recipes import Recipe, missing_packages, parse_recipes, recipe_named


@click.command()
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("profiles"), show_default=True,
              help="Write one file per program there.")  # fmt: skip
@click.option("--recipes", "folder", type=click.Path(path_type=Path, file_okay=False), help="Read recipes from there.")
@click.option("--provider", default="local", show_default=True, help="Whose machine this is.")
@click.option("--type", "whole_type", help="Which instance type this machine is; else slices as the local provider's.")
@click.option("--seconds", type=click.FloatRange(min=5), default=75.0, show_default=True, help="Per program, about.")
@click.option("--resume", is_flag=True, help="Leave out programs that have a file already.")
def bootstrap(
    names: tuple[str, ...],
    out: Path,
    folder: Path | None,
    provider: str,
    whole_type: str | None,
    seconds: float,
    resume: bool,
) -> None:
    """Measure reference programs (NAMES: only these) on this machine, which should have nothing else to do.

    Each program is measured at several sizes, and at one vCPU beside every source of interference, both ways. Its file
    is written when it is finished: after a kill, --resume goes on with the others. To measure an instance type of a
    cloud, run this on such a machine with --provider and --type, and `hcloud profile import` the files at home.
    """
    _refuse_unknown(provider, whole_type)
    recipes = load_recipes(folder or shipped.path("profiles") / "recipes")
    chosen = {name: recipe_named(recipes, name) for name in (names or recipes)}
    if resume:
        chosen = {name: recipe for name, recipe in chosen.items() if not _finished(out, name)}
    _refuse_missing(chosen)
    _report(_measured(chosen, plan_for(provider, whole_type, seconds), out), len(chosen))


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


def _refuse_unknown(provider: str, whole_type: str | None) -> None:
    known = sorted({point.name for point in entry_points(group="hcloud.providers")})
    if provider not in known:
        raise BadInput(f"there is no provider {provider!r}; there are {', '.join(known)}")
    if provider != "local" and whole_type is None:
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


def _measured(recipes: Mapping[str, Recipe], plan: Plan, out: Path) -> Iterable[tuple[str, Profile | HCloudError]]:
    """Measure one after the other; a program that cannot be measured does not keep the others from it."""
    clock, host = SystemClock(), EngineHost()
    with progress(len(recipes) * plan.questions) as advance:
        for number, (name, recipe) in enumerate(recipes.items(), 1):

            def told(what: str, at: str = f"{number}/{len(recipes)} {name}") -> None:
                advance(f"{at}: {what}")

            try:
                profile = measure_recipe(name, recipe, plan, host, now=clock.now(), advance=told)
            except HCloudError as error:
                yield name, error
            else:
                write_profile(out, profile)
                yield name, profile


def _report(results: Iterable[tuple[str, Profile | HCloudError]], wanted: int) -> None:
    failed, widths = list[str](), list[Mapping[str, float]]()
    for name, result in results:
        if isinstance(result, Profile):
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
