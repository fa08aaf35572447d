"""Shell completion of ids that only the daemon knows: asked for once, briefly; no daemon means no suggestions."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from hcloud.client.connection import Connection
from hcloud.core.errors import HCloudError

TIMEOUT_S = 1.0
MOST = 200


def job_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the user's newest jobs with an id that begins as typed (``7`` or ``job-7``), with name and state."""
    try:
        client = _client()
        jobs = client.get("/v1/jobs", user=client.get("/v1/status")["you"], limit=MOST)
    except (HCloudError, OSError, ValueError, KeyError):
        return []
    return [
        CompletionItem(each["id"], help=f"{each['spec']['name']}, {each['state']}")
        for each in jobs
        if each["id"].startswith((incomplete, f"job-{incomplete}"))
    ]


def instance_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the live instances with an id that begins as typed, with type and state."""
    try:
        instances = _client().get("/v1/instances")
    except (HCloudError, OSError, ValueError, KeyError):
        return []
    return [
        CompletionItem(each["id"], help=f"{each['offer']['instance_type']['name']}, {each['state']}")
        for each in instances
        if each["id"].startswith(incomplete)
    ]


def _client() -> Connection:
    client = Connection()
    client.patience_s, client.answer_timeout_s = 0.0, TIMEOUT_S
    return client
