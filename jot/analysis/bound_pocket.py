"""The reversal bound on a real network: how often a decisive prediction is overturned while true text is revealed.

A document's response is masked as a whole. A quarter of its positions, drawn without looking at the text, stays masked
to the end; the others are revealed one at a time, in random order and with their true tokens, and the model is asked
again after each. A held position is committed once a threshold, the first time that its top-2 ratio r reaches it; from
then on its leader and runner-up are fixed and the log-odds of the two are followed. Nothing that the model would have
written is ever shown to it.

``python -m jot.analysis.bound_pocket --out data/records/flip_bound`` measures the packaged pair and writes one Parquet
file (a few minutes on two cores); the notebook reads it back.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from jot.errors import UserError
from jot.records import take
from jot.runs.parameters import NotebookError
from jot.tasks import TASKS, read_jsonl, split_file
from jot.tasks.prompts import prompt_text, response_text
from jot.tasks.text import encode, render

FILE = "true_text.parquet"
SPLITS = {"pocket_gsm8k": "dev", "pocket_prose": "test"}
DOCUMENTS = {"pocket_gsm8k": 100, "pocket_prose": 60}  # of each model, where none is named
MODELS = ("pocket-dream", "pocket-llada")
THRESHOLDS = (1.5, 3.0, 10.0, 30.0, 90.0, 300.0)
HELD = 0.25
COMPACT = 128  # tokens of the canvas on which most answers were trained, prompt included
BATCH = 16
INTEGERS = {"document": "uint16", "position": "uint8", "first": "uint8", "last": "uint8", "step": "uint8",
            "reveals": "uint8", "flip": "int16", "leader": "uint32", "runner": "uint32", "truth": "uint32"}  # fmt: skip


class Text(NamedTuple):
    """One document: its canvas of true tokens, where the response starts, and the order of its positions."""

    id: str
    canvas: list[int]
    start: int
    order: np.ndarray  # all response positions; the first ``reveals`` are revealed, the rest is held
    reveals: int


def texts(model, task: str, documents: int | None = None, seed: int = 0) -> tuple[list[Text], int]:
    """The first documents of the split's fixed order on the canvas they were trained on, and how many did not fit.

    Answers stand on the compact canvas of training, filled with EOS, which takes prompts and answers that fit, as in
    training; passages of prose are 64 given tokens and 128 masked ones.
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
            room, fits = COMPACT - len(prompt), len(prompt) + len(response) < COMPACT
            response = response + [model.eos_id] * (room - len(response))
        else:
            ids = encode(model, [asked])[0]
            prompt, response = ids[: spec.prompt_tokens], ids[spec.prompt_tokens :][: spec.length]
            fits = len(response) == spec.length
        if not fits:
            misfits += 1
            continue
        start, width = len(prompt), len(prompt) + len(response)
        digest = hashlib.sha256(f"{seed}/{doc_id}".encode()).digest()
        positions = np.random.default_rng(list(digest)).permutation(np.arange(start, width))
        reveals = len(positions) - max(1, round(HELD * len(positions)))
        found.append(Text(doc_id, prompt + response, start, positions, reveals))
    return found, misfits


def follow(model, batch: Sequence[Text], thresholds: Sequence[float] = THRESHOLDS) -> pd.DataFrame:
    """Reveal a batch of texts on canvases of one width; one row per document, held position and commit.

    Columns: document (index in the batch), position (in the response), first and last (the thresholds, by index, at
    which this commit happens: the ratio may pass several in one step), step (reveals before the commit), reveals (in
    all), leader, runner, truth (token ids), margin (ln r at the commit), end (log-odds of the runner-up against the
    leader after the last reveal), flip (the first number of reveals at which these reach 0; -1 if never).
    """
    import torch

    width, device = len(batch[0].canvas), model.device
    if any(len(text.canvas) != width for text in batch):
        raise UserError("texts of one batch need canvases of one width; group them by width")
    truth = torch.tensor([text.canvas for text in batch], device=device)
    canvas = truth.clone()
    for b, text in enumerate(batch):
        canvas[b, text.start :] = model.mask_id
    held = [(b, int(i)) for b, text in enumerate(batch) for i in text.order[text.reveals :]]
    row, position = (torch.tensor(part, device=device) for part in zip(*held, strict=True))
    reveals = torch.tensor([text.reveals for text in batch], device=device)
    bars = torch.tensor(thresholds, dtype=torch.float64, device=device).log()
    shape = (len(held), len(bars))
    step = torch.full(shape, -1, device=device)
    flip = step.clone()
    pair = torch.zeros((*shape, 2), dtype=torch.long, device=device)
    margin, odds = (torch.full(shape, math.nan, dtype=torch.float64, device=device) for _ in range(2))
    with torch.inference_mode():
        for m in range(int(reveals.max()) + 1):
            live = (reveals >= m).nonzero()[:, 0]  # a text that is done is asked no more
            slot = torch.full_like(reveals, -1)
            slot[live] = torch.arange(len(live), device=device)
            at = (slot[row] >= 0).nonzero()[:, 0]
            logits = model.predict(canvas[live], None, slot[row[at]], position[at]).double()
            logits[:, model.mask_id] = -math.inf
            top = logits.topk(2)
            gap = (top.values[:, 0] - top.values[:, 1])[:, None]
            fresh = (step[at] < 0) & (gap >= bars)
            step[at] = torch.where(fresh, m, step[at])
            pair[at] = torch.where(fresh[..., None], top.indices[:, None], pair[at])
            margin[at] = torch.where(fresh, gap, margin[at])
            now = logits.gather(1, pair[at, :, 1]) - logits.gather(1, pair[at, :, 0])
            odds[at] = torch.where(step[at] >= 0, now, math.nan)
            flip[at] = torch.where((flip[at] < 0) & (odds[at] >= 0), m, flip[at])  # ties count
            for b in live.tolist():
                if m < batch[b].reveals:
                    i = int(batch[b].order[m])
                    canvas[b, i] = truth[b, i]
    return _rows(batch, held, *(x.cpu().numpy() for x in (truth[row, position], step, flip, pair, margin, odds)))


def _rows(batch, held, truth, step, flip, pair, margin, odds) -> pd.DataFrame:
    """One row per commit; thresholds passed in the same step share one."""
    out = []
    for h, (b, i) in enumerate(held):
        for t in range(step.shape[1]):
            if step[h, t] < 0:
                break  # a higher threshold is not reached either
            if t and step[h, t] == step[h, t - 1]:
                out[-1]["last"] = t
                continue
            out.append({
                "document": b, "position": i - batch[b].start, "first": t, "last": t, "step": step[h, t],
                "reveals": batch[b].reveals, "leader": pair[h, t, 0], "runner": pair[h, t, 1], "truth": truth[h],
                "margin": margin[h, t], "end": odds[h, t], "flip": flip[h, t],
            })  # fmt: skip
    frame = pd.DataFrame(out, columns=[*INTEGERS, "margin", "end"])
    return frame.astype(INTEGERS | {"margin": "float32", "end": "float32"})


def measure(model, task: str, documents: int | None = None, seed: int = 0) -> tuple[pd.DataFrame, dict]:
    """``follow`` over the first documents of a task, and what was measured (counts, weights, seconds)."""
    import torch

    if model.dtype == torch.float32:
        torch.backends.cuda.matmul.allow_tf32 = False
    found, misfits = texts(model, task, documents, seed)
    begun, parts = time.perf_counter(), []
    longest = sorted(range(len(found)), key=lambda i: -found[i].reveals)  # a batch ends nearly at once
    for start in range(0, len(found), BATCH):
        pick = np.array(longest[start : start + BATCH])
        frame = follow(model, [found[i] for i in pick])
        parts.append(frame.assign(document=pick[frame["document"]].astype("uint16")))
    frame = pd.concat(parts).sort_values(["document", "position", "first"], ignore_index=True)
    meta = {
        "model": Path(model.name).name, "task": task, "split": SPLITS[task], "fingerprint": model.fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."), "seed": seed, "documents": len(found), "misfits": misfits,
        "positions": sum(len(t.order) - t.reveals for t in found), "reveals": sum(t.reveals for t in found),
        "held": [len(t.order) - t.reveals for t in found], "ids": [t.id for t in found],
        "eos": model.eos_id, "thresholds": list(THRESHOLDS), "torch": torch.__version__.split("+")[0],
        "device": model.device.type, "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip
    return frame, meta


# --- the file -----------------------------------------------------------------------------------------------

Measured = list[tuple[pd.DataFrame, dict]]


def write(measured: Measured, folder: str | Path) -> Path:
    """All parts in one Parquet file, what was measured in its metadata."""
    import pyarrow as pa
    from pyarrow import parquet

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    whole = pd.concat([frame.assign(part=np.uint8(i)) for i, (frame, _) in enumerate(measured)], ignore_index=True)
    for name in ("margin", "end"):
        whole[name] = whole[name].round(3)
    table = pa.Table.from_pandas(whole, preserve_index=False)
    table = table.replace_schema_metadata({"flip_bound": json.dumps([meta for _, meta in measured], sort_keys=True)})
    parquet.write_table(table, folder / FILE, compression="zstd", compression_level=19)
    return folder / FILE


def read(folder: str | Path) -> Measured:
    """The parts of a file that ``write`` made.

    Raises:
        NotebookError: it is not there, or not readable.
    """
    import pyarrow as pa
    from pyarrow import parquet

    path = Path(folder) / FILE
    if not path.is_file():
        raise NotebookError(
            f"there is no {FILE} in {Path(folder).name}: check it out, or pass source=live to measure it here"
        )
    try:
        table = parquet.read_table(path)
        metas = json.loads(table.schema.metadata[b"flip_bound"])
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise NotebookError(f"{path.name} cannot be read ({error}); make it again or check it out again") from None
    frame = table.to_pandas()
    return [(frame[frame["part"] == i].drop(columns="part").reset_index(drop=True), m) for i, m in enumerate(metas)]


# --- from the command line ----------------------------------------------------------------------------------


def live(
    models: Iterable[str], tasks: Iterable[str], documents: int | None = None, seed: int = 0,
    device: str | None = None, dtype: str | None = "float32",
) -> Iterator[tuple[pd.DataFrame, dict]]:  # fmt: skip
    """Measure models on tasks with the weights, here and now, one after the other."""
    import jot

    tasks = [task for task in tasks if task in SPLITS]
    for name in models:
        model = jot.load(name, device=device, dtype=dtype)
        for task in tasks:
            yield measure(model, task, documents or DOCUMENTS[task], seed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jot.analysis.bound_pocket", description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, help="folder of the Parquet file")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--tasks", nargs="+", default=list(SPLITS), choices=list(SPLITS))
    parser.add_argument("--documents", type=int, help="of each task; by default 100 of gsm8k and 60 of prose")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    options = parser.parse_args(arguments)
    done: Measured = []
    for part in live(options.models, options.tasks, options.documents, options.seed, options.device):
        done.append(part)
        print(write(done, options.out), part[1]["model"], part[1]["task"], f"{part[1]['seconds']} s", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as mistake:
        sys.exit(f"jot: error: {mistake}")
