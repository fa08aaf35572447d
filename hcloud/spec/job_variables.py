"""Environment variables in job files: text, or secret values, which are shown nowhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from hcloud.core.units import plain_text, shown
from hcloud.spec.validation import nearest

ARGUMENT_BYTES_MAX: Final = 128 * 1024 - 1
"""Linux's limit for one argument or environment entry."""
REFERENCE_MARK: Final = "\0reference:"
"""Begins what is sealed in place of a value that a secret manager keeps; no variable's value can contain a NUL."""
_MANAGED = (
    r"aws:[A-Za-z0-9/_+=.@!:-]{1,512}(#[^#\s]{1,200})?|"
    r"gcp:projects/[A-Za-z0-9:._-]{1,100}/secrets/[A-Za-z0-9_-]{1,255}(/versions/[A-Za-z0-9_-]{1,63})?(#[^#\s]{1,200})?"
)
_REFERENCE = r"env:[A-Za-z_][A-Za-z0-9_]*|file:(/|~/)\S.*"


class JobFilePart(BaseModel):
    """A part of a job file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def fits_a_program(text: str) -> str:
    """Check that text can be an argument or a variable of a program. Raises ValueError."""
    if len(text.encode()) > ARGUMENT_BYTES_MAX:
        raise ValueError(f"must be at most {ARGUMENT_BYTES_MAX} bytes long; put it into a file of the work directory")
    return text


def whole_number_as_text(value: object) -> object:
    """Accept ``THREADS: 4`` without quotes; 1.10, true and null stay errors, as their text is ambiguous."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**40:
        return str(value)
    return value


def is_managed(secret_from: str) -> bool:
    """Return whether the daemon, not the client, reads a secret that is there."""
    return secret_from.startswith(("aws:", "gcp:"))


class SecretPart(JobFilePart):
    """A secret value of an environment variable: itself, or where `hcloud submit` reads it. Exactly one of the two."""

    secret: str | None = Field(default=None, repr=False)
    """The value."""
    secret_from: str | None = None
    """env:NAME (the submitter's environment) or file:/PATH (readable by its owner only), which `hcloud submit` reads;
    aws:NAME or gcp:projects/P/secrets/S, with #KEY of a JSON object, which the daemon reads when the job starts."""

    @classmethod
    def checked(cls, given: Mapping[object, object]) -> SecretPart:
        """Return the part. Raises ValueError; the message quotes no value, as it may be the secret."""
        unknown = [str(key) for key in given if key not in cls.model_fields]
        if unknown:
            raise ValueError(f"unknown key {shown(unknown[0])}; {nearest(unknown[0], cls.model_fields)}")
        values = {str(key): value for key, value in given.items() if value is not None}
        if len(values) != 1:
            raise ValueError("must have exactly one of secret and secret_from")
        value = whole_number_as_text(next(iter(values.values())))
        if not isinstance(value, str):
            raise ValueError(f"{next(iter(values))} must be text (put it in quotes)")
        if "secret" in values:
            return cls(secret=fits_a_program(plain_text(value)))
        if not re.fullmatch(f"{_REFERENCE}|{_MANAGED}", value):
            raise ValueError(
                "secret_from must be env:NAME, file:/PATH, aws:NAME, aws:NAME#KEY or gcp:projects/P/secrets/S, "
                "not the secret itself"
            )
        return cls(secret_from=value)

    @property
    def reference(self) -> str:
        """Where a secret manager keeps it; empty: none does."""
        return self.secret_from if self.secret_from is not None and is_managed(self.secret_from) else ""

    @property
    def size_bytes(self) -> int:
        """Size of the value; 0: not read yet."""
        return len((self.secret or "").encode())


def _variable_value(value: object) -> str | SecretPart:
    if isinstance(value, SecretPart):
        return value
    if isinstance(value, Mapping):
        return SecretPart.checked(value)
    text = whole_number_as_text(value)
    if not isinstance(text, str):
        raise ValueError(f"must be text (put it in quotes), not {shown(value)}")
    return fits_a_program(plain_text(text))


def _plain_variable(value: str | SecretPart) -> str | dict[str, str]:
    if isinstance(value, str):
        return value
    return {"secret": value.secret} if value.secret is not None else {"secret_from": value.secret_from or ""}


VariableValue = Annotated[
    str | SecretPart,
    PlainValidator(_variable_value, json_schema_input_type=str | int | SecretPart),
    # Pydantic's own serializer of unions warns, and its warning quotes the secret.
    PlainSerializer(_plain_variable, return_type=Any),
]
