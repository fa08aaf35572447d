"""The official description of the Compute Engine API, by which the fake checks what it is sent and what it answers."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

PREFIX = "/compute/v1/"
_COMMON = ("alt", "fields", "key", "prettyPrint", "quotaUser", "userIp", "$alt")
_NUMBERS_AS_TEXT = ("int64", "uint64")


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the API: its id (``instances.insert``) and what its request and response must look like."""

    id: str
    http: str
    path: re.Pattern[str]
    parameters: Mapping[str, Mapping[str, Any]]
    body: Mapping[str, Any] | None
    response: Mapping[str, Any]

    def problems(self, query: Mapping[str, str], body: object) -> list[str]:
        """Say what is wrong with a request."""
        found = [f"{self.id}: there is no parameter {name!r}" for name in query if name not in self._known()]
        if "requestId" in query and not _is_uuid(query["requestId"]):
            found.append(f"{self.id}: requestId {query['requestId']!r} is no UUID other than zero")
        if self.body is None:
            return found + ([f"{self.id} takes no body"] if body not in (None, {}) else [])
        return found + list(_wrong(self.body, body, "resource"))

    def answer_problems(self, answer: object) -> list[str]:
        """Say what is wrong with a response."""
        return [f"{self.id} answered: {each}" for each in _wrong(self.response, answer, "response")]

    def _known(self) -> set[str]:
        return {*self.parameters, *_COMMON}


@cache
def document() -> dict[str, Any]:
    """The description that google-api-python-client ships."""
    file = resources.files("googleapiclient").joinpath("discovery_cache/documents/compute.v1.json")
    read: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return read


@cache
def methods() -> tuple[Method, ...]:
    """Every method of the API."""
    return tuple(
        Method(
            id=f"{resource}.{name}",
            http=plain["httpMethod"],
            path=re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", plain["path"])),
            parameters=plain.get("parameters", {}),
            body=plain.get("request"),
            response=plain.get("response", {"type": "any"}),
        )
        for resource, content in document()["resources"].items()
        for name, plain in content["methods"].items()
    )


def find(http: str, path: str) -> tuple[Method, dict[str, str]] | None:
    """Return the method a request means, with the parameters in its path."""
    if not path.startswith(PREFIX):
        return None
    for each in methods():
        found = each.path.fullmatch(path[len(PREFIX) :]) if each.http == http else None
        if found is not None:
            return each, found.groupdict()
    return None


def _wrong(schema: Mapping[str, Any], value: object, path: str) -> Iterator[str]:
    """Say where a JSON value departs from a schema: unknown names, wrong types, unknown words of an enumeration."""
    if "$ref" in schema:
        schema = document()["schemas"][schema["$ref"]]
    match schema.get("type"):
        case "object" if isinstance(value, Mapping):
            yield from _wrong_members(schema, value, path)
        case "array" if isinstance(value, list):
            for index, each in enumerate(value):
                yield from _wrong(schema["items"], each, f"{path}[{index}]")
        case "string" if isinstance(value, str):
            if "enum" in schema and value not in schema["enum"]:
                yield f"Invalid value at '{path}': {value!r}"
            if schema.get("format") in _NUMBERS_AS_TEXT and not re.fullmatch(r"-?\d+", value):
                yield f"Invalid value at '{path}': {value!r} is no number"
        case "boolean" if isinstance(value, bool):
            pass
        case "integer" if isinstance(value, int) and not isinstance(value, bool):
            pass
        case "number" if isinstance(value, int | float) and not isinstance(value, bool):
            pass
        case "any":
            pass
        case kind:
            yield f"Invalid value at '{path}' ({kind}): {value!r}"


def _wrong_members(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[str]:
    known, more = schema.get("properties", {}), schema.get("additionalProperties")
    for name, each in value.items():
        if name in known:
            yield from _wrong(known[name], each, f"{path}.{name}")
        elif more is not None:
            yield from _wrong(more, each, f"{path}.{name}")
        else:
            yield f"Unknown name {name!r} at '{path}': Cannot find field."


def _is_uuid(text: str) -> bool:
    try:
        return uuid.UUID(text).int != 0
    except ValueError:
        return False
