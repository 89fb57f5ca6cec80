"""The other side of `sandbox.py`: a script that runs one program per line of its input, each in a forked
child.

It imports nothing of the package and keeps its own imports few, since children inherit them.
"""

import json
import os
import select
import shutil
import signal
import sys
import tempfile

FILE_SIZE = 1 << 20  # bytes of any written file

_NETWORK, _USER = 0x40000000, 0x10000000  # CLONE_NEWNET, CLONE_NEWUSER
_REFUSED = (
    "socket.", "subprocess.", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.spawn",
    "os.kill",
    "signal.pthread_kill", "ctypes.", "pty.", "ftplib.", "smtplib.", "urllib.", "http.", "mmap.",
    "shutil.chown",
    "os.chown", "os.setxattr", "webbrowser.", "gc.", "sys.remote_exec",
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


def isolate(folder: str) -> set[str]:
    """Leaves the network and gives up writing outside `folder`, as far as the kernel lets this user.

    Returns what is in force: any of "network" and "files".
    """
    if not sys.platform.startswith("linux"):
        return set()
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: no worker survives its caller
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans of a program come back here to be killed
    left = libc.unshare(_NETWORK) == 0 or libc.unshare(_NETWORK | _USER) == 0
    in_force = {"network"} if left else set()
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    version = libc.syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return in_force
    rights = 0x1FF2  # every right of ABI 1 that changes files: all but execute, read file, read directory
    rights |= (0x2000 if version >= 2 else 0) | (0x4000 if version >= 3 else 0)  # refer, truncate
    ruleset = libc.syscall(444, ctypes.byref(ctypes.c_uint64(rights)), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return in_force
    for path, allowed in ((folder, rights), ("/dev/null", rights & 0x4002)):
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = ctypes.create_string_buffer(allowed.to_bytes(8, sys.byteorder) + target.to_bytes(4, sys.byteorder), 12)
        libc.syscall(445, ruleset, 1, rule, 0)
        os.close(target)
    if libc.syscall(446, ruleset, 0) == 0:
        in_force.add("files")
    os.close(ruleset)
    return in_force


def _guard(folder: str) -> None:
    """Installs the audit hook of a child: it cannot be removed again."""
    inside = os.path.join(os.path.realpath(folder), "")
    readable = tuple(os.path.join(os.path.realpath(p), "") for p in {sys.prefix, sys.base_prefix, *sys.path} if p)
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
        elif event == "import" and arguments[0].partition(".")[0] in _BARRED:
            raise ImportError(f"the sandbox refuses to import {arguments[0]}")
        elif event.startswith(_REFUSED):
            raise PermissionError(f"the sandbox refuses {event}")
        elif event.startswith(_CHANGES):
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


def _child(request: dict, folder: str, pipe: int) -> None:
    """Runs one program and writes its verdict into `pipe`; does not return."""
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
        _guard(folder)
        try:
            exec(
                compile(request["program"], "<program>", "exec"),
                {"__name__": "__main__", "__builtins__": __builtins__},
            )
            reason = "passed"
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt are failures too
            reason = f"{type(error).__name__}: {error}"[:200]
        os.write(kept, json.dumps([reason == "passed", reason]).encode())
    finally:
        os._exit(0)


def _judge(request: dict, base: str) -> list:
    """Forks a child for one program, waits until its deadline, and leaves nothing of it behind."""
    folder = tempfile.mkdtemp(dir=base)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(request, folder, write)
    os.close(write)
    answer = [False, "timed out"]
    if select.select([read], [], [], request["timeout"])[0]:
        text = os.read(read, 65536)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = [False, "exited early"]
    os.close(read)
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except OSError:
            pass  # it has ended, or has not opened its session yet
    _reap()
    shutil.rmtree(folder, ignore_errors=True)
    return answer


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
