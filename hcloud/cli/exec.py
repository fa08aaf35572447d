"""``hcloud exec``: a command inside a running job."""

from __future__ import annotations

import click

from hcloud.cli.completing import job_ids
from hcloud.cli.jobs import job_id
from hcloud.cli.output import WholeRange
from hcloud.client.connection import Connection
from hcloud.core.errors import BadInput
from hcloud.core.units import parse_duration_s

TIMED_OUT_EXIT = 124
"""As of timeout(1)."""
MARGIN_S, EXEC_S_MAX = 30.0, 60


@click.command("exec", epilog="Example: hcloud exec job-7 -- ps aux")
@click.argument("job", shell_complete=job_ids)
@click.argument("command", nargs=-1, required=True)
@click.option("--rank", type=WholeRange(min=0), default=0, show_default=True, help="Which node of the job.")
@click.option("--timeout", default="10s", show_default=True, help="Kill it after this time; at most 60s.")
def exec_command(job: str, command: tuple[str, ...], rank: int, timeout: str) -> int:
    """Run COMMAND inside the running JOB: with its files, its user, its network and within its limits.

    It has no input, and no shell is involved (write `-- sh -c '...'` for one). At most 256 KiB of each output are
    shown. hcloud exits as COMMAND does, or with 124 if its time was over. For the job's owner and admins; the audit log
    has it.
    """
    try:
        timeout_s = parse_duration_s(timeout)
    except ValueError as error:
        raise BadInput(f"--timeout: {error}") from None
    if not 0 < timeout_s <= EXEC_S_MAX:
        raise BadInput(f"--timeout: must be above 0 and at most {EXEC_S_MAX}s, not {timeout}")
    client = Connection()
    client.patience_s = 0.0  # a repeated request would run it twice
    client.answer_timeout_s = timeout_s + MARGIN_S
    request = {"command": list(command), "rank": rank, "timeout_s": timeout_s}
    found = client.post(f"/v1/jobs/{job_id(job)}/exec", request)
    click.echo(found["stdout"], nl=False)
    click.echo(found["stderr"], nl=False, err=True)
    if found["is_cut"]:
        click.echo("hcloud: there was more output than is shown", err=True)
    if found["exit_code"] is None:
        click.echo(f"hcloud: the command was killed: it ran longer than {timeout}", err=True)
        return TIMED_OUT_EXIT
    return int(found["exit_code"])
