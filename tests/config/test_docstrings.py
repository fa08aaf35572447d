"""The string under an attribute is the description of its key in the schema."""

from __future__ import annotations

from typing import Any

import pytest

from hcloud.config import Config
from hcloud.spec.jobfile import BatchPart, JobFile, parts
from hcloud.spec.policy import Policy
from hcloud.spec.validation import attribute_docstrings, describe, json_schema


@pytest.mark.parametrize("model", [Policy, JobFile, Config])
def test_every_key_is_described_in_the_schema(model: type[Any]) -> None:
    schema = json_schema(model)
    bare = [
        f"{name}.{key}"
        for name, kind in {**schema["$defs"], model.__name__: schema}.items()
        for key, value in kind.get("properties", {}).items()
        if not value.get("description")
    ]
    assert bare == []


def test_attribute_strings_are_read_and_inherited() -> None:
    class Own(BatchPart):
        pass

    assert attribute_docstrings(Own)["by"].startswith("Absolute deadline with its time zone")
    assert attribute_docstrings(int) == {}


def test_existing_descriptions_and_other_schemas_are_unchanged() -> None:
    within, by, other = {"description": "mine"}, dict[str, str](), dict[str, str]()
    schemas = {"BatchPart": {"properties": {"within": within, "by": by}}, "Other": {"properties": {"by": other}}}
    describe(schemas, parts())
    assert within == {"description": "mine"}
    assert by["description"].startswith("Absolute deadline")
    assert other == {}
