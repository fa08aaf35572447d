"""``hcloud cp``: the files that a job left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import click

from hcloud.cli.completing import job_ids
from hcloud.cli.jobs import job_id
from hcloud.cli.output import WholeRange, console, format_option, table, write_rows
from hcloud.cli.transfer_bar import transfer_bar
from hcloud.client.connection import Connection
from hcloud.client.outputs import copy_outputs, downloaded, members
from hcloud.core.errors import BadInput, NotFound, printable

COLUMNS = ("name", "bytes")


@click.command(epilog="Example: hcloud cp job-7:results .")
@click.argument("source", metavar="JOB[:PATH]", shell_complete=job_ids)
@click.argument("destination", type=click.Path(path_type=Path), default=Path())
@click.option("-l", "--list", "listed", is_flag=True, help="Show what there is; copy nothing.")
@click.option("--rank", type=WholeRange(min=0), default=0, show_default=True, help="Which node of the job.")
@click.option("--attempt", type=WholeRange(min=1), help="Which attempt (default: the last one that left some).")
@format_option
def cp(source: str, destination: Path, listed: bool, rank: int, attempt: int | None, form: str) -> int:
    """Copy what JOB left of its `outputs` to DESTINATION (a folder; default: the present one).

    PATH is a file or folder below the job's work directory; without it all outputs are copied. Existing files of the
    same names are replaced.
    """
    client = Connection()
    job, _, path = source.partition(":")
    wanted = str(PurePosixPath(path)) if path.strip("/") else ""
    if not listed:
        copied = copy_outputs(client, job_id(job), destination, wanted, rank=rank, attempt=attempt, shown=transfer_bar)
        click.echo(f"{copied.files} file{'' if copied.files == 1 else 's'} copied to {printable(str(destination))}")
        if copied.note:
            click.echo(f"note: {printable(copied.note)}", err=True)
        return 0
    with downloaded(client, job_id(job), rank=rank, attempt=attempt, shown=transfer_bar) as archive:
        rows = [(member.name, member.size) for member, _ in members(archive, wanted)]
    if form == "table":
        console().print(table(("file", ">bytes"), rows))
    else:
        write_rows(form, [dict(zip(COLUMNS, row, strict=True)) for row in rows], COLUMNS, lambda row: [*row.values()])
    return 0


def bring_outputs(client: Connection, folders: Mapping[str, Path]) -> None:
    """Copy outputs of ended jobs (id, folder); those of several jobs to a folder each. Says how many files."""
    for job, folder in folders.items():
        destination = folder if len(folders) == 1 else folder / job
        try:
            copied = copy_outputs(client, job, destination, shown=transfer_bar)
        except (NotFound, BadInput) as problem:
            click.echo(f"outputs of {job}: {printable(str(problem))}", err=True)
            continue
        text = f"outputs of {job}: {copied.files} file{'' if copied.files == 1 else 's'} in {destination}"
        click.echo(printable(text + (f" ({copied.note})" if copied.note else "")), err=True)
