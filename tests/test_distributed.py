"""Several processes on one store: shares of the samples, torchrun over gloo, and any number of them after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import children
import pytest
import tiny
import torch

from jot.records import load_store
from jot.runs import distributed
from jot.runs.harness import evaluate

LIMIT = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny.build(tmp_path_factory.mktemp("tiny") / "tiny-llada"))


def processes(monkeypatch, rank: int, world: int, **more: str) -> None:
    for name, value in {"RANK": str(rank), "WORLD_SIZE": str(world), **more}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shares_are_a_partition(monkeypatch, world: int) -> None:
    ids = [f"a/{i}" for i in range(20)]
    shares = []
    for rank in range(world):
        processes(monkeypatch, rank, world)
        assert (distributed.rank(), distributed.world(), distributed.first()) == (rank, world, rank == 0)
        shares.append(distributed.share(ids))
    assert sorted(sum(shares, [])) == sorted(ids)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_without_torchrun(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert (distributed.rank(), distributed.world()) == (0, 1) and distributed.share([1, 2]) == [1, 2]
    assert distributed.device("cuda") == "cuda" and distributed.device(None) is None
    monkeypatch.setenv("WORLD_SIZE", "many")
    assert distributed.world() == 1


def test_each_process_takes_its_gpu(monkeypatch) -> None:
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    processes(monkeypatch, 3, 4, LOCAL_RANK="1")
    assert distributed.device(None) == distributed.device("cuda") == "cuda:1"
    assert distributed.device("cpu") == "cpu" and distributed.device("cuda:0") == "cuda:0"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # each process is shown its own GPU alone
    assert distributed.device(None) == "cuda:0" and chosen == [1, 1, 0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert distributed.device(None) is None


def resume(model: str, store: Path):
    return evaluate(model, "pocket_gsm8k", split="dev", limit=LIMIT, slots=2, length=32, store=store, device="cpu",
                    progress=False)  # fmt: skip


def shared_run(model: str, store: Path, count: int) -> list[int]:
    return [
        children.fork(lambda: resume(model, store) and 0, RANK=str(rank), WORLD_SIZE=str(count))
        for rank in range(count)
    ]


def test_two_processes_killed_then_three(model: str, tmp_path: Path) -> None:
    store = tmp_path / "shared"
    store.mkdir()
    pair = shared_run(model, store, 2)
    children.wait_for_lines(store, 4)
    for pid in pair:
        children.kill(pid)
    assert 4 <= len(children.lines(store)) < LIMIT
    assert [children.join(pid) for pid in shared_run(model, store, 3)] == [0, 0, 0]
    found = Counter(json.loads(line)["doc_id"] for line in children.lines(store))
    assert len(found) == LIMIT and set(found.values()) == {1}
    alone = resume(model, tmp_path / "alone")
    shared = load_store(store)[alone.cell].frame
    keep = [column for column in shared if column != "seconds"]
    assert shared[keep].equals(load_store(tmp_path / "alone")[alone.cell].frame[keep])


@pytest.mark.slow
def test_torchrun(root: Path, model: str, tmp_path: Path) -> None:
    """Two processes: each sample once, whichever of them took it, and one summary."""
    words = ["evaluate", "--model", model, "--task", "pocket_gsm8k", "--split", "dev", "--limit", str(LIMIT),
             "--slots", "2", "--set", "length=32", "--store", str(tmp_path)]  # fmt: skip
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*launcher, "-m", "jot", *words], env={**os.environ, "PYTHONPATH": str(root)},
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("speedup") == 1 and f"samples   {LIMIT}" in done.stdout
    assert done.stderr.count("<?, ?sample/s]") <= 1, "more than one process shows its progress"
    parts = [len(path.read_text().splitlines()) for path in tmp_path.glob("*.jsonl")]
    assert sum(parts) == LIMIT and len(parts) in (1, 2)  # one that comes late may find nothing left
