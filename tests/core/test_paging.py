"""Lists page by page: read to their end, or failed when they have none."""

from itertools import cycle

import pytest

from hcloud.core import paging
from hcloud.core.errors import ProviderUnavailable
from hcloud.core.paging import checked, pages_of


def test_pages_are_read_to_the_end() -> None:
    following = {"": "a", "a": "b", "b": None}
    assert list(pages_of(lambda token: (token.upper(), following[token]), "the list")) == ["", "A", "B"]
    answers = [{"NextToken": "a"}, {"nextToken": "b"}, {"rows": 1}]
    assert list(checked(answers, "the list")) == answers


@pytest.mark.parametrize("circle", [["a"], ["a", "b"], ["a", "b", "c", "d"]])
def test_a_list_in_circles_is_a_failed_read(circle: list[str]) -> None:
    tokens = cycle(circle)
    with pytest.raises(ProviderUnavailable, match=r"^the list does not end: a page came twice$"):
        list(pages_of(lambda token: ((), next(tokens)), "the list"))
    with pytest.raises(ProviderUnavailable, match="does not end"):
        list(checked(({"nextToken": token} for token in cycle(circle)), "the list"))


def test_a_list_of_ever_new_pages_is_a_failed_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGES_MAX", 5)
    asked: list[str] = []

    def read(token: str) -> tuple[None, str]:
        asked.append(token)
        return None, f"{token}x"

    with pytest.raises(ProviderUnavailable, match="it has more than 5 pages"):
        list(pages_of(read, "the list"))
    assert len(asked) == 6
