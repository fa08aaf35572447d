"""``hcloud profile list|show|export|import|diff``: the library of reference profiles, shipped and imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from hcloud.classifier.library import Question
from hcloud.classifier.profiles import Difference, PerformanceCell, ReferenceProfile, differences, document
from hcloud.cli.output import console, format_option, table, write_csv, write_json, write_rows
from hcloud.config import find_config, home_dir, load_config, package_data
from hcloud.config.profiles import IMPORTED, library_profiles, load_profiles, profile_yaml, write_profile
from hcloud.core.errors import BadInput, ConfigError, NotFound
from hcloud.plots import check_picture, write
from hcloud.profiler.profile_charts import profile_figure

LIST_COLUMNS = ("name", "group", "program", "provider", ">cells", "measured", "from")
CELL_COLUMNS = ("question", "column", ">value", ">low", ">high", ">runs", "unit")
DIFF_COLUMNS = ("question", "column", ">first", ">second", ">change", "unit", "verdict")


def imported_dir() -> Path:
    """Return the directory of imported profiles, in the configured state directory or the user's HCloud directory.

    Raises:
        ConfigError: the configuration cannot be read.
    """
    try:
        config = find_config()
    except ConfigError:  # no configuration: use the directory that `hcloud init` would use
        return home_dir() / IMPORTED
    return load_config(config).state_dir / IMPORTED


def library_dirs() -> list[Path]:
    """Return the directories of the library; profiles of later ones take precedence."""
    return [package_data.path("profiles"), imported_dir()]


def _library(names: Sequence[str]) -> list[tuple[Path, ReferenceProfile]]:
    """Return the profiles with these names (none: all) and their files. Raises NotFound for an unknown name."""
    profiles = list(library_profiles(library_dirs()))
    known = {profile.profile for _, profile in profiles}
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)) or "none; measure some with `hcloud profile bootstrap`"
            raise NotFound(f"there is no profile {name!r}; known profiles: {there}")
    return [(file, profile) for file, profile in profiles if not names or profile.profile in names]


@click.command("list")
@format_option
def list_profiles(form: str) -> None:
    """List the profiles of the reference programs that classification uses."""
    rows = [_list_row(file, profile) for file, profile in _library(())]
    write_rows(form, rows, LIST_COLUMNS, lambda row: list(row.values()), empty="no profiles")


def _list_row(file: Path, profile: ReferenceProfile) -> dict[str, Any]:
    return {
        "name": profile.profile,
        "group": profile.group,
        "program": profile.program,
        "provider": profile.provider,
        "cells": sum(len(profile.cells.of(question)) for question in Question),
        "measured_at": profile.made_at,
        "from": ("shipped" if file.parent == package_data.path("profiles") else str(file))
        + (f", fitted to {profile.fitted.source}" if profile.fitted is not None else ""),
    }


@click.command()
@click.argument("name")
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False), help="Write a picture to this file (SVG, PNG or PDF)."
)
@format_option
def show(name: str, picture: Path | None, form: str) -> None:
    """Show the measurements of one program with their 95 % limits, and how and where they were made.

    NAME is a profile of the library or a file. --picture draws performance by size, tolerated and caused interference,
    and the sensitivity to every source of interference.
    """
    if picture is not None:
        check_picture(picture)
    profiles = _named_or_file(name)
    if picture is not None:
        write(profile_figure(profiles[-1]), picture)
        click.echo(f"wrote {picture}", err=True)
    if form == "json":
        documents = [document(profile) for profile in profiles]
        write_json(documents[0] if len(documents) == 1 else documents)
    elif form == "csv":
        header = [column.removeprefix(">") for column in CELL_COLUMNS]
        write_csv(header, [row for profile in profiles for row in _cell_rows(profile)])
    else:
        for profile in profiles:
            _show(profile)


def _named_or_file(name: str) -> list[ReferenceProfile]:
    """Return the profiles with a name in the library, or those in a file if ``name`` looks like a path."""
    if "/" in name or name.endswith((".yaml", ".yml", ".json")):
        return list(load_profiles(Path(name)))
    return [profile for _, profile in _library([name])]


def _show(profile: ReferenceProfile) -> None:
    command = f": {profile.provenance.command}" if profile.provenance is not None else ""
    click.echo(f"{profile.profile} ({profile.group}; program {profile.program}){command}")
    for line in profile.origin:
        click.echo(line)
    console().print(table(CELL_COLUMNS, [list(map(_rounded, row)) for row in _cell_rows(profile)]))
    for column, use in profile.use.items():
        amounts = ", ".join(f"{value:g} {unit}" for value, unit in zip(use, profile.units.use, strict=True))
        click.echo(f"use alone on {column}: {amounts}")
    for note in profile.notes:
        click.echo(f"note: {note}")


def _cell_rows(profile: ReferenceProfile) -> Iterator[list[Any]]:
    for question in Question:
        for column, cell in profile.cells.of(question).items():
            unit = profile.units.performance if isinstance(cell, PerformanceCell) else "%"
            yield [question.value, column, cell.value, cell.low, cell.high, cell.runs, unit]


def _rounded(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


@click.command()
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Output file (default: standard output).")
def export(names: tuple[str, ...], out: Path | None) -> None:
    """Write profiles (NAMES; default: all) as one YAML file that `hcloud profile import` reads."""
    text = "---\n".join(profile_yaml(profile) for _, profile in _library(names))
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace profiles that were imported under the same names.")
def import_profiles(files: tuple[Path, ...], replace: bool) -> None:
    """Check the profiles in FILES and add them to the library. If one is invalid, nothing is changed.

    A profile with the name of a shipped one is merged with it, and its cells take precedence. A program measured on
    several providers is thus one row.
    """
    target = imported_dir()
    profiles = [(file, profile) for file in files for profile in load_profiles(file)]
    _check_names(profiles, target, replace=replace)
    for _, profile in profiles:
        click.echo(f"imported {profile.profile} into {write_profile(target, profile)}")


def _check_names(profiles: Sequence[tuple[Path, ReferenceProfile]], target: Path, *, replace: bool) -> None:
    """Raise BadInput if a name occurs twice, or was imported before and is not to be replaced."""
    seen: dict[str, Path] = {}
    for file, profile in profiles:
        name = profile.profile
        if name in seen:
            raise BadInput(f"{file}: profile {name!r} is also in {seen[name]}; import one of them")
        seen[name] = file
        if (target / f"{name}.yaml").exists() and not replace:
            raise BadInput(f"{file}: profile {name!r} is already imported; replace it with --replace")


@click.command()
@click.argument("first")
@click.argument("second")
@format_option
def diff(first: str, second: str, form: str) -> None:
    """Compare two profiles (names or files) cell by cell.

    `differs` means that the 95 % limits of the two cells do not overlap.
    """
    one, two = _named_or_file(first)[-1], _named_or_file(second)[-1]
    rows = [_diff_row(each) for each in differences(one, two)]
    write_rows(form, rows, DIFF_COLUMNS, lambda row: list(map(_rounded, row.values())))
    if form == "table" and one.units.performance != two.units.performance:
        click.echo(f"performance is in {one.units.performance} and {two.units.performance}: not compared")


def _diff_row(each: Difference) -> dict[str, Any]:
    only = "only first" if each.second is None else "only second" if each.first is None else ""
    return {
        "question": each.question.value,
        "column": each.column,
        "first": None if each.first is None else each.first.value,
        "second": None if each.second is None else each.second.value,
        "change": None if each.change is None else round(each.change, 2),
        "unit": "%" if isinstance(each.first or each.second, PerformanceCell) else "points",
        "verdict": only or ("-" if each.change is None else "differs" if each.beyond_limits else "within limits"),
    }
