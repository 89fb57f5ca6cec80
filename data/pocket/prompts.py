"""Prompt and reference response of a document, as the pair is trained on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jot.tasks import prompts
from jot.tasks.prompts import LETTERS

PROMPTS: dict[str, Callable[[Mapping], str]] = {
    "pocket_gsm8k": prompts.pocket_gsm8k,
    "pocket_mmlu": prompts.pocket_mmlu,
    "pocket_hellaswag": prompts.pocket_hellaswag,
    "pocket_humaneval": lambda doc: doc["prompt"],
    "pocket_prose": lambda doc: doc["text"],
}
RESPONSES: dict[str, Callable[[Mapping], str]] = {
    "pocket_gsm8k": lambda doc: f" {doc['answer']}",
    "pocket_mmlu": lambda doc: f" {LETTERS[doc['answer']]}",
    "pocket_hellaswag": lambda doc: f" {LETTERS[doc['label']]}",
    "pocket_humaneval": lambda doc: doc["canonical_solution"],
}


def prompt_text(task: str, doc: Mapping) -> str:
    """The prompt of a document, without chat template; of `pocket_prose` the whole passage."""
    return PROMPTS[task](doc)


def response_text(task: str, doc: Mapping) -> str:
    """The reference response; raises KeyError for `pocket_prose`, whose response is cut by tokens."""
    return RESPONSES[task](doc)
