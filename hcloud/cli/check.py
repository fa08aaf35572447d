"""What the `check` commands share: look at every file, tell all problems, fail if there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from hcloud.cli.output import write_json
from hcloud.core.errors import ConfigError

T = TypeVar("T")
FORMATS = ("table", "json")


def form_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``-o table|json``."""
    option = click.option(
        "-o", "--output", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="Output format."
    )
    return option(function)


def check_files(
    files: Sequence[Path], form: str, load: Callable[[Path, list[str]], T], describe: Callable[[T], dict[str, Any]]
) -> None:
    """Check ``files`` and tell of each what ``describe`` says (its ``summary`` lines are for people).

    Ends the command with exit code 2 when a file is wrong.
    """
    results = [_result(file, load, describe) for file in files]
    if form == "json":
        write_json(results)
    else:
        for result in results:
            _tell(result)
    if not all(result["ok"] for result in results):
        click.get_current_context().exit(ConfigError.exit_code)


def _result(
    file: Path, load: Callable[[Path, list[str]], T], describe: Callable[[T], dict[str, Any]]
) -> dict[str, Any]:
    notes: list[str] = []
    try:
        return {"file": str(file), "ok": True, "problems": [], **describe(load(file, notes)), "notes": notes}
    except ConfigError as error:
        problems = [str(error), *getattr(error, "__notes__", ())]
        return {"file": str(file), "ok": False, "problems": problems, "notes": notes}


def _tell(result: dict[str, Any]) -> None:
    if not result["ok"]:
        for problem in result["problems"]:
            click.echo(f"hcloud: {problem}", err=True)
        return
    click.echo(f"{result['file']}: ok")
    for line in result["summary"]:
        click.echo(f"  {line}")
    for note in result["notes"]:
        click.echo(f"  note: {note}")
