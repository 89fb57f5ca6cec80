"""Writing side of the record store (`cells.py` says how a store is laid out).

Several hosts may share a store on a file system whose locks and appends are coherent between them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from jot.errors import UserError, destination
from jot.records.cells import Cell, plain
from jot.records.lines import to_line
from jot.records.load import Rows, read_meta, totals
from jot.records.locks import ByteLocks


def writable(folder: str | os.PathLike) -> Path:
    """The store's folder, made if need be; one of packed records is refused, since they would hide others."""
    folder = destination("the store", folder)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "manifest.json").is_file():
        raise UserError(f"{folder} holds packed records, which are not added to; name another folder with --store")
    return folder


def sync(path: Path) -> None:
    """Brings a file's content, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(path: Path, text: str) -> None:
    """Writes a file into the place of an older one, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    os.replace(temporary, path)


class Writer:
    """Claims and appends the samples of one cell in a store; use as a context manager.

    Args:
        prompts: prompt hash of every document of the split, in the split's order.
        environment: `versions` and `hardware` of this process, for `<cell>.json`.
    """

    def __init__(self, folder: str | os.PathLike, cell: Cell, prompts: Mapping[str, str], environment: Mapping) -> None:
        self.folder, self.cell, self.environment = writable(folder), cell, environment
        self.index = {doc_id: i for i, doc_id in enumerate(prompts)}
        self.prompts = prompts
        self.meta_path, self.lock_path = (self.folder / f"{cell.id}.{kind}" for kind in ("json", "lock"))
        self._rows = Rows(self.folder, cell.id)
        self._part: IO[bytes] | None = None
        self._locks: ByteLocks | None = None
        self.meta = read_meta(self.meta_path) if self.meta_path.exists() else None
        self.refresh()
        if self.meta is None and self.done:
            self._open()  # the configuration was lost, the records name it

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def done(self) -> Mapping[str, dict]:
        """Finished records by document."""
        return self._rows.rows

    def refresh(self) -> None:
        """Takes in what other processes have finished."""
        known = len(self.done)
        self._rows.refresh(skip=Path(self._part.name) if self._part else None)
        for doc_id, record in list(self.done.items())[known:]:
            if self.prompts.get(doc_id) != record["prompt_hash"]:
                raise UserError(f"the record of {doc_id!r} in {self.folder} has another prompt; use another store")

    def claim(self, doc_ids: Iterable[str], count: int) -> list[str]:
        """Up to `count` of `doc_ids` that are neither finished nor being decoded elsewhere; now they are ours."""
        if self._locks is None:
            self._open()
        claimed = []
        for doc_id in doc_ids:
            if len(claimed) == count:
                break
            if doc_id not in self.done and self._locks.try_lock(self.index[doc_id]):
                claimed.append(doc_id)
        self.refresh()  # after the locks: whoever held one before has written its line by now
        for doc_id in claimed:
            if doc_id in self.done:
                self._locks.unlock(self.index[doc_id])
        return [doc_id for doc_id in claimed if doc_id not in self.done]

    def append(self, record: Mapping) -> None:
        """Writes one finished sample to disk and gives up its claim."""
        record = {"cell": self.cell.key, **record}
        line = to_line(record)
        with self._writing():
            if self._part is None:
                self._part = self._new_part()
            end = self._part.seek(0, os.SEEK_END)
            try:
                while line:
                    line = line[os.write(self._part.fileno(), line) :]
                os.fsync(self._part.fileno())
            except OSError:
                with suppress(OSError):  # then the torn line is cut off by the next run
                    os.ftruncate(self._part.fileno(), end)
                raise
        self._rows.rows[record["doc_id"]] = record
        self._locks.unlock(self.index[record["doc_id"]])

    def close(self) -> None:
        """Gives up all claims and brings the totals in `<cell>.json` up to date."""
        with self._writing():
            if self._locks is None:
                if self.meta is None or self.meta.get("totals", {}).get("samples") == len(self.done):
                    return
                self._locks = ByteLocks(self.lock_path)  # who wrote the last sample was killed before the totals
            try:
                self._write_meta()
            finally:
                if self._part is not None:
                    self._part.close()
                self._locks.close()
                self._part = self._locks = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What the disk refuses is one sentence."""
        try:
            yield
        except OSError as error:
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
            raise UserError(
                f"cannot write to the store {self.folder} ({reason}): the {len(self.done)} finished samples are "
                "kept; make room or permit writing and run again"
            ) from error

    def _open(self) -> None:
        with self._writing():
            self._locks = ByteLocks(self.lock_path)
            with self._locks.exclusive():
                self._cut_torn_tails()
            if self.meta is None:
                self._write_meta()
        begun, here = (meta["hardware"].get("kind") for meta in (self.meta, self.environment))
        if begun != here:
            raise UserError(
                f"the cell {self.cell.id} in {self.folder} was begun on {begun!r} and this is {here!r}; "
                "use another store, so that timings stay apart"
            )

    def _new_part(self) -> IO[bytes]:
        host = re.sub("[^A-Za-z0-9]+", "-", socket.gethostname())[:40]
        name = f"{self.cell.id}.{host}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        part = open(self.folder / name, "xb", buffering=0)  # noqa: SIM115  closed by close()
        fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)  # says that its writer is alive
        sync(self.folder)
        return part

    def _cut_torn_tails(self) -> None:
        for path in list(self._rows.ends):
            with open(path, "r+b") as file:
                if file.seek(0, os.SEEK_END) == self._rows.ends[path][0]:
                    continue
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue  # its writer is alive: the line is not torn but under way
                self._rows.read(path)  # all that it finished before it ended
                file.truncate(self._rows.ends[path][0])
                os.fsync(file.fileno())

    def _write_meta(self) -> None:
        with self._locks.exclusive():
            self.refresh()
            meta = {
                "cell": self.cell.id, "config": plain(self.cell.config),
                **{k: (self.meta or self.environment)[k] for k in ("versions", "hardware")},
                "totals": totals(self.done.values()),
            }  # fmt: skip
            if meta != self.meta:
                replace(self.meta_path, json.dumps(meta, indent=1))
                self.meta = meta
