"""``hcloud policy``: say what a policy file means before the daemon acts on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hcloud.cli.check import check_files, form_option
from hcloud.cli.output import span, write_json
from hcloud.config import find_config, load_config, load_policy, to_yaml
from hcloud.spec.policy import Allow, Budgets, Caps, Policy
from hcloud.spec.validation import json_schema


@click.group()
def policy() -> None:
    """Check policy files; print their schema."""


@policy.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@form_option
def check(files: tuple[Path, ...], form: str) -> None:
    """Check policy FILES (none: the one in force) and say in plain words what they mean.

    Names file, line, key and the nearest right spelling of what is wrong, and ends with 2 then.
    """
    check_files(files or (_in_force(),), form, load_policy, _described)


@policy.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--output", "form", type=click.Choice(["yaml", "json"]), default="yaml", help="Output format.")
def show(file: Path | None, form: str) -> None:
    """Print the policy in FILE (none: the one in force) with every default filled in."""
    content = json.loads(json.dumps(asdict(load_policy(file or _in_force()))))
    if form == "json":
        write_json(content)
    else:
        click.echo(to_yaml(content), nl=False)


@policy.command()
def schema() -> None:
    """Print the JSON Schema of policy files, for editors and other programs."""
    write_json(json_schema(Policy))


def _in_force() -> Path:
    return load_config(find_config()).policy


def _described(loaded: Policy) -> dict[str, Any]:
    return {"name": loaded.name, "digest": loaded.digest, "summary": list(_summary(loaded))}


def _summary(loaded: Policy) -> Iterator[str]:
    """Describe a policy, one line per subject, unlimited defaults included."""
    keep = loaded.retention
    yield f"policy {loaded.name} ({loaded.digest})"
    yield f"spend: {_money(loaded.budgets)}"
    yield f"at one time: {_limits(loaded.caps)}"
    yield f"rent: {_allowed(loaded.allow)}"
    yield f"spot: {_spot(loaded)}"
    bounds = (f"at least {span(keep.minimum_s)}, " if keep.minimum_s else "") + f"at most {span(keep.maximum_s)}"
    yield f"idle machines: kept {keep.spin_up_multiple:g} x spin-up, {bounds}"
    below = keep.drain_below
    filled = f"no new jobs below {below:.0%} in use where a new machine costs less" if below else "always filled"
    yield f"part-used machines: {filled}"
    yield (
        f"machines: paid {span(loaded.lease.horizon_s)} ahead; given up when silent for "
        f"{span(loaded.unreachable.terminate_after_s)} or not started after {span(loaded.boot.timeout_s)}"
    )


def dollars(limit: float) -> str:
    """Return a limit as the file's author would write it: $5, $0.25."""
    return f"${limit:.10g}"


def _money(budgets: Budgets) -> str:
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
        who = "each user" if name == "default" else name
        pairs = (("day", budget.per_day_usd), ("month", budget.per_month_usd))
        limits += [f"{who} {dollars(limit)}/{period}" for period, limit in pairs if limit is not None]
    return f"at most {', '.join(limits)}" if limits else "no limit"


def _limits(caps: Caps) -> str:
    limits = [f"{caps.max_instances} instances"]
    if caps.max_vcpus is not None:
        limits.append(f"{caps.max_vcpus:g} vCPUs")
    limits += [f"{count} of type {name}" for name, count in sorted(caps.max_instances_per_type.items())]
    if caps.max_price_usd_per_h is not None:
        limits.append(f"none dearer than {dollars(caps.max_price_usd_per_h)}/h")
    if caps.max_jobs_per_user is not None:
        limits.append(f"{caps.max_jobs_per_user} jobs per user")
    return f"at most {', '.join(limits)}; {caps.max_queued_jobs} jobs may wait"


def _allowed(allow: Allow) -> str:
    limits = [
        f"{name.replace('_', ' ')} {' '.join(patterns)}"
        for name in ("providers", "regions", "zones", "instance_types")
        if (patterns := getattr(allow, name)) is not None
    ]
    markets = ", ".join(market.value for market in allow.markets)
    return f"{'; '.join(limits) or 'whatever the providers offer'}; paid as {markets}"


def _spot(loaded: Policy) -> str:
    if "spot" not in {market.value for market in loaded.allow.markets} or not loaded.spot.for_targets:
        return "never"
    only = " that may be interrupted" if loaded.spot.only_interruptible else ""
    return f"for {', '.join(loaded.spot.for_targets)} jobs{only}"
