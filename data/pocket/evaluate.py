"""Held-out loss and dev accuracy during training, without lm-eval: the same loop, prompts and scoring functions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from jot.decode import decode_stream
from jot.models import home
from jot.tasks import extract, sandbox
from pocket import splits
from pocket.tokenizer import LENGTHS, encode_batch

SCORED = ("pocket_gsm8k", "pocket_mmlu", "pocket_hellaswag", "pocket_humaneval")
BLOCKS = {"llada": 32, "dream": None}


def documents(task: str, split: str, limit: int | None = None) -> list[dict]:
    """The first ``limit`` documents of a shipped split."""
    return splits.read_split(task, split, home() / "data" / "tasks")[: limit or None]


def _score(task: str, doc: dict, text: str) -> bool:
    if task == "pocket_gsm8k":
        return extract.gsm8k(text) == extract.number(doc["final"])
    if task == "pocket_humaneval":
        return sandbox.check(doc["prompt"], text, doc["test"], doc["entry_point"]).passed
    return extract.letter(text) == "ABCD"[doc["answer" if task == "pocket_mmlu" else "label"]]


@torch.no_grad()
def heldout_loss(model, tokenizer, *, limit: int, device: str, split: str = "dev") -> dict[str, float]:
    """Mean cross-entropy (nats a masked response token) at noise levels 0.2, 0.5 and 0.8, the same masks every time."""
    results = {}
    for task in LENGTHS:
        pairs = [p for p in encode_batch(task, documents(task, split, limit), tokenizer) if p is not None]
        total, count = 0.0, 0
        generator = torch.Generator().manual_seed(0)
        for level in (0.2, 0.5, 0.8):
            width = max(len(prompt) + len(response) for prompt, response in pairs)
            canvas = torch.full((len(pairs), width), model.eos_id)
            seen, target = torch.zeros_like(canvas, dtype=torch.bool), canvas.clone()
            for i, (prompt, response) in enumerate(pairs):
                end = len(prompt) + len(response)
                target[i, :end] = torch.tensor(prompt + response)
                seen[i, :end] = True
                hidden = torch.rand(len(response), generator=generator) < level
                canvas[i, : len(prompt)] = torch.tensor(prompt)
                canvas[i, len(prompt) : end] = torch.tensor(response).masked_fill(hidden, model.mask_id)
            row, position = (canvas == model.mask_id).nonzero(as_tuple=True)
            logits = model.predict(*(x.to(device) for x in (canvas, seen, row, position)))
            total += float(F.cross_entropy(logits, target[row, position].to(device), reduction="sum"))
            count += len(row)
        results[task] = round(total / max(1, count), 4)
    return results


@torch.no_grad()
def accuracy(
    model, tokenizer, *, limit: int, device: str, split: str = "dev", method=None, tasks=SCORED
) -> dict[str, float]:
    """Accuracy (0 to 1) of full decoding, or of ``method``, on the first ``limit`` documents of each scored task."""
    results = {}
    for task in tasks:
        docs = documents(task, split, limit)
        pairs = encode_batch(task, docs, tokenizer)
        prompts = [(i, pair[0]) for i, pair in enumerate(pairs) if pair is not None]
        length = LENGTHS[task]
        block = BLOCKS[model.family] and min(length, BLOCKS[model.family])
        stream = decode_stream(model, prompts, method, slots=256, length=length, block_length=block)
        right = 0
        for key, out in stream:
            ids = out.generated[: out.generated.index(model.eos_id)] if model.eos_id in out.generated else out.generated
            right += _score(task, docs[key], tokenizer.decode(ids, skip_special_tokens=True))
        results[task] = round(right / len(docs), 4)
    return results
