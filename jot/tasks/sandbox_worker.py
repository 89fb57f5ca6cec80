"""The other side of `sandbox.py`: a script that runs one program per line of its input, each in a forked
child.

It imports nothing of the package and keeps its own imports few, since children inherit them.
"""

import errno
import json
import os
import platform
import secrets
import select
import shutil
import signal
import sys
import tempfile
import time

FILE_SIZE = 1 << 20  # bytes of any written file
FOLDER_SIZE, FOLDER_ENTRIES = 16 << 20, 256  # of all that a program leaves lying in its folder
LOOK = 0.02  # seconds between two looks into that folder

_NETWORK, _USER = 0x40000000, 0x10000000  # CLONE_NEWNET, CLONE_NEWUSER
_REFUSED = (
    "socket.", "subprocess.", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.spawn",
    "os.kill",
    "signal.pthread_kill", "ctypes.", "pty.", "ftplib.", "smtplib.", "urllib.", "http.", "mmap.",
    "shutil.chown",
    "os.chown", "os.setxattr", "webbrowser.", "gc.", "sys.remote_exec", "resource.setrlimit", "resource.prlimit",
)  # fmt: skip
_BARRED = frozenset((
    "ctypes", "_ctypes", "socket", "_socket", "subprocess", "_posixsubprocess", "multiprocessing",
    "_multiprocessing",
))  # fmt: skip
_CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.utime",
    "os.mkfifo", "os.mknod", "shutil.", "tempfile.", "sqlite3.", "os.chdir",
)  # fmt: skip


# System calls that no program needs and that reach beyond it: sockets, new processes and programs, signals, other
# processes' memory and limits, shared memory, kernel interfaces; by machine, with the audit number of its call table.
_CALLS = {
    "x86_64": (0xC000003E, (
        29, 41, 42, 43, 44, 46, 49, 50, 53, 56, 57, 58, 59, 62, 64, 68, 101, 129, 141, 144, 155, 160, 161, 165, 166,
        200, 203, 234, 240, 272, 297, 298, 302, 308, 310, 311, 321, 322, 323, 424, 425, 434, 435,
    )),
    "aarch64": (0xC00000B7, (
        39, 40, 41, 51, 97, 117, 119, 122, 129, 130, 131, 138, 140, 164, 180, 186, 190, 194, 198, 199, 200, 201, 202,
        203, 206, 211, 220, 221, 240, 241, 261, 268, 270, 271, 280, 281, 282, 424, 425, 434, 435,
    )),
}  # fmt: skip
# What a program may read apart from its folder: the interpreter, its libraries, time zones and harmless devices.
_READABLE = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom")
_READ, _CHANGE = 0xC, 0x1FF2  # Landlock rights of ABI 1: read file and directory; all that change files


def _libc():
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def isolate(folder: str) -> set[str]:
    """Leaves the network and gives up writing outside `folder`, as far as the kernel lets this user.

    Returns what is in force: any of "network" and "files".
    """
    if not sys.platform.startswith("linux"):
        return set()
    libc = _libc()
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: no worker survives its caller
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans of a program come back here to be killed
    left = libc.unshare(_NETWORK) == 0 or libc.unshare(_NETWORK | _USER) == 0
    in_force = {"network"} if left else set()
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if _landlock(libc, _CHANGE, {folder: _CHANGE, "/dev/null": 0x2}):
        in_force.add("files")
    return in_force


def confine(folder: str, readable: tuple[str, ...]) -> set[str]:
    """For the process of one program: reads `readable` alone, changes `folder` alone, none of `_CALLS`.

    The kernel holds this even where a program has found its way around the audit hook. Returns what is in force: any
    of "reads" and "calls".
    """
    if not sys.platform.startswith("linux"):
        return set()
    libc = _libc()
    libc.prctl(38, 1, 0, 0, 0)
    allowed = {path: _READ for path in (*readable, *_READABLE)} | {folder: _READ | _CHANGE, "/dev/null": _READ | 0x2}
    in_force = {"reads"} if _landlock(libc, _READ | _CHANGE, allowed) else set()
    return in_force | ({"calls"} if _refuse_calls(libc) else set())


def _landlock(libc, handled: int, allowed: dict[str, int]) -> bool:
    """Restricts this process to the rights `allowed` below each path, of those in `handled`; False without Landlock."""
    import ctypes

    version = libc.syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    newer = (0x2000 if version >= 2 else 0) | (0x4000 if version >= 3 else 0)  # refer, truncate
    ruleset = libc.syscall(444, ctypes.byref(ctypes.c_uint64(handled | newer)), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return False
    for path, rights in allowed.items():
        try:
            target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this system
        if rights & 0x2:
            rights |= newer
        if not os.path.isdir(path):
            rights &= 0x4006  # of a file: read, write, truncate
        rule = ctypes.create_string_buffer(rights.to_bytes(8, sys.byteorder) + target.to_bytes(4, sys.byteorder), 12)
        libc.syscall(445, ruleset, 1, rule, 0)
        os.close(target)
    done = libc.syscall(446, ruleset, 0) == 0
    os.close(ruleset)
    return done


def _refuse_calls(libc) -> bool:
    """Installs a seccomp filter that answers `_CALLS` with EPERM; False where the machine or the kernel has none."""
    import ctypes
    import struct

    audit, calls = _CALLS.get(platform.machine(), (0, ()))
    if not audit or sys.maxsize < 1 << 32:
        return False
    load, equal, above, give = 0x20, 0x15, 0x35, 0x06  # of classic BPF: ld, jeq, jge, ret
    refuse, kill, allow = 0x00050001, 0x80000000, 0x7FFF0000
    last = len(calls)
    program = [(load, 0, 0, 4), (equal, 1, 0, audit), (give, 0, 0, kill), (load, 0, 0, 0)]
    program += [(above, last + 1, 0, 0x40000000)]  # the x32 calls of x86_64
    program += [(equal, last - i, 0, call) for i, call in enumerate(calls)]
    program += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    # struct sock_fprog: a count, padding, a pointer
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    return libc.prctl(22, 2, whole, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _library() -> tuple[str, ...]:
    """Folders of the interpreter and its standard library."""
    return tuple(os.path.join(os.path.realpath(p), "") for p in {sys.prefix, sys.base_prefix, *sys.path} if p)


def _guard(folder: str) -> None:
    """Installs the audit hook of a child: it cannot be removed again."""
    inside = os.path.join(os.path.realpath(folder), "")
    readable = _library()
    refused, changes, barred = _REFUSED, _CHANGES, _BARRED  # a program can find the module's own names
    devices = ("/dev/null", "/dev/urandom", "/dev/zero")
    realpath, fspath, join = os.path.realpath, os.fspath, os.path.join
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def below(path, allowed) -> bool:
        if isinstance(path, int):
            return True  # a descriptor that is already open
        path = fspath(path)
        path = realpath(path.decode("utf-8", "surrogateescape") if isinstance(path, bytes) else path)
        return path in devices or join(path, "").startswith(allowed)

    def hook(event: str, arguments: tuple) -> None:
        if event == "open":
            path, mode, flags = (*arguments, None, None, None)[:3]
            writes = any(c in "wax+" for c in mode) if isinstance(mode, str) else bool((flags or 0) & writing)
            if not below(path, inside if writes else (inside, *readable)):
                raise PermissionError(f"the sandbox refuses to open {path!r}")
        elif event == "import" and arguments[0].partition(".")[0] in barred:
            raise ImportError(f"the sandbox refuses to import {arguments[0]}")
        elif event.startswith(refused):
            raise PermissionError(f"the sandbox refuses {event}")
        elif event.startswith(changes):
            if not all(below(a, inside) for a in arguments if isinstance(a, (str, bytes, os.PathLike))):
                raise PermissionError(f"the sandbox refuses {event}")

    for name in [n for n in sys.modules if n.partition(".")[0] in _BARRED]:
        del sys.modules[name]  # what is already imported would be handed out without an event
    sys.addaudithook(hook)


def _limit(timeout: float, memory: int) -> None:
    import resource

    seconds = int(timeout) + 1
    for name, value in (
        ("RLIMIT_CPU", seconds), ("RLIMIT_AS", memory), ("RLIMIT_FSIZE", FILE_SIZE), ("RLIMIT_NPROC", 0),
        ("RLIMIT_CORE", 0), ("RLIMIT_NOFILE", 64),
    ):  # fmt: skip
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, ValueError, OSError):
            pass  # not known to this system, or already lower


def _child(request: dict, folder: str, pipe: int, word: str) -> None:
    """Runs one program and writes its verdict into `pipe`, signed with `word`; does not return."""
    reason = "exited early"
    try:
        os.setsid()
        os.chdir(folder)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        kept = os.dup2(pipe, 3)
        os.closerange(4, 256)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode) for n, mode in ((0, "r"), (1, "w"), (2, "w")))
        sys.setrecursionlimit(2000)
        __import__("random").seed(0)
        _limit(request["timeout"], request["memory"])
        confine(folder, _library())
        _guard(folder)
        sys.modules["__main__"] = type(sys)("__main__")
        try:
            exec(
                compile(request["program"], "<program>", "exec"),
                {"__name__": "__main__", "__builtins__": __builtins__},
            )
            reason = "passed"
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt are failures too
            reason = f"{type(error).__name__}: {error}"[:200]
        os.write(kept, json.dumps([word, reason == "passed", reason]).encode())
    finally:
        os._exit(0)


def _judge(request: dict, base: str) -> list:
    """Forks a child for one program, waits until its deadline, and leaves nothing of it behind."""
    folder = tempfile.mkdtemp(dir=base)
    read, write = os.pipe()
    word = secrets.token_hex(8)
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(request, folder, write, word)
    os.close(write)
    answer, deadline = [False, "timed out"], time.monotonic() + request["timeout"]
    while (left := deadline - time.monotonic()) > 0:
        if select.select([read], [], [], min(left, LOOK))[0]:
            answer = _answer(os.read(read, 65536), word)
            break
        if _overfull(folder):
            answer = [False, "filled its folder"]
            break
    os.close(read)
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except OSError:
            pass  # it has ended, or has not opened its session yet
    _reap()
    _remove(folder)
    return answer


def _answer(text: bytes, word: str) -> list:
    """The verdict in what a child wrote; anything without the word was not written by `_child`."""
    try:
        signed, passed, reason = json.loads(text)
        return [passed is True, str(reason)] if signed == word else [False, "exited early"]
    except (ValueError, TypeError):
        return [False, "exited early"]


def _overfull(folder: str) -> bool:
    """Whether a program's folder holds more than it may, or folders in folders beyond the longest path."""
    size = entries = 0
    too_deep: list[OSError] = []

    def note(error: OSError) -> None:
        if error.errno == errno.ENAMETOOLONG:
            too_deep.append(error)

    for where, folders, files in os.walk(folder, onerror=note):
        for name in (*folders, *files):
            entries += 1
            try:
                size += os.lstat(os.path.join(where, name)).st_blocks * 512
            except OSError:
                pass  # removed meanwhile
            if size > FOLDER_SIZE or entries > FOLDER_ENTRIES:
                return True
    return bool(too_deep)


def _remove(folder: str) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        pass
    if os.path.lexists(folder):  # folders in folders, deeper than Python recurses
        import subprocess

        subprocess.run(["rm", "-rf", folder], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _reap() -> None:
    """Kills and collects every process below this one, orphans included."""
    while True:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                for pid in file.read().split():
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _serve(base: str) -> None:
    for name in ("math", "re", "collections", "itertools", "functools", "typing", "random", "string",
                 "heapq", "bisect",
                 "copy", "datetime", "hashlib", "operator", "statistics", "decimal",
                 "fractions"):  # fmt: skip
        __import__(name)  # warm: a child imports them for nothing
    isolate(base)
    answers = os.fdopen(os.dup(1), "wb")
    for line in sys.stdin.buffer:
        answer = _judge(json.loads(line), base)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
