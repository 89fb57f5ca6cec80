"""What the task YAMLs call: documents, answer filters and scores."""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from jot.errors import UserError
from jot.tasks import extract, get, read_jsonl, sandbox, split_file
from jot.tasks.documents import FIELDS, check

C4_WORDS, C4_DOCUMENTS = 384, 2000  # a word is a token at least: 128 of prompt and 256 of reference; the most taken

# ---------------------------------------------------------------- documents


class Documents(list):
    """A split as lm-eval wants it: a list that knows its columns."""

    @property
    def features(self) -> Mapping[str, None]:
        return dict.fromkeys(self[0]) if self else {}


def load(name: str, split: str | None = None, data: str | None = None, **_) -> dict[str, Documents]:
    """Documents of task `name`, under "test" whatever the split, in the schema of the local data files.

    Args:
        name: of the task; the YAML's metadata gives it.
        split: defaults to the task's first.
        data: local folder; without it the packaged files, or the hub for the paper's benchmarks.
    """
    task = get(name)
    split, path = split_file(task, split, data)
    source = path or task.hub[0]
    rows = read_jsonl(path) if path else _from_hub(name, split)
    docs = check(name, rows if task.packaged else _documents(name, rows, split), source)
    return {"test": Documents(_long(docs, source) if name == "c4" else docs)}


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """A logger's errors alone."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _from_hub(name: str, split: str) -> list[dict]:
    import datasets

    path, configuration = get(name).hub
    try:
        with quiet("huggingface_hub"):  # the one sentence below says it all
            if name == "c4":  # the first of eight files; asking for the split would fetch the training files too
                part = {split: f"{configuration}/c4-{split}.00000-of-00008.json.gz"}
                return list(datasets.load_dataset(path, data_files=part, split=split))
            return list(datasets.load_dataset(path, configuration, split=split))
    except Exception as error:  # the hub and datasets raise many unrelated types
        file = get(name).files[split]
        raise UserError(
            f"cannot get {path} from the hub ({type(error).__name__}); check the network, or give a folder "
            f"that holds {file} with --data (jot lm-eval: --metadata data=FOLDER)"
        ) from error


def _clean(text: object) -> object:
    """HellaSwag's text without the marks of its WikiHow part."""
    if not isinstance(text, str):
        return [_clean(part) for part in text] if isinstance(text, list) else text
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ").strip()


def _documents(name: str, rows: Iterable[object], split: str) -> list[object]:
    """The documents of rows as a benchmark publishes them; a row that has an id lacks GSM8K's ``final`` at most."""
    docs, seen = [], Counter()
    for row in rows:
        if isinstance(row, Mapping):
            subject = f"{row.get('subject')}/" if name == "mmlu" else ""
            place = f"{name}/{'val' if name == 'hellaswag' else split}/{subject}{seen[subject]}"
            seen[subject] += 1
            if "id" not in row:
                row = {"id": row.get("task_id", place), **row}
                if name == "hellaswag":
                    row |= {field: _clean(row.get(field)) for field in ("activity_label", "ctx", "endings")}
                    label = row.get("label")
                    row["label"] = int(label) if label in ("0", "1", "2", "3") else label  # text on the hub
                row = {field: row[field] for field in ("id", *FIELDS[name]) if field in row}
            if name == "gsm8k" and isinstance(row.get("answer"), str):
                _, marked, final = row["answer"].rpartition("####")
                row = {"final": final.strip().replace(",", "") if marked else "", **row}
        docs.append(row)
    return docs


def _long(docs: Iterable[Mapping], source: object) -> list[Mapping]:
    """The first `C4_DOCUMENTS` texts that are long enough for a prompt and its true continuation."""
    found = list(itertools.islice((doc for doc in docs if len(doc["text"].split()) >= C4_WORDS), C4_DOCUMENTS))
    if not found:
        raise UserError(f"no text in {source} has {C4_WORDS} words, for prompt and continuation; give longer ones")
    return found


# ---------------------------------------------------------------- answers


def _filter(read: Callable[[str, Mapping], str]) -> Callable:
    """The lm-eval filter that reads an answer from each response, beside its document."""

    def apply(resps: list[list[str]], docs: list[dict]) -> list[list[str]]:
        return [[read(text, doc) for text in responses] for responses, doc in zip(resps, docs, strict=True)]

    return apply


numbers = _filter(lambda text, doc: extract.gsm8k(text, equations=True))  # the final number
pocket_numbers = _filter(lambda text, doc: extract.gsm8k(text))  # the same as it was recorded
worksheets = _filter(lambda text, doc: extract.worksheet(text, len(doc["finals"])))  # of each problem, in order
letters = _filter(lambda text, doc: extract.letter(text))  # of the option
programs = _filter(lambda text, doc: extract.code(text, doc["prompt"], doc["entry_point"]))  # the prompt's completion


# ---------------------------------------------------------------- scores


def target_number(doc: Mapping) -> str:
    return extract.number(doc["final"])


def score_worksheet(doc: Mapping, results: list[str]) -> dict[str, float]:
    """The share of the problems that are right."""
    finals = doc["finals"]
    right = sum(given == final for given, final in zip(results[0].split(), finals, strict=True))
    return {"exact_match": right / len(finals)}


def score_program(doc: Mapping, results: list[str]) -> dict[str, float]:
    """Runs the hidden test in the sandbox."""
    return {"pass@1": float(sandbox.check(doc["prompt"], results[0], doc["test"], doc["entry_point"]).passed)}


def score_nothing(doc: Mapping, results: list[str]) -> dict[str, float]:
    return {"no_score": math.nan}
