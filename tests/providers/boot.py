"""Boot a machine from its user data, in namespaces of its own: ``python boot.py USER_DATA NOTES PYTHON``.

Runs as the first process of its own mount and process namespaces, so that everything ends with it. The paths are the
real ones: what is written below /etc, /usr/local, /opt, /var/lib and /run lies in memory and nobody else sees it.
cloud-init and systemd are played by this file: orders in the order of the document, services as plain processes.
"""

from __future__ import annotations

import gzip
import os
import shlex
import signal
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import yaml

OVERLAID = ("/etc", "/usr/local", "/opt", "/var/lib")
SYSTEMCTL = """#!/bin/bash
echo "systemctl $*" >>NOTES/calls
[ "$1" = poweroff ] && kill -TERM 1
[ "$1 $2" = "enable --now" ] || exit 0
command=$(sed -n 's/^ExecStart=//p' "/etc/systemd/system/$3")
setsid $command >>"NOTES/$3.log" 2>&1 </dev/null &
"""


def main(user_data: Path, notes: Path, python: str) -> None:
    """Be the machine until it is switched off."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # switched off
    _own_file_system()
    _programs(notes, python)
    with open("/etc/hosts", "a", encoding="utf-8") as hosts:
        hosts.write("127.0.0.1 engine.of-the-test\n")
    document = yaml.safe_load(user_data.read_text())
    for order in document["bootcmd"]:
        subprocess.run(order, check=True)
    for each in document["write_files"]:
        _write(each)
    with (notes / "setup.log").open("w") as log:
        for order in document["runcmd"]:
            subprocess.run(order, check=False, stdout=log, stderr=log)
    while True:  # the first process buries the dead
        os.wait()


def _own_file_system() -> None:
    memory = "/run"
    _mount("-t", "tmpfs", "tmpfs", memory)
    for number, path in enumerate(OVERLAID):
        upper, work = f"{memory}/layers/{number}/upper", f"{memory}/layers/{number}/work"
        os.makedirs(upper)
        os.makedirs(work)
        _mount("-t", "overlay", "overlay", "-o", f"lowerdir={path},upperdir={upper},workdir={work}", path)


def _programs(notes: Path, python: str) -> None:
    """The image: it has Python without any package, and systemd is played."""
    for path, body in (
        ("/usr/local/sbin/systemctl", SYSTEMCTL.replace("NOTES", shlex.quote(str(notes)))),
        ("/usr/local/sbin/systemd-run", f'#!/bin/sh\necho "systemd-run $*" >>{shlex.quote(str(notes))}/calls\n'),
        ("/usr/local/sbin/python{}.{}".format(*sys.version_info), f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n'),
    ):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(body)
        Path(path).chmod(0o755)
    booted = notes / "uptime"  # the host's own is another's
    booted.write_text("1.0 1.0\n")
    os.environ["UPTIME_FILE"] = str(booted)
    os.environ["PATH"] = "/usr/local/sbin:" + os.environ["PATH"]


def _write(each: dict[str, str]) -> None:
    packed = each.get("encoding") == "gz+b64"
    content = gzip.decompress(b64decode(each["content"])).decode() if packed else each["content"]
    path = Path(each["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(int(each["permissions"], 8))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
