"""docs/architecture.md names every room, and every place it names exists."""

import re
import tomllib

import pytest

from tests.house import tree

PAGE = (tree.ROOT / "docs/architecture.md").read_text()


def rows_of(section: str) -> list[list[str]]:
    """Return the cells of each row of the table in a section."""
    rows = PAGE.split(f"## {section}")[1].split("\n## ")[0].splitlines()
    return [row.strip("|").split("|") for row in rows if row.startswith("|") and not row.startswith("|---")][1:]


def test_every_room_of_the_contracts_stands_in_the_table() -> None:
    contracts = tomllib.loads((tree.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = {word for layer in contracts[0]["layers"] for word in layer.replace("|", " ").split()}
    named = {word.strip("`") for row in rows_of("Rooms") for word in row[0].split()}
    assert rooms == named


@pytest.mark.parametrize("row", rows_of("Where is ..."), ids=lambda row: row[0].strip())
def test_every_place_that_is_named_exists(row: list[str]) -> None:
    places = re.findall(r"`([a-z_0-9*/]+(?:\.py|/))`", row[1])
    assert places
    for place in places:
        found = [*(tree.ROOT / "hcloud").glob(place), *tree.ROOT.glob(place)]
        assert found, place
        for symbol in re.findall(rf"`{re.escape(place)}` \(`(\w+)`\)", row[1]):
            assert any(re.search(rf"\b{symbol}\b", each.read_text()) for each in found), symbol


def test_the_glossary_has_its_terms_once() -> None:
    terms = [row[0].strip() for row in rows_of("The words")]
    assert len(terms) >= 30
    assert len(set(terms)) == len(terms)
