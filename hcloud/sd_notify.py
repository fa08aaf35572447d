"""Report the state of this process to systemd (sd_notify(3)); does nothing when systemd does not listen.

No function here raises: a service must not fail because nothing listens.
"""

from __future__ import annotations

import os
import socket


def notify(*assignments: str) -> bool:
    """Send assignments such as ``READY=1`` or ``STATUS=...`` to ``$NOTIFY_SOCKET``; return whether they were sent.

    The address is a path, or a name in Linux' abstract namespace if it begins with ``@``.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    # One message is one line per assignment, so a line break inside a status would begin another assignment.
    message = "\n".join(each.replace("\n", " ") for each in assignments)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            # A full queue means systemd is busy; blocking on it could outlast the watchdog it feeds.
            sender.setblocking(False)
            sender.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)
    except OSError:
        return False
    return True


def ready(status: str = "") -> bool:
    """Report that start-up is complete; ``systemctl start`` waits for this."""
    return notify("READY=1", *([f"STATUS={status}"] if status else []))


def status(text: str) -> bool:
    """Show one line in ``systemctl status``."""
    return notify(f"STATUS={text}")


def watchdog() -> bool:
    """Report that the process is alive; due more often than :func:`watchdog_interval_s`."""
    return notify("WATCHDOG=1")


def stopping() -> bool:
    """Report that shutdown has begun."""
    return notify("STOPPING=1")


def watchdog_interval_s() -> float | None:
    """Return after how many seconds without :func:`watchdog` systemd kills this process; None if it never does."""
    interval_us, meant_for = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not interval_us.isdigit() or int(interval_us) == 0:
        return None
    return int(interval_us) / 1e6 if meant_for in ("", str(os.getpid())) else None
