"""LayeredRows: immutable rows by name with incremental changes."""

from __future__ import annotations

import random

import pytest

from hcloud.core.estimates import ON_TOP, LayeredRows


def check_like_a_dictionary(seed: int) -> None:
    chances, layers, plain = random.Random(seed), LayeredRows[object](), dict[str, object]()
    earlier, then = layers, dict(plain)
    for step in range(2 * ON_TOP):
        changed: dict[str, object] = {str(chances.randrange(100)): object() for _ in range(chances.randrange(1, 4))}
        before, layers, plain = layers, layers.over(changed), {**plain, **changed}
        assert dict(layers.since(before)) == changed
        if step % 20 == 0:
            assert dict(layers.since(earlier)) == {
                name: row for name, row in plain.items() if then.get(name) is not row
            }
            assert (layers, len(layers), set(layers)) == (plain, len(plain), set(plain))
            assert earlier == then and "no such" not in layers
            earlier, then = layers, dict(plain)


@pytest.mark.parametrize("seed", range(3))
def test_layers_are_a_dictionary_of_each_moment(seed: int) -> None:
    check_like_a_dictionary(seed)


def test_it_is_noticed_where_an_earlier_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        LayeredRows, "__getitem__", lambda self, name: (self._base if name in self._base else self._top)[name]
    )
    with pytest.raises(AssertionError):
        check_like_a_dictionary(0)
