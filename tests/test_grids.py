"""Grids with notebooks: what is checked before anything starts, what it costs, the lines for a scheduler, the run."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shlex
import sys
from pathlib import Path

import children
import fake_records
import nbformat
import pytest
import tiny
from nbformat import v4

from jot import cli
from jot.errors import UserError
from jot.runs import cost, grid, notebooks, run
from jot.runs.grid import NotebookPoint, Point

ROOT = Path(__file__).resolve().parents[1]
PARAMETERS = 'source = "recorded"\nstore = None\ntasks = ["pocket_mmlu"]\nlimit = None\ntau_max = 90.0\nout = None\n'
CELLS = "cells: [{models: pocket-llada, tasks: pocket_mmlu, split: dev, method: jot, limit: 2}]\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch) -> Path:
    """A checkout with two notebooks, a random checkpoint by a packaged name, and no records."""
    home = tmp_path / "checkout"
    (home / "data").mkdir(parents=True)
    (home / "data" / "tasks").symlink_to(ROOT / "data" / "tasks")
    tiny.build(home / "data" / "models" / "pocket-llada")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for name, body in {"10_small": "print(limit, tau_max)", "11_other": "assert limit != 3"}.items():
        made = [v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}), v4.new_code_cell(body)]
        path = home / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(v4.new_notebook(cells=made, metadata={"kernelspec": kernel}), path)
    monkeypatch.setenv("JOT_HOME", str(home))
    monkeypatch.chdir(home)
    run._model.cache_clear()
    return home


def write(folder: Path, text: str) -> Path:
    path = folder / "grid.yaml"
    path.write_text(text)
    return path


# ---------------------------------------------------------------- reading


def test_notebook_entries_multiply_out(checkout: Path) -> None:
    found = grid.parse(write(checkout, """
notebooks:
  - {name: 10_small, parameters: {limit: [2, "1e1", 2], tau_max: 1e-3}}
  - {name: [10_small, 11_other], parameters: {tasks: [[pocket_mmlu, pocket_gsm8k]]}}
  - name: 11_other
    parameters: {tasks: "pocket_mmlu, pocket_gsm8k", source: live}
  - name: 11_other
"""))  # fmt: skip
    assert found.cells == [] and [(p.name, dict(p.settings)) for p in found.notebooks] == [
        ("10_small", {"limit": 2, "tau_max": 0.001}),  # YAML 1.1 reads 1e-3 as text
        ("10_small", {"limit": 10, "tau_max": 0.001}),
        ("10_small", {"tasks": ("pocket_mmlu", "pocket_gsm8k")}),
        ("11_other", {"tasks": ("pocket_mmlu", "pocket_gsm8k")}),
        ("11_other", {"tasks": ("pocket_mmlu", "pocket_gsm8k"), "source": "live"}),
        ("11_other", {}),
    ]
    assert len({p.key for p in found.notebooks}) == 6
    live = found.notebooks[4].params("results/x")
    assert live["store"] == "results/x" and live["tasks"] == ["pocket_mmlu", "pocket_gsm8k"]
    assert "store" not in found.notebooks[3].params("results/x")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{parameters: {limit: 3}}", "notebook 1: it lacks 'name'"),
        ("{name: 10_smal}", "unknown notebook '10_smal'; did you mean '10_small'?"),
        ("{name: 10_small, parameter: {}}", "unknown key 'parameter'; known are name, parameters"),
        ("{name: 10_small, parameters: {limt: 3}}", "10_small: unknown parameter 'limt'; did you mean 'limit'?"),
        ("{name: 10_small, parameters: {limit: few}}", "limit='few' must be a whole number"),
        ("{name: 10_small, parameters: {limit: 2.5}}", "limit=2.5 must be a whole number"),
        ("{name: 10_small, parameters: {tau_max: [1, many]}}", "tau_max='many' must be a number"),
        ("{name: 10_small, parameters: {source: recordd}}", "must be one of 'recorded', 'live'"),
        ("{name: 10_small, parameters: {tasks: pocket_mml}}", "unknown task 'pocket_mml'"),
        ("{name: 10_small, parameters: [limit]}", "parameters must be a mapping"),
        ('{name: 10_small, parameters: {store: "a\\0b"}}', "store='a\\x00b' must be text"),
        ('{name: 10_small, parameters: {tasks: "a\\0b"}}', "must be text"),
        ("{name: {a: 1}}", "must be a name"),
        ("10_small", "must be a mapping of name, parameters"),
    ],
)
def test_bad_notebook_entries_are_one_sentence(checkout: Path, capsys, entry: str, message: str) -> None:
    path = write(checkout, f"{CELLS}notebooks:\n  - {entry}\n")
    for words in (["cells", str(path)], ["run", str(path), "--store", str(checkout / "store")]):
        assert cli.main(words) == 2
        told = capsys.readouterr()
        assert told.out == "" and told.err.count("\n") == 1 and message in told.err and str(path) in told.err
    assert not (checkout / "store").exists()


def test_a_changed_notebook_is_another_point(checkout: Path) -> None:
    before = NotebookPoint.of("10_small", {"limit": 2})
    path = checkout / "notebooks" / "10_small.ipynb"
    path.write_text(path.read_text().replace("print(limit", "print(-limit"))
    after = NotebookPoint.of("10_small", {"limit": 2})
    assert before.key != after.key and before.out("s") != after.out("s")


# ---------------------------------------------------------------- cost


def test_the_nearest_recorded_cell_gives_the_time() -> None:
    records = fake_records.records(60)
    found = {name: recorded.meta for name, recorded in records.items()}
    for name, recorded in records.items():
        frame = recorded.frame
        sums = {key: float(frame[key].sum()) for key in ("configured_steps", "steps", "seconds")}
        found[name]["totals"] = {"samples": len(frame), **sums}

    def per_document(cell: str) -> float:
        return records[cell].frame["seconds"].sum() / 60

    point = Point.of("pocket-dream", "pocket_gsm8k", "jot", tau_max=30)
    exact = cost.estimate(point, found)
    assert "jot_tau30_test" in exact.nearest and exact.documents == 2000
    assert exact.seconds == pytest.approx(2000 * per_document(exact.nearest))
    near = cost.estimate(Point.of("pocket-dream", "pocket_gsm8k", "jot", tau_max=30, gamma=0.7), found)
    assert near.nearest == exact.nearest  # it differs in one setting
    other = cost.estimate(Point.of("pocket-dream", "pocket_gsm8k", "klass"), found)
    assert other.nearest is not None  # a method without records: another one of the same task
    double = cost.estimate(Point.of("pocket-llada", "pocket_gsm8k", "full", length=256, block_length=32), found)
    assert double.seconds == pytest.approx(2 * 2000 * per_document(double.nearest))
    assert cost.estimate(Point.of("GSAI-ML/LLaDA-8B-Instruct", "gsm8k", "full"), found) == cost.Estimate(1319)
    assert cost.estimate(point, {}) == cost.Estimate(2000)
    assert [cost.duration(s) for s in (None, 0.2, 12.4, 300, 9000)] == ["-", "<1 s", "12 s", "5 min", "2.5 h"]


def test_the_listing(checkout: Path, capsys) -> None:
    path = write(checkout, CELLS + "notebooks: [{name: 10_small, parameters: {limit: [1, 2]}}]\n")
    assert cli.main(["cells", str(path)]) == 0
    told = capsys.readouterr().out
    assert "1 cells, 2 notebooks; no times of these models are recorded" in told and "n 2" in told
    (checkout / "data" / "records").symlink_to(ROOT / "data" / "records")
    if not (ROOT / "data" / "records" / "manifest.json").is_file():
        pytest.skip("no recorded runs")
    assert cli.main(["cells", str(path)]) == 0
    told = capsys.readouterr().out
    assert "about <1 s of decoding by one process on NVIDIA" in told and "10_small" in told


# ---------------------------------------------------------------- lines for a scheduler


def test_lines_run_as_they_are(checkout: Path, capsys) -> None:
    path = write(checkout, CELLS + "notebooks: [{name: 10_small, parameters: {limit: 2, tasks: [[a, b]]}}]\n")
    path.write_text(path.read_text().replace("[[a, b]]", "'pocket_mmlu,pocket_gsm8k'"))
    assert cli.main(["cells", str(path), "--print", "--store", "my store"]) == 0
    evaluate, papermill = capsys.readouterr().out.splitlines()
    words = shlex.split(evaluate)
    assert words[:2] == ["jot", "evaluate"] and "my store" in words
    make, _, papermill = papermill.partition(" && ")
    assert shlex.split(make) == ["mkdir", "-p", "my store/notebooks"]
    words = shlex.split(papermill)
    assert words[:2] == ["papermill", "notebooks/10_small.ipynb"] and words[2].startswith("my store/notebooks/10_small")
    given = dict(zip(words[4::3], words[5::3], strict=True))
    assert given["limit"] == "2" and given["tasks"] == "pocket_mmlu,pocket_gsm8k" and words[3] == "-p"
    assert cli.main(["cells", str(path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert shlex.split(listed["notebooks"][0]["command"])[:3] == ["jot", "notebook", "10_small"]
    assert listed["notebooks"][0]["out"].endswith(".ipynb") and set(listed["cells"][0]) == {"key", "command"}


def test_a_pipe_that_is_closed_early_is_no_error(tmp_path: Path) -> None:
    """`jot cells GRID | head`."""

    def body() -> int:
        read, write = os.pipe()
        os.close(read)
        with open(tmp_path / "err", "w") as err, contextlib.redirect_stderr(err):
            sys.stdout = os.fdopen(write, "w")
            return cli.main(["tasks"])

    assert children.join(children.fork(body)) == 0 and (tmp_path / "err").read_text() == ""


# ---------------------------------------------------------------- the run


def test_cells_then_notebooks(checkout: Path, capsys, monkeypatch) -> None:
    """A failing notebook ends alone; a second run executes what is missing or older than the records."""
    store = checkout / "store"
    path = write(checkout, CELLS + "notebooks: [{name: [10_small, 11_other], parameters: {limit: 3, source: live}}]\n")
    words = ["run", str(path), "--store", str(store), "--device", "cpu"]
    assert cli.main(words) == 1
    told = capsys.readouterr().out
    assert "1 of 1 cells, 2 of 2 notebooks run, 1 failed, 0 not begun" in told and "AssertionError" in told
    with open(store / "summary.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [bool(row["error"]) for row in rows] == [False, False, True]
    good, bad = (Path(row["notebook"]) for row in rows[1:])
    assert run.executed(good) and not bad.exists() and bad.with_name(f"{bad.stem}.failed.ipynb").is_file()
    assert sorted(p.suffix for p in good.parent.iterdir() if p.is_file()) == [".ipynb", ".ipynb"]
    executed = json.loads(good.read_text())["cells"]
    assert any("store" in "".join(cell["source"]) and str(store) in "".join(cell["source"]) for cell in executed)

    calls = []
    monkeypatch.setattr(notebooks, "run", lambda name, params, out: calls.append(name))
    assert cli.main(words) == 0 and calls == ["11_other"]
    assert f"{good}: was there" in capsys.readouterr().out
    newer = next(store.glob("*.jsonl"))
    os.utime(newer, (newer.stat().st_atime, good.stat().st_mtime + 9))
    assert cli.main(words) == 0 and calls == ["11_other", "10_small", "11_other"]


def test_what_plain_papermill_left_half_done_is_not_done(tmp_path: Path) -> None:
    path = tmp_path / "x.ipynb"
    assert not run.executed(path)
    for mark, told, done in (
        ({"end_time": None, "exception": None}, {"version": "3.11"}, False),
        ({"end_time": "2026", "exception": True}, {"version": "3.11"}, False),
        ({"end_time": "2026", "exception": None}, {"version": "3.11"}, True),
        ({"end_time": "2026", "exception": None}, {}, False),  # its kernel was killed
        ({}, {"version": "3.11"}, False),
    ):
        path.write_text(json.dumps({"metadata": {"papermill": mark, "language_info": told}}))
        assert run.executed(path) == done
    for text in ("", "{", "[]", '{"metadata": 3}'):
        path.write_text(text)
        assert not run.executed(path)


def test_torchrun_and_workers_do_not_mix(checkout: Path, capsys, monkeypatch) -> None:
    path = write(checkout, CELLS)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["run", str(path), "--workers", "2"]) == 2
    assert "torchrun already starts the processes" in capsys.readouterr().err
    monkeypatch.delenv("WORLD_SIZE")
    assert cli.main(["run", str(path), "--seconds", "-1"]) == 2


def test_only_the_first_process_tells_and_executes(checkout: Path, monkeypatch) -> None:
    found = grid.parse(write(checkout, CELLS + "notebooks: [{name: 10_small}]\n"))
    monkeypatch.setattr(run, "decode", lambda *_, **__: dict.fromkeys(run.COLUMNS, "") | {"n": 1})
    monkeypatch.setattr(run, "execute", lambda *_: pytest.fail("a notebook was executed"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    rows = run.run(found.cells, checkout / "s", notebooks=found.notebooks, say=lambda _: pytest.fail("it spoke"))
    assert len(rows) == 1 and not (checkout / "s" / "summary.csv").exists()


def test_an_unknown_store_folder_in_a_grid(checkout: Path) -> None:
    with pytest.raises(UserError, match="subfolder of the store"):
        grid.parse(write(checkout, "store: 3\n" + CELLS))
