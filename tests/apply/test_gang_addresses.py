"""Where the nodes of a gang reach each other."""

import pytest

from hcloud.apply.units import gang_address


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        ((), "127.0.0.1"),  # slices of this host
        (("10.0.0.7", "54.72.0.1"), "10.0.0.7"),
        (("54.72.0.1", "10.0.0.7"), "10.0.0.7"),
        (("54.72.0.1",), "54.72.0.1"),
        (("54.72.0.1", "fd00::7"), "fd00::7"),
    ],
)
def test_a_private_address_comes_first(addresses: tuple[str, ...], found: str) -> None:
    assert gang_address(addresses) == found
