"""Notebooks: their form, their parameters, running them strictly, and what a commit keeps of them."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cells
import fake_records
import nbformat
import papermill
import pytest
import tiny
from nbformat import v4

from jot import cli
from jot.errors import UserError
from jot.records.lines import from_line, to_line
from jot.reproduce import again
from jot.runs import live, notebooks
from jot.runs.grid import NotebookPoint
from jot.runs.parameters import VOCABULARY, NotebookError, coerce
from jot.runs.run import executed

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAIN = "01_main_results"

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(notebook: dict) -> list[tuple[dict, str]]:
    """Code cells with their source."""
    return [(c, "".join(c["source"])) for c in notebook["cells"] if c["cell_type"] == "code"]


def write(path: Path, *cells: str, parameters: str = 'source = "recorded"\nlimit = None\n') -> Path:
    """A small notebook: the parameters, then the cells."""
    made = [v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}), *map(v4.new_code_cell, cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(v4.new_notebook(cells=made, metadata={"kernelspec": kernel}), path)
    return path


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A checkout with the real notebooks and paper tables and made-up records."""
    home = tmp_path / "checkout"
    (home / "notebooks").mkdir(parents=True)
    (home / "data").mkdir()
    for path in NOTEBOOKS:
        (home / "notebooks" / path.name).write_bytes(path.read_bytes())
    (home / "notebooks" / "ANALYSIS.md").write_bytes((ROOT / "notebooks" / "ANALYSIS.md").read_bytes())
    (home / "notebooks" / "grids").symlink_to(ROOT / "notebooks" / "grids")
    for name in ("paper", "pocket", "tasks"):
        (home / "data" / name).symlink_to(ROOT / "data" / name)
    monkeypatch.setenv("JOT_HOME", str(home))
    return home


@pytest.fixture
def no_kernel(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a kernel was started")

    monkeypatch.setattr(papermill, "execute_notebook", refuse)


# --- form ---------------------------------------------------------------------------------------------------


@each
def test_form(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(nbformat.from_dict(notebook))
    assert path.stat().st_size < 1024 * 1024
    assert notebook == notebooks.stripped(notebook), "strip it: python -m jot.runs.notebooks strip"
    headings = [
        line for c in notebook["cells"] if c["cell_type"] == "markdown"
        for line in "".join(c["source"]).splitlines() if line.startswith("#")
    ]  # fmt: skip
    order = ["## Parameters", "## Load", "## Table", "## Figure", "## Checks"]
    assert headings[0].startswith("# ") and [h for h in headings if h in order] == order
    assert max(len(source.splitlines()) for _, source in code(notebook)) <= 26  # a cell is read at a glance
    assert all(cell.get("outputs") == [] or cell["execution_count"] for cell, _ in code(notebook))


@each
def test_numbers_come_from_cells(path):
    """No decimal or percent in prose: a number that a reader sees is printed by a cell."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    prose = "\n".join("".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "markdown")
    prose = re.sub(r"(?s)\$\$.*?\$\$|\$[^$]*\$|`[^`]*`", "", prose)  # formulas and code
    assert not re.findall(r"\d[.,]\d|\d\s*(?:%|percent)", prose)


@each
def test_the_statistics_stand_on_the_page(path):
    """A glossary, a cell by hand at the end of Checks, and no logic hidden behind one-line cells."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert "*Words.*" in "".join(notebook["cells"][0]["source"] + notebook["cells"][2]["source"])
    last = [(c, source) for c, source in code(notebook)][-1]
    assert "by-hand" in last[0]["id"] and "assert " in last[1] and re.search("not recorded|MISSING", last[1])
    lengths = sorted(len(source.splitlines()) for _, source in code(notebook))
    assert lengths[len(lengths) // 2] >= 5


@each
def test_parameters_are_of_the_vocabulary_and_checked_first(path):
    declared = notebooks.parameters(path)
    cells = [(c, source) for c, source in code(json.loads(path.read_text(encoding="utf-8")))]
    tagged = next(i for i, (c, _) in enumerate(cells) if "parameters" in c["metadata"].get("tags", []))
    calls = [n for n in ast.walk(ast.parse(cells[tagged + 1][1])) if isinstance(n, ast.Call)]
    call = next(n for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == "check")
    checked = call.args[1].value.split()
    assert set(checked) <= set(VOCABULARY) and declared["source"] == "recorded"
    assert [*checked, *(keyword.arg for keyword in call.keywords)] == list(declared)


# --- parameters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tasks", "pocket_gsm8k,pocket_mmlu", ["pocket_gsm8k", "pocket_mmlu"]),
        ("tasks", " pocket_gsm8k , pocket_mmlu", ["pocket_gsm8k", "pocket_mmlu"]),
        ("models", "['pocket-dream', \"pocket-llada\"]", ["pocket-dream", "pocket-llada"]),
        ("families", ("dream",), ["dream"]),
        ("limit", "64", 64),
        ("limit", "1e2", 100),
        ("limit", 64.0, 64),
        ("limit", "none", None),
        ("limit", None, None),
        ("store", "null", None),
        ("seed", "0", 0),
        ("source", "live", "live"),
    ],
)
def test_values(name, value, expected):
    assert coerce(name, value) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("limit", "-1", "at least 1"),
        ("limit", 2.5, "whole number"),
        ("limit", True, "whole number"),
        ("limit", "abc", "whole number"),
        ("limit", "inf", "whole number"),
        ("seed", "-1", "at least 0"),
        ("seed", None, "must be a whole number"),
        ("source", "recordd", "must be one of 'recorded', 'live' (recorded rows, or"),
        ("families", "dream,lada", "parameter families='lada' must be one of 'dream', 'llada'"),
        ("dtype", "float8", "must be one of 'float32', "),
        ("tasks", "a,,b", "must be text (not empty"),
        ("tasks", "", "must be text (not empty"),
        ("models", 3, "must be text"),
        ("store", "a\0b", "must be text (not empty, in UTF-8, without NUL)"),
        ("data", "a\ud800", "must be text (not empty, in UTF-8, without NUL)"),
        ("device", 3, "must be text"),
    ],
)
def test_wrong_values_are_one_sentence(name, value, message):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        coerce(name, value)
    assert "\n" not in str(caught.value) and name in str(caught.value)


def test_a_notebooks_own_parameters_take_the_type_of_their_default():
    assert coerce("tau_max", "1e-3", 90.0) == 0.001  # YAML 1.1 hands 1e-3 over as text
    assert coerce("spatial", "False", True) is False
    assert coerce("thresholds", "3, 10", list) == ["3", "10"] and coerce("thresholds", [3, 10], []) == [3, 10]
    for default in (90.0, float):
        with pytest.raises(UserError, match="tau_max='many' must be a number"):
            coerce("tau_max", "many", default)
    with pytest.raises(UserError, match="window=None must be a whole number"):
        coerce("window", None, int)
    with pytest.raises(UserError, match="true or false"):
        coerce("spatial", "maybe", True)


def test_check_finds_injected_names():
    scope = {"In": ["", "source = 'recorded'", "# Parameters\nsource = 'recorded'\nsorce = 'live'\n"],
             "source": "recorded", "out": None, "later": 1, "tau_max": "1e1"}  # fmt: skip
    with pytest.raises(NotebookError, match="unknown parameter 'sorce'; did you mean 'source'"):
        notebooks.check(scope, "source out")
    scope["In"].pop()
    found = notebooks.check(scope, "source out", tau_max=90.0)
    assert (found.source, found.tau_max, found.out.name) == ("recorded", 10.0, "figures")
    shown = NotebookError("one sentence")._render_traceback_()
    assert shown == ["jot: error: one sentence"]


# --- running ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("01_main_result", {}, "did you mean '01_main_results'"),
        (MAIN, {"limt": 3}, "unknown parameter 'limt'; did you mean 'limit'"),
        (MAIN, {"limit": "few"}, "must be a whole number"),
        (MAIN, {"families": "dram"}, "must be one of 'dream'"),
        (MAIN, {"zzz": 3}, "known are source, store"),
    ],
)
def test_mistakes_are_refused_before_a_kernel_starts(name, params, message, no_kernel, checkout):
    with pytest.raises(UserError, match=re.escape(message)):
        notebooks.run(name, params)
    assert not (checkout / "results").exists()


def test_only_a_finished_run_gets_its_name(tmp_path, monkeypatch):
    path = write(tmp_path / "small.ipynb", "print(limit)", "if limit == 2:\n    raise RuntimeError('no')")
    out = tmp_path / "results" / "small.ipynb"
    with pytest.raises(UserError, match=r"small failed in cell \d+ \(RuntimeError: no\)"):
        notebooks.run(str(path), {"limit": "2"}, out)
    assert [p.name for p in out.parent.iterdir()] == ["small.failed.ipynb"]
    monkeypatch.chdir(out.parent)
    assert cli.main(["notebook", str(path), "-p", "limit", "3", "-o", "small.ipynb"]) == 0
    assert [p.name for p in out.parent.iterdir()] == ["small.ipynb"]
    assert "".join(code(json.loads(out.read_text()))[2][0]["outputs"][0]["text"]) == "3\n"


def test_a_killed_kernel_is_one_sentence_and_its_run_is_kept(tmp_path):
    kill = "import os, signal\nif limit == 2:\n    os.kill(os.getpid(), signal.SIGKILL)"
    path, out = write(tmp_path / "small.ipynb", "print('one')", kill), tmp_path / "results" / "small.ipynb"
    failed = out.with_name("small.failed.ipynb")
    with pytest.raises(UserError, match=f"small: its kernel was killed.* memory .*the run up to there is in {failed}"):
        notebooks.run(str(path), {"limit": 2}, out)
    assert [p.name for p in out.parent.iterdir()] == [failed.name]
    assert any("one" in str(cell["outputs"]) for cell, _ in code(json.loads(failed.read_text())))
    assert not executed(failed)  # papermill marks it as one that got to its end
    assert executed(notebooks.run(str(path), {"limit": 3}, out)) and not failed.exists()


def test_a_failed_refresh_is_kept_where_its_sentence_says(tmp_path):
    path = write(tmp_path / "small.ipynb", "raise RuntimeError('no')")
    before = path.read_bytes()
    with pytest.raises(UserError, match="the run up to there is in ") as caught:
        notebooks.refresh(str(path), tmp_path / "figures")
    failed = Path(str(caught.value).rpartition(" ")[2])
    assert "RuntimeError" in failed.read_text() and path.read_bytes() == before
    shutil.rmtree(failed.parent)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-o", "folder"], f"--out folder is a folder; name a file, as in folder/{MAIN}.ipynb"),
        (["-o", "new/"], f"--out new is a folder; name a file, as in new/{MAIN}.ipynb"),
        (["-o", "file/x.ipynb"], "file is a file; name a folder"),
        (["-o", "s3://bucket/x.ipynb"], "--out s3://bucket/x.ipynb is an address, and only local files"),
        (["-o", ""], "--out is empty; name a file"),
        (["-p", "out", "s3://bucket/x"], "parameter out s3://bucket/x is an address, and only local files"),
        (["-p", "store", "gs://bucket"], "parameter store gs://bucket is an address, and only local files"),
        (["-p", "out", "file"], "file is a file; name a folder"),
        (["-p", "source", "live", "-p", "store", "file/x"], "file is a file; name a folder"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_refused_before_a_kernel_starts(
    words, told, no_kernel, checkout, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = set(tmp_path.rglob("*"))
    assert cli.main(["notebook", MAIN, *words]) == 2
    shown = capsys.readouterr().err
    assert told in shown and shown.count("\n") == 1 and set(tmp_path.rglob("*")) == before


def test_a_read_only_folder_is_refused_before_a_kernel_starts(no_kernel, checkout, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # to the superuser no folder is read-only
    for params, out in (({}, tmp_path / "x.ipynb"), ({"out": tmp_path / "x"}, None)):
        with pytest.raises(UserError, match=f"{tmp_path / 'x'}.* is not writable; name a .* where you may write"):
            notebooks.run(MAIN, params, out)


def test_a_path_may_hold_any_character(tmp_path):
    """Papermill fills what stands in braces."""
    folder = tmp_path / "a{x} {} %20s#é"
    path = write(folder / "small{y}.ipynb", "print(limit)")
    point = NotebookPoint.of(str(path), {"limit": 3})
    assert executed(notebooks.run(str(path), point.params(folder), point.out(folder)))
    words = shlex.split(point.command(str(folder)).partition(" && ")[2])
    assert papermill.parameterize.parameterize_path(words[2], {}) == str(point.out(folder))


@pytest.fixture
def filled(checkout) -> Path:
    fake_records.write(checkout / "data" / "records", fake_records.records(60))
    return checkout


def test_main_results_from_records(filled, tmp_path, monkeypatch):
    """The committed form: outputs rewritten in place, source untouched, figures drawn, the verdict on top."""
    monkeypatch.chdir(tmp_path)
    path = filled / "notebooks" / f"{MAIN}.ipynb"
    before = json.loads(path.read_text(encoding="utf-8"))
    monkeypatch.setattr(notebooks, "names", lambda: [MAIN])
    assert again.figures([]) == 0
    after = json.loads(path.read_text(encoding="utf-8"))
    assert after == notebooks.stripped(after)
    assert [c["source"] for c in after["cells"]] == [c["source"] for c in before["cells"]]
    assert {p.name for p in (filled / "figures").iterdir()} == {"main_results.png", "main_results.pdf"}
    outputs = [output for cell, _ in code(after) for output in cell["outputs"]]
    said = [o for o in outputs if o["output_type"] in ("error", "stream")]
    assert ["".join(o.get("text", "")) for o in said] == ["not recorded under these parameters\n"]  # what is by hand
    verdict = "".join(code(after)[0][0]["outputs"][0]["data"]["text/markdown"])
    assert "of 8 comparisons" in verdict and "5 M parameters" in verdict
    text = json.dumps(after)
    assert str(tmp_path) not in text and "image/png" in text and path.stat().st_size < 1024 * 1024
    assert not (filled / "results").exists()


def test_plain_papermill_refuses_a_misspelt_parameter(filled, tmp_path):
    """From elsewhere, as a user would call it: one sentence in the output, not a traceback."""
    out = tmp_path / "out.ipynb"
    command = [sys.executable, "-m", "papermill", str(filled / "notebooks" / f"{MAIN}.ipynb"), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = ["--no-progress-bar", "-p", "limit", "20", "-p", "famlies", "dream"]
    done = subprocess.run([*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    cells = [cell for cell, _ in code(json.loads(out.read_text())) if cell["outputs"]]
    error = next(o for cell in cells for o in cell["outputs"] if o["output_type"] == "error")
    assert error["traceback"] == ["jot: error: unknown parameter 'famlies'; did you mean 'families'?"]


def test_absent_records_are_one_sentence(checkout):
    with pytest.raises(UserError, match="there are no records in data/records"):
        live.store(SimpleNamespace(source="recorded", store=None))
    with pytest.raises(UserError, match="there are no records in data/records"):
        again.main(["--seconds", "0"])
    assert not (checkout / "results").exists()
    with pytest.raises(UserError, match="at least 0"):
        again.main(["--seconds", "-5"])


def test_jot_paper_decodes_a_part_again(checkout, monkeypatch, capsys):
    """Random checkpoints, one short task; one record is tampered with and must be told apart."""
    from jot.runs.harness import evaluate

    monkeypatch.delenv("JOT_HOME")
    for family in ("dream", "llada"):
        tiny.build(checkout / "data" / "models" / f"pocket-{family}", family)
    monkeypatch.setenv("JOT_HOME", str(checkout))
    store = checkout / "data" / "records"
    for model in ("pocket-dream", "pocket-llada"):
        for method in ("full", "jot"):
            evaluate(model, "pocket_mmlu", method, limit=6, store=store, progress=False)
    part = next(store.glob("pocket-llada*jot*.jsonl"))
    lines = [from_line(line) for line in part.read_bytes().splitlines()]
    lines[0]["generated"][0] += 1
    part.write_bytes(b"".join(map(to_line, lines)))
    before = {path: path.read_bytes() for path in store.iterdir()}
    monkeypatch.setattr(notebooks, "names", list)
    assert again.main(["--seconds", "60"]) == 0
    told = capsys.readouterr().out
    assert told.count("6/6 scores equal, 6/6 tokens equal") == 3
    assert "6/6 scores equal, 5/6 tokens equal; parted at margins" in told
    assert "24/24 scores equal, 23/24 tokens equal" in told and "Table 1 as decoded on this machine" in told
    assert "n = 6 pocket_mmlu" in told
    assert (checkout / "results" / "paper" / "reproduction.txt").is_file()
    assert cli.main(["verify-records", "--store", str(store), "--samples", "12"]) == 1
    told = capsys.readouterr().out
    assert "24 documents of 4 of 4 cells" in told and "dream: 12/12 scores equal, 12/12 token sequences equal" in told
    assert "llada: 12/12 scores equal, 11/12 token sequences equal; " in told and " began at a margin under" in told
    assert cli.main(["verify-records", "--store", str(store), "--samples", "3", "--cells", "dream"]) == 0
    assert "3 documents of 2 of 2 cells" in capsys.readouterr().out
    assert cli.main(["verify-records", "--store", str(store), "--cells", "nothing"]) == 2
    assert {path: path.read_bytes() for path in store.iterdir()} == before


def test_a_live_notebook_decodes_what_its_grid_lists(checkout, monkeypatch):
    """The cells of the notebook's models, tasks and methods, and nothing else; embedded ones stand for their kind."""
    (checkout / "data" / "models").symlink_to(ROOT / "data" / "models")
    asked = []
    monkeypatch.setattr(live, "_decode", lambda point, place, p: asked.append((point, place)))
    p = SimpleNamespace(source="live", store=None, models=["pocket-dream"], tasks=["pocket_mmlu"], limit=3, seed=0)
    p.methods = ["full", "jot"]
    assert live.store(p, "main") == checkout / "results" / "store"
    assert [(point.method, point.params) for point, _ in asked] == [("full", {}), ("jot", {})]
    asked.clear()
    p.models, p.tasks, p.methods = ["GSAI-ML/LLaDA-8B-Instruct"], ["gsm8k"], ["full", "calibrated", "prophet-answer"]
    assert live.gpu_hours(live.cells("main", p), 10) > 0
    live.store(p, "main")
    assert {point.model for point, _ in asked} == {"GSAI-ML/LLaDA-8B-Instruct"} and {p.task for p, _ in asked} == {
        "gsm8k"
    }
    assert {point.method for point, _ in asked} == {"full", "jot"}  # Prophet's answer region is one tokenizer's
    p.methods = ["nothing"]
    with pytest.raises(NotebookError, match="list no cell of these models, tasks and methods"):
        live.store(p, "main")


@pytest.mark.parametrize("words", [["figures"], ["paper"], ["notebook", MAIN], ["figures", MAIN]])
def test_a_checkout_without_notebooks(tmp_path, monkeypatch, capsys, words):
    home = tmp_path / "nothing"
    monkeypatch.setenv("JOT_HOME", str(home))
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert told.err == f"jot: error: there are no notebooks in {home}/notebooks; set JOT_HOME to the checkout\n"
    assert told.out == "" and not home.exists()


# --- committing ---------------------------------------------------------------------------------------------


def test_strip(tmp_path, capsys):
    path = write(tmp_path / "dirty.ipynb", "1 + 1")
    dirty = json.loads(path.read_text())
    dirty["metadata"] |= {"papermill": {"duration": 1.5}, "widgets": {"state": {}}}
    dirty["metadata"]["language_info"] = {"name": "python", "version": "3.11.9"}
    injected = v4.new_code_cell("# Parameters\nlimit = 3", metadata={"tags": ["injected-parameters"]})
    dirty["cells"].insert(1, injected)
    cell = dirty["cells"][2]
    cell["metadata"] = {"execution": {"iopub.status.busy": "2026"}, "papermill": {"duration": 1}, "tags": []}
    data = {"text/plain": "2", "application/vnd.jupyter.widget-view+json": {"model_id": "x"}}
    cell |= {"execution_count": 7, "outputs": [v4.new_output("execute_result", data, execution_count=7)]}
    path.write_text(json.dumps(dirty))
    assert notebooks.main(["strip", str(path)]) == 1 and "stripped" in capsys.readouterr().out
    clean = json.loads(path.read_text())
    nbformat.validate(nbformat.from_dict(clean))
    assert [source for _, source in code(clean)] == ['source = "recorded"\nlimit = None\n', "1 + 1"]
    assert clean["cells"][1]["outputs"][0]["data"] == {"text/plain": ["2"]}
    assert "papermill" not in json.dumps(clean) and "2026" not in json.dumps(clean)
    assert "3.11.9" not in json.dumps(clean) and clean["cells"][0]["metadata"]["tags"] == ["parameters"]
    before = path.read_bytes()
    assert notebooks.main(["strip", str(path)]) == 0 and path.read_bytes() == before


@pytest.mark.skipif(not (ROOT / "data" / "records" / "manifest.json").is_file(), reason="no recorded runs")
@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS if path.stem != MAIN])
def test_committed_outputs_are_what_the_records_give(name, tmp_path):
    """That of 01 is in test_independent, which reads its frames."""
    cells.check_committed(name, tmp_path)
