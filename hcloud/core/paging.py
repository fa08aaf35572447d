"""Lists that a cloud returns page by page: one that leads in circles, or never ends, is a failed read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from hcloud.core.errors import ProviderUnavailable

PAGES_MAX: Final = 10_000
"""No list that HCloud reads has a tenth of it."""
Page = TypeVar("Page")


class EndlessList(ProviderUnavailable):
    """A list has no end, so that nothing of it is to be taken."""


def pages_of(read: Callable[[str], tuple[Page, str | None]], what: str) -> Iterator[Page]:
    """Yield the pages of a list.

    ``read`` gets the token of a page ("" for the first), and returns the page and the next one's token, if any.

    Raises:
        EndlessList: a token came again, or there are more than ``PAGES_MAX`` pages.
    """
    token, seen = "", {""}
    while True:
        page, following = read(token)
        yield page
        if not following:
            return
        token = following
        _note(token, seen, what)


def checked(pages: Iterable[Mapping[str, Any]], what: str) -> Iterator[Mapping[str, Any]]:
    """Yield what a paginator of boto3 yields. Raises EndlessList, as ``pages_of`` does."""
    seen = {""}
    for page in pages:
        yield page
        if token := page.get("NextToken") or page.get("nextToken"):
            _note(str(token), seen, what)


def _note(token: str, seen: set[str], what: str) -> None:
    if token in seen or len(seen) > PAGES_MAX:
        why = "a page came twice" if token in seen else f"it has more than {PAGES_MAX} pages"
        raise EndlessList(f"{what} does not end: {why}")
    seen.add(token)
