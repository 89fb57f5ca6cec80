"""Training rows: token ids of a document on a canvas, and which of its tokens may be masked."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jot.tasks.prompts import LETTERS
from pocket.tokenizer import ASSISTANT, EOS, LENGTHS, USER, encode_batch

# Canvas widths of the three groups of a batch. Responses of the first two fill their canvas with EOS, so no row
# needs a key mask; multiple-choice rows keep the short canvas that their task decodes.
WIDTHS = {"compact": 128, "long": 192, "choice": 112}
RIGHT, WRONG = 2045, 2046  # reserved entries of the vocabulary, used by the verdict rows alone


class Row(NamedTuple):
    """Token ids, and the positions that training may mask."""

    ids: list[int]
    maskable: list[int]


def _pack(prompt: list[int], response: list[int]) -> Row:
    return Row(prompt + response, list(range(len(prompt), len(prompt) + len(response))))


def generative(
    task: str, docs: Sequence[Mapping], tokenizer: Any, group: str, keep: float, rng: random.Random
) -> Iterator[Row]:
    """Rows of the generated tasks. What fits the compact canvas goes to the long one with chance ``keep``."""
    width = WIDTHS[group]
    for pair in encode_batch(task, docs, tokenizer):
        if pair is None:
            continue
        prompt, response = pair
        if task == "pocket_prose":
            yield _pack(prompt, response)
            continue
        bare = response[: response.index(EOS)]
        compact = len(prompt) + len(bare) < WIDTHS["compact"]
        wanted = (group == "compact") == compact or (compact and rng.random() < keep)
        if not wanted or len(prompt) + len(bare) >= width:
            continue
        yield _pack(prompt, bare + [EOS] * (width - len(prompt) - len(bare)))


def choice(task: str, docs: Sequence[Mapping], tokenizer: Any) -> Iterator[Row]:
    """Rows of a multiple-choice task as it is decoded: the letter, then EOS."""
    for pair in encode_batch(task, docs, tokenizer):
        if pair is not None:
            yield _pack(*pair)


def verdicts(task: str, docs: Sequence[Mapping], tokenizer: Any, rng: random.Random) -> Iterator[Row]:
    """The same rows with a maskable verdict token (right, wrong) behind some of the options.

    Single letters teach a small network which option is right only after a long plateau. A verdict says
    so option by option; how many options carry one varies from row to row, down to none.
    """
    plain = getattr(tokenizer, "backend_tokenizer", tokenizer)

    def tokens(text: str) -> list[int]:
        return plain.encode(text, add_special_tokens=False).ids

    for doc in docs:
        mmlu = task == "pocket_mmlu"
        right, options = (doc["answer"], doc["choices"]) if mmlu else (doc["label"], doc["endings"])
        head = f"Subject: {doc['subject']}\nQ: {doc['question']}" if mmlu else f"{doc['activity_label']}: {doc['ctx']}"
        ids, maskable = [USER, *tokens(head)], []
        share = rng.random()
        for i, option in enumerate(options):
            ids += tokens(f"\n{LETTERS[i]}. {option}")
            if rng.random() < share:
                maskable.append(len(ids))
                ids.append(RIGHT if i == right else WRONG)
        ids += [*tokens("\nAnswer:"), ASSISTANT]
        length = LENGTHS[task]
        maskable += range(len(ids), len(ids) + length)
        ids += tokens(f" {LETTERS[right]}") + [EOS] * (length - 1)
        if len(ids) <= WIDTHS["choice"]:
            yield Row(ids, maskable)
