"""A local HTTP server with the clouds' price lists, with injected failures."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.catalog import documents

SKUS_PATH = "/v1/services/6F81-5844-456A/skus"
INDEX_PATH = "/offers/v1.0/aws/AmazonEC2/current/region_index.json"


@dataclass(slots=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    body: str


@dataclass(slots=True)
class PriceLists:
    """The content. ``fail_next``: statuses of the next responses; ``cut``: paths with a truncated body; ``packs``:
    whether bodies are compressed."""

    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    sku_pages: list[list[dict[str, Any]]] = field(default_factory=list)
    product_pages: list[list[str]] = field(default_factory=list)
    spot_pages: list[str] = field(default_factory=list)
    fail_next: list[int] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    packs: bool = False
    asked: list[Asked] = field(default_factory=list)
    address: str = ""

    def publish(self, region: str, version: str, rows: Sequence[Mapping[str, str]]) -> None:
        """Publish a new edition of a region's bulk file."""
        self.versions[region] = version
        path = f"/offers/v1.0/aws/AmazonEC2/{version}/{region}/index.csv"
        self.files[path] = documents.bulk_csv(rows, version)

    def paths(self) -> list[str]:
        """Return the requests, in order."""
        return [each.path for each in self.asked]

    def answer(self, asked: Asked) -> tuple[int, str, str]:
        """Return status, content type and body."""
        if self.fail_next:
            return self.fail_next.pop(0), "application/json", '{"error": {"message": "injected"}}'
        if asked.path == INDEX_PATH:
            return 200, "application/json", json.dumps(documents.region_index(self.versions))
        if asked.path in self.files:
            return 200, "text/csv", self.files[asked.path]
        if asked.path == SKUS_PATH:
            return 200, "application/json", self._sku_page(asked)
        if "AWSPriceListService.GetProducts" in asked.headers.get("x-amz-target", ""):
            return 200, "application/x-amz-json-1.1", self._product_page(asked)
        if "Action=DescribeSpotPriceHistory" in asked.body:
            page = int(parse_qs(asked.body).get("NextToken", ["0"])[0])
            return 200, "text/xml", self.spot_pages[page]
        return 404, "application/json", '{"error": {"message": "no such path"}}'

    def _sku_page(self, asked: Asked) -> str:
        at = int(asked.query.get("pageToken", ["0"])[0])
        following = str(at + 1) if at + 1 < len(self.sku_pages) else ""
        return json.dumps({"skus": self.sku_pages[at], "nextPageToken": following})

    def _product_page(self, asked: Asked) -> str:
        at = int(json.loads(asked.body).get("NextToken", "0"))
        page: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": self.product_pages[at]}
        return json.dumps({**page, "NextToken": str(at + 1)} if at + 1 < len(self.product_pages) else page)


@contextmanager
def serving() -> Iterator[PriceLists]:
    """Serve price lists on a free port of this machine."""
    lists = PriceLists()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            split = urlsplit(self.path)
            length = int(self.headers.get("Content-Length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(length).decode()
            asked = Asked(self.command, split.path, parse_qs(split.query), headers, body)
            lists.asked.append(asked)
            status, kind, text = lists.answer(asked)
            content = text.encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            if lists.packs and "gzip" in headers.get("accept-encoding", ""):
                content = gzip.compress(content)
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if asked.path in lists.cut else content)
            self.close_connection = self.close_connection or asked.path in lists.cut

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    lists.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield lists
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
