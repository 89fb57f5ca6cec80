"""A store packed for keeping: few Parquet files and one manifest, read back through `records.load_store`.

Cells of one model (all its training seeds), task and split share a file, ordered by document: the answers to one
document stand side by side and compress against each other. A text that the tokenizer of the packaged model of that
name makes of the tokens is left out; reading it makes it again.

A pack replaces an older one whole or not at all: every file is on the disk under a name of its own before the
manifest that names it takes the older one's place. Killed at any moment, the folder reads as the old pack or the new.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pandas as pd

from jot.errors import UserError, destination, local
from jot.records.cells import Recorded, natural, plain
from jot.records.lines import EXTRA, FIELDS, TRACE
from jot.records.load import SAME, TOKENIZER, answers, digest, joined, load_store, metas, words_of
from jot.records.store import replace, sync

PLACE = ("versions", "hardware")  # of a cell's metadata, where it was decoded
_LIVE = re.compile(r"-[0-9a-f]{10}\.(.*\.)?jsonl?$")  # files of a live store
_TRACE_TYPES = {"step": np.int16, "rule": np.uint8, "margin": np.float32, "threshold": np.float32,
                "mean_margin": np.float16, "masked": np.int16}  # fmt: skip


def pack(
    stores: str | os.PathLike | Iterable[str | os.PathLike], folder: str | os.PathLike, traces: bool = False
) -> Path:
    """Packs every cell of one or more stores into `folder`; returns the manifest's path.

    Args:
        stores: live or packed stores; a cell that occurs twice must hold the same samples.
        folder: where the Parquet files and `manifest.json` go; older ones there are replaced, all at once. Who has
            opened the older pack has to load the new one. A packed folder may be packed into itself.
        traces: keep the per-position traces where they were recorded.

    Raises:
        UserError: nothing to pack, stores that contradict each other, or `folder` holds live records, which the
            manifest would hide.
    """
    stores = [local("the store", store) for store in ([stores] if isinstance(stores, (str, os.PathLike)) else stores)]
    folder = destination("folder", folder)
    groups: dict[str, set[str]] = {}
    for store in stores:
        for cell_id, meta in metas(store).items():
            words = [str(meta["config"].get(key)) for key in ("model", "task", "split")]
            words[0] = re.sub(r"-(seed\d+|\d+m)$", "", words[0])  # another training or size answers the same documents
            name = ".".join(re.sub(r"[^A-Za-z0-9-]+", "_", word) for word in words)
            groups.setdefault(name, set()).add(cell_id)
    if not groups:
        raise UserError(f"{', '.join(map(str, stores))}: no cell to pack; decode something into the store first")
    if folder.is_dir() and any(_LIVE.search(path.name) for path in folder.iterdir()):
        if any(folder.samefile(store) for store in stores):
            raise UserError(f"{folder} is the store itself; name another folder for the pack")
        raise UserError(f"{folder} holds records that are not packed; name another folder for the pack")
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):  # a pack removes what it does not name
        return _packed(groups, stores, folder, traces)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until nobody else packs into ``folder``, where its file system has such locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _packed(groups: Mapping[str, set[str]], stores: list[Path], folder: Path, traces: bool) -> Path:
    """Packs ``groups``, cells by name of their file; the lock is held."""
    token = secrets.token_hex(4)
    final = {f"{name}.{token}.parquet": f"{name}.parquet" for name in groups}  # names: while packing, and at the end
    manifest: dict[str, dict] = {}
    try:
        for name, cells in zip(final, groups.values(), strict=True):
            manifest |= _pack(stores, sorted(cells), folder / name, traces)
        if not manifest:
            raise UserError(f"{', '.join(map(str, stores))}: no finished sample to pack; decode something first")
    except BaseException:
        for name in final:
            (folder / name).unlink(missing_ok=True)
        raise
    _publish(folder, manifest)  # from here on the new pack is read
    # No manifest names the final names now: they come to mean the new files too, then the manifest says so.
    for name in sorted({meta["file"] for meta in manifest.values()}):
        temporary = folder / f"{final[name]}.tmp"
        shutil.copyfile(folder / name, temporary)
        sync(temporary)
        os.replace(temporary, folder / final[name])
    manifest = {cell_id: {**meta, "file": final[meta["file"]]} for cell_id, meta in manifest.items()}
    target = _publish(folder, manifest)
    named = {meta["file"] for meta in manifest.values()}
    own = "*.*.*.parquet"  # model, task and split; another's file stays
    for path in [*folder.glob(own), *folder.glob(f"{own}.tmp"), *folder.glob(".manifest.json.*.tmp")]:
        if path.name not in named:
            path.unlink()
    return target


def _publish(folder: Path, manifest: Mapping[str, Mapping]) -> Path:
    """Puts a manifest in the place of the older one, in one step; what it names must be on the disk."""
    # Most cells were decoded on one machine and in one way: what is equal stands once.
    places: list[dict] = []
    lines = []
    for cell_id, meta in sorted(plain(manifest).items()):
        place = {key: meta.pop(key) for key in PLACE if key in meta} | {"decode": meta["config"].pop("decode")}
        if place not in places:
            places.append(place)
        meta["place"] = places.index(place)
        lines.append(f"{json.dumps(cell_id)}: {json.dumps(meta, separators=(',', ':'))}")
    head = json.dumps(places, separators=(",", ":"))
    target = folder / "manifest.json"
    sync(folder)  # the names of the Parquet files, before the manifest's
    replace(target, f'{{"places": {head},\n"cells": {{\n' + ",\n".join(lines) + "\n}}\n")
    sync(folder)
    return target


def _alike(left: pd.DataFrame, right: pd.DataFrame) -> bool:
    """Whether two frames of one cell, in order of their documents, hold the same samples; the times may differ."""
    tokens = ([list(row) for row in frame["generated"]] for frame in (left, right))
    return left[["doc_id", "score"]].equals(right[["doc_id", "score"]]) and next(tokens) == next(tokens)


def _pack(stores: list[Path], members: list[str], path: Path, traces: bool) -> dict[str, dict]:
    """One file of the pack; returns its part of the manifest."""
    cells: dict[str, Recorded] = {}
    for store in stores:
        for cell_id, recorded in load_store(store, members).items():
            old = cells.setdefault(cell_id, recorded)
            if old is not recorded and not _alike(old.frame, recorded.frame):
                raise UserError(f"two stores hold the cell {cell_id} with different samples; pack one of them")
    cells = {cell_id: cell for cell_id, cell in sorted(cells.items()) if len(cell.frame)}
    if not cells:  # begun and not one sample finished
        return {}
    _write(path, [cell.frame for cell in cells.values()], traces)
    sync(path)
    sha256 = digest(path, path.stat().st_mtime_ns)
    return {cell_id: {**cell.meta, "file": path.name, "sha256": sha256} for cell_id, cell in cells.items()}


def _write(path: Path, frames: list[pd.DataFrame], traces: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pd.concat([frame.assign(_cell=i) for i, frame in enumerate(frames)], ignore_index=True)
    table = table.iloc[sorted(table.index, key=lambda i: (natural(table["doc_id"][i]), table["_cell"][i]))]
    largest = max((max(tokens) for tokens in table["generated"] if len(tokens)), default=0)
    lists = {"generated": np.uint16 if largest < 1 << 16 else np.uint32}
    lists |= {f"trace_{name}": kind for name, kind in _TRACE_TYPES.items()}
    times = zip(table["seconds"], table["slots"], strict=True)
    text, about, model = table["text"].astype(object), {}, path.name.split(".")[0]
    known, sha256 = words_of(model)
    if sha256 and text.notna().all() and (out := text == joined(answers(table), known)).any():  # a null comes back so
        text, about = text.mask(out, None), {TOKENIZER: f"{model} {sha256}"}
    table = table.assign(
        text=text,
        answer=table["answer"].mask(table["answer"] == table["text"], SAME),
        seconds=[t if slots == 1 else float(f"{t:.1e}") for t, slots in times],  # all that a shared batch's clock knows
        **{name: table[name].fillna("plain") for name in EXTRA if name in table},
    )
    kinds = {"i": pa.int32(), "f": pa.float32()}
    columns = {}
    for name in (*FIELDS, *EXTRA, *(f"trace_{name}" for name in TRACE if traces)):
        if name in lists and name in table:
            values = [np.asarray(v, lists[name]) if isinstance(v, (list, np.ndarray)) else None for v in table[name]]
            columns[name] = pa.array(values, pa.list_(pa.from_numpy_dtype(lists[name])))
        elif name in table:
            kind = pa.string() if name == "text" else kinds.get(table[name].dtype.kind)  # even where all are left out
            columns[name] = pa.array(list(table[name]), kind)
    words = ["cell", "doc_id", "prompt_hash", *(n for n in EXTRA if n in columns)]
    how = {"compression": "brotli", "compression_level": 11, "write_statistics": False, "data_page_size": 1 << 27}

    def size(dictionary: bool) -> int:
        tokens, out = pa.table({"generated": columns["generated"]}), pa.BufferOutputStream()
        with pq.ParquetWriter(out, tokens.schema, use_dictionary=dictionary, **how) as file:
            file.write_table(tokens)
        return out.tell()

    tokens = ["generated.list.element"] if size(True) < size(False) else []  # short where answers often repeat
    split = {"trace_margin.list.element": "BYTE_STREAM_SPLIT"} if "trace_margin" in columns else None
    pq.write_table(
        pa.table(columns, metadata=about), path, use_dictionary=[*words, *tokens],
        column_encoding=split, row_group_size=1 << 20, **how,
    )  # fmt: skip
