"""Field types for user input: durations, sizes, money, times and text.

Each is a pydantic ``Annotated`` type. It accepts a bare number in the unit that the field's name states, or text with a
unit. It rejects everything else (booleans, NaN, wrong units) with one sentence, and describes itself in JSON Schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, Strict

TEN_YEARS_S: Final = 10 * 366 * 86400.0
"""Upper limit of durations: more is a typing error, and distant times overflow elsewhere."""
NAME_MOST: Final = 200
"""Upper limit of a name's length in characters; longer ones do not fit into tables."""
PEBIBYTE_MIB: Final = 1024.0**3
"""Upper limit of sizes."""

_SECONDS: Final[Mapping[str, float]] = {
    "ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "day": 86400, "days": 86400, "w": 604800,
}  # fmt: skip
_MIB: Final[Mapping[str, float]] = {
    "KiB": 2**-10, "MiB": 1, "GiB": 2**10, "TiB": 2**20, "Ki": 2**-10, "Mi": 1, "Gi": 2**10, "Ti": 2**20,
    "KB": 1e3 / 2**20, "MB": 1e6 / 2**20, "GB": 1e9 / 2**20, "TB": 1e12 / 2**20,
}  # fmt: skip
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PLAIN_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DURATION_PART = re.compile(rf"({_NUMBER})\s*({'|'.join(sorted(_SECONDS, key=len, reverse=True))})\s*")
DURATION_PATTERN: Final = r"^(" + _NUMBER + r" ?(ms|s|sec|m|min|h|d|day|days|w) ?)+$"
"""Durations with a unit, in JSON Schema."""
SIZE_PATTERN: Final = r"^" + _NUMBER + r" ?([KMGT]iB?|[KMGT]B)$"
"""Sizes with a unit, in JSON Schema."""

T = TypeVar("T")


def parse_duration_s(value: object, unit_s: float = 1.0) -> float:
    """Return seconds from a number (in ``unit_s``) or text like ``90s``, ``10m``, ``1h30m``, ``2d``.

    Raises:
        ValueError: not a duration, negative, or longer than ten years.
    """
    seconds = _plain_number(value) if not isinstance(value, str) else None
    if seconds is not None:
        seconds *= unit_s
    elif isinstance(value, str):
        seconds = _duration_text_s(value)
    if seconds is None:
        raise ValueError(f"must be a duration such as 30s, 10m, 2h or 1h30m, not {shown(value)}")
    if not 0 <= seconds <= TEN_YEARS_S:
        raise ValueError(f"must be a duration between 0 and ten years, not {shown(value)}")
    return seconds


def _duration_text_s(text: str) -> float | None:
    """Return the sum of the parts of a duration, or None if the text has another form."""
    rest, seconds = text.strip(), 0.0
    if not rest or len(rest) > 64:
        return None
    while rest:
        part = _DURATION_PART.match(rest)
        if part is None:
            return None
        seconds += float(part[1]) * _SECONDS[part[2]]
        rest = rest[part.end() :]
    return seconds


def parse_size_mib(value: object, unit_mib: float = 1.0) -> float:
    """Return MiB from a number (in ``unit_mib``) or text like ``512MiB``, ``1.5GiB`` (binary) or ``2GB`` (decimal).

    Raises:
        ValueError: not a size, negative, or more than a pebibyte.
    """
    size = _plain_number(value) if not isinstance(value, str) else None
    if size is not None:
        size *= unit_mib
    elif isinstance(value, str):
        size = _size_text_mib(value)
    if size is None:
        raise ValueError(f"must be a size such as 512MiB, 1.5GiB or 2GB, not {shown(value)}")
    if not 0 <= size <= PEBIBYTE_MIB:
        raise ValueError(f"must be a size between 0 and 1024 TiB, not {shown(value)}")
    return size


def _size_text_mib(text: str) -> float | None:
    match = re.fullmatch(rf"({_NUMBER})\s*([A-Za-z]+)", text.strip())
    if match is None or len(text) > 64:
        return None
    if match[2] in {"K", "M", "G", "T", "k", "m", "g", "t"}:
        unit = match[2].upper()
        raise ValueError(f"is ambiguous: write {match[1]}{unit}iB (binary) or {match[1]}{unit}B (decimal)")
    factor = _MIB.get(match[2])
    return None if factor is None else float(match[1]) * factor


def _plain_number(value: object) -> float | None:
    """Return a finite float, or None for anything that is not a number; booleans are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def parse_number(text: str) -> float | None:
    """Return a finite number written in plain ASCII digits, or None; ``float`` would also accept ``１`` and ``1_0``."""
    number = float(text) if _PLAIN_NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else None


def plain(number: float) -> str:
    """Format a number without an exponent below 1e15: 315360000, where ``%g`` gives 3.1536e+08."""
    return f"{number:.15g}"


def parse_utc_s(value: object) -> float:
    """Return Unix seconds from an ISO 8601 time with a zone, for example ``2026-05-01T18:00:00Z``.

    Raises:
        ValueError: not a time, or without a time zone.
    """
    try:
        moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None:
        raise ValueError(f"must be a time such as 2026-05-01T18:00:00Z, not {shown(value)}")
    if moment.tzinfo is None:
        text = moment.isoformat()
        raise ValueError(f"must say its time zone, for example {text}Z or {text}+02:00, not {shown(value)}")
    if not 1970 < moment.year < 9000:
        raise ValueError(f"must be a time between the years 1971 and 8999, not {shown(value)}")
    return moment.timestamp()


def utc_text(at: float) -> str:
    """Return Unix seconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, tz=UTC).isoformat().replace("+00:00", "Z")


def shown(value: object) -> str:
    """Return a value as error messages quote it: short and on one line."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "such a long number"
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else text[:56] + "..." + text[-1]


def _positive(quantity: T) -> T:
    if not quantity > 0:  # type: ignore[operator]
        raise ValueError("must be more than 0")
    return quantity


def plain_text(text: str) -> str:
    """Return text that can be stored, logged and handed to a program. Raises ValueError, which does not quote it."""
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must be text that can be written as UTF-8")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _short_and_printable(name: str) -> str:
    if len(name) > NAME_MOST:
        raise ValueError(f"must be at most {NAME_MOST} characters long, not {len(name)}")
    if not name.isprintable():
        raise ValueError(f"must be of printable characters, not {shown(name)}")
    return name


_DurationInput = Annotated[float, Field(ge=0, le=TEN_YEARS_S)] | Annotated[str, Field(pattern=DURATION_PATTERN)]
_SizeInput = Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=SIZE_PATTERN)]

Seconds = Annotated[float, BeforeValidator(parse_duration_s, json_schema_input_type=_DurationInput)]
"""A duration; a bare number is seconds."""
PositiveSeconds = Annotated[Seconds, AfterValidator(_positive)]
"""A duration above 0."""
PositiveMilliseconds = Annotated[
    float,
    BeforeValidator(lambda value: parse_duration_s(value, 0.001) * 1000, json_schema_input_type=_DurationInput),
    AfterValidator(_positive),
]
"""A latency; a bare number is milliseconds."""
PositiveMib = Annotated[
    int,
    BeforeValidator(lambda value: math.ceil(parse_size_mib(value) - 1e-9), json_schema_input_type=_SizeInput),
    AfterValidator(_positive),
]
"""A size in whole MiB, rounded up; a bare number is MiB."""
PositiveGib = Annotated[
    float,
    BeforeValidator(lambda value: parse_size_mib(value, 1024.0) / 1024.0, json_schema_input_type=_SizeInput),
    AfterValidator(_positive),
]
"""A size in GiB; a bare number is GiB."""
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
"""A finite number; text and booleans are not numbers."""
PositiveUsd = Annotated[Number, Field(gt=0, le=1e12)]
"""An amount in USD above 0."""
Count = Annotated[int, Strict(), Field(ge=0, le=10**9)]
"""A whole number, 0 or more."""
PositiveCount = Annotated[int, Strict(), Field(ge=1, le=10**9)]
"""A whole number, at least 1."""
Flag = Annotated[bool, Strict()]
"""true or false only."""
Text = Annotated[str, Strict(), AfterValidator(plain_text)]
"""Text that can be stored, logged and handed to a program."""
NonEmptyText = Annotated[Text, AfterValidator(_not_blank)]
"""Text that is not blank."""
Name = Annotated[NonEmptyText, AfterValidator(_short_and_printable)]
"""A name for tables, reasons and logs."""
UtcSeconds = Annotated[
    float,
    BeforeValidator(
        parse_utc_s, json_schema_input_type=Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    ),
    PlainSerializer(utc_text, when_used="json"),
]
"""A time in Unix seconds, written as ISO 8601 with its time zone."""
