"""Processes for the tests of what a kill leaves behind: forks of this one, which has all imports already."""

from __future__ import annotations

import os
import signal
import time
import traceback
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
