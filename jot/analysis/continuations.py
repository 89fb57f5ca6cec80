"""Continuations as decoded and as people wrote them: the texts behind the quality measures, by document."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from jot.analysis.cells import Cell, Records, family, lookup, short
from jot.models import PACKAGED, locate
from jot.records import pair, take
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError, home
from jot.tasks import TASKS
from jot.tasks.extract import END_MARKS

TASK_NAMES = tuple(name for name, task in TASKS.items() if task.metric is None)  # continuation tasks
# The decoding policies, in the order of every table. Temperature 1 with Dream's top-p of the paper, or 0.
POLICIES = {
    "full-sampled": "Full decoding, sampled",
    "jot-argmax": "JoT, sampled, exits take the argmax",
    "jot-draw": "JoT, sampled, exits draw too",
    "full-greedy": "Full decoding, greedy",
    "jot-greedy": "JoT, greedy",
}
NEXT = "@next"  # mark of a policy decoded with the next seed
# Comparison -> (method, baseline). The paper pairs a sampled baseline with "argmax filling": exits alone, or all.
PAPER_PAIR, MATCHED, NOISE = "the paper's pair (unmatched)", "matched, both sample", "noise: full decoding, next seed"
PAIRS = {
    PAPER_PAIR: ("jot-argmax", "full-sampled"),
    "the same, next seed": ("jot-argmax" + NEXT, "full-sampled" + NEXT),
    MATCHED: ("jot-draw", "full-sampled"),
    "matched, both greedy": ("jot-greedy", "full-greedy"),
    "the paper's pair, were all of JoT greedy": ("jot-greedy", "full-sampled"),
    NOISE: ("full-sampled" + NEXT, "full-sampled"),
}
EMBEDDED_END = "2040"  # of the packaged tokenizer
TOP_P = {"dream": 0.95}  # the paper's nucleus; LLaDA's own sampling has none


class Texts(NamedTuple):
    """All continuations of one model's prompts, each a list in the order of ``ids`` (a task's fixed order).

    ``human`` is the true continuation of each prompt; ``others`` is human text that shares no token with it, and
    ``about`` says what it is. Tokens are the model's own; a list may be shorter for ``others``.
    """

    model: str
    task: str
    ids: list[str]
    cells: dict[str, Cell]  # policy -> recorded run
    tokens: dict[str, list[np.ndarray]]  # policy, "human" or "others" -> token ids
    strings: dict[str, list[str]]  # the same as text
    about: str

    @property
    def n(self) -> int:
        return len(self.ids)


@lru_cache(maxsize=4)
def tokenizer(model: str):
    """The tokenizer of a model, without its weights where the model is local."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(locate(model)[0])


@lru_cache(maxsize=4)
def end_ids(model: str) -> str:
    """Token ids that end an answer (end of text, padding, end of turn), as ``suppress_tokens`` takes them."""
    if model in PACKAGED:
        return EMBEDDED_END
    words = tokenizer(model)
    ids = {words.eos_token_id, words.pad_token_id, *words.convert_tokens_to_ids(list(END_MARKS))}
    return ",".join(str(i) for i in sorted(ids - {None, words.unk_token_id}))


def point(model: str, task: str, policy: str, seed: int = 0) -> Point:
    """The cell of a policy: end-of-text banned, so that every text has the full length."""
    method, way = policy.split("-")
    settings: dict[str, object] = {"suppress_tokens": end_ids(model), "temperature": 0.0 if way == "greedy" else 1.0}
    kind = family({"model": model})
    if way != "greedy" and kind in TOP_P:
        settings["top_p"] = TOP_P[kind]
    if way == "draw":
        settings["sample"] = True
    return Point.of(model, task, method, seed=seed, **settings)


def points(models: Sequence[str], tasks: Sequence[str], seed: int = 0) -> list[Point]:
    """Every cell that the notebook asks for (the next seed is shown where it is recorded).

    Raises:
        NotebookError: a task without open continuations.
    """
    if wrong := [task for task in tasks if task not in TASK_NAMES]:
        raise NotebookError(f"{wrong[0]} has no open continuations; use {' or '.join(TASK_NAMES)}")
    return [point(m, t, policy, seed) for m in models for t in tasks for policy in POLICIES]


def found(records: Records, model: str, task: str, seed: int = 0) -> dict[str, Cell]:
    """Recorded policies of a model, in the order of ``POLICIES``; what is not recorded is left out."""
    wanted = {policy: (policy, seed) for policy in POLICIES}
    wanted |= {policy + NEXT: (policy, seed + 1) for policy in ("full-sampled", "jot-argmax")}
    cells = {name: lookup(records, point(model, task, *which)) for name, which in wanted.items()}
    return {name: cell for name, cell in cells.items() if cell}


def policy_label(name: str, seed: int = 0) -> str:
    """A policy in words."""
    return POLICIES[name.removesuffix(NEXT)] + (f", seed {seed + 1}" if name.endswith(NEXT) else "")


def generated(cell: Cell, ids: Sequence[str]) -> list[np.ndarray]:
    """Generated token ids of the documents, in their order."""
    rows = cell.recorded.frame.set_index("doc_id")["generated"]
    return [np.asarray(rows[doc_id], dtype=np.int64) for doc_id in ids]


def documents_of(cells: Mapping[str, Cell]) -> list[str]:
    """The documents that all cells share, in the task's fixed order whose first n a ``limit`` takes.

    Raises:
        UserError: two cells differ in documents, prompts, weights, dtype or hardware.
    """
    first, *rest = cells.values()
    for cell in rest:
        pair(first.recorded, cell.recorded)
    return take(first.recorded.frame["doc_id"])


def texts(records: Records, model: str, task: str, seed: int = 0, data=None) -> Texts | None:
    """Continuations of every recorded policy and of people; None where no policy is recorded."""
    cells = found(records, model, task, seed)
    if not cells:
        return None
    ids = documents_of(cells)
    human, others, about = human_texts(model, task, ids, data)
    tokens = {"human": human, "others": others} | {policy: generated(cell, ids) for policy, cell in cells.items()}
    words = tokenizer(model)
    strings = {
        name: [words.decode(x, skip_special_tokens=True, clean_up_tokenization_spaces=False) for x in rows]
        for name, rows in tokens.items()
    }
    return Texts(short(model), task, ids, cells, tokens, strings, about)


def load(p: SimpleNamespace, records: Records) -> list[Texts]:
    """The continuations of every model and task of the parameters.

    Raises:
        NotebookError: none of them is recorded.
    """
    models = [model for model in p.models if family({"model": model}) in p.families]
    sets = [texts(records, model, task, p.seed, p.data) for model in models for task in p.tasks]
    if not any(sets):
        raise NotebookError(
            f"no continuations of {', '.join(p.models)} are recorded with seed {p.seed} and the end of text banned; "
            "choose other parameters, or pass source=live"
        )
    return [found for found in sets if found]


def human_texts(model: str, task: str, ids: Sequence[str], data=None) -> tuple[list[np.ndarray], list[np.ndarray], str]:
    """True continuations, disjoint human text, and what the latter is, in the model's tokens.

    Of ``pocket_prose`` the latter is what the speaker said next: the tokens after the true continuation. For a
    task whose documents end there it is the true continuation of documents that were not decoded.
    """
    from jot.tasks.functions import load

    spec = TASKS[task]
    start, stop = spec.prompt_tokens, spec.prompt_tokens + spec.length
    docs = {doc["id"]: doc for doc in load(task, None, data)["test"]}
    if absent := [doc_id for doc_id in ids if doc_id not in docs]:
        raise NotebookError(f"document {absent[0]!r} of {task} is not in its file; give the data that was decoded")
    if task == "pocket_prose":
        whole = _encode(model, [_speech(docs[doc_id]) for doc_id in ids], start, stop + spec.length)
        about = f"the {spec.length} tokens after the reference"
        return [x[: spec.length] for x in whole], [x[spec.length :] for x in whole], about
    rest = [doc_id for doc_id in take(list(docs)) if doc_id not in set(ids)][: len(ids)]
    both = _encode(model, [docs[doc_id]["text"] for doc_id in (*ids, *rest)], start, stop)
    return both[: len(ids)], both[len(ids) :], "other documents"


def _encode(model: str, strings: Sequence[str], start: int, stop: int) -> list[np.ndarray]:
    ids = tokenizer(model)(list(strings), add_special_tokens=False, verbose=False)["input_ids"]
    return [np.asarray(x[start:stop], dtype=np.int64) for x in ids]


@lru_cache(maxsize=1)
def addresses() -> list[dict]:
    """The speeches that the prose task is cut from: {year, president, split, text}."""
    path = home() / "data" / "tasks" / "pocket_prose" / "addresses.jsonl.xz"
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _speech(doc: Mapping) -> str:
    """The speech from the start of a passage on, as far as two continuations reach (a token has 3 to 4 letters)."""
    text = next(a["text"] for a in addresses() if (a["year"], a["president"]) == (doc["year"], doc["president"]))
    place = text.index(doc["text"])
    return text[place : place + 2 * len(doc["text"])]


def word_grams(text: str, n: int) -> list[tuple[str, ...]]:
    """All runs of n words, case and punctuation aside."""
    words = re.findall(r"[a-z0-9']+", text.lower())
    return list(zip(*(words[i:] for i in range(n)), strict=False))


@lru_cache(maxsize=1)
def _training_grams(n: int) -> frozenset[int]:
    return frozenset(hash(g) for a in addresses() if a["split"] == "train" for g in word_grams(a["text"], n))


def copied(strings: Sequence[str], n: int = 8) -> np.ndarray:
    """Per text, how many of its runs of n words stand verbatim in the prose the pocket models are trained on, (k, 2).

    The second column is the number of runs.
    """
    known = _training_grams(n)
    runs = [[hash(g) in known for g in word_grams(text, n)] for text in strings]
    return np.array([[sum(hits), len(hits)] for hits in runs]).reshape(-1, 2)
