"""`kill -9` in the middle of `jot evaluate`, and two of them on one store: no sample lost, repeated or half
written.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

import children
import pytest
import tiny

from jot import cli
from jot.records import load_store
from jot.runs.harness import evaluate

LIMIT = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny.build(tmp_path_factory.mktemp("tiny") / "tiny-llada"))


def start(model: str, store: Path, out: Path) -> int:
    """The command in a process of its own, its output in a file; the process's id."""
    words = ["evaluate", "--model", model, "--task", "pocket_gsm8k", "--split", "dev", "--device", "cpu",
             "--limit", str(LIMIT), "--slots", "2", "--set", "length=32", "--store", str(store)]  # fmt: skip

    def body() -> int:
        with out.open("w") as file, contextlib.redirect_stdout(file):
            return cli.main(words)

    return children.fork(body)


def resume(model: str, store: Path):
    return evaluate(
        model,
        "pocket_gsm8k",
        split="dev",
        limit=LIMIT,
        slots=2,
        length=32,
        store=store,
        device="cpu",
        progress=False,
    )


def test_killed_and_resumed(model: str, tmp_path: Path) -> None:
    run = start(model, tmp_path / "killed", tmp_path / "out")
    children.wait_for_lines(tmp_path / "killed", 3)
    children.kill(run)
    survived = len(children.lines(tmp_path / "killed"))
    assert 3 <= survived < LIMIT

    # The kill rarely hits a write, so the worst of it is made by hand: half a line at the end.
    (path,) = (tmp_path / "killed").glob("*.jsonl")
    whole = path.read_bytes()
    half = whole.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(whole[: half + (len(whole) - half) // 2])

    summary = resume(model, tmp_path / "killed")
    assert (summary.n, summary.decoded) == (LIMIT, LIMIT - survived + 1)
    assert resume(model, tmp_path / "killed").decoded == 0
    written = [json.loads(line) for line in children.lines(tmp_path / "killed")]
    assert len(written) == len({record["doc_id"] for record in written}) == LIMIT
    assert all(path.read_bytes().endswith(b"\n") for path in (tmp_path / "killed").glob("*.jsonl"))

    whole_run = resume(model, tmp_path / "whole")
    assert whole_run.cell == summary.cell
    keep = [name for name in summary.frame if name != "seconds"]
    assert whole_run.frame[keep].equals(summary.frame[keep])
    (loaded,) = load_store(tmp_path / "killed").values()
    assert loaded.meta["totals"]["samples"] == LIMIT


def test_two_runs_share_a_store(model: str, tmp_path: Path) -> None:
    store, files = tmp_path / "store", [tmp_path / "one", tmp_path / "two"]
    assert [children.join(run) for run in [start(model, store, file) for file in files]] == [0, 0]
    outputs = [file.read_text() for file in files]
    found = Counter(json.loads(line)["doc_id"] for line in children.lines(store))
    assert len(found) == LIMIT and set(found.values()) == {1}
    counts = [int(out.split("samples")[1].split("(")[1].split()[0].replace("nothing", "0")) for out in outputs]
    assert sum(counts) == LIMIT
    scores = {out.split("score")[1].split("records")[0].split("seconds")[0] for out in outputs}
    assert len(scores) == 1
