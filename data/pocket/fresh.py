"""Two fresh splits, drawn after `test` had been decoded many times: `confirm`, to be decoded once, and `calibration`.

`PYTHONPATH=data python -m pocket.fresh` draws them from generator seeds of their own, with the filters of dev and test,
leaves out every prompt of dev, test, the other fresh split, and of the training streams of the shipped models, and
writes `data/tasks/pocket_*/{confirm,calibration}.jsonl.xz`. They are no part of `splits.held_out`: that would change
what training yields.

The training streams are searched whole. How many documents a shard draws depends on which of them fit its canvases;
that number is counted for some shards of each kind, and a quarter more than the most is searched of every shard.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from pocket import rows, splits, stream
from pocket.paths import TASKS as DATA
from pocket.prompts import prompt_text
from pocket.recipe import Recipe
from pocket.tokenizer import generator

COUNTS = {
    "confirm": {"pocket_gsm8k": 2000, "pocket_humaneval": 1000},
    "calibration": {task: 2000 for task in ("pocket_gsm8k", "pocket_mmlu", "pocket_hellaswag", "pocket_humaneval")},
}
SPARE = 2.5  # candidates drawn beyond the count, since some turn out to be of training
STEPS = 7900  # of pocket-llada, the longer training; pocket-dream saw the first 7,500 of the same stream
COUNTED = 6  # shards whose draws are counted
MORE = 1.25
BLOCK = 256  # documents that a shard draws at a time


def jobs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """(group, task) of every part of a shard."""
    for group in stream.groups(recipe):
        for share in filter(None, getattr(recipe, f"mix_{group}").split(",")):
            yield group, share.split(":")[0]


def _count(recipe: Recipe, index: int, group: str, name: str) -> int:
    """Documents that a shard draws of one part of its mix, as ``stream.make_shard`` does."""
    shares = dict(part.split(":") for part in getattr(recipe, f"mix_{group}").split(",") if part)
    wanted = int(float(shares[name]) * getattr(recipe, f"batch_{group}") * recipe.shard)
    task, _, kind = name.partition("+")
    source, rng, tok = stream.train_stream_of(task, recipe, index, group), random.Random(0), stream.tokenizer()
    drawn = taken = 0
    while taken < wanted:
        docs = [next(source) for _ in range(BLOCK)]
        if kind:
            made = rows.verdicts(task, docs, tok, rng)
        elif group == "choice":
            made = rows.choice(task, docs, tok)
        else:
            made = rows.generative(task, docs, tok, group, recipe.long_share, rng)
        drawn, taken = drawn + BLOCK, taken + sum(1 for _ in made)
    return drawn


def _search(keys: frozenset[bytes], recipe: Recipe, job: tuple[str, str, int, range]) -> tuple[int, set[bytes]]:
    """Which of the keys occur in the first ``most`` documents of each of these shards."""
    group, task, most, indices = job
    sample, met = generator(task).sample, set()
    for index in indices:
        rng = random.Random(f"{task}/train/{recipe.seed}/{3 * index + list(rows.WIDTHS).index(group)}")
        for _ in range(most):  # also what training skips: a prompt of dev or test is no prompt of these splits
            key = splits.key(prompt_text(task, sample(rng)))
            if key in keys:
                met.add(key)
    return most * len(indices), met


def met_in_training(keys: Iterable[bytes], tasks: Iterable[str], workers: int = 1, say=print) -> set[bytes]:
    """The keys that occur in the training streams of the shipped models (seed 0)."""
    recipe, wanted = Recipe(seed=0), set(tasks)
    total = -(-STEPS // (recipe.shard * recipe.repeats))
    parts: dict[tuple[str, str], int] = {}
    for group, name in jobs(recipe):
        task = name.partition("+")[0]
        if task in wanted:
            counted = max(_count(recipe, index, group, name) for index in range(COUNTED))
            parts[group, task] = max(parts.get((group, task), 0), int(MORE * counted))
            say(f"{group} {name}: at most {counted} documents a shard, {parts[group, task]} are searched", flush=True)
    work = [(group, task, most, range(start, min(start + 8, total)))
            for (group, task), most in parts.items() for start in range(0, total, 8)]  # fmt: skip
    keys, met, seen = frozenset(keys), set(), 0
    with ProcessPoolExecutor(workers) as pool:
        for count, found in pool.map(partial(_search, keys, recipe), work):
            seen, met = seen + count, met | found
    say(f"{seen:,} training documents searched, {len(met)} of {len(keys):,} candidates met", flush=True)
    return met


def build(folder: Path = DATA, workers: int = 1) -> None:
    """Draw, search and write both splits."""
    candidates: dict[tuple[str, str], list[dict]] = {}
    for task in dict.fromkeys(itertools.chain.from_iterable(COUNTS.values())):
        taken = splits.met_in_training(task, folder) | set(splits.held_out(task))
        for split, counts in COUNTS.items():
            if task in counts:
                candidates[split, task] = splits.make_split(task, split, int(SPARE * counts[task]), taken)
    keys = {splits.key(prompt_text(task, doc)) for (_, task), docs in candidates.items() for doc in docs}
    met = met_in_training(keys, {task for _, task in candidates}, workers)
    for (split, task), docs in candidates.items():
        kept = [doc for doc in docs if splits.key(prompt_text(task, doc)) not in met][: COUNTS[split][task]]
        if len(kept) < COUNTS[split][task]:
            print(f"{split} of {task}: only {len(kept)} of {len(docs)} candidates are fresh; draw more", flush=True)
            continue
        kept = [{**doc, "id": f"{task}/{split}/{i}"} for i, doc in enumerate(kept)]
        splits.write_jsonl(folder / task / f"{split}.jsonl.xz", kept)
        print(f"{split} of {task}: {len(kept)} documents", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m pocket.fresh", description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=1)
    build(workers=parser.parse_args().workers)
