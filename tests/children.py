"""Processes for tests whose subject is not how one starts: forks of this one, which has all imports already."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path


def fork(body: Callable[[], object], **environment: str) -> int:
    """Run ``body`` in a child with more environment variables; returns its pid. Its exit code is 0 if it returned."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.environ.update(environment)
        returned = body()
        code = returned if isinstance(returned, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def join(pid: int, seconds: float = 120) -> int:
    """The child's exit code, negative for a signal; it is killed after ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"the child {pid} took more than {seconds} s")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def lines(store: Path) -> list[bytes]:
    """Every finished line of a live store."""
    return [line for path in sorted(store.glob("*.jsonl")) for line in path.read_bytes().split(b"\n")[:-1]]


def wait_for_lines(store: Path, count: int, seconds: float = 60) -> int:
    """Waits until the store has so many lines, or the time is up; returns how many it has."""
    until = time.monotonic() + seconds
    while (found := len(lines(store))) < count and time.monotonic() < until:
        time.sleep(0.004)
    return found


def descendants(pid: int) -> list[int]:
    """Processes below ``pid``, whichever group they are in."""
    found = []
    for path in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
        except OSError:
            pass
    return found


class Kernel:
    """A Jupyter kernel as a fork, in place of ``jupyter_client``'s ``launch_kernel``; what is used of a ``Popen``."""

    stdin = stdout = stderr = returncode = None

    def __init__(self, words: list[str], env: dict[str, str], cwd: str = ".", **_: object) -> None:
        def body() -> None:
            from ipykernel.kernelapp import IPKernelApp

            os.setpgid(0, 0)
            os.environ.clear()
            os.environ.update(env)
            os.chdir(cwd)
            asyncio.set_event_loop(asyncio.new_event_loop())
            warnings.showwarning = warnings._showwarning_orig  # not into pytest's list: a page would show it
            warnings.resetwarnings()
            for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", category)
            warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
            IPKernelApp.launch_instance(words[words.index("-f") :])

        self.pid = fork(body)
        os.setpgid(self.pid, self.pid)  # in both: whoever signals the group must find it, and not this process in it

    def poll(self) -> int | None:
        if self.returncode is None and (done := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(done[1])
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        os.kill(self.pid, signum)
