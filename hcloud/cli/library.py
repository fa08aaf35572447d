"""``hcloud profile list|show|export|import|diff``: the library of reference programs, shipped and imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from hcloud.classifier.library import Question
from hcloud.classifier.profiles import Cell, Difference, PerformanceCell, ReferenceProfile, differences, document
from hcloud.cli.output import console, format_option, table, write_csv, write_json, write_rows
from hcloud.config import find_config, home_dir, load_config, package_data
from hcloud.config.profiles import IMPORTED, library_profiles, load_profiles, profile_yaml, write_profile
from hcloud.core.errors import BadInput, ConfigError, NotFound
from hcloud.profiler.profile_charts import svg

LIST_COLUMNS = ("name", "group", "program", "provider", ">cells", "measured", "from")
CELL_COLUMNS = ("question", "column", ">value", ">low", ">high", ">runs", "unit")
DIFF_COLUMNS = ("question", "column", ">first", ">second", ">change", "unit", "verdict")


def imported_dir() -> Path:
    """Return where imported profiles live: below the configured state directory, else the user's HCloud directory.

    Raises:
        ConfigError: the configuration cannot be read.
    """
    try:
        found = find_config()
    except ConfigError:  # there is none: the place where `hcloud init` would put it
        return home_dir() / IMPORTED
    return load_config(found).state_dir / IMPORTED


def places() -> list[Path]:
    """Return where the library is read from, in the order in which later files win."""
    return [package_data.path("profiles"), imported_dir()]


def _origin(file: Path) -> str:
    return "shipped" if file.parent == package_data.path("profiles") else str(file)


def _known(names: Sequence[str]) -> list[tuple[Path, ReferenceProfile]]:
    """Return the library's files of these names (none: all). Raises NotFound for a name that is in no file."""
    found = list(library_profiles(places()))
    known = {profile.profile for _, profile in found}
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)) or "none; `hcloud profile bootstrap` measures some"
            raise NotFound(f"there is no profile {name!r}; there are {there}")
    return [(file, profile) for file, profile in found if not names or profile.profile in names]


@click.command("list")
@format_option
def list_profiles(form: str) -> None:
    """List the reference programs that classification starts from."""
    rows = [_listed(file, profile) for file, profile in _known(())]
    write_rows(form, rows, LIST_COLUMNS, lambda row: list(row.values()), empty="no profiles")


def _listed(file: Path, profile: ReferenceProfile) -> dict[str, Any]:
    return {
        "name": profile.profile,
        "group": profile.group,
        "program": profile.program,
        "provider": profile.provenance.provider,
        "cells": sum(len(profile.cells.of(question)) for question in Question),
        "measured_at": profile.provenance.measured_at,
        "from": _origin(file),
    }


@click.command()
@click.argument("name")
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw it there (SVG).")
@format_option
def show(name: str, picture: Path | None, form: str) -> None:
    """Show what was measured of one program, with its 95 % limits and where it comes from.

    NAME may also be a file. --picture draws performance by size, what it tolerates and causes, and its sensitivity
    to every source of interference.
    """
    found = _named_or_file(name)
    if picture is not None:
        picture.write_text(svg(found[-1]), encoding="utf-8")
        click.echo(f"wrote {picture}", err=True)
    if form == "json":
        documents = [document(profile) for profile in found]
        write_json(documents[0] if len(documents) == 1 else documents)
    elif form == "csv":
        write_csv(_heads(CELL_COLUMNS), [row for profile in found for row in _cell_rows(profile)])
    else:
        for profile in found:
            _show(profile)


def _named_or_file(name: str) -> list[ReferenceProfile]:
    """A name of the library, or a file where the text looks like one."""
    if "/" in name or name.endswith((".yaml", ".yml", ".json")):
        return list(load_profiles(Path(name)))
    return [profile for _, profile in _known([name])]


def _show(profile: ReferenceProfile) -> None:
    about = profile.provenance
    packages = ", ".join(f"{name} {version}" for name, version in about.packages.items())
    click.echo(f"{profile.profile} ({profile.group}; program {profile.program}): {about.command}")
    click.echo(f"measured {about.measured_at} on {about.provider}: {about.cpu}, {about.cores} CPUs, Linux "
               f"{about.kernel}, load {about.load_average:g}")  # fmt: skip
    click.echo(f"with {packages}, stress-ng {about.stress_ng}, HCloud {about.hcloud}, in {about.took_s:g} s")
    console().print(table(CELL_COLUMNS, [list(map(_short, row)) for row in _cell_rows(profile)]))
    for column, use in profile.use.items():
        named = ", ".join(f"{value:g} {unit}" for value, unit in zip(use, profile.units.use, strict=True))
        click.echo(f"use alone on {column}: {named}")
    for note in profile.notes:
        click.echo(f"note: {note}")


def _cell_rows(profile: ReferenceProfile) -> Iterator[list[Any]]:
    for question in Question:
        for column, cell in profile.cells.of(question).items():
            unit = profile.units.performance if isinstance(cell, PerformanceCell) else "%"
            yield [question.value, column, cell.value, cell.low, cell.high, cell.runs, unit]


def _heads(columns: Sequence[str]) -> list[str]:
    return [name.removeprefix(">") for name in columns]


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


@click.command()
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write there instead of to the terminal.")
def export(names: tuple[str, ...], out: Path | None) -> None:
    """Write profiles (NAMES: only these) as one YAML file that `hcloud profile import` reads."""
    text = "---\n".join(profile_yaml(profile) for _, profile in _known(names))
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace what was imported under the same names before.")
def import_profiles(files: tuple[Path, ...], replace: bool) -> None:
    """Check profiles and add them to the library; when one is wrong, nothing is changed.

    A profile under the name of a shipped one adds its cells to it, and wins where both have the same cell: so that a
    program measured on several providers is one row.
    """
    target = imported_dir()
    new = [(file, profile) for file in files for profile in load_profiles(file)]
    _refuse_doubles(new, target, replace=replace)
    for _, profile in new:
        click.echo(f"imported {profile.profile} into {write_profile(target, profile)}")


def _refuse_doubles(new: Sequence[tuple[Path, ReferenceProfile]], target: Path, *, replace: bool) -> None:
    seen: dict[str, Path] = {}
    for file, profile in new:
        name = profile.profile
        if name in seen:
            raise BadInput(f"{file}: profile {name!r} is also in {seen[name]}; import one of them")
        seen[name] = file
        if (target / f"{name}.yaml").exists() and not replace:
            raise BadInput(f"{file}: a profile {name!r} was imported before; --replace puts this in its place")


@click.command()
@click.argument("first")
@click.argument("second")
@format_option
def diff(first: str, second: str, form: str) -> None:
    """Compare two profiles (names or files) cell by cell.

    `differs` means that the 95 % limits of the two do not overlap.
    """
    one, two = _named_or_file(first)[-1], _named_or_file(second)[-1]
    found = differences(one, two)
    write_rows(
        form, [_compared(each, one) for each in found], DIFF_COLUMNS, lambda row: list(map(_short, row.values()))
    )
    if form == "table" and one.units.performance != two.units.performance:
        click.echo(f"performance is in {one.units.performance} and {two.units.performance}: not compared")


def _compared(each: Difference, first: ReferenceProfile) -> dict[str, Any]:
    only = "only first" if each.second is None else "only second" if each.first is None else ""
    ratio = isinstance(each.first or each.second, PerformanceCell)
    return {
        "question": each.question.value,
        "column": each.column,
        "first": _value(each.first),
        "second": _value(each.second),
        "change": None if each.change is None else round(each.change, 2),
        "unit": "%" if ratio else "points",
        "verdict": only or ("-" if each.change is None else "differs" if each.beyond_limits else "within limits"),
    }


def _value(cell: Cell | None) -> float | None:
    return None if cell is None else cell.value
