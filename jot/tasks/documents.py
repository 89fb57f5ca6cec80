"""What a task's documents must hold, so that a foreign or damaged file is named before anything is decoded."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence

from jot.errors import UserError, is_text
from jot.tasks import WORKSHEETS
from jot.tasks.extract import number

# Field -> type; "options" are four texts, "choice" is the number of one of them, "number" a text that holds one.
FIELDS: dict[str, dict[str, str]] = {
    "gsm8k": {"question": "text", "answer": "text", "final": "number"},
    "mmlu": {"subject": "text", "question": "text", "choices": "options", "answer": "choice"},
    "hellaswag": {"activity_label": "text", "ctx": "text", "endings": "options", "label": "choice"},
    "humaneval": {"entry_point": "text", "prompt": "text", "canonical_solution": "text", "test": "text"},
    "prose": {"text": "text"},
    **dict.fromkeys((f"worksheet_{n}" for n in WORKSHEETS), {"question": "text", "finals": "numbers"}),
    "c4": {"text": "text"},
}
WORDS = {
    "text": "text", "options": "a list of four texts", "choice": "a number from 0 to 3",
    "number": "the number that follows #### in the answer", "numbers": "a list of texts that hold a number each",
}  # fmt: skip


def _fits(value: object, kind: str) -> bool:
    if kind == "options":
        return isinstance(value, list) and len(value) == 4 and all(map(is_text, value))
    if kind == "numbers":
        return isinstance(value, list) and bool(value) and all(_fits(part, "number") for part in value)
    if kind == "choice":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 4
    return is_text(value) and (kind != "number" or bool(number(value)))


def check(task: str, rows: Iterable[object], source: object) -> Sequence[Mapping]:
    """The rows, each with an id of its own and the fields of its task; one that has not is named by its line."""
    rows, seen = list(rows), set()
    wanted = {"id": "text", **FIELDS[task.removeprefix("pocket_")]}
    for line, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise UserError(f"line {line} of {source} is no document of {task} but {reprlib.repr(row)}; correct it")
        for name, kind in wanted.items():
            if not _fits(row.get(name), kind):
                found = reprlib.repr(row[name]) if name in row else "missing"
                words = WORDS[kind] + " in UTF-8" * (kind == "text" and isinstance(row.get(name), str))
                raise UserError(f"line {line} of {source}: {name} must be {words}, it is {found}; correct it")
        if row["id"] in seen or seen.add(row["id"]):
            raise UserError(f"line {line} of {source} repeats the id {row['id']!r}; give each document its own")
    if not rows:
        raise UserError(f"{source} holds no documents; fetch it again")
    return rows
