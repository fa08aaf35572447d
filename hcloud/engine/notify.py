"""Telling systemd how we are (sd_notify); silent where nobody listens."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send a state such as ``READY=1`` or ``WATCHDOG=1`` to ``$NOTIFY_SOCKET``."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError:  # systemd went away or is not listening: nothing depends on it
            return
