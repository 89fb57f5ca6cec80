"""Prompt and response text of the pocket tasks: pure functions of a document, for training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

LETTERS = "ABCD"


def _options(options: list[str]) -> str:
    return "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=True))


def gsm8k_prompt(doc: Mapping) -> str:
    """ "Q: ...\\nA:" """
    return f"Q: {doc['question']}\nA:"


def gsm8k_response(doc: Mapping) -> str:
    """The worked steps, ending with "#### N"."""
    return f" {doc['answer']}"


def mmlu_prompt(doc: Mapping) -> str:
    """Subject, question, four lettered options, "Answer:"."""
    return f"Subject: {doc['subject']}\nQ: {doc['question']}\n{_options(doc['choices'])}\nAnswer:"


def mmlu_response(doc: Mapping) -> str:
    """The letter of the right option after a space."""
    return f" {LETTERS[doc['answer']]}"


def hellaswag_prompt(doc: Mapping) -> str:
    """Activity, context, four lettered endings, "Answer:"."""
    return f"{doc['activity_label']}: {doc['ctx']}\n{_options(doc['endings'])}\nAnswer:"


def hellaswag_response(doc: Mapping) -> str:
    """The letter of the sensible ending after a space."""
    return f" {LETTERS[doc['label']]}"


def humaneval_prompt(doc: Mapping) -> str:
    """Signature and docstring."""
    return doc["prompt"]


def humaneval_response(doc: Mapping) -> str:
    """The indented function body."""
    return doc["canonical_solution"]


PROMPTS: dict[str, tuple[Callable[[Mapping], str], Callable[[Mapping], str]]] = {
    "pocket_gsm8k": (gsm8k_prompt, gsm8k_response),
    "pocket_mmlu": (mmlu_prompt, mmlu_response),
    "pocket_hellaswag": (hellaswag_prompt, hellaswag_response),
    "pocket_humaneval": (humaneval_prompt, humaneval_response),
}


def prompt_text(task: str, doc: Mapping) -> str:
    """The prompt of a document, without chat template; of `pocket_prose` the whole passage."""
    return doc["text"] if task == "pocket_prose" else PROMPTS[task][0](doc)


def response_text(task: str, doc: Mapping) -> str:
    """The reference response; raises KeyError for `pocket_prose`, whose response is cut by tokens."""
    return PROMPTS[task][1](doc)
