"""The fixed dev and test files of the pocket tasks, and endless training documents that share no prompt.

`PYTHONPATH=data python -m pocket.splits` writes `data/tasks/pocket_*/{dev,test}.jsonl.xz` again, with the same
content.
"""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from pocket import prose
from pocket.paths import TASKS as DATA
from pocket.prompts import prompt_text
from pocket.tokenizer import TASKS, encode_batch, generator, load

COUNTS = {
    "pocket_gsm8k": (1000, 2000),
    "pocket_mmlu": (1000, 2000),
    "pocket_hellaswag": (1000, 2000),
    "pocket_humaneval": (1000, 1000),
    "pocket_prose": (300, 1000),
}  # (dev, test)


def key(prompt: str) -> bytes:
    return hashlib.blake2b(prompt.encode(), digest_size=8).digest()


def met_in_training(task: str, folder: Path = DATA) -> set[bytes]:
    """Prompts of candidates that the shipped models were trained on, from `<task>/met_in_training.txt` if there is one.

    The held-out files of `pocket_gsm8k` were drawn once more after the training of seed 0; its whole training stream
    was searched for the new candidates, and those found are left out here.
    """
    path = folder / task / "met_in_training.txt"
    return {bytes.fromhex(line) for line in path.read_text().split()} if path.is_file() else set()


def make_split(task: str, split: str, count: int, taken: set[bytes]) -> list[dict]:
    """`count` documents with ids, from a seed of the split; their prompts are not in `taken`, and join it.

    Documents that are too long for the pocket models are left out, as they are in training.
    """
    if task == "pocket_prose":
        docs = prose.passages(split)[:count]
        return [{"id": f"{task}/{split}/{i}", **doc} for i, doc in enumerate(docs)]
    rng = random.Random(f"{task}/{split}")
    sample, tokenizer = generator(task).sample, load()
    if task == "pocket_gsm8k":
        sample = functools.partial(sample, step_weights=generator(task).HELD_OUT_STEP_WEIGHTS)
    docs = []
    while len(docs) < count:
        doc = sample(rng)
        hashed = key(prompt_text(task, doc))
        if hashed in taken or encode_batch(task, [doc], tokenizer)[0] is None:
            continue
        taken.add(hashed)
        docs.append({"id": f"{task}/{split}/{len(docs)}", **doc})
    return docs


def write_jsonl(path: Path, docs: Iterable[dict]) -> None:
    """One object a line, compressed by xz; equal documents give equal bytes."""
    lines = "".join(json.dumps(doc, ensure_ascii=False) + "\n" for doc in docs)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(lines.encode(), preset=9 | lzma.PRESET_EXTREME))


def read_split(task: str, split: str, folder: Path = DATA) -> list[dict]:
    """The documents of `folder`/<task>/<split>.jsonl.xz; raises FileNotFoundError."""
    with lzma.open(folder / task / f"{split}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def build(folder: Path = DATA, tasks: Iterable[str] = TASKS, limit: int | None = None) -> None:
    """Write dev and test of the tasks into `folder`; `limit` caps the documents of a split."""
    for task in tasks:
        taken = met_in_training(task)
        for split, count in zip(("dev", "test"), COUNTS[task], strict=True):
            docs = make_split(task, split, min(count, limit or count), taken)
            write_jsonl(folder / task / f"{split}.jsonl.xz", docs)


@functools.cache
def held_out(task: str) -> frozenset[bytes]:
    """Hashes of all dev and test prompts of a task, from the shipped files; built once a process."""
    return frozenset(key(prompt_text(task, doc)) for split in ("dev", "test") for doc in read_split(task, split))


def train_stream(task: str, seed: int = 0, shard: int = 0) -> Iterator[dict]:
    """Endless training documents of a (seed, shard); none has a prompt of dev or test."""
    rng = random.Random(f"{task}/train/{seed}/{shard}")
    sample = generator(task).sample
    if task == "pocket_prose":  # split by address already
        while True:
            yield sample(rng)
    skip = held_out(task)
    while True:
        doc = sample(rng)
        if key(prompt_text(task, doc)) not in skip:
            yield doc


if __name__ == "__main__":
    build()
