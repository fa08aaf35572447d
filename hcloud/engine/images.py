"""Container images as a unit's root file system: podman fetches and mounts them, our own sandbox runs in them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hcloud.core.errors import UnitRefused
from hcloud.core.image_names import image_name, image_place
from hcloud.engine.sandbox import Isolation

PULL_TIMEOUT_S = 600.0


def mount_image(isolation: Isolation, image: str, unit_id: str, login: str = "") -> Path:
    """Return a directory with a private, writable copy (an overlay) of the image's files.

    ``login``: ``USER:PASSWORD`` for its registry; it is in no file and in no list of processes.

    Raises:
        UnitRefused: it is no image's name, or podman cannot get or mount it.
    """
    try:
        image_name(image)
    except ValueError as error:
        raise UnitRefused(f"image {error}") from error
    _podman(isolation, "rm", "--force", "--ignore", _container(unit_id), image=image)
    # Never started: it only gives the overlay a name. "none" keeps podman from preparing a network for it.
    create = ("create", "--network=none", f"--name={_container(unit_id)}")
    with _login_file(image, login) as (options, files):
        name = _name_here(isolation, image)
        _podman(isolation, *create, *options, "--", name, "none", image=image, files=files)
    return Path(_podman(isolation, "mount", _container(unit_id), image=image).strip())


def image_environment(isolation: Isolation, image: str) -> dict[str, str]:
    """Return the environment the image asks for. Its entry point is not used: the job's command is all."""
    name = _name_here(isolation, image)
    settings = json.loads(_podman(isolation, "image", "inspect", "--", name, image=image))[0].get("Config") or {}
    return dict(pair.split("=", 1) for pair in settings.get("Env") or [] if "=" in pair)


def unmount_image(isolation: Isolation, unit_id: str) -> None:
    """Let go of a unit's copy; none is no error."""
    if isolation.podman is not None:
        command = [isolation.podman, "rm", "--force", "--ignore", _container(unit_id)]
        subprocess.run(command, capture_output=True, check=False, timeout=60)


def _container(unit_id: str) -> str:
    return f"hcloud-{unit_id}"


def _name_here(isolation: Isolation, image: str) -> str:
    """Return an image's name for podman. Without a registry in it, each machine's settings would say where it is."""
    place = image_place(image)
    command = [isolation.podman or "podman", "image", "exists", "--", image]
    if place is None or subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0:
        return image
    return place.full_name()


@contextmanager
def _login_file(image: str, login: str) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Provide podman's options for a login, and the files they name, which are in memory only."""
    place = image_place(image)
    if not login or place is None:
        yield (), ()
        return
    known = {place.registry: {"auth": base64.b64encode(login.encode()).decode()}}
    descriptor = os.memfd_create("login")
    try:
        os.write(descriptor, json.dumps({"auths": known}).encode())
        yield (f"--authfile=/proc/self/fd/{descriptor}",), (descriptor,)
    finally:
        os.close(descriptor)


def _podman(isolation: Isolation, *arguments: str, image: str, files: tuple[int, ...] = ()) -> str:
    command = [isolation.podman or "podman", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PULL_TIMEOUT_S, pass_fds=files
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnitRefused(f"image {image!r} cannot be had: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["podman said nothing"])[-1]
        raise UnitRefused(f"image {image!r} cannot be had: {last}")
    return done.stdout
