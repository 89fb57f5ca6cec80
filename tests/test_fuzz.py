"""Arbitrary files: every reader ends with what it read or with one sentence, never with another exception.

The same examples on every run; `pytest -m soak` draws many new ones.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lm_eval.utils import apply_template

from jot import tasks
from jot.errors import UserError
from jot.records import Rows, load_store, read_meta
from jot.records.lines import FIELDS, from_line, to_line
from jot.records.load import read_manifest
from jot.runs import grid
from jot.runs.grid import Grid, NotebookPoint, Point
from jot.tasks import documents, extract, functions, read_jsonl

PLENTY = 2000  # examples of each reader in full
FOLDER: list[Path] = []  # of the test that runs


def fuzz(*strategies, examples: int = 40):
    """A test in two sizes: ``examples`` always the same, and ``PLENTY`` fresh ones behind the marker."""

    def twice(body):
        quiet = dict(deadline=None, database=None, suppress_health_check=list(HealthCheck))
        small = settings(max_examples=examples, derandomize=True, **quiet)(given(*strategies)(body))

        @pytest.mark.parametrize("size", ["small", pytest.param("full", marks=pytest.mark.soak)])
        def test(size, request, tmp_path_factory):
            FOLDER[:] = [tmp_path_factory.mktemp("fuzz")]
            if size == "full":
                request.getfixturevalue("full_size")
                settings(max_examples=PLENTY, derandomize=False, **quiet)(given(*strategies)(body))()
            else:
                small()

        test.__doc__ = body.__doc__
        return test

    return twice


def refusal(run) -> str:
    """What a reader says, "" if it takes the file."""
    try:
        run()
    except UserError as error:
        assert 0 < len(str(error)) < 1500
        return str(error)
    return ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
RECORD = {
    "cell": "0123456789", "doc_id": "t/0", "prompt_hash": "p", "prompt_tokens": 3, "text": "é\n", "answer": "1",
    "score": 1.0, "configured_steps": 4, "steps": 2, "forwards_full": 2, "forwards_suffix": 0, "forwards_block": 0,
    "seconds": 0.5, "slots": 1, "tokens_non_eos": 2, "empty": False, "generated": [1, 2],
}  # fmt: skip


@st.composite
def records(draw) -> dict:
    """A record with a few fields missing, foreign or of another kind."""
    record = dict(RECORD)
    for name in draw(st.lists(st.sampled_from([*FIELDS, "trace", "more"]), max_size=3)):
        if draw(st.booleans()):
            record[name] = draw(JSON)
        else:
            record.pop(name, None)
    return record


# ---------------------------------------------------------------- records


@fuzz(
    st.lists(st.binary(max_size=40) | st.text(max_size=30).map(str.encode) | JSON.map(lambda v: json.dumps(v).encode()))
)
def test_record_files_of_any_bytes(lines: list[bytes]) -> None:
    path = FOLDER[0] / "cell-0123456789.part.jsonl"
    path.write_bytes(b"\n".join(lines))
    rows = Rows(path.parent, "cell-0123456789")
    said = refusal(rows.refresh)
    whole = path.read_bytes().split(b"\n")[:-1]
    assert (str(path) in said) if any(True for _ in whole) else said == "" and not rows.rows


@fuzz(records())
def test_lines_come_back(record: dict) -> None:
    """A record with all of its fields; a line that was not written as one has no checksum."""
    with pytest.raises(ValueError, match="its checksum does not fit"):
        from_line(json.dumps(record).encode())
    with contextlib.suppress(ValueError):
        line = to_line(record)
        with contextlib.nullcontext() if record.keys() >= set(FIELDS) else pytest.raises(ValueError, match="^no "):
            assert from_line(line.rstrip(b"\n")) == record


@fuzz(st.binary(max_size=60) | JSON.map(lambda v: json.dumps(v).encode()))
def test_configurations_and_manifests(content: bytes) -> None:
    folder = FOLDER[0]
    meta, manifest = folder / "cell-0123456789.json", folder / "packed" / "manifest.json"
    manifest.parent.mkdir(exist_ok=True)
    meta.write_bytes(content)
    assert str(meta) in refusal(lambda: read_meta(meta))
    for text in (content, b'{"cells": ' + content + b"}"):
        manifest.write_bytes(text)
        said = refusal(lambda: read_manifest(manifest.parent))
        assert said == "" or str(manifest) in said
        refusal(lambda: load_store(manifest.parent))


# ---------------------------------------------------------------- grids

VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.floats() | st.text(max_size=6)
    | st.sampled_from(["pocket-llada", "pocket-dream", "pocket_mmlu", "jot", "dev", "1e-3", "inf", "none", "~x"])
    | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
SETTINGS = st.dictionaries(
    st.sampled_from(["tau_max", "gamma", "window", "spatial", "combine", "length", "steps", "temperature", "cache"])
    | st.text(max_size=4),
    VALUE, max_size=3,
)  # fmt: skip
CELL = st.fixed_dictionaries(
    {"models": st.sampled_from(["pocket-llada", ["pocket-dream"]]) | VALUE, "tasks": st.just("pocket_mmlu") | VALUE,
     "method": st.sampled_from(["jot", "full", ["klass", "prophet"]]) | VALUE},
    optional={"split": st.just("dev") | VALUE, "seeds": VALUE, "limit": VALUE, "trace": VALUE,
              "set": SETTINGS | VALUE, "sets": VALUE},
)  # fmt: skip
NOTEBOOK = st.fixed_dictionaries(
    {"name": st.just("01_main_results") | VALUE},
    optional={"parameters": VALUE | st.dictionaries(st.sampled_from(["limit", "source", "tasks", "seed", "device",
              "families", "out"]) | st.text(max_size=4), VALUE, max_size=3)},
)  # fmt: skip
CONTENT = st.fixed_dictionaries(
    {"cells": st.lists(CELL | VALUE, max_size=2) | VALUE},
    optional={"notebooks": st.lists(NOTEBOOK | VALUE, max_size=2) | VALUE, "store": VALUE, "about": VALUE, "x": VALUE},
)


def parsed(path: Path) -> Grid | None:
    with contextlib.suppress(UserError):
        return grid.parse(path)
    return None


@fuzz(CONTENT, examples=150)
def test_grids_of_any_content(content: dict) -> None:
    path = FOLDER[0] / "grid.yaml"
    path.write_text(yaml.safe_dump(content))
    if refusal(lambda: grid.parse(path)):
        return
    found = parsed(path)
    assert all(isinstance(p, Point) and p.command() and len(p.key) < 90 for p in found.cells)
    assert all(isinstance(p, NotebookPoint) and p.command() and len(p.key) < 90 for p in found.notebooks)
    assert len({p.key for p in found.cells}) == len(found.cells)


@fuzz(st.binary(max_size=40) | st.text(alphabet="cellsmod: -[]{}&*!?|>'\"%@`\n\t#,1.e~", max_size=60).map(str.encode))
def test_grids_of_any_bytes(content: bytes) -> None:
    path = FOLDER[0] / "grid.yaml"
    for text in (content, b"cells:\n" + content):
        path.write_bytes(text)
        assert str(path) in refusal(lambda: grid.parse(path)) or parsed(path) is not None


@pytest.mark.parametrize(
    "text",
    [
        "cells: &a [*a]",
        "cells: [{models: &a [*a], tasks: pocket_mmlu, method: jot}]",
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ncells: [{models: *d, tasks: *d, method: *d}]",
        "cells: " + "[" * 3000,
        "cells: [{models: pocket-llada, tasks: pocket_mmlu, method: jot, set: {tau_max: [" + "1," * 400 + "1], gamma: ["
        + "1," * 400 + "1]}}]",
        "cells: [{models: pocket-llada, models: pocket-dream, tasks: pocket_mmlu, method: jot}]",
        "cells: [{models: pocket-llada, tasks: pocket_mmlu, method: jot, limit: 2020-13-45}]",
        "cells: [{? [a, b] : c}]",
        "!!python/object/apply:os.system [true]",
        "cells: [{models: ~nobody-of-this-name, tasks: pocket_mmlu, method: full}]",
        "cells: [{models: ~nobody-of-this-name/x, tasks: pocket_mmlu, method: full}]",
    ],
)  # fmt: skip
def test_tricky_yaml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    assert str(path) in refusal(lambda: grid.parse(path))


# ---------------------------------------------------------------- documents and answers

DOCUMENT = {
    "gsm8k": {"id": "a", "question": "q", "answer": "#### 1", "final": "1"},
    "mmlu": {"id": "a", "subject": "s", "question": "q", "choices": ["1", "2", "3", "4"], "answer": 1},
    "hellaswag": {"id": "a", "activity_label": "l", "ctx": "c", "endings": ["1", "2", "3", "4"], "label": 3},
    "humaneval": {"id": "a", "entry_point": "f", "prompt": "p", "canonical_solution": "s", "test": "t"},
    "c4": {"id": "a", "text": "t"},
}


@fuzz(st.binary(max_size=80), st.lists(JSON, max_size=3), st.integers(0, 200))
def test_task_files_of_any_bytes(content: bytes, rows: list, cut: int) -> None:
    folder = FOLDER[0]
    path = folder / "x.jsonl.gz"
    whole = gzip.compress("\n".join(map(json.dumps, rows)).encode())
    flipped = bytearray(whole)
    flipped[cut % len(whole)] ^= 1 << cut % 8
    for text in (content, whole, whole[:cut], bytes(flipped)):
        path.write_bytes(text)
        said = refusal(lambda: documents.check("gsm8k", read_jsonl(path), path))
        assert str(path) in said


class _Templates(yaml.SafeLoader):
    """A task's YAML with its functions by name."""


_Templates.add_constructor("!function", yaml.SafeLoader.construct_scalar)


def templated(task: str, field: str, document: dict) -> str:
    """As lm-eval reads the field: a name of the document's own, or a template."""
    template = yaml.load((tasks.FOLDER / f"{task}.yaml").read_text(), _Templates)[field]
    return document[template] if template in document else apply_template(template, document)


def test_prompts_of_the_benchmarks() -> None:
    options = "A. 1\nB. 2\nC. 3\nD. 4"
    asked = {
        "gsm8k": "Q: q\nA: Let's think step by step.",
        "mmlu": "The following are multiple choice questions (with answers) about high school s.\n\n"
        f"q\n{options}\nAnswer:",
        "hellaswag": f"l: c\n\nWhich ending makes the most sense?\n{options}\n"
        "Answer with the letter of the ending.\nAnswer:",
        "humaneval": "Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\np\n```\n",
        "c4": "t",
    }
    changed = {"mmlu": {"subject": "high_school_s", "question": " q\n"}}
    for task, document in DOCUMENT.items():
        assert templated(task, "doc_to_text", document | changed.get(task, {})) == asked[task]


@fuzz(st.sampled_from(sorted(DOCUMENT)), st.data())
def test_documents_of_any_fields(task: str, data) -> None:
    document = dict(DOCUMENT[task])
    name = data.draw(st.sampled_from(sorted(document)))
    if data.draw(st.booleans()):
        document[name] = data.draw(JSON)
    else:
        del document[name]
    if refusal(lambda: documents.check(task, [document], "file")):
        return
    assert isinstance(templated(task, "doc_to_text", document), str)  # what is taken can be asked and scored
    if task in ("mmlu", "hellaswag"):
        assert templated(task, "doc_to_target", document) in "ABCD"


@fuzz(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("utf-8", "surrogateescape")))
def test_answers_of_any_text(text: str) -> None:
    assert functions.pocket_numbers([[text]], [{}])[0][0] == extract.gsm8k(text)
    assert functions.numbers([[text]], [{}])[0][0] == extract.gsm8k(text, equations=True)
    assert functions.letters([[text]], [{}])[0][0] in ("", *"ABCD")
    (program,) = functions.programs([[text]], [{"prompt": "def f(x):\n", "entry_point": "f"}])[0]
    assert isinstance(program, str)
