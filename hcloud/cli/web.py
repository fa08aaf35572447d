"""``hcloud web``: the pages of the fleet in a browser on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import webbrowser
from urllib.parse import urlsplit

import click

from hcloud.cli.output import WholeRange
from hcloud.client.connection import Connection, trusted_authorities
from hcloud.core.errors import BadInput

FIRST_PAGES = ("/", "/jobs", "/machines", "/applications", "/money")
"""Pages that are made once before a browser comes: the first of each takes a new daemon up to a second."""


@click.command()
@click.option(
    "--port", type=WholeRange(0, 65535), default=0, show_default="a free one", help="Port of 127.0.0.1 to listen on."
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in this machine's browser.")
def web(port: int, open_browser: bool) -> None:
    """Show the fleet, its money and its reasons in a browser on this machine, until Ctrl-C.

    Prints an address that works once, for the browser that opens it first. The page shows and may do what you may. From
    another machine, forward the port ('ssh -L 8470:127.0.0.1:8470 HOST' and --port 8470), or open the daemon's TLS
    port and log in with a token.
    """
    client = Connection()
    client.get("/v1/status")  # says what is wrong before a browser does
    for page in FIRST_PAGES:
        client.send("GET", page)
    listener = _listen(port)
    with contextlib.closing(listener), contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(client, listener, open_browser))


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise BadInput(f"--port {port}: cannot listen on 127.0.0.1: {error.strerror}") from error


async def _serve(client: Connection, listener: socket.socket, open_browser: bool) -> None:
    import uvicorn

    from hcloud.web.relay import DaemonAddress, WebRelay

    endpoint = client.endpoint
    address = DaemonAddress(socket=endpoint.socket)
    if endpoint.socket is None:
        url = urlsplit(endpoint.url)
        address = DaemonAddress(
            host=url.hostname or "",
            port=url.port or 443,
            tls=trusted_authorities(endpoint.ca_file),
            token=endpoint.token or "",
        )
    relay = WebRelay(address, listener.getsockname()[1])
    settings = uvicorn.Config(
        relay, ws="none", lifespan="off", log_config=None, log_level=logging.WARNING, access_log=False,
        proxy_headers=False, server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(settings)
    click.echo(f"open {relay.start_url}")
    click.echo("it works once; Ctrl-C ends this", err=True)
    if open_browser:
        webbrowser.open(relay.start_url)
    await server.serve(sockets=[listener])
