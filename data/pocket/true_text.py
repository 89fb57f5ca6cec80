"""The reversal bound on a real network: how often a decisive prediction is overturned while true text is revealed.

Single positions (``follow``). A document's response is masked as a whole. A quarter of its positions, drawn without
looking at the text, stays masked to the end; the others are revealed one at a time, in random order and with their
true tokens, and the model is asked again after each. A held position is committed once a threshold, the first time that
its top-2 ratio r reaches it; from then on its leader and runner-up are fixed and the log-odds of the two are followed.
Nothing that the model would have written is ever shown to it.

Whole exit sets (``walk`` and ``together``). At each step every masked position whose ratio reaches the threshold is
committed at once; the set is filled with its true tokens before the next step, and where nothing exits, the next
position of the document's random order is revealed. After a commit the rest is revealed one at a time, while the others
of the set stay masked, carry their true tokens, or carry the committed leaders.

``PYTHONPATH=data python -m pocket.true_text --out data/records/flip_bound`` measures the packaged pair and writes one
Parquet file of each kind (minutes on a GPU, hours on two cores); notebook 07 reads them. ``--models smol-dream --tasks
pocket_prose`` takes the pretrained network on real text, by its own tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pyarrow import parquet

from jot.errors import UserError
from jot.records import take
from jot.tasks import TASKS, read_jsonl, split_file
from jot.tasks.text import encode, render
from pocket.continuations import spoken
from pocket.prompts import prompt_text, response_text

SINGLE, JOINT = "true_text.parquet", "joint.parquet"
SPLITS = {"pocket_gsm8k": "dev", "pocket_prose": "test"}
DOCUMENTS = {"pocket_gsm8k": 1000, "pocket_prose": 60}  # of each model, where none is named
SETS = {"pocket_gsm8k": (3.0, 10.0, 30.0, 90.0)}  # thresholds of the exit sets, and the tasks they are followed on
PARTS = ("single", "sets")
MODELS = ("pocket-dream", "pocket-llada")
THRESHOLDS = (1.5, 3.0, 10.0, 30.0, 90.0, 300.0)
HELD = 0.25
WIDTHS = (128, 192)  # tokens of training's two canvases, prompt included: most answers stand on the first
BATCH = {"cpu": 16, "cuda": 2048}
INTEGERS = {"document": "uint16", "position": "uint8", "first": "uint8", "last": "uint8", "step": "uint8",
            "reveals": "uint8", "flip": "int16", "leader": "uint32", "runner": "uint32", "truth": "uint32"}  # fmt: skip
CONTINUATIONS = ("masked", "true", "written")  # what the others of a set are while one of it is asked
SET_INTEGERS = {"document": "uint16", "tau": "uint8", "step": "uint8", "position": "uint8", "size": "uint8",
                "wrong": "uint8", "truth": "uint8", **dict.fromkeys(CONTINUATIONS, "int16")}  # fmt: skip


class Text(NamedTuple):
    """One document: its canvas of true tokens, where the response starts, and the order of its positions."""

    id: str
    canvas: list[int]
    start: int
    order: np.ndarray  # all response positions; the first ``reveals`` are revealed, the rest is held
    reveals: int


def texts(model, task: str, documents: int | None = None, seed: int = 0) -> tuple[list[Text], int]:
    """The first documents of the split's fixed order on the canvas they were trained on, and how many did not fit.

    Answers are filled with EOS up to the narrowest of ``WIDTHS`` that takes them; passages of prose are 64 given
    tokens and 128 masked ones, of the speech beyond the passage where a tokenizer needs fewer tokens for it.
    """
    spec = TASKS[task]
    docs = {doc["id"]: doc for doc in read_jsonl(split_file(spec, SPLITS[task], None)[1])}
    found, misfits = [], 0
    for doc_id in take(list(docs)):
        if len(found) == documents:
            break
        asked, doc = prompt_text(task, docs[doc_id]), docs[doc_id]
        if spec.chat:
            asked = render(model, [{"role": "user", "content": asked}])
            prompt, response = encode(model, [asked, response_text(task, doc)])
            width = next((w for w in WIDTHS if len(prompt) + len(response) < w), 0)
            response = response + [model.eos_id] * (width - len(prompt) - len(response))
        else:
            ids = encode(model, [asked])[0]
            if len(ids) < spec.prompt_tokens + spec.length:  # in the tokens of others a passage is shorter
                ids = encode(model, [spoken(doc)])[0]
            prompt, response = ids[: spec.prompt_tokens], ids[spec.prompt_tokens :][: spec.length]
            width = len(prompt) + len(response) if len(response) == spec.length else 0
        if not width:
            misfits += 1
            continue
        digest = hashlib.sha256(f"{seed}/{doc_id}".encode()).digest()
        positions = np.random.default_rng(list(digest)).permutation(np.arange(len(prompt), width))
        reveals = len(positions) - max(1, round(HELD * len(positions)))
        found.append(Text(doc_id, prompt + response, len(prompt), positions, reveals))
    return found, misfits


def batches(items: Iterable, width, work, size: int) -> Iterator[list]:
    """Items in batches of one ``width``, those with most ``work`` first, so that a batch ends nearly at once."""
    ranked = sorted(items, key=lambda item: (width(item), -work(item)))
    for _, group in groupby(ranked, key=width):
        group = list(group)
        yield from (group[i : i + size] for i in range(0, len(group), size))


def picks(found: Sequence[Text], size: int) -> Iterator[list[int]]:
    """``batches`` of texts, by index."""
    return batches(range(len(found)), lambda i: len(found[i].canvas), lambda i: found[i].reveals, size)


# --- asking while text is revealed --------------------------------------------------------------------------


class Asked(NamedTuple):
    """A canvas, its true tokens, the positions revealed on it one by one, and the masked ones asked after each."""

    canvas: np.ndarray
    truth: np.ndarray
    rest: np.ndarray
    position: np.ndarray
    pair: np.ndarray | None = None  # leader and runner-up of each, [asked, 2]
    key: tuple = ()


def _logits(model, canvas, slot, position):
    """Log-odds of every token at the asked positions in float64; the mask token is no candidate."""
    logits = model.predict(canvas, None, slot, position).double()
    logits[:, model.mask_id] = -math.inf
    return logits


def revealing(model, rows: Sequence[Asked]) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """After each number of reveals on canvases of one width: that number, which of all asked positions stand on a
    canvas that is not done, and their log-odds. A canvas that is done is asked no more."""
    canvas, truth = (
        torch.tensor(np.stack(x), device=model.device) for x in zip(*((r[0], r[1]) for r in rows), strict=True)
    )
    order = torch.nn.utils.rnn.pad_sequence([torch.tensor(r.rest) for r in rows], True).to(model.device)
    counts = torch.tensor([len(r.rest) for r in rows], device=model.device)
    slot = torch.tensor(np.repeat(np.arange(len(rows)), [len(r.position) for r in rows]), device=model.device)
    position = torch.tensor(np.concatenate([r.position for r in rows]), device=model.device)
    for m in range(int(counts.max()) + 1):
        live = counts >= m
        at = live[slot].nonzero()[:, 0]
        yield m, at, _logits(model, canvas[live], (live.cumsum(0) - 1)[slot[at]], position[at])
        if len(more := (counts > m).nonzero()[:, 0]):
            canvas[more, order[more, m]] = truth[more, order[more, m]]


def _masked(model, text: Text) -> np.ndarray:
    return np.where(np.arange(len(text.canvas)) >= text.start, model.mask_id, text.canvas)


# --- single positions ---------------------------------------------------------------------------------------


@torch.inference_mode()
def follow(model, batch: Sequence[Text], thresholds: Sequence[float] = THRESHOLDS) -> pd.DataFrame:
    """Reveal a batch of texts on canvases of one width; one row per document, held position and commit.

    Columns: document (index in the batch), position (in the response), first and last (the thresholds, by index, at
    which this commit happens: the ratio may pass several in one step), step (reveals before the commit), reveals (in
    all), leader, runner, truth (token ids), margin (ln r at the commit), end (log-odds of the runner-up against the
    leader after the last reveal), flip (the first number of reveals at which these reach 0; -1 if never).
    """
    if any(len(text.canvas) != len(batch[0].canvas) for text in batch):
        raise UserError("texts of one batch need canvases of one width; group them by width")
    parts = [(np.array(t.canvas), t.order[: t.reveals], t.order[t.reveals :]) for t in batch]
    rows = [Asked(_masked(model, t), *part) for t, part in zip(batch, parts, strict=True)]
    bars = torch.tensor(thresholds, dtype=torch.float64, device=model.device).log()
    shape = (sum(len(row.position) for row in rows), len(bars))
    step, flip = torch.full((2, *shape), -1, device=model.device)
    pair = torch.zeros((*shape, 2), dtype=torch.long, device=model.device)
    margin, odds = torch.full((2, *shape), math.nan, dtype=torch.float64, device=model.device)
    for m, at, logits in revealing(model, rows):
        top = logits.topk(2)
        gap = (top.values[:, 0] - top.values[:, 1])[:, None]
        fresh = (step[at] < 0) & (gap >= bars)
        step[at] = torch.where(fresh, m, step[at])
        pair[at] = torch.where(fresh[..., None], top.indices[:, None], pair[at])
        margin[at] = torch.where(fresh, gap, margin[at])
        now = logits.gather(1, pair[at, :, 1]) - logits.gather(1, pair[at, :, 0])
        odds[at] = torch.where(step[at] >= 0, now, math.nan)
        flip[at] = torch.where((flip[at] < 0) & (odds[at] >= 0), m, flip[at])  # ties count
    return _rows(batch, rows, *(x.cpu().numpy() for x in (step, flip, pair, margin, odds)))


def _rows(batch, rows, step, flip, pair, margin, odds) -> pd.DataFrame:
    """One row per commit; thresholds passed in the same step share one, and none is reached above one that is not."""
    h, t = np.nonzero((step >= 0) & (np.diff(step, axis=1, prepend=-1) != 0))
    last = np.where(np.append(h[1:] == h[:-1], False), np.append(t[1:], 0), (step >= 0).sum(1)[h]) - 1
    b = np.repeat(np.arange(len(rows)), [len(row.position) for row in rows])[h]
    i = np.concatenate([row.position for row in rows])[h]
    frame = pd.DataFrame({
        "document": b, "position": i - np.array([text.start for text in batch])[b], "first": t, "last": last,
        "step": step[h, t], "reveals": np.array([text.reveals for text in batch])[b], "flip": flip[h, t],
        "leader": pair[h, t, 0], "runner": pair[h, t, 1], "truth": np.stack([row.truth for row in rows])[b, i],
        "margin": margin[h, t], "end": odds[h, t],
    })  # fmt: skip
    return frame.astype(INTEGERS | {"margin": "float32", "end": "float32"})


# --- whole exit sets ----------------------------------------------------------------------------------------


class Exits(NamedTuple):
    """One step's exit set: where it stands, and what the model said of each of its positions."""

    document: int
    step: int
    canvas: np.ndarray  # as it was at the commit
    rest: np.ndarray  # positions still masked after it, in the order in which they are revealed
    position: np.ndarray
    leader: np.ndarray
    runner: np.ndarray
    margin: np.ndarray


@torch.inference_mode()
def walk(model, batch: Sequence[Text], tau: float) -> list[Exits]:
    """The exit sets of texts on canvases of one width, each in a context of true text."""
    truth, found, step = np.array([text.canvas for text in batch]), [], 0
    hidden = np.array([_masked(model, text) for text in batch]) == model.mask_id
    while (live := np.flatnonzero(hidden.any(1))).size:
        canvas = np.where(hidden, model.mask_id, truth)[live]
        slot, position = np.nonzero(hidden[live])
        asked = (torch.tensor(x, device=model.device) for x in (canvas, slot, position))
        values, indices = (x.cpu().numpy() for x in _logits(model, *asked).topk(2))
        margin = values[:, 0] - values[:, 1]
        for k, b in enumerate(live):
            at = (slot == k) & (margin >= math.log(tau))
            left = hidden[b] & ~np.isin(np.arange(truth.shape[1]), position[at])
            rest = batch[b].order[left[batch[b].order]]
            if at.any():
                found.append(Exits(b, step, canvas[k], rest, position[at], *indices[at].T, margin[at]))
            else:
                left[rest[0]] = False
            hidden[b] = left
        step += 1
    return found


@torch.inference_mode()
def first_flips(model, rows: Sequence[Asked]) -> list[np.ndarray]:
    """Number of reveals at which each asked runner-up first draws level with its leader; -1 if it never does."""
    pair = torch.tensor(np.concatenate([row.pair for row in rows]), device=model.device)
    flip = torch.full_like(pair[:, 0], -1)
    for m, at, logits in revealing(model, rows):
        leader, runner = logits.gather(1, pair[at]).T
        flip[at] = torch.where((flip[at] < 0) & (runner >= leader), m, flip[at])
    return np.split(flip.cpu().numpy(), np.cumsum([len(row.position) for row in rows])[:-1])


def _continuations(model, text: Text, exits: Exits) -> Iterator[Asked]:
    """What is asked of one exit set: together with all masked, then each beside true tokens, beside the leaders."""
    truth, at = np.array(text.canvas), exits.position
    wrong = exits.leader != truth[at]
    followed = np.flatnonzero(exits.leader != model.eos_id)
    pair = np.stack([exits.leader, exits.runner], 1)

    def asked(canvas: np.ndarray, name: str, which: np.ndarray) -> Asked:
        key = (exits.document, exits.step, name, which)
        return Asked(canvas, truth, exits.rest, at[which], pair[which], key)

    if followed.size:
        yield asked(exits.canvas, "masked", followed)
    for j in followed:
        others = np.arange(len(at)) != j
        for name, tokens in (("true", truth[at]), ("written", exits.leader)):
            if others.any() and (name == "true" or wrong[others].any()):
                canvas = exits.canvas.copy()
                canvas[at[others]] = tokens[others]
                yield asked(canvas, name, np.array([j]))


def together(model, found: Sequence[Text], tau: float, size: int = BATCH["cpu"]) -> tuple[pd.DataFrame, dict]:
    """Every exit whose leader is not EOS, one row each, and counts of all exits.

    Columns: document (index), step, position (in the response), size (exits of its step, EOS among them), wrong
    (how many of the others have a leader that is not the true token), truth (0 the leader, 1 the runner-up, 2 another
    token), margin (ln r at the commit), and for each of ``CONTINUATIONS`` the reveals before the first flip, or -1.
    """
    sets = []
    for pick in picks(found, size):
        sets += [e._replace(document=pick[e.document]) for e in walk(model, [found[i] for i in pick], tau)]
    flips: dict[tuple, dict] = {}
    asked = [row for e in sets for row in _continuations(model, found[e.document], e)]
    for rows in batches(asked, lambda r: len(r.canvas), lambda r: len(r.rest), size):
        for row, first in zip(rows, first_flips(model, rows), strict=True):
            document, step, name, which = row.key
            for j, flip in zip(which.tolist(), first.tolist(), strict=True):
                flips.setdefault((document, step, j), {})[name] = flip
    out = []
    for e in sets:
        truth = np.array(found[e.document].canvas)[e.position]
        wrong = e.leader != truth
        for j in np.flatnonzero(e.leader != model.eos_id).tolist():
            flip = flips[e.document, e.step, j]
            flip.setdefault("true", flip["masked"])  # alone in its set
            flip.setdefault("written", flip["true"])  # all others are right
            out.append({
                "document": e.document, "step": e.step, "position": e.position[j] - found[e.document].start,
                "size": len(truth), "wrong": int(wrong.sum() - wrong[j]), "margin": e.margin[j],
                "truth": 0 if not wrong[j] else 1 if truth[j] == e.runner[j] else 2, **flip,
            })  # fmt: skip
    counts = {"sets": len(sets), "exits": sum(len(e.position) for e in sets)}
    return pd.DataFrame(out, columns=[*(c for c in SET_INTEGERS if c != "tau"), "margin"]), counts


# --- measuring, and the files -------------------------------------------------------------------------------

Measured = list[tuple[pd.DataFrame, dict]]  # each part, and what was measured


def measure(model, task: str, documents: int | None = None, seed: int = 0) -> tuple[pd.DataFrame, dict]:
    """``follow`` over the first documents of a task, and what was measured (counts, weights, seconds)."""
    found, meta = _begin(model, task, documents, seed)
    begun, parts = time.perf_counter(), []
    for pick in picks(found, BATCH.get(model.device.type, 16)):
        frame = follow(model, [found[i] for i in pick])
        parts.append(frame.assign(document=np.array(pick)[frame["document"]].astype("uint16")))
    frame = pd.concat(parts, ignore_index=True)
    meta |= {"positions": sum(meta["held"]), "reveals": sum(t.reveals for t in found), "thresholds": list(THRESHOLDS)}
    return frame, meta | {"seconds": round(time.perf_counter() - begun, 1)}


def measure_sets(
    model, task: str, documents: int | None = None, seed: int = 0, taus: Sequence[float] | None = None
) -> tuple[pd.DataFrame, dict]:
    """``together`` at each threshold over the first documents of a task, and what was measured."""
    taus = SETS[task] if taus is None else taus
    found, meta = _begin(model, task, documents, seed)
    begun = time.perf_counter()
    done = [together(model, found, tau, BATCH.get(model.device.type, 16)) for tau in taus]
    frame = pd.concat([part.assign(tau=i) for i, (part, _) in enumerate(done)], ignore_index=True)
    frame = frame.astype(SET_INTEGERS | {"margin": "float32"})[[*SET_INTEGERS, "margin"]]
    meta |= {"thresholds": list(taus), "counts": [counts for _, counts in done]}
    return frame, meta | {"seconds": round(time.perf_counter() - begun, 1)}


def _begin(model, task: str, documents: int | None, seed: int) -> tuple[list[Text], dict]:
    if model.dtype == torch.float32:
        torch.backends.cuda.matmul.allow_tf32 = False
    found, misfits = texts(model, task, documents, seed)
    return found, {
        "model": Path(model.name).name, "task": task, "split": SPLITS[task], "fingerprint": model.fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."), "seed": seed, "documents": len(found), "misfits": misfits,
        "held": [len(t.order) - t.reveals for t in found], "ids": [t.id for t in found],
        "widths": [len(t.canvas) for t in found], "eos": model.eos_id, "torch": torch.__version__.split("+")[0],
        "device": model.device.type,
    }  # fmt: skip


def write(measured: Measured, folder: str | Path, name: str) -> Path:
    """All parts in one Parquet file, what was measured in its metadata ``flip_bound``, one entry a ``part``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    whole = pd.concat([frame.assign(part=np.uint8(i)) for i, (frame, _) in enumerate(measured)], ignore_index=True)
    for column in whole.columns.intersection(["margin", "end"]):
        whole[column] = whole[column].round(3)
    order = [name for name in ("document", "position", "part", "tau", "first", "step") if name in whole]
    whole = whole.sort_values(order, kind="stable", ignore_index=True)  # neighbors compress against each other
    table = pa.Table.from_pandas(whole, preserve_index=False).replace_schema_metadata(None)
    meta = json.dumps([meta for _, meta in measured], sort_keys=True, separators=(",", ":"))
    how = {"compression": "brotli", "compression_level": 11, "use_dictionary": False, "store_schema": False}
    with parquet.ParquetWriter(folder / name, table.schema, **how) as file:  # Arrow's schema would hold a second copy
        file.write_table(table)
        file.add_key_value_metadata({"flip_bound": meta})
    return folder / name


def record(
    folder: str | Path, models: Iterable[str], tasks: Iterable[str], documents: int | None = None, seed: int = 0,
    device: str | None = None, dtype: str | None = "float32", parts: Sequence[str] = PARTS,
    taus: Sequence[float] | None = None,
) -> Iterator[str]:  # fmt: skip
    """Measure models on tasks with the weights, here and now, into a file of each part; yields a line for each.

    Exit sets are followed at ``taus``, by default at those of ``SETS``, where a task has any.
    """
    import jot

    single: Measured = []
    joint: Measured = []
    for name in models:
        model = jot.load(name, device=device, dtype=dtype)
        for task in (task for task in tasks if task in SPLITS):
            n = documents or DOCUMENTS[task]
            if "single" in parts:
                single.append(measure(model, task, n, seed))
                yield f"{write(single, folder, SINGLE)} {name} {task} {single[-1][1]['seconds']} s"
            if "sets" in parts and (bars := SETS.get(task, ()) if taus is None else taus):
                joint.append(measure_sets(model, task, n, seed, bars))
                yield f"{write(joint, folder, JOINT)} {name} {task} {joint[-1][1]['seconds']} s"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pocket.true_text", description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, help="folder of the two Parquet files")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--tasks", nargs="+", default=list(SPLITS), choices=list(SPLITS))
    parser.add_argument("--documents", type=int, help="of each task; by default 1000 of gsm8k and 60 of prose")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="which of the two files")
    parser.add_argument("--taus", nargs="+", type=float, help="thresholds of exit sets, on every task")
    o = parser.parse_args(arguments)
    for line in record(o.out, o.models, o.tasks, o.documents, o.seed, o.device, o.dtype, o.parts, o.taus):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as mistake:
        sys.exit(f"jot: error: {mistake}")
