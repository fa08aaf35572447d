"""What a unit can see and reach: bubblewrap namespaces, another user id, no way to keys, metadata or the gateway."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hcloud.core.errors import UnitRefused
from hcloud.core.processes import reap
from hcloud.core.resources import GpuDevice
from hcloud.engine import leftovers
from hcloud.engine.bootstrap import Bootstrap
from hcloud.engine.gang_network import is_one_host, why_not_reachable
from hcloud.engine.gang_tunnel import TunnelKind, find_tunnel_kind
from hcloud.engine.gpus import DRIVER_PLACE, find_gpus
from hcloud.engine.limits import find_instance_cgroup, remove_found_cgroup
from hcloud.engine.prepared_roots import READONLY_FILES, READONLY_TREES, PreparedRoot, account_files
from hcloud.engine.syscall_filter import syscall_filter
from hcloud.provider import WIREGUARD, UnitSpec

UID_RANGE = 64
_PROBE_LIMIT_S = 60
"""Who starts slowly must not be taken for a machine without sandboxes as long as it runs."""
METADATA_ADDRESSES = ("169.254.169.254", "fd00:ec2::254")
LAUNCH_FD, ENVIRONMENT_FD, FILTER_FD = 3, 4, 5
DIRECT_FILTER_FD = 3
"""The filter of system calls where no shell is between."""
PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IMAGE_TOOL = ("/.hcloud/ld.so", "--library-path", "/.hcloud")
IMAGE_SWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n"
# Takes the job's environment from descriptor 4. Says on descriptor 3 why the command cannot be started; its closing
# without a word means that the command runs.
LAUNCHER = (
    ". /dev/fd/4; exec 4<&-; "
    'command -v -- "$1" >/dev/null 2>&1 || { echo "hcloud: there is no command $1" >&2; echo missing >&3; exit 127; }; '
    'exec 3>&-; exec "$@"'
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL_IN_SHELLS = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "OPTIND", "PPID", "SHELLOPTS", "UID"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What this machine offers to keep units in, found out by trying. ``lacks`` says in words what it does not."""

    root: bool
    bwrap: str | None
    firewall: bool
    cgroup: Mapping[str, Any] | None
    podman: str | None
    pinned: bool
    stress_ng: bool = False
    """Whether sources of interference can be generated for profiling runs."""
    filters_calls: bool = False
    """Whether the sandbox refuses system calls (``syscall_filter``)."""
    gpus: tuple[GpuDevice, ...] = ()
    """The machine's GPUs; a unit's are among them, by position."""
    tunnel: TunnelKind = ""
    """By what ranks of a gang get a network of their own across hosts; empty: by nothing."""
    lacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Name what is in force for every unit; ``stress-ng``: profiling runs can generate interference."""
        present = {
            "bwrap": self.bwrap is not None,
            "seccomp": self.filters_calls,
            "uid": self.root,
            f"cgroup{(self.cgroup or {}).get('version')}": self.cgroup is not None,
            "rlimits": True,
            "pinning": self.pinned,
            "firewall": self.firewall,
            "stress-ng": self.stress_ng,
            WIREGUARD: bool(self.tunnel),
        }
        return tuple(name for name, there in present.items() if there)


def detect(bootstrap: Bootstrap) -> Isolation:
    """Try what there is; nothing is assumed from version numbers."""
    root, lacks = os.geteuid() == 0, {}
    bwrap = working_bwrap(root)
    if bwrap is None:
        lacks["sandbox"] = "bubblewrap (bwrap) is not installed or may not make namespaces here"
    filters_calls = bwrap is not None and filter_works(bwrap, root)
    if not filters_calls:
        lacks["seccomp"] = "jobs may make any system call: there is no sandbox, or the kernel takes no filter (seccomp)"
    if root:
        leftovers.note(group_name(bootstrap), bootstrap.state_dir)
        leftovers.take_back(_remove_traces)
    cgroup = bootstrap.cgroup or find_instance_cgroup(group_name(bootstrap), bootstrap.cpus)
    if cgroup is None:
        lacks["cgroup"] = "no writable control groups: memory and processes are bounded by plain limits and by watching"
    firewall = root and _set_firewall(bootstrap)
    if not firewall:
        why = "nft is missing or the kernel refuses it" if root else "only root can set firewall rules"
        lacks["firewall"] = f"{why}: jobs with network 'host' could reach the metadata address and the engine"
    if not root:
        lacks["uid"] = "not root: jobs run under the worker's own user id, inside a user namespace"
    podman = shutil.which("podman") if root else None
    if podman is None:
        lacks["images"] = "container images need podman and a worker that runs as root"
    stress_ng = shutil.which("stress-ng") is not None
    if not stress_ng:
        lacks["sources"] = "stress-ng is not installed: what jobs tolerate and cause cannot be profiled here"
    tunnel, why_no_tunnel = find_tunnel_kind()
    if not tunnel:
        lacks["tunnel"] = f"{why_no_tunnel}: gangs across hosts get no network of their own"
    return Isolation(
        root=root,
        bwrap=bwrap,
        firewall=firewall,
        cgroup=cgroup,
        podman=podman,
        pinned=bool(bootstrap.cpus),
        stress_ng=stress_ng,
        filters_calls=filters_calls,
        gpus=find_gpus(bootstrap.gpu_root),
        tunnel=tunnel,
        lacks=lacks,
    )


def refuse_unsafe(spec: UnitSpec, isolation: Isolation, mode: str) -> None:
    """Check that the unit can be kept as it must.

    Raises:
        UnitRefused: an image without podman; under isolation "require", no sandbox or an unguarded host network.
    """
    if spec.image is not None and (isolation.podman is None or isolation.bwrap is None):
        raise UnitRefused(
            f"image {spec.image!r} cannot be run here: container images need podman, bwrap and a root worker"
        )
    if spec.framework is not None and spec.network == "none":
        if why := why_not_reachable(spec.addresses):
            raise UnitRefused(f"a gang with network 'none' is refused: {why}")
        if not is_one_host(spec.addresses) and not isolation.tunnel:
            raise UnitRefused(f"a gang with network 'none' is refused here: {isolation.lacks['tunnel']}")
        if not isolation.root or shutil.which("nsenter") is None:
            raise UnitRefused("a gang with network 'none' needs a worker that runs as root, and nsenter")
    if mode != "require":
        return
    if isolation.bwrap is None:
        raise UnitRefused(f"isolation is required, but {isolation.lacks.get('sandbox', 'there is no sandbox')}")
    if spec.network == "host" and not isolation.firewall:
        raise UnitRefused(f"network 'host' is refused while isolation is required: {isolation.lacks['firewall']}")


def group_name(bootstrap: Bootstrap) -> str:
    """Return a name for groups and tables of this instance that no other deployment on the host uses."""
    place = os.stat(bootstrap.state_dir)
    return f"{bootstrap.instance_id}.{place.st_dev:x}.{place.st_ino:x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Where one unit runs: its own files at ``root``, its user id, and what is laid over it."""

    root: Path
    uid: int
    network: str
    isolation: Isolation
    readonly: tuple[str, ...] = ()
    prepared: PreparedRoot | None = None
    """What it sees of this machine; None: that is put together for this cell alone."""
    network_path: str = ""
    """Of the network namespace that it enters; empty: ``network`` says which."""
    image_root: Path | None = None
    image_is_shared: bool = False
    """Whether several commands run on the same ``image_root``, one after the other: none may change it."""
    driver: tuple[tuple[str, str], ...] = ()
    """Files of this machine's GPU driver that it gets in an image, each with where it finds them."""
    devices: tuple[tuple[str, str], ...] = ()
    """Device nodes of this machine that it gets beside the usual ones, each with where it finds them."""

    @property
    def workdir(self) -> str:
        """The work directory as the command sees it."""
        return "/job" if self.isolation.bwrap else str(self.root / "job")

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the command's environment: a plain base, then what the job asks for."""
        return self._base_environment | dict(extra)

    @property
    def _base_environment(self) -> dict[str, str]:
        inside = self.isolation.bwrap is not None
        return {
            "PATH": PLAIN_PATH,
            "HOME": "/home/job" if inside else str(self.root / "home"),
            "TMPDIR": "/tmp" if inside else str(self.root / "tmp"),
            "USER": "job",
            "LOGNAME": "job",
            "LANG": "C.UTF-8",
            "HCLOUD_WORKDIR": self.workdir,
        }

    def needs_no_shell(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return whether programs with the worker's rights may see this environment, as the job adds nothing to it, and
        the command is a program of this machine that everybody may run."""
        added = environment.items() - self._base_environment.items()
        if self.prepared is None or any(not name.startswith("HCLOUD_") for name, _ in added):
            return False
        found = shutil.which(command[0], path=PLAIN_PATH) if "/" not in command[0] else None
        return found is not None and bool(os.stat(found).st_mode & stat.S_IXOTH)

    @property
    def shell(self) -> tuple[str, ...]:
        """The command of a shell inside: an image need not have one, so ours comes along."""
        return (*IMAGE_TOOL, "/.hcloud/sh") if self.image_root else ("/bin/sh",)

    def wrap(self, command: Sequence[str], *, is_direct: bool = False) -> list[str]:
        """Return the argument list that runs ``command`` in here.

        Descriptor ``LAUNCH_FD`` must be a pipe, ``ENVIRONMENT_FD`` a file with the script of ``split_environment``,
        ``FILTER_FD`` one with the filter of system calls. ``is_direct``: the command ``needs_no_shell``, and the
        filter, as ``DIRECT_FILTER_FD``, is all it is given.
        Raises OSError: the image's own links would lead what is laid over its files elsewhere.
        """
        started = [*command] if is_direct else [*self.shell, "-c", LAUNCHER, "hcloud", *command]
        inner = [*self._drop_root(), *started] if self.isolation.root else started
        # Entered before the sandbox, in which nothing may enter a namespace.
        entered = ["nsenter", f"--net={self.network_path}", "--"] if self.network_path else []
        filter_fd = DIRECT_FILTER_FD if is_direct else FILTER_FD
        return [*entered, *self._bwrap(filter_fd), "--", *inner] if self.isolation.bwrap else [*entered, *inner]

    def _drop_root(self) -> list[str]:
        tool = [*IMAGE_TOOL, "/.hcloud/setpriv"] if self.image_root else ["setpriv"]
        caps = ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs"]
        return [*tool, f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", *caps, "--"]

    def _bwrap(self, filter_fd: int) -> list[str]:
        user = [] if self.isolation.root else ["--unshare-user", "--uid", str(self.uid), "--gid", str(self.uid)]
        network = ["--unshare-net"] if self.network == "none" and not self.network_path else []
        calls = ["--seccomp", str(filter_fd)] if self.isolation.filters_calls else []
        # bwrap makes it for root only. Where there are no groups, nothing would bound the memory that its files take.
        is_shared = self.isolation.root and self.isolation.cgroup is not None
        shared_memory = ["--perms", "1777", "--tmpfs", "/dev/shm"] if is_shared else []
        devices = [word for source, place in self.devices for word in ("--dev-bind", source, place)]
        return [
            str(self.isolation.bwrap), *user, *calls, "--unshare-pid", "--unshare-ipc", "--unshare-uts",
            "--unshare-cgroup-try", *network,
            "--die-with-parent", "--hostname", "unit", *self._file_system(), "--proc", "/proc", "--dev", "/dev",
            *shared_memory, *devices,
            "--bind", str(self.root / "job"), "/job", "--bind", str(self.root / "home"), "/home/job",
            "--bind", str(self.root / "tmp"), "/tmp", *self._shared_image(), "--chdir", "/job",
        ]  # fmt: skip

    def _shared_image(self) -> list[str]:
        # Only at the end: until then the places of the other mounts are made in it.
        return ["--remount-ro", "/"] if self.image_root is not None and self.image_is_shared else []

    def _file_system(self) -> list[str]:
        if self.image_root is not None:
            tools = [word for source, name in image_tools() for word in ("--ro-bind", source, f"/.hcloud/{name}")]
            for name in ("etc", ".hcloud"):
                if (self.image_root / name).is_symlink():
                    raise OSError(f"the image's /{name} is a symbolic link, which is not supported")
            whole = ["--bind", str(self.image_root), "/", "--perms", "0755", "--dir", "/.hcloud"]
            # setpriv runs as root among the image's files: none of them may choose libraries for it.
            ours = [("preload", "/etc/ld.so.preload"), ("nsswitch.conf", "/etc/nsswitch.conf")]
            laid = [word for name, path in ours for word in ("--ro-bind", str(self.root / name), path)]
            if self.driver:
                whole += ["--perms", "0755", "--dir", DRIVER_PLACE]
            laid += [word for source, place in self.driver for word in ("--ro-bind", source, place)]
            return [*whole, *tools, *laid, "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
        arguments: list[str] = []
        if self.prepared is not None:
            arguments += ["--ro-bind", str(self.prepared.path), "/"]
            for path in self.prepared.mounted:
                arguments += ["--ro-bind", path, path]
            return arguments
        for tree in READONLY_TREES:
            if os.path.islink(tree):
                arguments += ["--symlink", os.readlink(tree), tree]
            else:
                arguments += ["--ro-bind-try", tree, tree]
        shown = [path for path in (*READONLY_FILES, *self.readonly) if os.path.exists(path)]
        for folder in _folders_above(shown):
            arguments += ["--perms", "0755", "--dir", folder]
        for path in shown:
            arguments += ["--ro-bind", path, path]
        for name in ("passwd", "group"):
            arguments += ["--ro-bind", str(self.root / name), f"/etc/{name}"]
        return arguments


def split_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], bytes]:
    """Return what programs that still have the worker's rights may see, and a shell script that sets the rest.

    A job's variables (PATH, LD_PRELOAD) would otherwise choose the code that runs with these rights.
    """
    plain = {name: value for name, value in environment.items() if name.startswith("HCLOUD_")}
    # A shell could not set these; no loader or C library reads them.
    plain |= {
        name: value
        for name, value in environment.items()
        if name in _SPECIAL_IN_SHELLS or not _VARIABLE.fullmatch(name)
    }
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in environment.items() if name not in plain)
    return {**plain, "PATH": PLAIN_PATH}, os.fsencode("".join(lines))


def _folders_above(paths: Sequence[str]) -> list[str]:
    """Return all directories above the paths, outermost first: left to itself, bwrap makes them for root only."""
    above = {str(parent) for path in paths for parent in Path(path).parents}
    own_mounts = {"/", *READONLY_TREES}
    return sorted(folder for folder in above | {"/home"} if folder not in own_mounts and not _within_trees(folder))


def _within_trees(folder: str) -> bool:
    return any(folder.startswith(f"{tree}/") for tree in READONLY_TREES)


def prepare_cell(root: Path, uid: int, *, root_user: bool, is_prepared: bool = False) -> None:
    """Make the unit's own directories, owned by its user; unless it gets a prepared root, also files laid over /etc."""
    os.makedirs(root, mode=0o711, exist_ok=True)
    for name in ("job", "home", "tmp"):
        path = f"{root}/{name}"
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        if root_user:
            os.chown(path, uid, uid)
    if is_prepared:
        return
    for name, text in account_files(uid).items():
        (root / name).write_text(text)
    (root / "nsswitch.conf").write_text(IMAGE_SWITCH)
    (root / "preload").touch()


def image_tools() -> list[tuple[str, str]]:
    """Return what an image need not have: the host's setpriv and shell, with their own loader and libraries."""
    found = {}
    for name, program in (("setpriv", shutil.which("setpriv")), ("sh", "/bin/sh")):
        found[name] = str(program)
        listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            path = next((word for word in line.split() if word.startswith("/")), None)
            if path is not None:
                found["ld.so" if "/ld-" in path else os.path.basename(path)] = path
    libc = next((path for path in found.values() if os.path.basename(path).startswith("libc.so")), "")
    switch = os.path.join(os.path.dirname(libc), "libnss_files.so.2")  # a file of its own in older C libraries
    if os.path.exists(switch):
        found["libnss_files.so.2"] = switch
    return [(path, name) for name, path in found.items()]


def clear_firewall(bootstrap: Bootstrap) -> None:
    """Remove this instance's firewall table, if any."""
    if os.geteuid() == 0:
        _delete_table(group_name(bootstrap))
        leftovers.drop(group_name(bootstrap))


def _remove_traces(name: str) -> None:
    _delete_table(name)
    remove_found_cgroup(name)


def _delete_table(name: str) -> None:
    if nft := shutil.which("nft", path=_ADMIN_PATH):
        subprocess.run([nft, "delete", "table", "inet", _table(name)], capture_output=True, check=False)


_ADMIN_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


def _table(name: str) -> str:
    return "hcloud_" + "".join(letter if letter.isalnum() else "_" for letter in name)


def firewall_rules(bootstrap: Bootstrap) -> str:
    """Return nftables rules that keep this instance's unit users from the metadata service and the gateway."""
    users = f"meta skuid {bootstrap.unit_uid_base}-{bootstrap.unit_uid_base + UID_RANGE - 1}"
    table = _table(group_name(bootstrap))
    addresses = (*bootstrap.gateway_addresses, *bootstrap.enrolment_addresses)
    ports = ", ".join(sorted({each.rpartition(":")[2] for each in addresses}))
    return f"""
table inet {table}
delete table inet {table}
table inet {table} {{
  chain output {{
    type filter hook output priority 0; policy accept;
    {users} ip daddr {METADATA_ADDRESSES[0]} reject
    {users} ip6 daddr {METADATA_ADDRESSES[1]} reject
    {users} tcp dport {{ {ports} }} reject with tcp reset
  }}
}}
"""


def _set_firewall(bootstrap: Bootstrap) -> bool:
    nft = shutil.which("nft", path=_ADMIN_PATH)
    if nft is None:
        return False
    done = subprocess.run(
        [nft, "-f", "-"], input=firewall_rules(bootstrap), text=True, capture_output=True, check=False
    )
    return done.returncode == 0


def working_bwrap(root: bool) -> str | None:
    """Return the path of a bubblewrap that can make namespaces here (found out by trying), or None."""
    path = shutil.which("bwrap")
    if path is None or (root and shutil.which("setpriv") is None):
        return None
    return path if _bwrap_runs(path, root) else None


def filter_works(bwrap: str, root: bool) -> bool:
    """Return whether the kernel takes the filter of system calls (found out by trying)."""
    program = syscall_filter()
    if program is None:
        return False
    handle = held_in_memory(program)
    try:
        return _bwrap_runs(bwrap, root, "--seccomp", str(handle), pass_fds=(handle,))
    finally:
        os.close(handle)


def _bwrap_runs(bwrap: str, root: bool, *options: str, pass_fds: Sequence[int] = ()) -> bool:
    user = [] if root else ["--unshare-user"]
    trees = [word for tree in ("/usr", "/bin", "/lib", "/lib64") for word in ("--ro-bind-try", tree, tree)]
    command = [bwrap, *user, *options, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", *trees,
               "--proc", "/proc",
               "--dev", "/dev", "/bin/sh", "-c", "exit 0"]  # fmt: skip
    try:
        return _run_as_group(command, pass_fds) == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def held_in_memory(content: bytes) -> int:
    """Return the descriptor of a file of no directory with this content, to be read from its beginning."""
    handle = os.memfd_create("hcloud")
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _run_as_group(command: Sequence[str], pass_fds: Sequence[int]) -> int:
    """Run in a process group of its own and kill what of it is left at the end; return the exit code.

    Ctrl-C ends only bwrap's outer half: the inner one, first process of its namespace, is immune, and waits for ever
    for the word of the other by which it may begin.
    """
    nothing = subprocess.DEVNULL
    probe = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, process_group=0, pass_fds=pass_fds)
    try:
        return probe.wait(_PROBE_LIMIT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(probe.pid, signal.SIGKILL)
        reap(probe)
