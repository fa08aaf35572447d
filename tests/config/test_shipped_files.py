"""The shipped files are complete and valid, and show the defaults."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hcloud.config import Config, load_config, load_policy, package_data, read_documents
from hcloud.spec.policy import Policy, simple_policy
from hcloud.spec.validation import KeyPath, json_schema
from tests.config.annotated_policy import SAVED, annotated

EXAMPLE = package_data.path("config.example.yaml")
POLICIES = sorted(package_data.path("policies").glob("*.yaml"))


def schema_paths(node: Any, schema: dict[str, Any], path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield all key paths of a schema; list items add nothing to a path."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for branch in node.get("anyOf", [node]):
        if branch is not node:
            yield from schema_paths(branch, schema, path)
        for name, child in branch.get("properties", {}).items():
            yield (*path, name)
            yield from schema_paths(child, schema, (*path, name))
        if "items" in branch:
            yield from schema_paths(branch["items"], schema, path)


def written_paths(path: Path) -> set[KeyPath]:
    lines = read_documents(path)[0].lines
    return {tuple(part for part in each if isinstance(part, str)) for each in lines}


def with_commented_blocks(tmp_path: Path) -> Path:
    """Write the example with its commented blocks of TCP, notifications and buckets enabled."""
    text = EXAMPLE.read_text(encoding="utf-8")
    block = re.sub(r"(?m)^  # (tcp:|  (?:listen|certificate|key|tokens_file):)", r"  \1", text)
    block = re.sub(r"(?m)^# (notifications:|  - name: operators|    (?:url|form|key|events|users):)", r"\1", block)
    before, files, after = block.partition("\nfiles:\n")
    files += re.sub(r"(?m)^  # (buckets:|  - (?:s3|url)|    (?:users|access|region|endpoint|profile):)", r"  \1", after)
    block = before + files
    path = tmp_path / "config.yaml"
    block = block.replace("  tcp: null\n", "").replace("notifications: []\n", "").replace("  buckets: []\n", "")
    path.write_text(block, encoding="utf-8")
    return path


def test_example_shows_every_setting(tmp_path: Path) -> None:
    known = set(schema_paths(json_schema(Config), json_schema(Config)))
    assert ("api", "tcp", "tokens_file") in known
    assert known - written_paths(with_commented_blocks(tmp_path)) == set()


def test_example_says_the_defaults() -> None:
    wanted = Config(owner="hcloud-example", policy=EXAMPLE.parent / "policies" / "default.yaml")
    loaded = load_config(EXAMPLE)
    assert loaded == wanted
    assert loaded.database == wanted.database


def test_commented_blocks_of_the_example_are_right(tmp_path: Path) -> None:
    loaded = load_config(with_commented_blocks(tmp_path))
    assert [(each.name, each.form, each.users) for each in loaded.notifications] == [("operators", "webhook", ())]
    tcp = loaded.api.tcp
    assert tcp is not None
    assert tcp.certificate == tmp_path / "tls" / "api.pem"


def test_default_policy_shows_every_key_and_says_the_defaults() -> None:
    path = package_data.path("policies/default.yaml")
    known = set(schema_paths(json_schema(Policy), json_schema(Policy)))
    assert known - written_paths(path) == set()
    assert load_policy(path) == Policy()


def test_simple_policy_is_the_simple_rules_and_everything_else_as_by_default() -> None:
    assert load_policy(package_data.path("policies/simple.yaml")) == simple_policy()


def test_annotated_policy_is_what_the_schema_says() -> None:
    renew = "run python -m tests.config.annotated_policy"
    assert package_data.path(SAVED).read_text(encoding="utf-8") == annotated(), renew
    known = set(schema_paths(json_schema(Policy), json_schema(Policy)))
    assert known - written_paths(package_data.path(SAVED)) == set()
    assert load_policy(package_data.path(SAVED)) == Policy(name="example-full")


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.name)
def test_policy_is_named_as_its_file_and_every_key_has_a_comment_near(path: Path) -> None:
    assert load_policy(path).name == path.stem
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if re.match(r"[a-z]", line) and not line.startswith("name:"):
            block = lines[max(0, number - 2) : number + 3]
            assert any("#" in each for each in block), f"{path.name}:{number + 1} has no comment"


@pytest.mark.parametrize("model", [Policy, Config])
def test_every_key_is_explained_in_the_schema(model: type) -> None:
    schema = json_schema(model)
    for name, node in [("top", schema), *schema["$defs"].items()]:
        for key, child in node.get("properties", {}).items():
            referred = schema["$defs"].get(child.get("$ref", "").rpartition("/")[2], {})
            assert child.get("description") or referred.get("description"), f"{name}.{key}"
