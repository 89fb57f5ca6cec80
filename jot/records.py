"""The per-sample record store: one line a sample, never lost, never repeated, never mixed with another
setting's.

The unit is a *cell*: one resolved configuration. `STORE/<cell>.json` holds the configuration, versions,
hardware and totals; each process that decodes appends to a part of its own,
`STORE/<cell>.<host>-<pid>-<random>.jsonl`. A process claims a sample by locking one byte of
`STORE/<cell>.lock`; locks end with the process, so a killed run leaves nothing behind but finished lines and
at most one torn tail, which is cut off and decoded again. Each line ends with a checksum of itself.

This module names cells and reads them; `store.py` writes, `packed.py` packs a store to Parquet.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from jot.errors import UserError
from jot.lines import EXTRA, FIELDS, SUMS, TRACE, are_totals, check_meta, from_line, parse

CELL_FILE = re.compile(r"-[0-9a-f]{10}\.json$")
ORDER_SEED = 20260101  # of the one permutation that every `limit` takes its first n from


# ---------------------------------------------------------------- cells


def plain(value):
    """`value` as JSON types with one spelling each: 90.0 is 90, infinities are strings, tuples are lists."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in sorted(value.items())}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() else value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"a configuration holds JSON values only, not {type(value).__name__}")


def on(parameters: Mapping) -> dict:
    """The parameters that are on: those that are None, False or empty leave no trace."""
    return {k: v for k, v in parameters.items() if v is not None and v is not False and v != () and v != []}


@dataclass(frozen=True)
class Cell:
    """One resolved configuration; its id is a readable slug and the hash of the canonical JSON."""

    config: Mapping

    @property
    def _hashed(self) -> dict:
        # A parameter that is off leaves no trace in the id, so one added later does not orphan older records.
        off = {key: on(self.config[key]) for key in ("method", "decode") if key in self.config}
        return {**self.config, **off}

    @cached_property
    def canonical(self) -> str:
        return json.dumps(
            plain(self._hashed), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )

    @cached_property
    def key(self) -> str:
        """10 hex digits of the hash; each record carries them."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()[:10]

    @cached_property
    def id(self) -> str:
        config = self.config
        method = dict(config.get("method") or {})
        words = [config.get("model"), config.get("task"), method.get("name")]
        if "tau_max" in method:
            words.append(f"tau{plain(method['tau_max'])}")
        words += [config.get("split"), f"s{config['seed']}" if config.get("seed") else None]
        slug = "_".join(re.sub(r"[^A-Za-z0-9-]+", "-", str(word)).strip("-") for word in words if word)
        return f"{slug[:120]}-{self.key}"


def take(ids: Sequence[str], limit: int | None = None, subjects: Sequence[str] | None = None) -> list[str]:
    """The first `limit` ids of one fixed pseudo-random order of `ids`, so that smaller limits nest in larger
    ones.

    With `subjects` (one per id) every prefix holds the subjects in nearly their proportions. The order
    depends on the ids alone, not on their given order.

    Raises:
        UserError: a limit below 1.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise UserError(f"limit={limit!r} must be a whole number of samples, at least 1")

    def draw(text: str) -> float:
        return int.from_bytes(hashlib.sha256(f"{ORDER_SEED}/{text}".encode()).digest()[:7], "big") / 2**56

    order = sorted(zip(ids, subjects or [""] * len(ids), strict=True), key=lambda pair: (draw(pair[0]), pair[0]))
    if subjects is not None:
        size: dict[str, int] = {}
        for _, subject in order:
            size[subject] = size.get(subject, 0) + 1
        seen: dict[str, int] = {}
        ranked = []
        for position, (doc_id, subject) in enumerate(order):
            # Each subject spreads its documents evenly over the order, from an offset of its own.
            ranked.append(((seen.get(subject, 0) + draw("subject/" + subject)) / size[subject], position, doc_id))
            seen[subject] = seen.get(subject, 0) + 1
        return [doc_id for *_, doc_id in sorted(ranked)][:limit]
    return [doc_id for doc_id, _ in order][:limit]


# ---------------------------------------------------------------- reading


class Recorded:
    """One cell: what its `<cell>.json` says, and its samples, one row each; packed ones are read at the first look."""

    def __init__(self, meta: dict, frame: pd.DataFrame | Callable[[], pd.DataFrame]) -> None:
        self.meta = meta
        if isinstance(frame, pd.DataFrame):
            self.frame = frame
        else:
            self._read = frame

    @cached_property
    def frame(self) -> pd.DataFrame:
        return self._read()

    @property
    def n(self) -> int:
        """Samples; known without reading them."""
        return len(self.frame) if "frame" in self.__dict__ else self.meta["totals"]["samples"]

    def __iter__(self):
        return iter((self.meta, self.frame))


class _Part:
    """One file of records, read forward; knows how far it was read."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset, self.line = path, 0, 0

    def new(self) -> Iterable[dict]:
        """Records completed since the last call; a last line without its line feed is still being written, or
        torn.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(f"cannot read {self.path} ({error.strerror}); check its permissions") from error
        for line in lines[:-1]:
            self.offset, self.line = self.offset + len(line) + 1, self.line + 1
            try:
                record = from_line(line)
            except (ValueError, TypeError, RecursionError) as error:
                raise UserError(
                    f"line {self.line} of {self.path} is no record ({str(error)[:80]}); "
                    "delete that line to decode its sample again"
                ) from error
            yield record


def _same(left: dict, right: dict) -> bool:
    return left["generated"] == right["generated"] and left["score"] == right["score"]


class Rows:
    """All records of one cell in a store, by document; can be refreshed while other processes append."""

    def __init__(self, folder: Path, cell_id: str) -> None:
        self.folder, self.cell_id = folder, cell_id
        self.parts: dict[Path, _Part] = {}
        self.rows: dict[str, dict] = {}

    def refresh(self, skip: Path | None = None) -> None:
        for path in sorted(self.folder.glob(f"{self.cell_id}*.jsonl")):
            if path != skip:
                self.read(path)

    def read(self, path: Path) -> _Part:
        part = self.parts.setdefault(path, _Part(path))
        for record in part.new():
            self.add(record, path)
        return part

    def add(self, record: dict, path: Path) -> None:
        if record["cell"] != self.cell_id[-10:]:
            raise UserError(
                f"{path} holds records of another configuration ({record['cell']}, not "
                f"{self.cell_id[-10:]}); move it to the store it came from"
            )
        old = self.rows.setdefault(record["doc_id"], record)
        if old is not record and not _same(old, record):
            raise UserError(f"{path} repeats {record['doc_id']!r} with another result; remove one of the two files")

    def frame(self) -> pd.DataFrame:
        return to_frame(self.rows.values())


def natural(doc_id: str) -> tuple:
    """Sort key that puts "a/10" after "a/9"."""
    words = re.split(r"(\d{1,4000})", doc_id)  # more digits are no number to Python
    return tuple((int(word), "") if word.isdecimal() else (-1, word) for word in words)


def to_frame(rows: Iterable[Mapping]) -> pd.DataFrame:
    """Records as a table, one row a sample ordered by document; `score` is NaN where a task has none."""
    rows = sorted(rows, key=lambda row: natural(row["doc_id"]))
    frame = pd.DataFrame({name: [row[name] for row in rows] for name in FIELDS})
    frame["score"] = frame["score"].astype("float64")
    for name in EXTRA:
        if any(name in row for row in rows):
            frame[name] = [row.get(name, "plain") for row in rows]
    for name in TRACE:
        if any(row.get("trace") for row in rows):
            frame[f"trace_{name}"] = [(row.get("trace") or {}).get(name) for row in rows]
    return frame


def read_meta(path: Path) -> dict:
    """`<cell>.json`, checked against its own name: an edited configuration is refused, totals that cannot be are left
    out.
    """
    try:
        meta = parse(path.read_text())
        check_meta(meta)
        key = Cell(meta["config"]).key
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); check the path and its permissions") from error
    except ValueError as error:
        raise UserError(f"{path} is not a cell's configuration ({error}); restore it or use another store") from error
    if key != path.stem[-10:] or meta.get("cell") != path.stem:
        raise UserError(
            f"{path} was written by another configuration than its name says (or edited); "
            "restore it or use another store"
        )
    if not are_totals(meta.get("totals")):
        meta.pop("totals", None)  # the samples tell them
    return meta


def read_cell(path: str | os.PathLike) -> pd.DataFrame:
    """The samples of one live cell, named by its `<cell>.json`."""
    path = Path(path)
    meta = read_meta(path)
    rows = Rows(path.parent, meta["cell"])
    rows.refresh()
    return rows.frame()


def metas(folder: str | os.PathLike) -> dict[str, dict]:
    """Configuration and totals of every cell of a live store or a folder of packed records, by cell id; no samples.

    Raises:
        UserError: nothing there, or an edited configuration.
    """
    found = _metas(folder := Path(folder))
    return {k: meta if "totals" in meta else _live(folder, k, meta).meta for k, meta in found.items()}


def _metas(folder: Path) -> dict[str, dict]:
    """``metas``, without totals where a live cell's file has none that can be."""
    if not folder.is_dir():
        raise UserError(f"there is no store at {folder}; give a folder that `jot evaluate` has written")
    if (folder / "manifest.json").is_file():
        from jot.packed import read_manifest

        return read_manifest(folder)
    found = {path.stem: read_meta(path) for path in sorted(folder.glob("*.json")) if CELL_FILE.search(path.name)}
    for path in folder.glob("*.jsonl"):
        if path.name.split(".")[0] not in found:
            raise UserError(
                f"{path} has no {path.name.split('.')[0]}.json beside it; restore that file or move the records away"
            )
    if not found:
        raise UserError(f"there are no records in {folder}; give a folder that `jot evaluate` has written")
    return found


def load_store(folder: str | os.PathLike, only: Iterable[str] | None = None) -> dict[str, Recorded]:
    """Every cell of a live store, or of a folder of packed records, by cell id; or of those in ``only``.

    Raises:
        UserError: nothing there, an edited configuration, a corrupt line.
    """
    folder = Path(folder)
    known = _metas(folder)
    wanted = known if only is None else {cell_id: known[cell_id] for cell_id in only if cell_id in known}
    if (folder / "manifest.json").is_file():
        from jot.packed import load_packed

        return load_packed(folder, wanted)
    return {cell_id: _live(folder, cell_id, meta) for cell_id, meta in wanted.items()}


def _live(folder: Path, cell_id: str, meta: dict) -> Recorded:
    rows = Rows(folder, cell_id)
    rows.refresh()
    # The file's totals are those of the last run that ended in order.
    return Recorded(meta | {"totals": totals(rows.rows.values())}, rows.frame())


def pair(left: Recorded, right: Recorded) -> pd.DataFrame:
    """Two cells side by side, one row a document, columns with the suffixes `_a` and `_b`.

    Raises:
        UserError: the cells differ in task, split, weights, dtype, kind of hardware, documents or prompts, so that a
            paired comparison of them would not be one.
    """
    for name in ("task", "split", "fingerprint", "dtype"):
        one, two = left.meta["config"].get(name), right.meta["config"].get(name)
        if one != two:
            raise UserError(f"these cells cannot be paired: {name} is {one!r} in one and {two!r} in the other")
    one, two = (recorded.meta["hardware"].get("kind") for recorded in (left, right))
    if one != two:
        raise UserError(f"these cells cannot be paired: one was decoded on {one!r}, the other on {two!r}")
    ids = [set(recorded.frame["doc_id"]) for recorded in (left, right)]
    if ids[0] != ids[1]:
        raise UserError(
            f"these cells cannot be paired: {len(ids[0] - ids[1])} documents are only in the first and "
            f"{len(ids[1] - ids[0])} only in the second; run both with one --limit"
        )
    both = left.frame.merge(right.frame, on="doc_id", suffixes=("_a", "_b"), validate="one_to_one")
    if (both["prompt_hash_a"] != both["prompt_hash_b"]).any():
        raise UserError("these cells cannot be paired: the prompts of some documents differ")
    return both


def totals(rows: Iterable[Mapping]) -> dict:
    """Sums over samples, as kept in `<cell>.json`."""
    rows = list(rows)
    scores = [row["score"] for row in rows if row["score"] is not None and row["score"] == row["score"]]
    sums = {name: sum(row[name] for row in rows) for name in SUMS}
    return {"samples": len(rows), "score": sum(scores) if scores else None, **sums}
