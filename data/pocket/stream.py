"""Training shards, built ahead by worker processes. Shard i depends on the seed and i alone."""

from __future__ import annotations

import itertools
import multiprocessing as mp
import random

import numpy as np
import torch

from jot.models import home
from pocket import rows
from pocket.recipe import Recipe


def tokenizer(model: str = "pocket-llada"):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(home() / "data" / "models" / model)


_STATE: dict = {}


def train_stream_of(task: str, recipe: Recipe, index: int, group: str):
    """The documents that a shard draws from, in their order."""
    from pocket.splits import train_stream

    return train_stream(task, recipe.seed, 3 * index + list(rows.WIDTHS).index(group))


def _init_worker(model: str = "pocket-llada") -> None:
    torch.set_num_threads(1)
    _STATE["tokenizer"] = tokenizer(model)


def mixed(recipe: Recipe, index: int, group: str, total: int, tok, rng: random.Random) -> list[rows.Row]:
    """The rows of a shard of the pocket tasks, in their shares."""
    shares = [part.split(":") for part in getattr(recipe, f"mix_{group}").split(",") if part]
    counts = np.floor([float(share) * total for _, share in shares]).astype(int)
    counts[0] += total - counts.sum()
    taken: list[rows.Row] = []
    for (name, _), count in zip(shares, counts, strict=True):
        task, _, kind = name.partition("+")
        stream, end = train_stream_of(task, recipe, index, group), len(taken) + count
        while len(taken) < end:
            docs = [next(stream) for _ in range(256)]
            if kind:
                made = rows.verdicts(task, docs, tok, rng)
            elif group == "choice":
                made = rows.choice(task, docs, tok)
            else:
                made = rows.generative(task, docs, tok, group, recipe.long_share, rng)
            taken += itertools.islice(made, end - len(taken))
    return taken


def make_shard(job: tuple[Recipe, int, str]) -> dict[str, np.ndarray]:
    """Shard ``index`` of one group: canvas and maskable ``[rows, width]``, length in tokens ``[rows]``."""
    recipe, index, group = job
    tok, rng = _STATE["tokenizer"], random.Random(f"{recipe.seed}/{index}/{group}")
    total = getattr(recipe, f"batch_{group}") * recipe.shard
    taken = recipe.rows(index, group, total, tok, rng)
    rng.shuffle(taken)
    canvas = np.full((total, recipe.WIDTHS[group]), tok.eos_token_id, dtype=np.int16)
    maskable = np.zeros(canvas.shape, dtype=bool)
    for i, row in enumerate(taken):
        canvas[i, : len(row.ids)] = row.ids
        maskable[i, row.maskable] = True
    return {"canvas": canvas, "maskable": maskable, "length": np.array([len(row.ids) for row in taken], np.int16)}


def groups(recipe: Recipe) -> list[str]:
    """The groups that a recipe trains on."""
    return [group for group in recipe.WIDTHS if getattr(recipe, f"batch_{group}")]


def shards(recipe: Recipe, first: int, total: int, workers: int):
    """One shard of every group at a time, from number ``first`` on, built ahead by worker processes."""
    jobs = [(recipe, index, group) for index in range(first, total) for group in groups(recipe)]
    if workers < 1:
        _init_worker(recipe.tokenizer)
        built = map(make_shard, jobs)
        yield from zip(*[built] * len(groups(recipe)), strict=True)
        return
    with mp.get_context("spawn").Pool(workers, initializer=_init_worker, initargs=(recipe.tokenizer,)) as pool:
        built = pool.imap(make_shard, jobs)
        yield from zip(*[built] * len(groups(recipe)), strict=True)
