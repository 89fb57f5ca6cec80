"""`kill -9` again and again over a grid: what is left at the end is what an undisturbed run leaves."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import children
import pytest
import tiny

import jot.runs.harness  # noqa: F401  before the forks: its imports take seconds
from jot.records import load_store
from jot.runs import grid, run


def made(tmp_path: Path, limit: int, length: int) -> Path:
    """A grid of two cells on a random checkpoint."""
    model = tiny.build(tmp_path / "tiny-llada")
    path = tmp_path / "grid.yaml"
    path.write_text(
        f"cells:\n  - {{models: {model}, tasks: pocket_gsm8k, split: dev, method: [full, jot], limit: {limit}, "
        f"set: {{length: {length}}}}}\n"
    )
    return path


def same_records(store: Path, undisturbed: Path, samples: int) -> None:
    """No sample lost, repeated, torn or different; only the times may differ."""
    written = Counter((json.loads(line)["cell"], json.loads(line)["doc_id"]) for line in children.lines(store))
    assert len(written) == samples and set(written.values()) == {1}
    assert all(content.endswith(b"\n") for path in store.glob("*.jsonl") if (content := path.read_bytes()))
    left, right = load_store(store), load_store(undisturbed)
    assert left.keys() == right.keys()
    for name, cell in left.items():
        keep = [column for column in cell.frame if column != "seconds"]
        assert cell.frame[keep].equals(right[name].frame[keep])
        assert cell.meta["totals"]["samples"] == len(cell.frame)
        assert json.loads((store / f"{name}.json").read_text())["totals"]["samples"] == len(cell.frame)


def test_a_few_kills(tmp_path: Path) -> None:
    """Two processes share the grid; both are killed three times in the middle of it."""
    points = grid.read(made(tmp_path, 10, 32))
    store, undisturbed, draw = tmp_path / "killed", tmp_path / "undisturbed", random.Random(0)
    store.mkdir()

    def work() -> int:
        return sum(bool(row["error"]) for row in run.run(points, store, slots=2, device="cpu", say=lambda _: None))

    for target in (1, 4, 7):
        pair = [children.fork(work), children.fork(work)]
        children.wait_for_lines(store, target)
        for pid in draw.sample(pair, 2):
            time.sleep(draw.random() * 0.02)
            children.kill(pid)
    survived = len(children.lines(store))
    assert 7 <= survived < 20, "the kills did not come in the middle"
    assert [children.join(pid) for pid in (children.fork(work), children.fork(work))] == [0, 0]
    rows = run.run(points, undisturbed, slots=2, device="cpu", say=lambda _: None)
    assert [row["error"] for row in rows] == ["", ""]
    same_records(store, undisturbed, 20)
    assert (store / "summary.csv").read_text().count("\n") == 3


@pytest.mark.soak
def test_thirty_kills(root: Path, tmp_path: Path, full_size) -> None:
    """`jot run --workers 2` over 200 samples; the command, one worker or all at once are killed at random times."""
    path = made(tmp_path, 100, 128)
    store, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    seed = int(os.environ.get("JOT_SOAK_SEED", "0"))
    draw = random.Random(seed)
    environment = {**os.environ, "PYTHONPATH": str(root)}

    def start(where: Path) -> subprocess.Popen:
        words = ["run", str(path), "--store", str(where), "--workers", "2", "--slots", "2", "--device", "cpu"]
        return subprocess.Popen([sys.executable, "-m", "jot", *words], env=environment, start_new_session=True,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

    for kill in range(30):
        command = start(store)
        before = len(children.lines(store))
        if draw.random() < 0.9:  # mostly while it decodes, sometimes while it starts
            children.wait_for_lines(store, before + draw.randrange(1, 6), 120)
        time.sleep(draw.random() * 0.1)
        below = children.descendants(command.pid)
        victims = draw.choice([[command.pid], below[-1:], [command.pid, *below]])
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if command.pid not in victims and command.poll() is None:
            time.sleep(draw.random())
            command.kill()
        command.wait()
        until = time.monotonic() + 30
        while any(Path(f"/proc/{pid}/exe").exists() for pid in below):  # no worker survives its command
            assert time.monotonic() < until, "a worker outlived its command"
            time.sleep(0.05)
        assert len(children.lines(store)) < 200, f"the grid was done after {kill} kills; make it longer"
    assert start(store).wait(600) == 0
    assert start(undisturbed).wait(600) == 0
    same_records(store, undisturbed, 200)
