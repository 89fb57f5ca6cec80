"""Running grids: resumable, one failing cell ends alone, several workers, a summary."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import children
import pytest
import tiny

from jot import cli
from jot.records import load_store
from jot.runs import grid, run


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny.build(tmp_path_factory.mktemp("tiny") / "tiny-llada"))


@pytest.fixture
def path(model: str, tmp_path: Path) -> Path:
    """Four cells, the second of which is valid and yet fails: its canvas is longer than the model reaches."""
    target = tmp_path / "grid.yaml"
    target.write_text(
        f"""
cells:
  - {{models: '{model}', tasks: pocket_mmlu, split: dev, method: full, limit: 3}}
  - {{models: '{model}', tasks: pocket_gsm8k, split: dev, method: full, limit: 2, set: {{length: 512, steps: 512}}}}
  - {{models: '{model}', tasks: pocket_mmlu, split: dev, method: jot, limit: 3, set: {{tau_max: [10, 30]}}}}
"""
    )
    return target


@pytest.fixture
def forked(monkeypatch) -> None:
    """Workers as copies of one process that has the imports: for tests whose subject is not how a worker starts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jot.runs.harness", "jot.records.pack", "pytest"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)


def command(path: Path, store: Path, *more: str) -> list[str]:
    return ["run", str(path), "--store", str(store), "--device", "cpu", *more]


def summary(store: Path) -> list[dict]:
    with open(store / "summary.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def files(store: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in store.iterdir() if p.suffix in (".jsonl", ".json")}


def test_a_failing_cell_ends_alone_and_resuming_decodes_nothing(path, tmp_path, capsys, monkeypatch) -> None:
    store = tmp_path / "store"
    assert cli.main(command(path, store)) == 1
    told = capsys.readouterr().out
    assert told.count("failed: ") == 1 and "[2/4]" in told and "1 failed, 0 not begun" in told
    rows = summary(store)
    assert [bool(row["error"]) for row in rows] == [False, True, False, False]
    assert list(rows[0]) == list(run.COLUMNS) and rows[0]["decoded"] == "3" and rows[0]["split"] == "dev"
    assert [row["settings"] for row in rows] == ["", "length=512 steps=512", "tau_max=10", "tau_max=30"]
    assert {name for name in load_store(store)} == {row["cell"] for row in rows if row["cell"]}
    before = files(store)
    monkeypatch.setattr("jot.runs.harness.decode_stream", lambda *_, **__: pytest.fail("a sample was decoded again"))
    assert cli.main(command(path, store)) == 1
    assert [row["decoded"] for row in summary(store)] == ["0", "", "0", "0"] and files(store) == before
    again = summary(store)
    for row, then in zip(again, rows, strict=True):
        assert [row[k] for k in ("cell", "n", "score", "speedup")] == [
            then[k] for k in ("cell", "n", "score", "speedup")
        ]


@pytest.mark.parametrize("device", ["gpu", "meta", "cpu:99"])
def test_an_unusable_device_is_refused_at_once(path, tmp_path, capsys, device: str) -> None:
    store = tmp_path / "store"
    assert cli.main(["run", str(path), "--store", str(store), "--device", device]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and f"device '{device}'" in told.err
    assert "use cpu, cuda or cuda:N" in told.err and not store.exists()


def test_an_unexpected_error_is_named_in_its_row(path, tmp_path, monkeypatch) -> None:
    from jot.runs import harness

    real = harness.evaluate

    def sometimes(model, task, method, **options):
        if options.get("tau_max") == 10:
            raise RuntimeError("something\nbroke")
        return real(model, task, method, **options)

    monkeypatch.setattr(harness, "evaluate", sometimes)
    points = [point for point in grid.read(path) if point.task == "pocket_mmlu"]
    lines = []
    rows = run.run(points, tmp_path / "store", device="cpu", say=lines.append)
    assert [row["error"] for row in rows] == ["", "RuntimeError: something broke", ""]
    assert len(lines) == 3 and "failed: RuntimeError: something broke" in lines[1]


def test_two_workers_give_the_records_of_one(path, tmp_path, forked) -> None:
    points = grid.read(path)
    one = run.run(points, tmp_path / "one", device="cpu", say=lambda _: None)
    two = run.run(points, tmp_path / "two", workers=2, device="cpu", say=lambda _: None)
    assert sorted(row["cell"] for row in one) == sorted(row["cell"] for row in two)
    assert [bool(row["error"]) for row in sorted(two, key=lambda row: row["settings"])].count(True) == 1
    left, right = load_store(tmp_path / "one"), load_store(tmp_path / "two")
    assert set(left) == set(right) and len(left) == 3
    for name, recorded in left.items():
        for column in ("doc_id", "generated", "score", "steps"):
            assert list(recorded.frame[column]) == list(right[name].frame[column])
    assert len(summary(tmp_path / "two")) == 4


def _die_at_tau_10(point, **_) -> dict:
    if point.params.get("tau_max") == 10:
        os._exit(9)
    return dict.fromkeys(run.COLUMNS, "") | {"model": point.model, "n": 1, "score": 0.5, "speedup": 1.0, "decoded": 1,
                                             "seconds": 0.0, "cell": "x"}  # fmt: skip


def test_a_lost_process_is_a_row_and_the_rest_goes_on(path, tmp_path, monkeypatch, forked) -> None:
    """The cell of a process that dies is named, and another process takes its place."""
    monkeypatch.setattr(run, "decode", _die_at_tau_10)
    rows = run.run(grid.read(path), tmp_path / "store", workers=2, device="cpu", say=lambda _: None)
    lost = [row for row in rows if "its process ended" in row["error"]]
    assert len(rows) == 4 and [(row["method"], row["settings"]) for row in lost] == [("jot", "tau_max=10")]


def _die(*_, **__) -> None:
    os._exit(9)


@pytest.mark.parametrize("name", ["decode", "_begin"])
def test_no_cell_is_left_out_when_every_process_dies(path, tmp_path, monkeypatch, forked, name) -> None:
    """At its cell, or before it begins one."""
    monkeypatch.setattr(run, name, _die)
    rows = run.run(grid.read(path)[:3], tmp_path / "store", workers=2, device="cpu", say=lambda _: None)
    assert len(rows) == 3 and all("its process ended" in row["error"] for row in rows)
    assert len(summary(tmp_path / "store")) == 3


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_command(root, model, tmp_path, end) -> None:
    """Killed or interrupted, `jot run --workers` leaves no process behind; what was finished stays."""
    path, store = tmp_path / "grid.yaml", tmp_path / "store"
    path.write_text(f"cells: [{{models: '{model}', tasks: pocket_gsm8k, split: dev, method: [full, jot], limit: 400}}]")
    words = [sys.executable, "-m", "jot", *command(path, store, "--workers", "2", "--slots", "2")]
    started = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip
    assert children.wait_for_lines(store, 4, 120) >= 4  # SIGINT: a background job's children would ignore it
    below = children.descendants(started.pid)
    assert len(below) >= 2
    started.send_signal(end)
    out, err = started.communicate(timeout=180)
    said = "jot: interrupted; what was finished is recorded, run again to go on\n"
    assert out == "" and err.startswith("" if end == signal.SIGKILL else said) and "Traceback" not in err
    assert started.returncode == (-end if end == signal.SIGKILL else 130)
    until = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/exe").exists() for pid in below):
        assert time.monotonic() < until, "a worker outlived its command"
        time.sleep(0.05)
    assert 4 <= len(children.lines(store)) < 800


def test_time_runs_out(path, tmp_path, capsys) -> None:
    assert run.run(grid.read(path), tmp_path / "none", device="cpu", seconds=0, say=lambda _: None) == []
    assert cli.main(command(path, tmp_path / "store", "--seconds", "0")) == 0
    assert "0 failed, 4 not begun" in capsys.readouterr().out


def test_limits_of_the_command_line(path, tmp_path, capsys) -> None:
    assert cli.main(command(path, tmp_path / "store", "--limit", "1")) == 1
    assert {row["n"] for row in summary(tmp_path / "store")} == {"1", ""}
    capsys.readouterr()
    for more, words in (
        (["--workers", "0"], "--workers=0 must be a whole number, at least 1"),
        (["--slots", "0"], "--slots=0 must be a whole number, at least 1"),
        (["--limit", "0"], "at least 1"),
    ):
        assert cli.main(command(path, tmp_path / "other", *more)) == 2
        told = capsys.readouterr()
        assert words in told.err and told.err.count("\n") == 1
    empty = tmp_path / "empty.yaml"
    empty.write_text("cells: []\n")
    assert cli.main(command(empty, tmp_path / "other")) == 2 and "no cells" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert cli.main(command(path, tmp_path / "file")) == 2 and "file" in capsys.readouterr().err
    assert not (tmp_path / "other" / "summary.csv").exists()


def test_a_dtype_gives_the_cell_of_the_printed_line(model, tmp_path, capsys) -> None:
    """Either way it is one cell: the second finds nothing to decode."""
    path, store = tmp_path / "grid.yaml", tmp_path / "store"
    path.write_text(f"cells: [{{models: '{model}', tasks: pocket_mmlu, split: dev, method: full, limit: 2}}]")
    ids = {}
    for more in ([], ["--dtype", "float32"], ["--dtype", "bfloat16"]):
        assert cli.main(command(path, store, *more)) == 0
        (row,) = summary(store)
        assert row["settings"] == (f"dtype={more[1]}" if more else "") and row["n"] == "2"
        ids[more[-1] if more else None] = row["cell"]
        capsys.readouterr()
        assert cli.main(["cells", str(path), "--print", "--store", str(store), *more]) == 0
        assert cli.main([*shlex.split(capsys.readouterr().out)[1:], "--device", "cpu"]) == 0
        told = capsys.readouterr().out
        assert "nothing to decode" in told and row["cell"] in told
    assert ids[None] == ids["float32"] != ids["bfloat16"]
    dtypes = {name: recorded.meta["config"]["dtype"] for name, recorded in load_store(store).items()}
    assert dtypes == {ids["float32"]: "float32", ids["bfloat16"]: "bfloat16"}


def test_code_is_run_only_with_consent(model, tmp_path, capsys, monkeypatch) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(f"cells: [{{models: '{model}', tasks: [pocket_mmlu, humaneval], method: full}}]")
    calls = []

    def evaluate(model, task, method, *, allow_code_execution, **_):
        calls.append((task, allow_code_execution))
        return SimpleNamespace(cell=task, n=1, score=1.0, speedup=1.0, decoded=1)

    monkeypatch.setattr("jot.runs.harness.evaluate", evaluate)
    assert cli.main(command(path, tmp_path / "store")) == 2
    told = capsys.readouterr()
    assert "humaneval runs code that the model writes; consent with --allow-code-execution" in told.err
    assert told.err.count("\n") == 1 and calls == [] and not (tmp_path / "store").exists()
    assert cli.main(command(path, tmp_path / "store", "--allow-code-execution")) == 0
    assert calls == [("pocket_mmlu", True), ("humaneval", True)]
    run.run(grid.read(path), tmp_path / "store", device="cpu", say=lambda _: None)
    assert calls[2:] == [("pocket_mmlu", False), ("humaneval", False)]


def test_documents_come_from_a_folder(model, tmp_path) -> None:
    row = {"question": "2 + 2?", "answer": "#### 4", "id": "gsm8k/test/0"}
    (tmp_path / "gsm8k_test.jsonl").write_text(json.dumps(row))
    path = tmp_path / "grid.yaml"
    path.write_text(f"cells: [{{models: '{model}', tasks: gsm8k, method: full, set: {{length: 4}}}}]")
    for workers in "12":
        store = tmp_path / workers
        assert cli.main(command(path, store, "--data", str(tmp_path), "--workers", workers)) == 0
        assert [recorded.n for recorded in load_store(store).values()] == [1]


def test_the_summary_is_whole_or_not_there(tmp_path, monkeypatch) -> None:
    run.summarize(tmp_path, [dict.fromkeys(run.COLUMNS, 1)])
    before = (tmp_path / "summary.csv").read_bytes()
    monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        run.summarize(tmp_path, [])
    assert (tmp_path / "summary.csv").read_bytes() == before


def test_a_notebooks_figures_that_cannot_be_written_are_refused_before_the_cells(path, tmp_path, capsys) -> None:
    (tmp_path / "file").touch()
    with open(path, "a") as file:
        file.write(f"notebooks:\n  - {{name: 01_main_results, parameters: {{out: '{tmp_path / 'file'}'}}}}\n")
    assert cli.main(command(path, tmp_path / "store")) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err == f"jot: error: parameter out {tmp_path / 'file'} is a file; name a folder\n"
    assert not list((tmp_path / "store").iterdir())


def test_a_killed_process_is_one_sentence(path, tmp_path, capsys, monkeypatch) -> None:
    def broken(*_, **__) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(run, "run", broken)
    assert cli.main(command(path, tmp_path / "store")) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "one of its processes was killed, most often because memory ran out" in told


def test_what_was_run_can_be_packed(path, tmp_path, capsys) -> None:
    cli.main(command(path, tmp_path / "store"))
    capsys.readouterr()
    assert cli.main(["pack", str(tmp_path / "store"), str(tmp_path / "packed")]) == 0
    packed, live = load_store(tmp_path / "packed"), load_store(tmp_path / "store")
    assert set(packed) == set(live) and len(packed) == 3
    assert all(list(packed[name].frame["doc_id"]) == list(live[name].frame["doc_id"]) for name in live)
