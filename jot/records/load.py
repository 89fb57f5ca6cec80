"""Reading records, live or packed, by one pair of functions."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pandas as pd

from jot.errors import UserError, home, unpacked
from jot.records.cells import Cell, Recorded, natural
from jot.records.lines import EXTRA, FIELDS, META, PACKED, SUMS, TRACE, are_totals, check, from_line, parse

CELL_FILE = re.compile(r"-[0-9a-f]{10}\.json$")
SAME = "\0"  # stands in a file for an answer that is the whole text
TOKENIZER = b"tokenizer"  # in a file's own metadata: whose tokenizer makes the texts that are null, and its SHA-256
TOKENS = ["generated", "tokens_non_eos"]  # what they are made of
_NAME = re.compile(r"[\w.-]{1,240}")


# ---------------------------------------------------------------- a store, live or packed


def metas(folder: str | os.PathLike) -> dict[str, dict]:
    """Configuration and totals of every cell of a live store or a folder of packed records, by cell id; no samples."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"there is no store at {folder}; give a folder that `jot evaluate` has written")
    if _is_packed(folder):
        return read_manifest(folder)
    found = {path.stem: read_meta(path) for path in sorted(folder.glob("*.json")) if CELL_FILE.search(path.name)}
    for path in folder.glob("*.jsonl"):
        if (cell_id := path.name.split(".")[0]) not in found:
            raise UserError(f"{path} has no {cell_id}.json beside it; restore that file or move the records away")
    if not found:
        raise UserError(f"there are no records in {folder}; give a folder that `jot evaluate` has written")
    return {k: meta if "totals" in meta else _live(folder, k, meta).meta for k, meta in found.items()}


def load_store(folder: str | os.PathLike, only: Iterable[str] | None = None) -> dict[str, Recorded]:
    """Every cell of a live store, or of a folder of packed records, by cell id; or of those in ``only``.

    A packed cell's samples are read when they are first looked at; ``generated`` and traces are numpy arrays.

    Raises:
        UserError: nothing there, an edited configuration, a corrupt line.
    """
    folder = Path(folder)
    known = metas(folder)
    of = _packed if _is_packed(folder) else _live
    return {k: of(folder, k, known[k]) for k in (known if only is None else only) if k in known}


def _is_packed(folder: Path) -> bool:
    return (folder / "manifest.json").is_file()


# One chip with two kinds of memory: in float32 recorded runs came out token by token alike (notebooks/ANALYSIS.md).
ALIKE = {"NVIDIA H100 80GB HBM3": "NVIDIA H100 or H200", "NVIDIA H200": "NVIDIA H100 or H200"}


def machine(meta: Mapping) -> str | None:
    """The kind of hardware that runs must share to be paired; times are compared by the card's own name."""
    kind = meta["hardware"].get("kind")
    return ALIKE.get(kind, kind)


# ---------------------------------------------------------------- a live store


class Rows:
    """All records of one cell in a store, by document; can be refreshed while other processes append."""

    def __init__(self, folder: Path, cell_id: str) -> None:
        self.folder, self.cell_id = folder, cell_id
        self.ends: dict[Path, tuple[int, int]] = {}  # how far each part was read: bytes, lines
        self.rows: dict[str, dict] = {}

    def refresh(self, skip: Path | None = None) -> None:
        for path in sorted(self.folder.glob(f"{self.cell_id}*.jsonl")):
            if path != skip:
                self.read(path)

    def read(self, path: Path) -> None:
        """Takes in the lines completed since the last call; one without its line feed is being written, or torn."""
        end, number = self.ends.setdefault(path, (0, 0))
        try:
            with open(path, "rb") as file:
                file.seek(end)
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(f"cannot read {path} ({error.strerror}); check its permissions") from error
        for line in lines[:-1]:
            end, number = end + len(line) + 1, number + 1
            try:
                record = from_line(line)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"line {number} of {path} is no record ({str(error)[:80]}); "
                    "delete that line to decode its sample again"
                ) from error
            if record["cell"] != self.cell_id[-10:]:
                raise UserError(
                    f"{path} holds records of another configuration ({record['cell']}, not "
                    f"{self.cell_id[-10:]}); move it to the store it came from"
                )
            old = self.rows.setdefault(record["doc_id"], record)
            if any(old[name] != record[name] for name in ("generated", "score")):
                raise UserError(f"{path} repeats {record['doc_id']!r} with another result; remove one of the two files")
            self.ends[path] = end, number


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
    """`<cell>.json`, checked against its name: an edited configuration is refused, impossible totals are left out."""
    try:
        meta = parse(path.read_text())
        check(meta, META)
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


def totals(rows: Iterable[Mapping]) -> dict:
    """Sums over samples, as kept in `<cell>.json`."""
    rows = list(rows)
    scores = [row["score"] for row in rows if row["score"] is not None]
    sums = {name: sum(row[name] for row in rows) for name in SUMS}
    return {"samples": len(rows), "score": sum(scores) if scores else None, **sums}


def _live(folder: Path, cell_id: str, meta: dict) -> Recorded:
    rows = Rows(folder, cell_id)
    rows.refresh()
    # The file's totals are those of the last run that ended in order.
    return Recorded(meta | {"totals": totals(rows.rows.values())}, partial(to_frame, rows.rows.values()))


# ---------------------------------------------------------------- a packed folder


def read_manifest(folder: Path) -> dict[str, dict]:
    """The manifest of a packed folder: configuration, totals and file of every cell; not to be changed in place."""
    path = folder / "manifest.json"
    try:
        return {cell_id: dict(meta) for cell_id, meta in _entries(path.read_text()).items()}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it") from error


@lru_cache(maxsize=4)  # a page asks a dozen times, and hashing every configuration takes a tenth of a second
def _entries(text: str) -> dict[str, dict]:
    content = parse(text)
    check(content, {"places": list, "cells": dict})
    return {cell_id: _entry(cell_id, entry, content["places"]) for cell_id, entry in content["cells"].items()}


def _entry(cell_id: str, entry: object, places: list) -> dict:
    """Metadata of one cell of a manifest, where and how it was decoded among it; a ValueError says what it lacks."""
    try:
        check(entry, {"place": int})
        place = places[entry["place"]] if entry["place"] in range(len(places)) else None
        if not isinstance(place, dict):
            raise ValueError("no place")
        meta = {k: v for k, v in entry.items() if k != "place"} | place
        if isinstance(meta.get("config"), dict) and "decode" in meta:
            meta["config"] = meta["config"] | {"decode": meta.pop("decode")}
        check(meta, PACKED)
        lacks = {
            "no cell": meta["cell"] != cell_id, "no file": not _NAME.fullmatch(meta["file"]),
            "no sha256": not _NAME.fullmatch(meta["sha256"]), "no totals": not are_totals(meta.get("totals")),
            "an edited configuration": Cell(meta["config"]).key != cell_id[-10:],
        }  # fmt: skip
        if told := [words for words, is_so in lacks.items() if is_so]:
            raise ValueError(told[0])
    except ValueError as error:
        raise ValueError(f"cell {cell_id[:150]} has {error}") from error
    return meta


def _packed(folder: Path, cell_id: str, meta: Mapping) -> Recorded:
    """One packed cell, without the traces that it lacks."""

    def read() -> pd.DataFrame:
        frame = _read(folder / meta["file"], [meta])
        return frame.drop(columns=[c for c in frame.columns if c.startswith("trace_") and frame[c].isna().all()])

    return Recorded({k: v for k, v in meta.items() if k not in ("file", "sha256")}, read)


def _read(path: Path, cells: Sequence[Mapping], columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Samples of those cells of one file, told by their entries in the manifest; as read_parquet takes ``columns``."""
    import pyarrow.parquet as pq

    keys = [meta["cell"][-10:] for meta in cells]
    wanted = columns and {"cell", *columns, *(["text"] if "answer" in columns else [])}

    def opened(reader, **how):
        try:
            return reader(path, **how)
        except Exception as error:  # pyarrow raises types of its own for a damaged file
            raise UserError(f"{path} cannot be read ({type(error).__name__}: {error}); restore it") from error

    schema, read = opened(pq.read_schema), partial(opened, pd.read_parquet, filters=[("cell", "in", keys)])
    frame = read(columns=wanted and [column for column in schema.names if column in wanted])
    counts = frame["cell"].value_counts()
    for key, meta in zip(keys, cells, strict=True):
        if (n := counts.get(key, 0)) != (count := meta["totals"]["samples"]):
            raise UserError(f"{path} has {n} samples of {meta['cell']}, the manifest {count}; restore it")
        if meta["sha256"] != digest(path, path.stat().st_mtime_ns):
            raise UserError(f"{path} was changed: its checksum is not the manifest's; restore it")
    if "text" in frame:
        out = frame["text"].isna() & (columns is None or "text" in columns or frame["answer"] == SAME)
        if out.any() and (named := (schema.metadata or {}).get(TOKENIZER)):
            model, sha256 = named.decode().split()
            words, found = words_of(model)
            if found != sha256:
                raise UserError(f"{path} leaves texts to data/models/{model}/tokenizer.json, which is missing or was "
                                "changed; restore or delete it, or set JOT_HOME to the checkout")  # fmt: skip
            whole = frame if {*TOKENS} <= {*frame} else read(columns=TOKENS)
            frame.loc[out, "text"] = joined(answers(whole[out]), words)
    if "answer" in frame:
        frame["answer"] = frame["answer"].where(frame["answer"] != SAME, frame["text"])
    if "score" in frame:
        frame["score"] = frame["score"].astype("float64")  # float32 would print 31.45 as 31.5
    return frame


def answers(rows: pd.DataFrame) -> list[np.ndarray]:
    """The tokens of answers, without the ends of text behind them."""
    return [np.asarray(ids[:n]) for ids, n in rows[TOKENS].itertuples(index=False)]


def joined(tokens: Iterable[np.ndarray], words: Mapping[int, str]) -> list[str]:
    """Texts, token by token; a character of several tokens does not come back so."""
    return ["".join([words.get(i, "\ufffd") for i in ids.tolist()]) for ids in tokens]


def with_texts(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    """``rows`` whose missing ``text`` is what the tokenizer of a packaged model makes of their ``tokens``."""
    made = pd.Series(joined(rows["tokens"], words_of(model)[0]), rows.index, dtype=object)
    return rows.assign(text=rows["text"].fillna(made))


def words_of(model: str) -> tuple[dict[int, str], str]:
    """Each token of a packaged model as text, and the SHA-256 of its tokenizer; nothing where that is not there."""
    file = unpacked(home() / "data" / "models" / model / "tokenizer.json")
    try:
        return token_texts(file, file.stat().st_mtime_ns), digest(file, file.stat().st_mtime_ns)
    except Exception:  # a bare one for a damaged file
        return {}, ""


@lru_cache(maxsize=8)
def token_texts(file: Path, mtime: int, special: bool = False) -> dict[int, str]:
    """Text of every token of a ``tokenizer.json``, of special ones "" or theirs; ``mtime`` as in ``digest``."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    ids = list(tokenizer.get_vocab().values())
    texts = tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=not special)
    return dict(zip(ids, texts, strict=True))


@lru_cache(maxsize=256)
def digest(path: Path, mtime: int) -> str:
    """SHA-256 of a file; ``mtime`` tells one state of it from the next."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_columns(folder: Path, cells: Iterable[str], columns: Iterable[str]) -> pd.DataFrame:
    """Samples of several cells, one row a sample: ``cell`` (its id) and these columns; ``score`` is float64.

    A column that a record lacks, such as a trace that was not asked for, is missing there. Packed files are read once
    for all of their cells.
    """
    folder, cells, columns = Path(folder), list(cells), list(columns)
    if _is_packed(folder):
        manifest, files = read_manifest(folder), {}
        for cell in cells:
            files.setdefault(manifest[cell]["file"], []).append(manifest[cell])
        parts = [_read(folder / name, members, columns) for name, members in files.items()]
    else:
        parts = [recorded.frame for recorded in load_store(folder, cells).values()]
    rows = pd.concat([part.reindex(columns=["cell", *columns]) for part in parts], ignore_index=True)
    return rows.assign(cell=rows["cell"].map({cell[-10:]: cell for cell in cells}))
