"""Archives cut into chunks: ordinary gzip, and the same chunks where content is the same."""

import gzip
import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from hcloud.client.chunks import CHUNK_BYTES, Chunk
from hcloud.client.workdir import LocalInput, pack
from hcloud.core.errors import BadInput

LIMIT = 64 << 20


def _tree(top: Path) -> None:
    chance = random.Random(7)
    for number in range(60):
        path = top / f"part{number % 7}" / f"file{number}"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(chance.randbytes(30_000))
        os.utime(path, (1, 1))
    (top / "large").write_bytes(chance.randbytes(5 * CHUNK_BYTES // 2))
    os.utime(top / "large", (1, 1))


def _packed(top: Path, *inputs: LocalInput) -> tuple[bytes, list[Chunk]]:
    for folder, _, _ in os.walk(top):
        os.utime(folder, (1, 1))
    archive = io.BytesIO()
    _, chunks = pack(top, archive, LIMIT, inputs)
    content = archive.getvalue()
    assert b"".join(content[each.offset : each.offset + each.size_bytes] for each in chunks) == content
    return content, chunks


def _new_share(before: list[Chunk], after: list[Chunk]) -> float:
    known = {each.sha256 for each in before}
    return sum(each.size_bytes for each in after if each.sha256 not in known) / sum(each.size_bytes for each in after)


def test_chunks_make_an_ordinary_archive(tmp_path: Path) -> None:
    _tree(tmp_path)
    content, chunks = _packed(tmp_path)
    assert len(chunks) > 8 and len(gzip.decompress(content)) % 10240 == 0
    with tarfile.open(fileobj=io.BytesIO(content), mode="r|*") as tar:  # as machines read it
        names = {member.name: tar.extractfile(member).read() for member in tar if member.isreg()}  # type: ignore[union-attr]
    assert names["large"] == (tmp_path / "large").read_bytes() and len(names) == 61
    assert _packed(tmp_path) == (content, chunks)


@pytest.mark.parametrize("change", ["edit", "insert", "remove", "touch-large", "edit-end-of-large"])
def test_a_small_change_is_a_small_transfer(tmp_path: Path, change: str) -> None:
    _tree(tmp_path)
    _, before = _packed(tmp_path)
    if change == "edit":
        (tmp_path / "part3" / "file31").write_bytes(b"new")
    elif change == "insert":
        (tmp_path / "part3" / "a-new-one").write_bytes(b"new")
    elif change == "remove":
        (tmp_path / "part3" / "file31").unlink()
    elif change == "touch-large":
        os.utime(tmp_path / "large", (2, 2))
    else:
        with (tmp_path / "large").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        os.utime(tmp_path / "large", (1, 1))
    _, after = _packed(tmp_path)
    assert 0 < _new_share(before, after) < 0.3


def test_cuts_by_size_alone_would_move_with_an_inserted_file(tmp_path: Path) -> None:
    # The seeded fault: plain pieces of the archive, all of which differ behind the new file.
    _tree(tmp_path)
    content, _ = _packed(tmp_path)
    pieces = {content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)}
    (tmp_path / "part0" / "a-new-one").write_bytes(b"new")
    content, _ = _packed(tmp_path)
    new = [at for at in range(0, len(content), CHUNK_BYTES) if content[at : at + CHUNK_BYTES] not in pieces]
    assert len(new) * CHUNK_BYTES > 0.3 * len(content)


def test_inputs_of_this_machine_are_packed_at_their_places(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "run").write_text("run")
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "x").write_text("x")
    given = [LocalInput(tmp_path / "data", "in/d"), LocalInput(tmp_path / "data" / "deep" / "x", "in/")]
    content, _ = _packed(tmp_path / "work", *given)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert [each.name for each in tar if each.isreg()] == ["run", "in/d/deep/x", "in/x"]
    with pytest.raises(BadInput, match="would both be run in the work directory"):
        _packed(tmp_path / "work", LocalInput(tmp_path / "work" / "run", "run"))
    (tmp_path / "data" / "out").symlink_to("/etc")
    with pytest.raises(BadInput, match="outside of the work directory"):
        _packed(tmp_path / "work", LocalInput(tmp_path / "data", "d"))
    with pytest.raises(BadInput, match="neither a file nor a folder"):
        _packed(tmp_path / "work", LocalInput(tmp_path / "none", "d"))
