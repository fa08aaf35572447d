"""The process that makes sandboxes for a keeper without bubblewrap: it forks the first process of each.

That process takes on bounds, enters namespaces, lays out the file system, gives up all rights, starts the command and
collects what ends. This is what ``Cell.wrap`` has a shell, bubblewrap and setpriv do, at half their cost. A fork costs
by the memory that it copies, so this module imports next to nothing; ``sandbox_plan`` is the keeper's side of it.
The kernel must know ``mount_setattr`` (Linux 5.12).
"""

import ctypes
import errno
import fcntl
import gc
import os
import select
import signal
import socket
import struct
import sys

LENGTH = struct.Struct("<Q")
HANDLES = 3
"""Descriptors that come with a request: standard output and error of the command, and the pipe for reports."""
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
HOSTNAME = b"unit"
MISSING_EXIT, REFUSED_EXIT = 127, 126
OPEN_FILES = 4096
NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x2000_0000, 1 << 30
_CLONE_PARENT = 0x8000
RDONLY, NOSUID, NODEV, _NOEXEC, _BIND, _REC, _SLAVE, _DETACH = 1, 2, 4, 8, 0x1000, 0x4000, 0x8_0000, 2
"""``MS_*`` of mount(2); the first three are those of mount_setattr(2), too."""
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_PDEATHSIG, _DUMPABLE, _SECCOMP, _CAPBSET_DROP, _NO_NEW_PRIVS, _CAP_AMBIENT = 1, 4, 22, 24, 38, 47
_MODE_FILTER, _CLEAR_ALL, _CAPABILITIES = 2, 4, 64
_CAPABILITY_VERSION_3 = 0x2008_0522
_RLIMIT_FSIZE, _RLIMIT_CORE = 1, 4
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx", "fd": "/proc/self/fd", "core": "/proc/kcore", "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
}  # fmt: skip
_WRITABLE_IN_PROC = ("sys", "sysrq-trigger", "irq", "bus")
"""Some of these files can be written to by root: they are read-only inside, whatever should become that."""
_libc = ctypes.CDLL(None, use_errno=True)
_clone = ctypes.PyDLL(None, use_errno=True).syscall
"""Without giving the interpreter's lock away, which the child could not take back."""


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


class Request:
    """A sandbox and its command, as the keeper sends it: texts, and lists of them with their lengths."""

    def __init__(self, content: bytes) -> None:
        self._fields = iter(os.fsdecode(content).split("\0"))
        self.root, self.files = next(self._fields), next(self._fields)
        self.uid, self.file_bytes, self.has_own_network = (int(next(self._fields)) for _ in range(3))
        self.mounted, self.groups, self.command, pairs = (self._next_list() for _ in range(4))
        self.environment = dict(pair.split("=", 1) for pair in pairs)

    def _next_list(self) -> list[str]:
        return [next(self._fields) for _ in range(int(next(self._fields)))]


def main() -> None:
    """Make what the keeper asks for over the socket ``sys.argv[1]``, until that is closed.

    Each answer is the process id of a sandbox's first process, which is a child of the keeper, or 0 if there is none.
    ``sys.argv[2]``: the number of ``clone``. What the keeper sends first is the filter of system calls.
    """
    keeper, clone = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    program = (_received(keeper) or (b"", []))[0]
    gc.freeze()
    gc.disable()
    while (received := _received(keeper)) is not None:
        request, handles = Request(received[0]), received[1]
        pid = _clone(clone, _CLONE_PARENT | NEWPID | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            _be_first(request, program or None, handles)
        for handle in handles:
            os.close(handle)
        keeper.sendall(LENGTH.pack(max(0, pid)))


def _received(keeper: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return what the keeper sends next, and descriptors that come with it; None: it is gone."""
    head, handles, _, _ = socket.recv_fds(keeper, LENGTH.size, HANDLES)
    content = bytearray()
    while len(head) == LENGTH.size and len(content) < LENGTH.unpack(head)[0]:
        part = keeper.recv(LENGTH.unpack(head)[0] - len(content))
        if not part:
            return None
        content += part
    return (bytes(content), handles) if len(head) == LENGTH.size else None


def give_up_rights(uid: int, program: bytes | None) -> None:
    """Become an ordinary user, for good: without groups, capabilities, any way to more, or the calls that ``program``
    refuses. Raises OSError."""
    for capability in range(_CAPABILITIES):
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # fails for numbers that this kernel does not know
    _libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, none), "capset")
    _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if program is not None:
        filter_ = _Filter(len(program) // 8, program)
        _check(_libc.prctl(_SECCOMP, _MODE_FILTER, ctypes.byref(filter_), 0, 0), "seccomp")


def enter_namespaces(has_own_network: bool) -> None:
    """Enter new namespaces for all but processes; see changes of the mounts outside, but make none there. Raises
    OSError."""
    _check(_libc.unshare(NEWNS | NEWUTS | NEWIPC | NEWCGROUP | (NEWNET if has_own_network else 0)), "unshare")
    if has_own_network:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))
    _check(_libc.sethostname(HOSTNAME, len(HOSTNAME)), "sethostname")
    _mount("none", "/", _REC | _SLAVE)


def bind(source: str, target: str, attributes: int) -> None:
    """Show ``source`` at ``target`` with all that is mounted below it, and give all of that these attributes. Raises
    OSError."""
    _mount(source, target, _BIND | _REC)
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    done = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), _AT_RECURSIVE, wanted, ctypes.c_size_t(ctypes.sizeof(wanted))
    )
    _check(done, f"mount_setattr {target}")


def _be_first(request: Request, program: bytes | None, handles: list[int]) -> None:
    """Be the first process of a sandbox. Never returns."""
    code = REFUSED_EXIT
    try:
        _take_descriptors(handles)
        _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # which Python does not leave as they are
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.umask(0o022)
        _take_bounds(request)
        enter_namespaces(bool(request.has_own_network))
        _lay_out(request)
        give_up_rights(request.uid, program)
        # Another user takes back both: what the job, which is the same user, may not do to this process, and that it
        # ends with the keeper. If that has ended meanwhile, nothing reads what is reported.
        _check(_libc.prctl(_DUMPABLE, 0, 0, 0, 0), "prctl")
        _check(_libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        watch = select.poll()
        watch.register(HANDLES, 0)
        if not watch.poll(0):
            code = _run(request.command, request.environment)
    except OSError as error:
        os.write(2, f"hcloud: the unit could not be started: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def _take_descriptors(handles: list[int]) -> None:
    """Make /dev/null and ``handles`` the first descriptors, and close all above."""
    high = [os.open("/dev/null", os.O_RDONLY), *handles]
    while min(high) < len(high):
        high = [os.dup(each) for each in high]
    for number, handle in enumerate(high):
        os.dup2(handle, number, inheritable=number < HANDLES)
    os.closerange(len(high), OPEN_FILES)


def _take_bounds(request: Request) -> None:
    for limit, value in ((_RLIMIT_CORE, 0), (_RLIMIT_FSIZE, request.file_bytes)):
        both = (ctypes.c_uint64 * 2)(value, value)
        _check(_libc.prlimit(0, limit, both, None), "prlimit")
    for folder in request.groups:
        handle = os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        os.write(handle, b"0")
        os.close(handle)


def _lay_out(request: Request) -> None:
    """See only what the unit may."""
    top = request.root
    for path in ("", *request.mounted):
        bind(path or top, f"{top}{path}", RDONLY | NOSUID | NODEV)
    _mount("proc", f"{top}/proc", NOSUID | NODEV | _NOEXEC, kind="proc")
    for name in _WRITABLE_IN_PROC:
        if os.path.exists(path := f"{top}/proc/{name}"):
            bind(path, path, RDONLY | NOSUID | NODEV)
    _make_devices(f"{top}/dev")
    for name, place in (("job", "job"), ("home", "home/job"), ("tmp", "tmp")):
        bind(f"{request.files}/{name}", f"{top}/{place}", NOSUID | NODEV)
    os.chdir(top)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")  # the old root lies over the new one, until it is taken away
    _check(_libc.umount2(b".", _DETACH), "umount")
    os.chdir("/job")


def _make_devices(folder: str) -> None:
    _mount("tmpfs", folder, NOSUID | NODEV, kind="tmpfs", options="mode=0755")
    for name in _DEVICES:
        os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
        bind(f"/dev/{name}", f"{folder}/{name}", NOSUID)
    for name, mode in (("shm", 0o1777), ("pts", 0o755)):
        os.mkdir(f"{folder}/{name}")
        os.chmod(f"{folder}/{name}", mode)  # whatever the umask is
    _mount("devpts", f"{folder}/pts", NOSUID | _NOEXEC, kind="devpts", options="newinstance,ptmxmode=0666,mode=620")
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"{folder}/{name}")


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Start the command and collect what ends until it has; return its exit code as a shell would."""
    program = _found(command[0], environment)
    if program is None:
        os.write(2, f"hcloud: there is no command {command[0]}\n".encode(errors="replace"))
        os.write(HANDLES, b"missing")
        return MISSING_EXIT
    try:
        started = _spawn(program, command, environment)
    except OSError as error:
        os.write(2, f"hcloud: {command[0]} cannot be run: {error.strerror}\n".encode(errors="replace"))
        return REFUSED_EXIT
    os.closerange(0, HANDLES + 1)
    while True:
        pid, status = os.wait()
        if pid == started:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _found(name: str, environment: dict[str, str]) -> str | None:
    """Return where a command is, as a shell looks for it."""
    if "/" in name:
        return name if os.path.exists(name) else None
    for folder in environment.get("PATH", os.defpath).split(":"):
        path = f"{folder or '.'}/{name}"
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _spawn(program: str, command: list[str], environment: dict[str, str]) -> int:
    try:
        return os.posix_spawn(program, command, environment, setsigmask=[])
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        return os.posix_spawn("/bin/sh", ["/bin/sh", program, *command[1:]], environment, setsigmask=[])


def _mount(source: str, target: str, flags: int, *, kind: str | None = None, options: str | None = None) -> None:
    words = [word.encode() if word is not None else None for word in (kind, options)]
    done = _libc.mount(os.fsencode(source), os.fsencode(target), words[0], ctypes.c_ulong(flags), words[1])
    _check(done, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
