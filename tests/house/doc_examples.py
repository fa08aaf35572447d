"""Run what the documents show.

Conventions, for every fenced block of README.md and docs/*.md, in the order of the document:

* ``console``: lines that begin with ``$ `` are run by bash in a fresh directory that also is the home directory and
  holds a fresh HCloud home; only `hcloud` and a few harmless file commands may stand there. A plain `hcloud` command is
  a fork of a process that has imported it. Lines below a command are its output: ``...`` stands for any text, alone on
  a line for any lines; runs of blanks count as one blank; nothing below means any output. A command ends with
  ``# exit 4`` when it is meant to fail so, and with ``&`` when it goes on in the background until the document ends
  (after `hcloud daemon &` the next command waits for the daemon to answer).
* ``yaml job``, ``yaml policy``, ``yaml config``: checked by HCloud's own loaders. With ``file=NAME`` the block is also
  written to that file for the commands that follow. Other ``yaml`` and ``json`` blocks must parse.
* ``sh``: not run (make, systemctl, other machines); make targets and `hcloud` verbs in it must exist.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from hcloud.config import load_config
from hcloud.core.clock import SystemClock
from hcloud.provider import Provider
from hcloud.wiring import build_providers
from tests.engine.site import free_port
from tests.house import tree
from tests.waiting import wait_until
from tests.warm import WARM

MAY_RUN = {"hcloud", "cat", "ls", "mkdir", "echo", "printf", "cp"}
COMMAND_TIMEOUT_S = 180
DAEMON_UNREACHABLE = 3
SHELL_SIGNS = frozenset("|;&<>$*?[](){}#'\"`\\")
DEFAULT_LISTEN = "listen: 127.0.0.1:8786"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: where it begins, its language, its tags (``job``, ``file=NAME``) and its text."""

    where: str
    language: str
    tags: tuple[str, ...]
    text: str

    @property
    def file_name(self) -> str | None:
        """Name given by ``file=``, if any."""
        return next((tag.removeprefix("file=") for tag in self.tags if tag.startswith("file=")), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a console block with what the document says of its output and exit code."""

    where: str
    line: str
    expected_exit: int
    expected_output: tuple[str, ...]
    background: bool


def blocks(document: str, where: str) -> list[Block]:
    """All fenced blocks of a Markdown text."""
    found: list[Block] = []
    opening: re.Match[str] | None = None
    start, lines = 0, list[str]()
    for number, line in enumerate(document.splitlines(), 1):
        if opening is None:
            opening = re.match(r"^(\s*)(```+)(\S*)\s*(.*)$", line)
            start, lines = number, []
        elif line.strip() == opening[2]:
            tags = tuple(opening[4].split())
            found.append(Block(where=f"{where}:{start}", language=opening[3], tags=tags, text="\n".join(lines) + "\n"))
            opening = None
        else:
            lines.append(line.removeprefix(opening[1]))
    if opening is not None:
        raise ValueError(f"{where}:{start}: this block is never closed")
    return found


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block."""
    first_line = int(block.where.rpartition(":")[2]) + 1
    lines = block.text.splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        line = lines[start].removeprefix("$ ")
        body = start + 1
        while line.endswith("\\") and body < end:
            line, body = line[:-1] + lines[body].lstrip("> "), body + 1
        exit_note = re.search(r"\s+# exit (\d+)\s*$", line)
        line = line[: exit_note.start()] if exit_note else line
        yield Command(
            where=f"{block.where.rpartition(':')[0]}:{first_line + start}",
            line=line.removesuffix("&").rstrip(),
            expected_exit=int(exit_note[1]) if exit_note else 0,
            expected_output=tuple(lines[body:end]),
            background=line.endswith("&"),
        )


def output_matches(expected: tuple[str, ...], actual: str) -> bool:
    """Compare loosely; see the module's docstring."""
    wanted = [_one_blank(line) for line in expected if line.strip()]
    if not wanted:
        return True
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n" for line in wanted
    )
    got = "".join(_one_blank(line) + "\n" for line in actual.splitlines() if line.strip())
    return re.fullmatch(pattern, got) is not None


def _one_blank(line: str) -> str:
    return " ".join(line.split())


def unrunnable(command: Command) -> str | None:
    """Why the command may not stand in a console block, or None."""
    program = shlex.split(command.line, comments=True)[0]
    if program not in MAY_RUN:
        return f"{command.where}: {program!r} is not run by the tests; put it into a block marked sh"
    return None


def wrong_shell_line(line: str, where: str, make_targets: set[str], verb_exists: Callable[[str], bool]) -> str | None:
    """Why a line of an ``sh`` block cannot work here: no such make target or no such verb of `hcloud`."""
    words = line.split("#")[0].removeprefix("$ ").removeprefix("sudo ").split()
    if len(words) < 2:
        return None
    if words[0] == "make" and words[1] not in make_targets and "=" not in words[1]:
        return f"{where}: there is no `make {words[1]}`"
    if words[0] == "hcloud" and not words[1].startswith("-") and not verb_exists(words[1]):
        return f"{where}: there is no `hcloud {words[1]}`"
    return None


def check_data(block: Block) -> None:
    """Parse a JSON or YAML block that no loader of HCloud's claims."""
    if block.language == "json":
        json.loads(block.text)
    else:
        list(yaml.safe_load_all(block.text))


@dataclass(slots=True)
class Session:
    """A fresh directory in which one document's commands run; what it started ends with it."""

    directory: Path
    background: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """A small environment: this .venv first on PATH, home and HCloud home in the fresh directory."""
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "HOME": str(self.directory),
            "HCLOUD_HOME": str(self.directory / ".hcloud"),
            "LANG": "C.UTF-8",
            "COLUMNS": "160",
            "NO_COLOR": "1",
            **{name: value for name, value in os.environ.items() if name.startswith("HCLOUD_TEST_")},
        }

    def run(self, command: Command) -> None:
        """Run one command and compare; raise AssertionError with the whole output on any difference."""
        reason = unrunnable(command)
        assert reason is None, reason
        if command.background:
            self._start(command)
            return
        done = self._call(command.line)
        shown = f"{command.where}: $ {command.line}\n{done.stdout}"
        assert done.returncode == command.expected_exit, f"exit {done.returncode}, not {command.expected_exit}: {shown}"
        wanted = "\n".join(command.expected_output)
        assert output_matches(command.expected_output, done.stdout), f"the document says\n{wanted}\nbut {shown}"

    def _call(self, line: str) -> subprocess.CompletedProcess[str]:
        program, *arguments = line.split()
        if program == "hcloud" and not SHELL_SIGNS & set(line):  # bash would do no more than replace the ~
            home = f"{self.directory}/"
            return WARM.run(
                tuple(home + each[2:] if each.startswith("~/") else each for each in arguments),
                cwd=self.directory,
                environment=self.environment(),
                timeout_s=COMMAND_TIMEOUT_S,
                one_output=True,
            )
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.directory,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def _take_own_port(self) -> None:
        """Have the engine listen where no other one of this machine does; documents name the default port."""
        config_file = self.directory / ".hcloud" / "config.yaml"
        if not self.background and config_file.exists():
            text = config_file.read_text()
            assert DEFAULT_LISTEN in text
            config_file.write_text(text.replace(DEFAULT_LISTEN, f"listen: 127.0.0.1:{free_port()}"))

    def _start(self, command: Command) -> None:
        self._take_own_port()
        log = self.directory / f"background-{len(self.background)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command.line}"],
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.background.append(process)
        if command.line.split()[:2] == ["hcloud", "daemon"]:
            wait_until(lambda: self._answers_or_died(process, log, command), timeout_s=60, interval_s=0.2)

    def _answers_or_died(self, process: subprocess.Popen[bytes], log: Path, command: Command) -> bool:
        assert process.poll() is None, f"{command.where}: {command.line} ended:\n{log.read_text(errors='replace')}"
        return self._call("hcloud status").returncode != DAEMON_UNREACHABLE

    def close(self) -> None:
        """End what runs in the background, last started first, then the machines it left (they outlive a daemon)."""
        for process in reversed(self.background):
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        config_file = self.directory / ".hcloud" / "config.yaml"
        if self.background and config_file.exists():
            end_machines(config_file)
        wait_until(lambda: not self._end_children(), timeout_s=60)

    def _end_children(self) -> list[int]:
        """Kill what else runs with this HCloud home, such as a command that hung; return the process ids."""
        mark = f"HCLOUD_HOME={self.directory / '.hcloud'}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found.append(int(entry.name))
            except OSError:  # ended meanwhile, or of another user
                continue
        return found


def end_machines(config_file: Path) -> None:
    """Terminate all machines of a deployment through its providers, as its daemon would, and wait for that."""
    config = load_config(config_file)
    for provider in build_providers(config, SystemClock()).values():

        def live(provider: Provider = provider) -> list[str]:
            listed = provider.instances(config.owner).instances
            return [each.provider_id for each in listed if each.terminated_at is None]

        provider.terminate(live())
        wait_until(lambda live=live: not live(), timeout_s=60, interval_s=0.1)


def documents() -> list[Path]:
    """README and everything in docs/."""
    return [tree.ROOT / "README.md", *sorted((tree.ROOT / "docs").rglob("*.md"))]


def make_targets() -> set[str]:
    """Targets of the Makefile."""
    return set(re.findall(r"^([a-z][\w-]*):", (tree.ROOT / "Makefile").read_text(), flags=re.MULTILINE))
