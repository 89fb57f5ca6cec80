"""Prompt and response text of the pocket tasks: pure functions of a document, for training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

LETTERS = "ABCD"


def options(texts: Iterable[str]) -> str:
    return "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, texts, strict=True))


def pocket_gsm8k(doc: Mapping) -> str:
    return f"Q: {doc['question']}\nA:"


def pocket_mmlu(doc: Mapping) -> str:
    return f"Subject: {doc['subject']}\nQ: {doc['question']}\n{options(doc['choices'])}\nAnswer:"


def pocket_hellaswag(doc: Mapping) -> str:
    return f"{doc['activity_label']}: {doc['ctx']}\n{options(doc['endings'])}\nAnswer:"


def pocket_humaneval(doc: Mapping) -> str:
    return doc["prompt"]


def pocket_worksheet(doc: Mapping) -> str:
    return doc["question"]


def pocket_prose(doc: Mapping) -> str:
    """The whole passage; the prompt is cut to its first tokens."""
    return doc["text"]


PROMPTS: dict[str, Callable[[Mapping], str]] = {
    prompt.__name__: prompt for prompt in (pocket_gsm8k, pocket_mmlu, pocket_hellaswag, pocket_humaneval, pocket_prose)
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
