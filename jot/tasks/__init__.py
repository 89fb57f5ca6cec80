"""The tasks: which there are, how each is decoded, and where its documents come from.

The YAML files beside this module are lm-eval tasks; `functions.py` holds what they call, `extract.py` finds
answers in text, `sandbox.py` runs generated code. Importing this package imports none of lm-eval, datasets or
torch.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jot.errors import UserError, closest, home, unxz

FOLDER = Path(__file__).parent
WORKSHEETS = (256, 512, 1024, 2048)  # generated tokens


@dataclass(frozen=True)
class Task:
    """What the decoding side has to know of a task."""

    name: str  # of the lm-eval task
    summary: str  # one line for `jot tasks`
    length: int  # generated tokens, which is also the number of configured steps
    files: Mapping[str, str]  # of each split below a local data folder, the default split first
    metric: str | None = "exact_match"  # the lm-eval metric that is the score, if there is one
    subject: str | None = None  # the field by which `limit` is stratified
    chat: bool = True  # prompts go through the model's chat template
    prompt_tokens: int | None = None  # the prompt is cut to its first so many
    needs_flag: bool = False  # scoring runs code that takes the user's explicit consent
    hub: tuple[str, str | None] | None = None  # path and configuration of a task that is not packaged

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.files)

    @property
    def packaged(self) -> bool:
        return self.hub is None


def _pocket(name: str, summary: str, length: int, fresh: tuple[str, ...] = (), **extra) -> Task:
    files = {split: f"pocket_{name}/{split}.jsonl.xz" for split in ("test", "dev", *fresh)}
    return Task(f"pocket_{name}", summary, length, files, **extra)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _pocket("gsm8k", "word problems of 2 to 8 steps, worked solution", 128, ("confirm", "calibration")),
        _pocket("mmlu", "four-option questions over several subjects", 3, ("calibration",), subject="subject"),
        _pocket("hellaswag", "four endings, one sensible", 5, ("calibration",)),
        _pocket("humaneval", "specification to Python function, hidden tests", 128, ("confirm", "calibration"),
                metric="pass@1"),
        *(_pocket(f"worksheet_{length}", f"short problems in a row whose answers fill {length} tokens", length)
          for length in WORKSHEETS),
        _pocket("prose", "continuation of presidential prose, no score", 128, metric=None, chat=False,
                prompt_tokens=64),
        Task("gsm8k", "GSM8K, zero-shot chain of thought", 256,
             {"test": "gsm8k_test.jsonl.gz", "train": "gsm8k_train.jsonl.gz"}, hub=("openai/gsm8k", "main")),
        Task("mmlu", "MMLU, generative, 57 subjects", 3,
             {"test": "mmlu_test.jsonl.gz", "dev": "mmlu_dev.jsonl.gz"}, subject="subject", hub=("cais/mmlu", "all")),
        Task("hellaswag", "HellaSwag, generative", 5, {"validation": "hellaswag_val.jsonl.gz"},
             hub=("Rowan/hellaswag", None)),
        Task("humaneval", "HumanEval, instruct", 512, {"test": "humaneval.jsonl.gz"}, metric="pass@1",
             needs_flag=True, hub=("openai/openai_humaneval", None)),
        Task("c4", "continuation of web text (C4), no score", 256, {"validation": "c4_val.jsonl.gz"}, metric=None,
             chat=False, prompt_tokens=128, hub=("allenai/c4", "en")),
    )
}  # fmt: skip


def get(name: str) -> Task:
    """The task of that name."""
    if name in TASKS:
        return TASKS[name]
    raise UserError(f"unknown task {name!r}{closest(str(name), TASKS)}")


def split_file(task: Task, split: str | None, data: str | os.PathLike | None) -> tuple[str, Path | None]:
    """The resolved split and the file that holds it, None where the hub does."""
    split = split or task.splits[0]
    if split not in task.splits:
        raise UserError(f"{task.name} has no split {split!r}; use {' or '.join(task.splits)}")
    if data is None and not task.packaged:
        return split, None
    folder, file = home() / "data" / "tasks" if data is None else Path(data), task.files[split]
    path = folder if folder.is_file() else folder / file
    if not path.is_file() and not task.packaged:  # as the original release or the hub's repository name it
        stem = re.escape(Path(file).name.split(".")[0])
        name = re.compile(rf"({stem}|{split}|{task.name}-{split})[.-](.*\.)?(jsonl?(\.[gx]z)?|parquet)", re.IGNORECASE)
        near = [*sorted(folder.glob("*")), *sorted(folder.glob(f"{task.hub[1] or '*'}/*"))]
        found = [p for p in near if p.is_file() and name.fullmatch(p.name)]
        path = found[0] if found else path
        like = re.sub(r"\d+", r"\\d+", re.escape(path.name))
        parts = [p.name for p in found if p.parent == path.parent and re.fullmatch(like, p.name)]
        if task.name != "c4" and (len(parts) > 1 or re.search(r"-of-0*(?!1\D)[1-9]", path.name)):
            raise UserError(
                f"{path.parent} holds {split} of {task.name} in parts, {', '.join(parts)}; join them into one"
            )
    if not path.is_file():
        where = "check out data/tasks, or set JOT_HOME to the checkout" if data is None else "name the folder that does"
        raise UserError(f"there is no {path}, which holds {split} of {task.name}; {where}")
    return split, path


def read_jsonl(path: Path) -> list[dict]:
    """Rows of a JSON Lines file, compressed by gzip or xz or not, or of a Parquet file, whatever its name."""
    try:
        with path.open("rb") as file:
            begin = file.read(4)
        if begin == b"PAR1":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(path).to_pylist()
        if begin[:2] == b"\xfd7":
            return [json.loads(line) for line in unxz(path.read_bytes()).decode().split("\n") if line.strip()]
        with (gzip.open if begin[:2] == b"\x1f\x8b" else open)(path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    except UserError:  # this Python lacks what reads it
        raise
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise UserError(f"{path} is no JSON Lines, gzip, xz or Parquet file ({error}); fetch it again") from error
