"""Prompts of the pocket tasks: pure functions of a document, for training and evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LETTERS = "ABCD"


def options(texts: Iterable[str]) -> str:
    return "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, texts, strict=True))


def pocket_gsm8k(doc: Mapping) -> str:
    return f"Q: {doc['question']}\nA:"


def pocket_mmlu(doc: Mapping) -> str:
    return f"Subject: {doc['subject']}\nQ: {doc['question']}\n{options(doc['choices'])}\nAnswer:"


def pocket_hellaswag(doc: Mapping) -> str:
    return f"{doc['activity_label']}: {doc['ctx']}\n{options(doc['endings'])}\nAnswer:"
