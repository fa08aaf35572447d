"""Tiny container images for tests, made from files of this host."""

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def podman(*words: str) -> str:
    """Run podman and return its output."""
    done = subprocess.run(["podman", *words], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def containers_of(image: str) -> str:
    """Return the ids of the containers made of an image; others are other tests'."""
    return podman("ps", "--all", "--quiet", "--filter", f"ancestor={image}")


@contextmanager
def tiny_image(
    folder: Path, name: str, programs: Sequence[str], files: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Make an image that holds these programs with their libraries, a file that anybody may write, and ``files``.

    It is removed after the block.
    """
    paths = {str(Path("/bin") / program): str(shutil.which(program)) for program in programs}
    for program in list(paths.values()):
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        paths |= {word: word for word in listed.split() if word.startswith("/")}
    (folder / "note").write_text("inside the image\n")
    (folder / "note").chmod(0o666)
    with tarfile.open(folder / "root.tar", "w") as target:
        for inside, path in paths.items():
            target.add(os.path.realpath(path), arcname=inside)
        target.add(folder / "note", arcname="/note")
        for inside, text in (files or {}).items():
            member = tarfile.TarInfo(inside)
            member.size = len(text)
            target.addfile(member, io.BytesIO(text.encode()))
    podman("import", "--change", "ENV NOTE=/note", str(folder / "root.tar"), name)
    try:
        yield name
    finally:
        podman("rmi", "--force", name)
