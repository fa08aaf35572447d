"""Text of the pages: what users wrote made harmless to look at, and numbers with their units."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import quote

from markupsafe import Markup, escape

from hcloud.planner.text import price, usd

_DIGITS_USD = 1e-9


def visible(text: str) -> str:
    """Return text in which control characters, and those that turn the direction of writing, are shown as escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def prose(text: str | None) -> Markup:
    """Return a sentence of the daemon in which times (UTC) are shown in the reader's zone by the page's script."""
    shown = str(escape(visible(text or "")))
    return Markup(_TIME.sub(lambda found: f'<time datetime="{found[0]}">{found[0]}</time>', shown))


def reason(text: str | None) -> Markup:
    """Return why a job waits, where the page says already that it waits."""
    return prose((text or "").removeprefix("waiting: "))


def finalize(value: object) -> object:
    """Return what a template writes for a value: its text made visible, nothing for None."""
    if value is None:
        return ""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def money(amount_usd: float | None) -> str:
    """Return an amount in USD: ``$1,234.50``, ``-$0.20``, ``$0.00012``; nothing for None."""
    if amount_usd is None:
        return ""
    size = abs(amount_usd)
    if size < _DIGITS_USD:
        return "$0"
    return ("-" if amount_usd < 0 else "") + (f"${size:,.2f}" if size >= 1 else usd(size))


def rate(usd_per_h: float | None) -> str:
    """Return a price per hour: ``$0.096/h``."""
    return "" if usd_per_h is None else f"${usd_per_h:,.2f}/h" if usd_per_h >= 100 else price(usd_per_h)


def duration(seconds: float | None) -> str:
    """Return a duration: ``0.18 s``, ``3m05s``, ``2h10m``, ``4d03h``."""
    if seconds is None:
        return ""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def share(part: float | None) -> str:
    """Return a share (0..1) as ``85 %``."""
    return "" if part is None else f"{100 * part:.0f} %"


def number(value: float | None) -> str:
    """Return a number with four significant digits and thousands apart."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def moment(at: float | None) -> Markup:
    """Return a time (Unix seconds) in UTC, which the page's script shows in the reader's zone."""
    if at is None:
        return Markup("")
    try:
        found = datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return escape(f"{at:g}")
    return Markup(f'<time datetime="{found:%Y-%m-%dT%H:%M:%SZ}">{found:%Y-%m-%d %H:%M:%S} UTC</time>')


def path(value: object) -> str:
    """Return text as one part of an address."""
    return quote(str(value), safe="")


# Functions, not macros, which cost several times as much: a page of machines has hundreds of them.
def job_link(job_id: str) -> Markup:
    """Return a link to a job's page."""
    return Markup(f'<a href="/jobs/{path(job_id)}">{escape(visible(job_id))}</a>')


def state(name: str) -> Markup:
    """Return the mark of a state of a job or a machine."""
    return Markup(f'<span class="state s-{escape(name)}">{escape(name.replace("_", " "))}</span>')


def cell(value: object, unit: str) -> str:
    """Return a value of a report as text, by the unit of its column."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, int | float):
        return str(value)
    if unit == "usd":
        return money(value)
    if unit == "s":
        return duration(value)
    return f"{value:.1f}" if unit == "%" else number(value)
