"""Whether an image is there is known before anything is rented."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hcloud.core.clock import ManualClock
from hcloud.core.errors import BadInput
from hcloud.core.image_names import image_place
from hcloud.image_registries import FOUND_FOR_S, ImageRegistries
from tests.registry import FakeRegistry


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[FakeRegistry]:
    (tmp_path / "manifest.json").write_text(json.dumps({"mediaType": "application/vnd.oci.image.manifest.v1+json"}))
    with FakeRegistry({"team/tool": tmp_path}).serve() as served:
        yield served


def asking(registry: FakeRegistry) -> ImageRegistries:
    return ImageRegistries(ManualClock(0.0), (f"http://{registry.address}",))


def test_an_image_that_is_there_is_asked_for_once_a_while(registry: FakeRegistry) -> None:
    found = asking(registry)
    for _ in range(2):
        found.check(f"{registry.address}/team/tool:1")
    assert registry.asked == ["HEAD /v2/team/tool/manifests/1"]
    found.clock.advance(FOUND_FOR_S)  # type: ignore[attr-defined]
    found.check(f"{registry.address}/team/tool:1")
    assert len(registry.asked) == 2


@pytest.mark.parametrize("image", ["team/tool:2", "team/toool"])
def test_an_image_that_is_not_there_is_one_sentence(registry: FakeRegistry, image: str) -> None:
    with pytest.raises(BadInput, match=r"^image 127\.0\.0\.1:\d+/team/tooo?l has no '(2|latest)', or does not exist$"):
        asking(registry).check(f"{registry.address}/{image}")


def test_a_private_image_needs_its_login(registry: FakeRegistry) -> None:
    registry.login = "ann:correct-horse"
    image = f"{registry.address}/team/tool:1"
    asking(registry).check(image, "ann:correct-horse")
    with pytest.raises(BadInput, match=r"cannot be read without a login \(secret HCLOUD_IMAGE_LOGIN: USER:PASSWORD"):
        asking(registry).check(image)
    with pytest.raises(BadInput, match="cannot be read with the login") as caught:
        asking(registry).check(image, "ann:guess-work")
    assert "guess-work" not in str(caught.value)


def test_no_address_of_a_private_network_is_asked_for_a_user(registry: FakeRegistry) -> None:
    ImageRegistries(ManualClock(0.0)).check(f"{registry.address}/team/none:1")
    ImageRegistries(ManualClock(0.0), (f"http://{registry.address}",), is_asked=False).check(f"{registry.address}/x")
    ImageRegistries(ManualClock(0.0)).check("localhost/only/here:1")
    assert registry.asked == []


def test_a_token_is_fetched_from_no_private_address_either(registry: FakeRegistry, tmp_path: Path) -> None:
    with FakeRegistry({}, login="a:b").serve() as inner:
        registry.login = "ann:x"
        address, registry.address = registry.address, inner.address  # where it says that tokens are
        ImageRegistries(ManualClock(0.0), (f"http://{address}",)).check(f"{address}/team/tool:1", "ann:x")
        assert inner.asked == []


@pytest.mark.parametrize(
    ("registry", "why"),
    [
        ("127.0.0.1:9", r"its registry 127\.0\.0\.1:9 gives no answer \(Connection refused\)"),
        ("registry.invalid", r"the name registry\.invalid of its registry is not known"),
        ("the fake one", "its registry answers with status 503"),
    ],
)
def test_an_image_whose_registry_gives_no_answer_is_refused_unless_that_is_accepted(
    tmp_path: Path, registry: str, why: str
) -> None:
    with FakeRegistry({}, is_down=True).serve() as down:
        name = down.address if " " in registry else registry
        asked = ImageRegistries(ManualClock(0.0), (f"http://{name}",))
        with pytest.raises(BadInput, match=f"^image {name}/team/tool cannot be looked for: {why}, so no machine"):
            asked.check(f"{name}/team/tool:1")
        asked.accepts_unanswered = True
        asked.check(f"{name}/team/tool:1")
        assert not asked.has_found(f"{name}/team/tool:1")


def test_a_registry_that_answers_byte_by_byte_is_not_waited_for() -> None:
    is_cut = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            connection.settimeout(0.01)  # the time between two bytes
            while True:
                with suppress(TimeoutError):
                    if not connection.recv(65_536):
                        break
                connection.sendall(b"a")
        is_cut.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        ImageRegistries(ManualClock(0.0), (f"http://{address}",), answer_within_s=0.2, accepts_unanswered=True).check(
            f"{address}/team/tool:1"
        )
        assert is_cut.wait(60)


def test_names_without_a_registry_are_those_of_docker() -> None:
    named = ("debian:12", "team/tool", "host.example/x@sha256:" + "0" * 64, "localhost/x", "localhost:5000/x:1")
    full = [place.full_name() if (place := image_place(each)) else None for each in named]
    assert full == [
        "docker.io/library/debian:12", "docker.io/team/tool:latest", named[2], None, "localhost:5000/x:1"
    ]  # fmt: skip
