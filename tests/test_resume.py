"""`kill -9` in the middle of `jot evaluate`, and two of them on one store: no sample lost, repeated or half
written.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import tiny

from jot.records import load_store
from jot.runs.harness import evaluate

LIMIT = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny.build(tmp_path_factory.mktemp("tiny") / "tiny-llada"))


def start(root: Path, model: str, store: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "jot", "evaluate", "--model", model, "--task", "pocket_gsm8k", "--split",
         "dev", "--device", "cpu",
         "--limit", str(LIMIT), "--slots", "2", "--set", "length=32", "--store", str(store)],
        cwd=root, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def lines(store: Path) -> list[bytes]:
    return [line for path in store.glob("*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]


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


def test_killed_and_resumed(root: Path, model: str, tmp_path: Path) -> None:
    run = start(root, model, tmp_path / "killed")
    until = time.monotonic() + 60
    while len(lines(tmp_path / "killed")) < 3 and run.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    survived = len(lines(tmp_path / "killed"))
    assert run.returncode == -signal.SIGKILL and 3 <= survived < LIMIT

    # The kill rarely hits a write, so the worst of it is made by hand: half a line at the end.
    (path,) = (tmp_path / "killed").glob("*.jsonl")
    whole = path.read_bytes()
    half = whole.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(whole[: half + (len(whole) - half) // 2])

    summary = resume(model, tmp_path / "killed")
    assert (summary.n, summary.decoded) == (LIMIT, LIMIT - survived + 1)
    assert resume(model, tmp_path / "killed").decoded == 0
    written = [json.loads(line) for line in lines(tmp_path / "killed")]
    assert len(written) == len({record["doc_id"] for record in written}) == LIMIT
    assert all(path.read_bytes().endswith(b"\n") for path in (tmp_path / "killed").glob("*.jsonl"))

    whole_run = resume(model, tmp_path / "whole")
    assert whole_run.cell == summary.cell
    keep = [name for name in summary.frame if name != "seconds"]
    assert whole_run.frame[keep].equals(summary.frame[keep])
    (loaded,) = load_store(tmp_path / "killed").values()
    assert loaded.meta["totals"]["samples"] == LIMIT


@pytest.mark.slow
def test_two_runs_share_a_store(root: Path, model: str, tmp_path: Path) -> None:
    runs = [start(root, model, tmp_path) for _ in range(2)]
    outputs = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    found = Counter(json.loads(line)["doc_id"] for line in lines(tmp_path))
    assert len(found) == LIMIT and set(found.values()) == {1}
    counts = [int(out.split("samples")[1].split("(")[1].split()[0].replace("nothing", "0")) for out, _ in outputs]
    assert sum(counts) == LIMIT
    assert (
        outputs[0][0].split("score")[1].split("records")[0].split("seconds")[0]
        == outputs[1][0].split("score")[1].split("records")[0].split("seconds")[0]
    )
