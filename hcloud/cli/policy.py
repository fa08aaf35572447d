"""``hcloud policy``: check policy files and describe what they mean."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hcloud.cli.check import check_files, form_option
from hcloud.cli.output import span, write_json
from hcloud.client.connection import Connection
from hcloud.config import find_config, load_config, load_plugins, load_policy, to_yaml
from hcloud.core.errors import BadInput, HCloudError
from hcloud.core.model import Market
from hcloud.spec.policy import Allow, Budgets, Caps, Policy
from hcloud.spec.validation import json_schema


@click.group()
def policy() -> None:
    """Check policy files; show them with defaults; print their schema."""


@policy.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@form_option
def check(files: tuple[Path, ...], form: str) -> None:
    """Check policy FILES (default: the policy in force) and describe in plain words what they mean.

    An error has file, line, key and the closest valid spelling; the exit code is then 2.
    """

    def describe(loaded: Policy) -> dict[str, Any]:
        return {"name": loaded.name, "digest": loaded.digest, "summary": list(_summary(loaded))}

    check_files(files or (_in_force(),), form, load_policy, describe)
    if not files and form == "table":
        with suppress(HCloudError):  # no daemon runs here
            for change in Connection().get("/v1/status")["daemon"].get("unaccepted_changes", []):
                click.echo(f"not in force until 'hcloud policy accept': {change}")


@policy.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--output", "form", type=click.Choice(["yaml", "json"]), default="yaml", help="Output format.")
def show(file: Path | None, form: str) -> None:
    """Print the policy in FILE (default: the policy in force) with all defaults filled in."""
    content = json.loads(json.dumps(asdict(load_policy(file or _in_force()))))
    if form == "json":
        write_json(content)
    else:
        click.echo(to_yaml(content), nl=False)


@policy.command()
def schema() -> None:
    """Print the JSON Schema of policy files, for editors and other tools."""
    load_plugins()
    write_json(json_schema(Policy))


@policy.command()
@click.option("--yes", is_flag=True, help="Accept without asking.")
def accept(yes: bool) -> None:
    """Accept changes that loosen a limit: a budget, the isolation of jobs, who is admin or reader, API tokens.

    Until then the accepted limits hold, whatever policy, configuration and tokens file say. Isolation, admins and
    readers hold from the daemon's next start.
    """
    client = Connection()
    changes = client.get("/v1/status")["daemon"].get("unaccepted_changes", [])
    if not changes:
        click.echo("nothing waits to be accepted")
        return
    for change in changes:
        click.echo(change)
    if not yes and not (sys.stdin.isatty() and click.confirm("Accept?")):
        raise BadInput("nothing was accepted; say --yes, or answer at a terminal")
    client.post("/v1/accept", {"changes": changes})
    click.echo("accepted")


def _in_force() -> Path:
    return load_config(find_config()).policy


def _summary(loaded: Policy) -> Iterator[str]:
    """Yield a description of a policy, one line per subject."""
    retention = loaded.retention
    yield f"policy {loaded.name} ({loaded.digest})"
    shared = loaded.admission.fair_share
    yield (
        f"strategy {loaded.provisioning.strategy}, placement order {loaded.placement.order}, "
        f"queues {loaded.admission.queues}, profiling {loaded.profiles_when}"
        + ("" if shared == "none" else f", fair share by {shared}")
    )
    yield f"budgets: {_budgets_text(loaded.budgets)}"
    yield f"limits: {_caps_text(loaded.caps)}"
    yield f"machines: {_allowed_text(loaded.allow)}"
    targets = loaded.spot.for_targets
    if Market.SPOT not in loaded.allow.markets or not targets:
        yield "spot: never used"
    else:
        only = ", if interruptible" if loaded.spot.only_interruptible else ""
        yield f"spot: for {', '.join(targets)} jobs{only}"
    minimum = f", at least {_duration(retention.minimum_s)}" if retention.minimum_s else ""
    multiple = "" if retention.spin_up_multiple == 1 else f"{retention.spin_up_multiple:g} times "
    kept = f"{multiple}their boot time{minimum}, at most {_duration(retention.maximum_s)}"
    if retention.learn:
        kept = f"as long as it pays, by how soon others were needed again; until that is seen, for {kept}"
    yield f"idle machines: kept for {kept}"
    filled = "no new jobs where a new machine costs less" if retention.drain else "always filled with new jobs"
    yield f"partly used machines: {filled}"
    yield (
        f"leases: renewed {_duration(loaded.lease.horizon_s)} at a time; a machine is considered lost after "
        f"{_duration(loaded.unreachable.terminate_after_s)} without contact, or if not ready after "
        f"{_duration(loaded.boot.timeout_s)}"
    )


def _duration(seconds: float) -> str:
    """Return a duration without zero parts: 2m and 1h, where :func:`span` writes 2m00s and 1h00m."""
    text = span(seconds)
    return re.sub(r"(?<=[mhd])00[smh]$", "", text)


def dollars(limit: float) -> str:
    """Return a limit as in a policy file: $5, $0.25."""
    return f"${limit:.10g}"


def _budgets_text(budgets: Budgets) -> str:
    limits = [
        f"{dollars(limit)}/{period}"
        for period, limit in (
            ("h", budgets.per_hour_usd),
            ("day", budgets.per_day_usd),
            ("month", budgets.per_month_usd),
        )
        if limit is not None
    ]
    for name, budget in sorted(budgets.per_user.items()):
        subject = "each user" if name == "default" else f"user {name}"
        pairs = (("day", budget.per_day_usd), ("month", budget.per_month_usd))
        limits += [f"{subject} {dollars(limit)}/{period}" for period, limit in pairs if limit is not None]
    for name, budget in sorted(budgets.per_tag.items()):
        subject = f"tag {name}" if "=" in name else f"each value of tag {name}"
        pairs = (("day", budget.per_day_usd), ("month", budget.per_month_usd))
        limits += [f"{subject} {dollars(limit)}/{period}" for period, limit in pairs if limit is not None]
    return f"at most {', '.join(limits)}" if limits else "no limit"


def _caps_text(caps: Caps) -> str:
    limits = [f"{caps.max_instances} instances"]
    if caps.max_vcpus is not None:
        limits.append(f"{caps.max_vcpus:g} vCPUs")
    limits += [f"{count} of type {name}" for name, count in sorted(caps.max_instances_per_type.items())]
    if caps.max_price_usd_per_h is not None:
        limits.append(f"{dollars(caps.max_price_usd_per_h)}/h per instance")
    if caps.max_jobs_per_user is not None:
        limits.append(f"{caps.max_jobs_per_user} jobs per user")
    return f"at most {', '.join(limits)}, {caps.max_queued_jobs} queued jobs"


def _allowed_text(allow: Allow) -> str:
    limits = [
        f"{name.replace('_', ' ')} {' '.join(patterns)}"
        for name in ("providers", "regions", "zones", "instance_types")
        if (patterns := getattr(allow, name)) is not None
    ]
    markets = ", ".join(market.value for market in allow.markets)
    return f"{'; '.join(limits) or 'all that the providers offer'}; markets: {markets}"
