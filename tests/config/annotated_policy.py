"""The shipped annotated policy: ``python -m tests.config.annotated_policy`` regenerates it from the schema."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from hcloud.config import package_data
from hcloud.spec.policy import Policy
from hcloud.spec.validation import json_schema

SAVED = "policies/example-full.yaml"
_HEAD = """Every key of a policy with its meaning, its allowed values and its default. Generated from the schema. Copy
the keys that you want to change into your own policy; keys that are left out keep their defaults.

Durations may have a unit (30s, 10m, 1h30m); a bare number is seconds. Money is US dollars. null: no limit."""


def annotated() -> str:
    """Return the keys in the order of the schema, each with its meaning and default."""
    schema, defaults = json_schema(Policy), json.loads(json.dumps(asdict(Policy(name="example-full"))))
    lines = [f"# {line}".rstrip() for line in _HEAD.splitlines()]
    return "\n".join([*lines, *_section(schema, schema["$defs"], defaults, ""), ""])


def _section(
    node: Mapping[str, Any], kinds: Mapping[str, Any], values: Mapping[str, Any], indent: str
) -> Iterator[str]:
    for key, child in node["properties"].items():
        inner = kinds.get(child.get("$ref", "").rpartition("/")[2], {})
        meaning = " ".join((child.get("description") or inner["description"]).split())
        if inner and "properties" in inner:
            yield from ("", *_comment(meaning, indent), f"{indent}{key}:")
            yield from _section(inner, kinds, values[key], indent + "  ")
        else:
            yield from ("",) if not indent else ()
            meaning += _choices(child, kinds, meaning)
            yield from (*_comment(meaning, indent), f"{indent}{key}: {_flow(values[key])}")


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 118, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _choices(child: Mapping[str, Any], kinds: Mapping[str, Any], meaning: str) -> str:
    """Return the allowed words, unless the meaning names them."""
    resolved = kinds.get(child.get("$ref", "").rpartition("/")[2], child)
    words = [str(word) for word in resolved.get("enum", ())]
    return "" if all(word in meaning for word in words) else f" One of {', '.join(words)}."


def _flow(value: object) -> str:
    """Return a value as one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value) if value == "*" or not isinstance(value, str) else value


if __name__ == "__main__":
    package_data.path("policies").joinpath("example-full.yaml").write_text(annotated(), encoding="utf-8")
