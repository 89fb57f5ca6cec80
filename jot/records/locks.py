"""Locks on single bytes of a file, held by a process and gone with it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_GATE = 1 << 40  # the byte that `exclusive` locks, far above any index


@dataclass
class _File:
    """One open lock file of this process. POSIX locks belong to the process and fall when *any* of its
    descriptors of the file is closed, so all users of a path in one process share one descriptor and one set
    of held bytes.
    """

    fd: int
    pid: int
    users: int = 0
    held: set[int] = field(default_factory=set)
    gate: threading.Lock = field(default_factory=threading.Lock)


_FILES: dict[str, _File] = {}
_REGISTRY = threading.Lock()


class ByteLocks:
    """Exclusive locks on the bytes of `path`, between processes and between users in one process."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.key = str(Path(path).resolve())
        self.mine: set[int] = set()
        with _REGISTRY:
            file = _FILES.get(self.key)
            if file is None or file.pid != os.getpid():  # a forked child inherits the table but none of the locks
                file = _FILES[self.key] = _File(
                    os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), os.getpid()
                )
            file.users += 1
        self.file = file

    def try_lock(self, index: int) -> bool:
        """Locks byte `index` unless someone holds it."""
        with _REGISTRY:
            if index in self.file.held:
                return False
            try:
                fcntl.lockf(self.file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
            except (BlockingIOError, PermissionError):
                return False
            self.file.held.add(index)
            self.mine.add(index)
            return True

    def unlock(self, index: int) -> None:
        with _REGISTRY:
            if index in self.mine:
                fcntl.lockf(self.file.fd, fcntl.LOCK_UN, 1, index)
                self.file.held.discard(index)
                self.mine.discard(index)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Waits for, and holds, the one lock for work on the whole cell."""
        with self.file.gate:
            fcntl.lockf(self.file.fd, fcntl.LOCK_EX, 1, _GATE)
            try:
                yield
            finally:
                fcntl.lockf(self.file.fd, fcntl.LOCK_UN, 1, _GATE)

    def close(self) -> None:
        for index in list(self.mine):
            self.unlock(index)
        with _REGISTRY:
            self.file.users -= 1
            if self.file.users == 0:
                os.close(self.file.fd)
                if _FILES.get(self.key) is self.file:
                    del _FILES[self.key]
