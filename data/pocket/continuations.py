"""The texts of notebook 05: what was decoded of open continuations, and what people wrote there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
import pandas as pd

from jot.errors import UserError
from jot.models import locate
from jot.paper.texts import speeches
from jot.records import take
from jot.runs.frames import order
from jot.tasks import TASKS
from jot.tasks.extract import END_MARKS
from jot.tasks.functions import load
from pocket.prose import addresses


@lru_cache(maxsize=4)
def tokenizer(model: str):
    """The tokenizer of a model, without its weights where the model is local."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(locate(model)[0])


def ends(model: str) -> str:
    """Token ids that end an answer (end of text, padding, end of turn), as ``suppress_tokens`` takes them."""
    words = tokenizer(model)
    ids = {words.eos_token_id, words.pad_token_id, *words.convert_tokens_to_ids(list(END_MARKS))}
    return ",".join(str(i) for i in sorted(ids - {None, words.unk_token_id}))


def gather(rows: pd.DataFrame, models: Mapping[str, str] | None = None, data=None) -> pd.DataFrame:
    """The texts of these samples and of people, one row a text, each set in its task's fixed order.

    Args:
        rows: of ``samples`` with ``generated``, and a column ``set`` that names the texts of a run.
        models: where to find a model, by its short name, if that is not enough.
        data: where the documents of the task are, if not packaged.

    Returns:
        Columns ``model task set doc_id speech tokens text``. The set ``human`` is the true continuation of every
        prompt, ``others`` is human text that shares no token with it.
    """
    parts = []
    for (model, task, split), group in rows.groupby(["model", "task", "split"], sort=False):
        ids, place = order(task, split, group["doc_id"].unique()), (models or {}).get(model, model)
        decoded = {name: run.set_index("doc_id")["generated"] for name, run in group.groupby("set", sort=False)}
        for name, tokens in {**people(place, task, ids, data), **decoded}.items():
            tokens = tokens if name == "others" else tokens.loc[ids]
            token_ids = [np.asarray(x, dtype=np.int64) for x in tokens]
            decode = partial(tokenizer(place).decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            columns = {"set": name, "doc_id": tokens.index, "tokens": token_ids, "text": list(map(decode, token_ids))}
            parts.append(pd.DataFrame({"model": model, "task": task, **columns}))
    found = pd.concat(parts, ignore_index=True)
    known = speeches(found["task"].iloc[0])
    return found.assign(speech=[known.get(doc_id, doc_id) for doc_id in found["doc_id"]])


def people(model, task: str, ids: Sequence[str], data=None) -> dict[str, pd.Series]:
    """True continuations (``human``) and disjoint human text (``others``) in the model's tokens, by document.

    Of ``pocket_prose`` the latter is what the speaker said next: the tokens after the true continuation. For a
    task whose documents end there it is the true continuation of documents that were not decoded. ``model`` may be a
    tokenizer in place of a name.

    Raises:
        UserError: a document that is not in the task's file.
    """
    spec = TASKS[task]
    start, stop = spec.prompt_tokens, spec.prompt_tokens + spec.length
    docs = {doc["id"]: doc for doc in load(task, data=data)["test"]}
    if absent := [doc_id for doc_id in ids if doc_id not in docs]:
        raise UserError(f"document {absent[0]!r} of {task} is not in its file; give the data that was decoded")
    if task == "pocket_prose":
        whole = _encode(model, [spoken(docs[doc_id]) for doc_id in ids], start, stop + spec.length)
        cut = {"human": slice(spec.length), "others": slice(spec.length, None)}
        return {name: pd.Series([x[at] for x in whole], ids, dtype=object) for name, at in cut.items()}
    rest = [doc_id for doc_id in take(list(docs)) if doc_id not in set(ids)][: len(ids)]
    return {
        name: pd.Series(_encode(model, [docs[doc_id]["text"] for doc_id in some], start, stop), some, dtype=object)
        for name, some in (("human", list(ids)), ("others", rest))
    }


def _encode(model, strings: Sequence[str], start: int, stop: int) -> list[np.ndarray]:
    if not strings:
        return []
    words = tokenizer(model) if isinstance(model, str) else model
    ids = words(list(strings), add_special_tokens=False, verbose=False)["input_ids"]
    return [np.asarray(x[start:stop], dtype=np.int64) for x in ids]


def spoken(doc: Mapping) -> str:
    """The speech from the start of a passage on, as far as two continuations reach (a token has 3 to 4 letters)."""
    text = next(a["text"] for a in addresses() if (a["year"], a["president"]) == (doc["year"], doc["president"]))
    place = text.index(doc["text"])
    return text[place : place + 2 * len(doc["text"])]
