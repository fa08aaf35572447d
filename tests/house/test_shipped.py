"""Every shipped file is found and loads."""

from pathlib import Path

import pytest
import yaml

from hcloud import config
from hcloud.config import package_data
from tests.house import tree


@pytest.mark.parametrize("path", sorted((tree.ROOT / "policies").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_policy_is_a_valid_policy(path: Path) -> None:
    assert config.load_policy(path).name == path.stem


def test_example_configuration_is_a_valid_configuration() -> None:
    config.load_config(package_data.path("config.example.yaml"))


def test_every_yaml_file_of_the_tree_parses() -> None:
    files = tree.yaml_files()
    assert files
    for path in files:
        list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def test_shipped_path_names_what_there_is_when_asked_for_what_is_not() -> None:
    with pytest.raises(FileNotFoundError, match=r"ships no 'policies/hn.yaml'; policies/ contains: .*\.yaml"):
        package_data.path("policies/hn.yaml")
