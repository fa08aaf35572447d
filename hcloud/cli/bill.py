"""``hcloud bill``: compare the cost of machines in the ledger with the cloud's bill."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hcloud.cli.catalog import deployment
from hcloud.cli.output import FiniteRange, format_option, write_json
from hcloud.cli.report import show
from hcloud.cli.waiting_line import working
from hcloud.client.connection import Connection
from hcloud.core.errors import BadInput
from hcloud.core.model import Event, EventKind
from hcloud.report.bill import BILL_KINDS, NOT_OURS, bill_table
from hcloud.report.bill_lines import read_bill

PAGE = 10_000
_GZIP = b"\x1f\x8b"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--provider",
    "providers",
    multiple=True,
    help="Provider that the bill covers (repeatable; default: all).",
)
@click.option("--owner", help="Owner tag of our machines (default: `owner` of the configuration).")
@click.option(
    "--tolerance",
    type=FiniteRange(0, 100),
    default=2.0,
    show_default=True,
    help="Difference in percent up to which amounts agree.",
)
@format_option
def bill(files: tuple[Path, ...], providers: tuple[str, ...], owner: str | None, tolerance: float, form: str) -> int:
    """Compare the ledger with the cloud's bill in FILES, machine by machine.

    Ends with 1 if machines of ours are billed that the ledger does not have.
    FILES are an AWS Cost and Usage Report with resource ids (CSV), or Google's detailed billing export (JSON lines or
    CSV), optionally compressed (.gz). Nothing is changed.
    """
    parsed = read_bill(row for file in files for row in rows_of(file))
    if owner is None:
        config = deployment()
        owner = config.owner if config is not None else ""
    with working("comparing the ledger with the bill"):
        report = bill_table(
            _events(Connection()), parsed, providers=providers, owner=owner, tolerance=tolerance / 100.0
        )
    if form == "json":
        write_json(report.to_json())
    elif form == "csv":
        click.echo(report.to_csv(), nl=False)
    else:
        show(report)
    return 1 if any(row[0] == NOT_OURS for row in report.rows) else 0


def rows_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a bill file, each with its position (``file:line``).

    Raises:
        BadInput: the file is not text, or neither CSV nor JSON lines, or truncated.
    """
    with path.open("rb") as raw:
        compressed = raw.read(2) == _GZIP
        raw.seek(0)
        content = gzip.GzipFile(fileobj=raw) if compressed else raw
        try:
            with io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as stream:
                first = stream.readline()
                read = _json_rows if first.lstrip().startswith("{") else _csv_rows
                yield from read(first, stream, path)
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, csv.Error) as error:
            raise BadInput(f"{path}: cannot be read completely: {error}") from None


def _csv_rows(first: str, stream: io.TextIOWrapper, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    header = next(csv.reader([first]), [])
    reader = csv.reader(stream)
    for row in reader:
        where = f"{path}:{reader.line_num + 1}"
        if len(row) != len(header):
            raise BadInput(f"{where}: has {len(row)} fields, the header {len(header)}; the file is damaged")
        yield where, dict(zip(header, row, strict=True))


def _json_rows(first: str, stream: io.TextIOWrapper, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number, line = 1, first
    while line:
        try:
            document = json.loads(line) if line.strip() else None
        except ValueError:
            raise BadInput(f"{path}:{number}: is not JSON; every line must be one object") from None
        if isinstance(document, dict):
            yield f"{path}:{number}", document
        number, line = number + 1, stream.readline()


def _events(client: Connection) -> Iterator[Event]:
    after_seq = 0
    while True:
        page = client.get("/v1/events", after_seq=after_seq, limit=PAGE, kind=[kind.value for kind in BILL_KINDS])
        for each in page:
            yield Event(
                seq=each["seq"],
                at=each["at"],
                kind=EventKind(each["kind"]),
                instance_id=each["instance_id"],
                fields=each["fields"],
            )
        if len(page) < PAGE:
            return
        after_seq = page[-1]["seq"]
