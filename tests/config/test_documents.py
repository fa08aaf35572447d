"""The reference documents name every key there is."""

import re

import pytest

from hcloud.spec.jobfile import JobFile
from hcloud.spec.policy import Policy
from hcloud.spec.validation import json_schema
from tests.house.tree import ROOT


@pytest.mark.parametrize(("model", "document"), [(Policy, "policies.md"), (JobFile, "jobs.md")])
def test_reference_names_every_key(model: type, document: str) -> None:
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    named = {part for code in re.findall(r"`([a-z0-9_., ]+)`", text) for part in re.split(r"[., ]+", code)}
    schema = json_schema(model)
    known = {key for node in [schema, *schema["$defs"].values()] for key in node.get("properties", {})}
    assert known - named == set()
