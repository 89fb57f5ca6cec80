"""Wall-clock: what notebook 04 computes, the criterion, reading and recording timings, and the speed scripts."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import cells
import children
import numpy as np
import pandas as pd
import pytest

from jot import stats
from jot.paper import criteria, draw, timing
from jot.runs.parameters import NotebookError

ROOT = Path(__file__).resolve().parents[1]
SPEED = ROOT / "tests" / "speed"
sys.path.insert(0, str(SPEED))
import turns  # noqa: E402

NOTEBOOK = "04_wallclock"
MODELS, TASKS = ("pocket-dream", "pocket-llada"), ("pocket_gsm8k", "pocket_humaneval")
STEPS = {"full": 128, "jot": 8, "fastdllm": 10}
FIRST = ("pocket-dream", "pocket_gsm8k")


def write(folder: Path, n: int = 6, slow: float = 1.25, wobble: float = 0.0) -> Path:
    """Made-up timings: a step of full decoding takes 10 ms, one of JoT ``slow`` times that; repetitions differ.

    ``wobble``: by how much a step of JoT is cheaper on the even documents and dearer on the odd ones.
    """
    rng = np.random.default_rng(0)
    lines = []
    for model in MODELS:
        for task in TASKS:
            for i in range(n):
                for method, count in STEPS.items():
                    count = count if method == "full" else count + i
                    factor = slow + wobble * (-1) ** (i + 1) if method == "jot" else 1
                    for repeat in range(3):
                        cpu = count * 0.01 * factor * (1 + 0.01 * i)
                        bare = "" if method == "fastdllm" else 0.008
                        lines.append([model, task, method, f"{task}/test/{i}", 50 + i, 16.5, repeat, count, count, 0,
                                      cpu * (1 + 0.1 * rng.random() * (repeat == 2)), cpu, bare, bare])  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(lines, columns=list(turns.COLUMNS)).to_csv(folder / timing.FILE, index=False)
    return folder


@pytest.fixture
def on_cpu(monkeypatch):
    """The file alone does not say what it was timed on."""
    read = timing.read
    monkeypatch.setattr(timing, "read", lambda place: read(place).assign(machine="CPU"))


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> tuple[dict, dict[str, list]]:
    """The notebook on the committed records: its names, and what its cells showed."""
    return cells.run(NOTEBOOK, out=str(tmp_path_factory.mktemp("figures")))


def texts(gave: dict[str, list]) -> str:
    return "\n".join(repr(thing) for shown in gave.values() for thing in shown)


# --- the notebook -------------------------------------------------------------------------------------------


def test_what_the_page_says(page):
    _, gave = page
    verdict = repr(gave["verdict"][0])
    assert "stays below that in steps (JoT, both models, both long tasks): undecided" in verdict
    assert "pocket-dream pocket_humaneval 0.996 [0.975, 1.015]" in verdict  # an estimate below 1 that is not below 1
    fast = next(line for line in verdict.splitlines() if line.startswith("  - Fast-dLLM"))
    assert (
        "dual cache, T = 0" in fast
        and "faster than JoT on pocket-llada pocket_gsm8k 0.79 [0.73, 0.85] (21.4× against" in fast
    )
    assert "averaging suffices for a gap of this size" in verdict and "explain" not in verdict
    assert "0.77 to 0.85" in verdict and "KLASS on Dream-7B mmlu" in verdict and "No A100 was available" in verdict
    assert "480 of 480 samples" in texts(gave) and "does not hold" not in repr(gave["checks"][-1])


def test_the_papers_loss(page):
    paper = page[0]["paper"].set_index(["model", "method", "task"])
    assert len(paper) == 24 and not paper.isna().any().any()
    row = paper.loc["Dream-7B", "jot", "humaneval"]
    assert row["kept"] == pytest.approx(15.15 / 19.60) and row["kept_low"] == pytest.approx(15.145 / 19.605)
    long = paper.loc[(slice(None), "jot", ["gsm8k", "humaneval"]), "kept"]
    assert 0.77 < long.min() < long.max() < 0.86  # JoT loses 15 to 23 % of its step speedup there


def test_averaging_alone_by_hand(page):
    """Two documents of 1 and 4 steps of 8: 16 / 5 over (8 + 2) / 2; and never above 1."""
    quotient = page[0]["quotient"]
    at = pd.DataFrame({"configured_steps": [8, 8], "steps": [1, 4]})
    assert quotient(at)["average"] == pytest.approx(3.2 / 5)
    assert quotient(at.assign(steps=3))["average"] == pytest.approx(1)
    steps = np.random.default_rng(1).integers(1, 128, 50)
    assert quotient(pd.DataFrame({"configured_steps": 128, "steps": steps}))["average_high"] <= 1
    side = page[0]["side"].set_index(["model", "task", "method"])["average"]
    assert [round(side[m, t, "jot"], 2) for m in ("Dream-7B", "LLaDA-8B") for t in ("gsm8k", "humaneval")] == [
        0.68, 0.68, 0.87, 0.89,
    ]  # fmt: skip
    assert side.min() < 0.47 and side.max() == pytest.approx(1)


def test_kept_share_by_hand(tmp_path, on_cpu):
    """Medians, ratios of sums and their percentile bootstrap, with plain numpy on the shared resamples."""
    space, gave = cells.run(
        NOTEBOOK, store=str(write(tmp_path / "cpu")), out=str(tmp_path), methods=["jot", "fastdllm"]
    )
    raw = pd.read_csv(tmp_path / "cpu" / timing.FILE)
    raw = raw[(raw["model"] == FIRST[0]) & (raw["task"] == FIRST[1])]
    middle = raw.groupby(["method", "doc_id"])[["seconds", "steps"]].median()
    (a, s), (b, t) = (middle.loc[name].to_numpy().T for name in ("full", "jot"))
    row = space["faster"].set_index(["model", "task", "method"]).loc[(*FIRST, "jot")]
    assert row["clock"] == pytest.approx(a.sum() / b.sum()) and row["step"] == pytest.approx(s.sum() / t.sum())
    assert row["kept"] == pytest.approx((a.sum() / b.sum()) / (s.sum() / t.sum())) and row["kept"] < 1
    index = np.concatenate(list(stats.bootstrap_indices(len(a))))
    draws = (a[index].sum(1) / b[index].sum(1)) / (s[index].sum(1) / t[index].sum(1))
    assert [row["kept_low"], row["kept_high"]] == pytest.approx(list(np.quantile(draws, [0.025, 0.975])))
    means = space["means"].set_index(["model", "task", "method"]).loc[(*FIRST, "jot")]
    assert means["clock"] == pytest.approx((a / b).mean()) and means["means"] == pytest.approx(
        (a / b).mean() / (s / t).mean()
    )
    assert means["mixed"] == pytest.approx(a.sum() / b.sum() / (s / t).mean())
    other = middle.loc["fastdllm"]["seconds"].to_numpy()
    direct = space["direct"].set_index(["model", "task", "method"]).loc[(*FIRST, "fastdllm")]
    assert direct["clock"] == pytest.approx(other.sum() / b.sum()) and direct["first"] == (other > b).sum()
    parts = space["parts"].set_index(["model", "task", "method"])
    each = 1e3 * 0.01 * 1.25 * (1 + 0.01 * np.arange(6))
    assert parts.loc[(*FIRST, "jot")]["overhead"] == pytest.approx(np.median(each) - 8)
    assert np.isnan(parts.loc[(*FIRST, "fastdllm")]["overhead"])
    marks = {line.get_marker() for axis in space["figure"].axes for line in axis.lines} - {"None", "|", "_"}
    assert {draw.LOOKS[m].marker for m in ("jot", "fastdllm")} <= marks
    assert "0 of 0 samples" in texts(gave)


def test_parts_of_the_grid_and_of_a_store(tmp_path, monkeypatch):
    """One model, task, method and few documents; then a checkout that has no records and no speed rows at all."""
    _, gave = cells.run(NOTEBOOK, models=["pocket-llada"], tasks=["pocket_humaneval"], methods=["jot"], limit=3,
                        out=str(tmp_path))  # fmt: skip
    assert "n = 3 pocket_humaneval" in texts(gave) and "not timed here" in repr(gave["against-table"][-1])
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    for name in ("data/paper", "data/tasks", "notebooks"):
        (home / name).symlink_to(ROOT / name)
    monkeypatch.setenv("JOT_HOME", str(home))
    store = write(home / "data" / "records" / "cpu", n=2)
    _, gave = cells.run(NOTEBOOK, out=str(tmp_path), methods=["jot", "fastdllm"])
    for script in ("step_cost", "fast_against_plain", "cache_cost", "batch_throughput", "scaling", "cpu_pocket"):
        assert f"python tests/speed/{script}.py" in texts(gave)
    assert "machine not recorded" in repr(gave["verdict"][0]) and "not shown" in repr(gave["criteria"][-1])
    speed_files(home / "data" / "records" / "speed", "NVIDIA A100-SXM4-80GB")
    space, gave = cells.run(NOTEBOOK, store=str(store), out=str(tmp_path), methods=["jot"])
    assert "the A100 column is filled" in repr(gave["verdict"][0])
    assert "5.50× in steps, 5.39× on the clock" in texts(gave)
    assert set(space["speed"]) == {"step_cost", "plain", "cache_cost", "batch_throughput", "cpu_pocket", "scaling",
                                   "fast_against_plain"}  # fmt: skip
    (home / "data" / "records" / "speed" / "step_cost-d.json").write_text("[]")
    with pytest.raises(NotebookError, match="step_cost-d.json"):
        cells.run(NOTEBOOK, until="speed", store=str(store), methods=["jot"])


def test_live(tmp_path):
    """Two documents of three tokens, timed here and compared with the recorded runs."""
    parameters = {"source": "live", "store": str(tmp_path / "store"), "limit": 2, "out": str(tmp_path),
                  "models": ["pocket-llada"], "tasks": ["pocket_mmlu"], "methods": ["jot", "fastdllm"]}  # fmt: skip
    space, gave = cells.run(NOTEBOOK, **parameters)
    assert len(space["found"]) == 6 and "n = 2 pocket_mmlu" in texts(gave)
    assert "6 of 6 samples" in texts(gave)


# --- reading ------------------------------------------------------------------------------------------------


def test_load_checks_what_is_there(tmp_path):
    folder, asked = write(tmp_path / "cpu"), {"methods": ["jot", "fastdllm"]}

    def load(**changed):
        return cells.run(NOTEBOOK, until="load-asked", **{**asked, "store": folder, **changed})[0]

    assert set(load()["raw"]["method"]) == {"full", "jot", "fastdllm"}
    cut = load(limit=2, families=["llada"])["raw"]
    assert set(cut["model"]) == {"pocket-llada"} and cut.groupby("task")["doc_id"].nunique().eq(2).all()
    for changed, message in (
        ({"limit": 7}, "limit=7 is above the 6 timed documents of pocket_gsm8k"),
        ({"methods": ["klass"]}, "no timings of method 'klass'; recorded are fastdllm, full, jot"),
        ({"methods": ["full"]}, "name a second method"),
        ({"tasks": ["pocket_mmlu"]}, "no timings of task 'pocket_mmlu'"),
        ({"models": ["pocket-dream"], "families": ["llada"]}, "no model of pocket-dream is of the families llada"),
        ({"store": tmp_path / "none"}, "there are no timings in"),
        ({"store": None, "dtype": "bfloat16"}, "no timings of bfloat16 with seed 0 alone; recorded are float32"),
    ):
        with pytest.raises(NotebookError, match=message):
            load(**changed)


# --- the criteria -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slow", "wobble", "word"),
    [(0.9, 0, "seen"), (1.1, 0, "not seen"), (0.999, 0.2, "undecided"), (1.02, 0.2, "undecided")],
)
def test_below_one_is_a_whole_interval(tmp_path, on_cpu, slow, wobble, word):
    at = criteria.Evidence(write(tmp_path, n=8, slow=1 / slow, wobble=wobble))
    status, detail = criteria.wallclock_below(at)
    assert status == word and "n = 8 a task" in detail


def test_the_clocks_criterion_needs_a_quiet_cpu_and_all_runs(tmp_path, on_cpu, monkeypatch):
    folder = write(tmp_path / "a" / "cpu")
    assert criteria.wallclock_below(criteria.Evidence(tmp_path / "a"))[0] == "seen"  # beside the cells of a store
    raw = pd.read_csv(folder / timing.FILE)
    raw[raw["model"] == "pocket-dream"].to_csv(folder / timing.FILE, index=False)
    with pytest.raises(criteria.NotRecorded, match="timings of pocket-llada pocket_gsm8k full"):
        criteria.wallclock_below(criteria.Evidence(folder))
    raw.assign(seconds=raw["seconds"] * 1.5).to_csv(folder / timing.FILE, index=False)
    status, detail = criteria.wallclock_below(criteria.Evidence(folder))
    assert status == "not shown" and detail.startswith("the machine was busy")
    for machine, place in (("NVIDIA H100", folder), ("CPU", tmp_path / "none")):
        read = pd.read_csv(folder / timing.FILE).assign(machine=machine)
        monkeypatch.setattr(timing, "read", lambda _, read=read: read) if machine != "CPU" else monkeypatch.undo()
        with pytest.raises(criteria.NotRecorded):
            criteria.wallclock_below(criteria.Evidence(place))


# --- rows of the speed scripts ------------------------------------------------------------------------------


def speed_files(folder: Path, card: str = "NVIDIA H100 80GB HBM3") -> Path:
    about = {
        "hardware": {"kind": card, "driver_version": "1.2"},
        "versions": {"torch": "2"},
        "fast": "1",
        "tiny": False,
    }
    ms = {"median": 15.0, "low": 14.0, "high": 16.0, "n": 5}
    row = {"model": "Dream-7B", "task": "gsm8k", "prompt": 144, "length": 256, "method": "jot", "steps": 46,
           "speedup": 5.5, "rows": 80.0, "step_ms": ms, "step_runs": [14, 15, 15, 15, 16], "bare_ms": 12.0,
           "over_bare": 1.25, "own_bare_ms": 11.0, "over_own": 1.36, "flop_ms": 9.0, "read_ms": 5.0,
           "extra_gib": 0.5, "path": "fast"}  # fmt: skip
    cache = {**row, "opening_ms": ms, "block_ms": ms, "bare_block_ms": 7.0, "runs": [[[2.0, 8, 248], [0.2, 8, 8]]]}
    batch = {"model": "LLaDA-8B", "slots": 16, "samples": 32, "step_counts": [15] * 32, "tokens": [400] * 32,
             "step_ms": 30.0, "reference_tokens": 400, "seconds": ms, "packed_s": 14.0, "naive_s": 30.0,
             "path": "fast"}  # fmt: skip
    cpu = {"model": "pocket-dream", "method": "jot", "threads": 2, "slots": 4, "samples": 4, "seconds": ms,
           "sample_s": 0.1, "cpu_s": 0.2, "products": 0.6}  # fmt: skip
    loops = {"model": "pocket-llada", "dtype": "float32", "method": "jot", "cache": None, "slots": 32, "samples": 200,
             "equal": 200, "loops": ["fast"]}  # fmt: skip
    alone = {"model": "pocket-dream", "task": "pocket_gsm8k", "split": "test", "method": "full", "slots": 64,
             "processes": 1, "samples": 1001, "shares": [1001], "decoding_s": 20.0, "decoding_runs": [20.0],
             "whole_s": 50.0, "per_second": 50.0, "gain": 1.0, "of_ideal": 1.0, "equal_tokens": 1001}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**row, "method": "full", "step_runs": [14.7], "speedup": 1.0}
    for script, one in (("step_cost", row), ("cache_cost", cache), ("batch_throughput", batch), ("cpu_pocket", cpu),
                        ("fast_against_plain", loops), ("scaling", alone)):  # fmt: skip
        content = {"script": script, **about, "rows": [one]}
        if script == "step_cost":
            content["rows"].append(whole)
            content["plain"] = [{"model": "Dream-7B", "task": "gsm8k", "step_ms": ms}]
        (folder / f"{script}-a.json").write_text(json.dumps(content))
    return folder


def rows(script: str, *changes: dict, tmp_path: Path) -> pd.DataFrame:
    """The made-up row of a script with changes, as the notebook reads them."""
    content = json.loads((speed_files(tmp_path) / f"{script}-a.json").read_text())
    one = {"card": "NVIDIA H100 80GB HBM3", **content["rows"][0]}
    return pd.json_normalize([{**one, **change} for change in changes], sep="_")


def test_the_later_of_two_measurements_counts(tmp_path, monkeypatch):
    home = tmp_path / "home"
    folder = speed_files(home / "data" / "records" / "speed")
    write(home / "data" / "records" / "cpu", n=2)
    later = json.loads((folder / "step_cost-a.json").read_text())
    later["rows"][0]["step_runs"] = [11.0]
    (folder / "step_cost-b.json").write_text(json.dumps(later))
    (folder / "step_cost-c.json").write_text(json.dumps({**later, "tiny": True}))  # a dry run: left out
    monkeypatch.setenv("JOT_HOME", str(home))
    speed = cells.run(NOTEBOOK, until="speed", methods=["jot"])[0]["speed"]
    assert list(speed["step_cost"]["step_runs"]) == [[11.0], [14.7]]
    assert set(speed["step_cost"]["file"]) == {"step_cost-b.json"}


def test_loops_that_differ_say_by_how_many_documents(page, tmp_path):
    frame = rows("fast_against_plain", {}, {"slots": 1, "samples": 50, "equal": 50}, {"cache": "dual", "equal": 198},
                 {"dtype": "bfloat16", "equal": 195}, {"dtype": "bfloat16", "slots": 1, "samples": 50, "equal": 49},
                 tmp_path=tmp_path)  # fmt: skip
    table = page[0]["loops_table"](frame)
    assert table.frame[["Method", "Cache", "Slots", "Equal in float32", "Equal in bfloat16"]].values.tolist() == [
        ["JoT, τ = 30", "none", 32, "200 of 200", "**195 of 200**\n5 documents differ"],
        ["JoT, τ = 30", "none", 1, "50 of 50", "**49 of 50**\n1 document differs"],
        ["JoT, τ = 30", "dual", 32, "**198 of 200**\n2 documents differ", "not recorded"],
    ]
    assert "Embedded tier" in table.caption and "448 of 450" in table.caption and "244 of 250" in table.caption


def test_processes_stay_with_their_own_series(page, tmp_path):
    two = {"processes": 2, "shares": [501, 500], "decoding_s": 10.5, "file": "a"}
    eight = {"processes": 8, "shares": [125] * 7 + [126], "equal_tokens": 1000, "decoding_s": 5.0, "file": "b"}
    frame = rows("scaling", {"file": "a"}, two, {"decoding_s": 21.0, "file": "b"}, eight, tmp_path=tmp_path)
    shown = page[0]["processes"](frame)
    assert list(shown["Scaling, ×"]) == ["1.00", "1.90", "1.00", "4.20"]
    assert list(shown["Of the ideal"]) == ["**1.00**", "**0.95**", "**1.00**", "**0.53**"]
    assert list(shown["Of each process"]) == ["1,001", "500 to 501", "1,001", "125 to 126"]


def test_a_shape_that_is_not_recorded_has_a_row(page, tmp_path):
    table = page[0]["step_costs"](
        rows("step_cost", {}, {"task": "long2048", "prompt": 200, "length": 2048}, tmp_path=tmp_path)
    )
    shapes = dict(zip(table.frame["Shape"], table.frame["A step, ms"], strict=True))
    assert (
        shapes["Dream-7B\n200+2048 tokens"].startswith("15.00")
        and shapes["Dream-7B\n200+1024 tokens"] == "not recorded"
    )
    assert len(table.frame) == 12 and list(table.frame["Of the roofline, %"])[:2] == ["60", "60"]  # 9 ms of 15


def test_pairs_of_runs_tell_openings_from_block_forwards(page, tmp_path):
    runs = [[[8 * 0.015 + 248 * 0.008, 8, 248], [8 * 0.015 + 8 * 0.008, 8, 8]]]
    shown = page[0]["cache_cost"](rows("cache_cost", {"runs": runs}, tmp_path=tmp_path)).iloc[0]
    assert shown["Opening a block, ms"].startswith("15.00") and shown["Within a block, ms"].startswith("8.00")
    assert shown["Within over read"] == "**1.60**"


# --- timing -------------------------------------------------------------------------------------------------


def test_rows_read():
    step = np.array([0, 0, 1, 2, 3, 3, 4, 3])
    assert turns.rows_read(step, [(0, 8)], "canvas").tolist() == [8, 6, 5, 4, 1]
    assert turns.rows_read(step, [(0, 4), (4, 8)], "block").tolist() == [4, 2, 1, 4, 1]
    assert turns.rows_read(step, [(0, 4), (4, 8)], "canvas").tolist() == [8, 6, 5, 4, 1]
    at_once = np.zeros(8, dtype=int)  # a later block filled with the first, as Prophet does
    assert turns.rows_read(at_once, [(0, 4), (4, 8)], "canvas").tolist() == [8]


@pytest.mark.slow
def test_recording_resumes(tmp_path, monkeypatch):
    """Random checkpoints: a line per decoding, a record per sample, and nothing is timed twice."""
    import tiny

    from jot.records import load_store

    home = tmp_path / "home"
    monkeypatch.delenv("JOT_HOME", raising=False)
    tiny.build(home / "data" / "models" / "pocket-llada", "llada")
    (home / "data" / "tasks").symlink_to(ROOT / "data" / "tasks")
    monkeypatch.setenv("JOT_HOME", str(home))
    store, methods = tmp_path / "store", ["full", "jot", "fastdllm"]
    turns.record(store, ["pocket-llada"], ["pocket_mmlu"], methods, 2)
    raw = pd.read_csv(store / timing.FILE)
    assert list(raw.columns) == list(turns.COLUMNS) and raw.groupby(["method", "doc_id"]).size().ge(2).all()
    assert raw[raw["method"] == "fastdllm"]["bare_seconds"].isna().all() and (raw["cpu_seconds"] > 0).all()
    assert {cell.n for cell in load_store(store).values()} == {2} and set(timing.read(store)["machine"]) == {"CPU"}
    before = (store / timing.FILE).read_text()
    turns.record(store, ["pocket-llada"], ["pocket_mmlu"], methods, 2)
    assert (store / timing.FILE).read_text() == before
    turns.record(store, ["pocket-llada"], ["pocket_mmlu"], methods, 3)
    assert timing.read(store)["doc_id"].nunique() == 3
    with pytest.raises(NotebookError, match="runs code"):
        turns.record(store, ["pocket-llada"], ["humaneval"], methods, 2)


# --- the scripts' own arithmetic ----------------------------------------------------------------------------


def test_replayed_patterns():
    import common

    step = np.array([0, 0, 1, 2, 3, 3, 4, 3])
    rule = np.array([2, 3, 1, 2, 2, 2, 1, 2])
    assert common.plan(step, rule, 8, 4, everything=True).tolist() == [0, 0, 1, 2, 0, 0, 1, 0]
    assert common.plan(step, rule, 8, 4, everything=False).tolist() == [0, 0, 2, 2, 0, 0, 1, 0]
    assert common.plan(step, rule, 16, 4, everything=True).tolist() == [0, 0, 1, 2, 0, 0, 1, 0] * 2
    stretched = common.plan(step, rule, 16, None, everything=True)
    assert stretched.tolist() == [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 6, 7]
    assert stretched.max() + 1 == 2 * (step.max() + 1)  # the speedup is kept
    steps = np.array([[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]])
    assert [common.nearest(steps, speedup) for speedup in (1, 2.2, 9)] == [0, 1, 2]


def test_a_replayed_rule_passes_for_the_rule_and_keeps_to_the_plan(monkeypatch):
    import common
    import torch

    import jot

    model = common.build("llada", torch.device("cpu"), tiny=True)
    rule, config = common.method_of("jot", "llada", 64)
    plan = np.tile(np.repeat([0, 1], 16), 2)  # two steps a block
    replayed = common.Replayed(rule, {"a": plan}, model.device)
    assert isinstance(replayed, jot.JoT) and replayed.tau_max == rule.tau_max and replayed.combine == "or"
    parameters = {"length": 64, "block_length": 32}
    out = jot.decode(model, common.prompt_of(model, 8), replayed, sample_id="a", trace=True, **parameters)
    assert out.steps == 4 and (out.trace.step == plan + np.repeat([0, 2], 32))[out.trace.rule & 2 > 0].all()
    assert jot.decode(model, common.prompt_of(model, 8), rule, **parameters).steps > 4  # random weights exit little
    cost = common.rule_cost(replayed, model.device, 1)
    assert cost["rule_ms"] > 0 and cost["replay_ms"] > 0
    monkeypatch.setenv("JOT_FAST", "1")  # what the scripts time on a card
    with common.path_taken(model) as path:
        fast = jot.decode(model, common.prompt_of(model, 8), replayed, sample_id="a", trace=True, **parameters)
    assert path == ["fast"] and (fast.trace.step == out.trace.step).all()


def test_ideals_of_a_batch():
    from batch_throughput import curve, naive, packed

    steps = [4, 2, 2, 6]
    ones = [1] * 4
    assert naive(steps, ones, 2, 10.0) == 10 * (4 + 6) and naive(steps, [5, 3, 2, 2], 2, 10.0) == 10 * (20 + 12)
    assert packed(steps, ones, 1, lambda rows: 10.0) == 140 and packed(steps, [3, 1, 1, 1], 1, lambda rows: 10.0) == 220
    # slots 0 and 1: 4 and 2, then 2 in the second slot, then 6 alone in the first
    assert packed(steps, ones, 2, lambda rows: 10.0) == 100
    assert packed(steps, ones, 2, lambda rows: 10.0 * rows) == 140
    assert packed([2, 4], [3, 1], 2, lambda rows: 10.0 * rows) == 2 * 20 * 2 + 2 * 10  # a token's share of live rows
    cost = curve({1: 10.0, 4: 16.0})
    assert cost(1) == 10 and cost(2) == 12 and cost(9) == 16


def test_two_runs_tell_openings_from_block_forwards():
    from cache_cost import solve

    opening, block = solve((8 * 0.015 + 248 * 0.008, 8, 248), (8 * 0.015 + 8 * 0.008, 8, 8))
    assert opening == pytest.approx(15) and block == pytest.approx(8)


def test_floors_count_the_published_parameters():
    """8.0 and 7.6 billion parameters less the input embedding, which is not read whole."""
    import common
    import torch

    for family, billions in (("llada", 8.02), ("dream", 7.62)):
        config, kind, _ = common.TINY_CONFIG[family]
        with torch.device("meta"):
            model = kind(config())
        read = common.work(model, 400, 32)[1] / model.head.element_size()
        assert read == pytest.approx(billions * 1e9 - model.head.numel(), rel=0.005)
        flops = common.work(model, 400, 0)[0]
        assert flops == pytest.approx(2 * 400 * (read - model.head.numel()), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["step_cost", "cache_cost", "batch_throughput", "cpu_pocket", "cpu_smol"])
def test_scripts_run_dry(script, tmp_path, capfd):
    out = tmp_path / "rows.json"
    options = {
        "step_cost": ["--only", "llada", "mmlu", "long1024", "jot", "full"],
        "cache_cost": ["--only", "dream", "hellaswag", "long1024"],
        "batch_throughput": ["--only", "llada", "--slots", "1", "4"],
        "cpu_pocket": ["--threads", "1", "--slots", "1"],
        "cpu_smol": [],
    }
    words = [f"{script}.py", "--tiny", "--repeats", "1", "--out", str(out), *options[script]]

    def run() -> None:
        os.chdir(tmp_path)
        sys.argv[:] = words
        with open("told", "w") as sys.stdout:
            runpy.run_path(str(SPEED / words[0]), run_name="__main__")

    assert children.join(children.fork(run)) == 0, capfd.readouterr().err[-2000:]
    content = json.loads(out.read_text())
    assert content["script"] == script and content["rows"] and "| --- |" in (tmp_path / "told").read_text()
    assert content["tiny"] or script == "cpu_pocket"  # a dry run is no record, and the notebook leaves it out
