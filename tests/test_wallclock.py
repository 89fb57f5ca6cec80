"""Wall-clock: kept shares, the criterion, the paper's loss, rows of the speed scripts, and the scripts themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from jot import stats
from jot.analysis import plots, published, wallclock, wallclock_speed, wallclock_view
from jot.paper import timing
from jot.runs.parameters import NotebookError

ROOT = Path(__file__).resolve().parents[1]
SPEED = ROOT / "tests" / "speed"
sys.path.insert(0, str(SPEED))

TABLES = {
    "step_cost": wallclock_speed.step_cost,
    "fast_against_plain": wallclock_speed.loops,
    "cache_cost": wallclock_speed.cache_cost,
    "batch_throughput": wallclock_speed.batches,
    "scaling": wallclock_speed.processes,
    "cpu_pocket": wallclock_speed.cpu,
}
STEPS = {"full": 128, "jot": 8, "fastdllm": 10}


def write(folder: Path, n: int = 6, slow: float = 1.25, models=("pocket-dream", "pocket-llada")) -> Path:
    """Made-up timings: a step of full decoding takes 10 ms, one of JoT ``slow`` times that; repetitions differ."""
    rng = np.random.default_rng(0)
    lines = []
    for model in models:
        for task in wallclock.TASKS:
            for i in range(n):
                for method, count in STEPS.items():
                    count = count if method == "full" else count + i
                    for repeat in range(3):
                        cpu = count * 0.01 * (slow if method == "jot" else 1) * (1 + 0.01 * i)
                        bare = "" if method == "fastdllm" else 0.008
                        lines.append([model, task, method, f"{task}/test/{i}", 50 + i, 16.5, repeat, count, count, 0,
                                      cpu * (1 + 0.5 * rng.random() * (repeat == 2)), cpu, bare, bare])  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(lines, columns=list(timing.COLUMNS)).to_csv(folder / wallclock.FILE, index=False)
    return folder


@pytest.fixture
def found(tmp_path) -> pd.DataFrame:
    return wallclock.timings(write(tmp_path)).assign(machine="CPU")


def parameters(**changed) -> SimpleNamespace:
    p = {
        "source": "recorded",
        "store": None,
        "models": ["pocket-dream", "pocket-llada"],
        "families": ["dream", "llada"],
        "tasks": list(wallclock.TASKS),
        "methods": ["jot", "fastdllm"],
        "limit": None,
        "seed": 0,
        "dtype": "float32",
    }
    return SimpleNamespace(**{**p, **changed})


# --- recordings ---------------------------------------------------------------------------------------------


def test_medians_over_repetitions(tmp_path):
    folder = write(tmp_path)
    raw = pd.read_csv(folder / wallclock.FILE)
    one = raw[(raw["model"] == "pocket-llada") & (raw["method"] == "jot") & (raw["doc_id"] == "pocket_gsm8k/test/3")]
    found = wallclock.timings(folder)
    row = found[(found["model"] == "pocket-llada") & (found["method"] == "jot")].set_index("doc_id")
    row = row.loc["pocket_gsm8k/test/3"]
    assert row["seconds"] == np.median(one["seconds"]) and row["repeats"] == 3 and row["steps"] == 11
    assert row["spread"] == pytest.approx(one["seconds"].max() / one["seconds"].min())
    assert row["machine"] == "machine not recorded"  # no cells beside the file


def test_kept_share_by_hand(found):
    """Ratios of sums and their percentile bootstrap, written out with plain numpy on the shared resamples."""
    pick = (found["model"] == "pocket-dream") & (found["task"] == "pocket_gsm8k")
    full, jot = (found[pick & (found["method"] == m)].sort_values("doc_id") for m in ("full", "jot"))
    got = wallclock.speedups(full.sample(frac=1, random_state=1), jot)
    full, jot = (x.set_index("doc_id").loc[got_order(full)] for x in (full, jot))
    a, b = full["seconds"].to_numpy(), jot["seconds"].to_numpy()
    s, t = full["steps"].to_numpy(), jot["steps"].to_numpy()
    assert got["step"].value == pytest.approx(s.sum() / t.sum())
    assert got["clock"].value == pytest.approx(a.sum() / b.sum())
    assert got["kept"].value == pytest.approx((a.sum() / b.sum()) / (s.sum() / t.sum()))
    index = np.concatenate(list(stats.bootstrap_indices(len(a))))
    draws = (a[index].sum(1) / b[index].sum(1)) / (s[index].sum(1) / t[index].sum(1))
    low, high = np.quantile(draws, [0.025, 0.975])
    assert got["kept"].low == pytest.approx(low, rel=0.01) and got["kept"].high == pytest.approx(high, rel=0.01)
    assert got["kept"].value < 1  # a JoT step is made slower than one of full decoding


def got_order(frame: pd.DataFrame) -> list[str]:
    return sorted(frame["doc_id"])


def test_a_step_that_costs_the_same_keeps_all(tmp_path):
    found = wallclock.timings(write(tmp_path, n=1, slow=1.0)).assign(machine="CPU")
    summary = wallclock.summary(found)
    assert list(summary["method"]) == ["jot", "fastdllm"] * 4 and (summary["n"] == 1).all()
    assert summary["cpu"].to_numpy() == pytest.approx(1) and summary["cpu_low"].to_numpy() == pytest.approx(1)


def test_steps_beside_the_bare_forward(found):
    steps = wallclock.steps(found).set_index(["model", "task", "method"])
    row = steps.loc["pocket-dream", "pocket_gsm8k", "jot"]
    each = 1e3 * 0.01 * 1.25 * (1 + 0.01 * np.arange(6))
    assert row["step_ms"] == pytest.approx(np.median(each)) and row["overhead_ms"] == pytest.approx(np.median(each) - 8)
    assert np.isnan(steps.loc["pocket-dream", "pocket_gsm8k", "fastdllm"]["overhead_ms"])


def test_load_checks_what_is_there(tmp_path):
    folder = write(tmp_path / "cpu")
    assert set(wallclock.load(parameters(store=folder))["method"]) == {"full", "jot", "fastdllm"}
    cut = wallclock.load(parameters(store=folder, limit=2, families=["llada"]))
    assert set(cut["model"]) == {"pocket-llada"} and cut.groupby("task")["doc_id"].nunique().eq(2).all()
    for changed, message in (
        ({"limit": 7}, "limit=7 is above the 6 timed documents of pocket_gsm8k"),
        ({"methods": ["klass"]}, "no timings of method 'klass'; recorded are fastdllm, full, jot"),
        ({"tasks": ["pocket_mmlu"]}, "no timings of task 'pocket_mmlu'"),
        ({"models": ["pocket-dream"], "families": ["llada"]}, "no model of pocket-dream is of the families llada"),
        ({"store": tmp_path / "none"}, "there are no timings in"),
    ):
        with pytest.raises(NotebookError, match=message):
            wallclock.load(parameters(**{"store": folder, **changed}))


# --- the criterion ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ((0.9, 0.99, 0.8, 0.7), "seen"),
        ((1.01, 1.2, 1.1, 1.3), "not seen"),
        ((0.9, 0.99, 0.8, 1.01), "undecided"),
        ((0.9, None, 0.8, 0.7), "not shown"),
        ((None, None, None, None), "not shown"),
    ],
)
def test_criterion(values, word):
    parts = {str(i): None if v is None else stats.Estimate(v, v - 0.1, v + 0.1) for i, v in enumerate(values)}
    status, detail = wallclock.judged(parts)
    assert status == word and ("not recorded" in detail) == (None in values)


def test_criterion_of_records(tmp_path, found):
    assert wallclock.criterion(found)[0] == "seen"
    assert wallclock.criterion(found.assign(machine="NVIDIA H100"))[0] == "not shown"
    assert wallclock.criterion(found[found["model"] == "pocket-dream"])[0] == "not shown"
    assert wallclock.below(folder=tmp_path / "none") == ("not shown", "not recorded")
    assert set(wallclock.PHENOMENA) == {"wallclock-below"}


# --- the paper ----------------------------------------------------------------------------------------------


def test_the_papers_loss():
    paper = wallclock.paper().set_index(["model", "method", "task"])
    assert len(paper) == 24 and not paper.isna().any().any()
    row = paper.loc["Dream-7B", "jot", "humaneval"]
    assert row["kept"] == pytest.approx(15.15 / 19.60) and row["kept_low"] == pytest.approx(15.145 / 19.605)
    long = paper.loc[(slice(None), "jot", ["gsm8k", "humaneval"]), "kept"]
    assert 0.77 < long.min() < long.max() < 0.86  # JoT loses 15 to 23 % of its step speedup there
    assert (paper["kept_low"] <= paper["kept"]).all() and (paper["kept"] <= paper["kept_high"]).all()
    table = published.load("wallclock")
    assert set(table["method"]) == {"full", "prophet", "klass", "jot"}  # the paper times no Fast-dLLM


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
    cache = {**row, "opening_ms": ms, "block_ms": ms, "over_read": 3.0, "bare_block_ms": 7.0, "runs": [1, 2]}
    batch = {"model": "LLaDA-8B", "slots": 16, "samples": 32, "steps": 480, "slowest": 40, "seconds": ms,
             "per_second": 2.0, "ideal_s": 14.0, "of_ideal": 0.93, "of_packed": 0.96, "naive_s": 30.0,
             "over_naive": 2.0, "path": "fast"}  # fmt: skip
    cpu = {"model": "pocket-dream", "method": "jot", "threads": 2, "slots": 4, "samples": 4, "seconds": ms,
           "sample_s": 0.1, "cpu_s": 0.2, "products": 0.6}  # fmt: skip
    loops = {"model": "pocket-llada", "dtype": "float32", "method": "jot", "cache": None, "slots": 32, "samples": 200,
             "equal": 200, "loops": ["fast"]}  # fmt: skip
    alone = {"model": "pocket-dream", "task": "pocket_gsm8k", "split": "test", "method": "full", "slots": 64,
             "processes": 1, "samples": 1001, "shares": [1001], "decoding_s": 20.0, "decoding_runs": [20.0],
             "whole_s": 50.0, "per_second": 50.0, "gain": 1.0, "of_ideal": 1.0, "equal_tokens": 1001}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**row, "method": "full", "step_ms": {**ms, "median": 14.7}}
    for script, one in (("step_cost", row), ("cache_cost", cache), ("batch_throughput", batch), ("cpu_pocket", cpu),
                        ("fast_against_plain", loops), ("scaling", alone)):  # fmt: skip
        content = {"script": script, **about, "rows": [one]}
        if script == "step_cost":
            content["rows"].append(whole)
            content["plain"] = [{"model": "Dream-7B", "task": "gsm8k", "step_ms": ms}]
        (folder / f"{script}-a.json").write_text(json.dumps(content))
    return folder


def test_speed_rows(tmp_path):
    assert wallclock.speed(tmp_path / "none") == {}
    folder = speed_files(tmp_path)
    found = wallclock.speed(folder)
    assert set(found) == {"plain", *wallclock_speed.COMMANDS}
    row = found["step_cost"].iloc[0]
    assert (row["step_ms"], row["step_ms_low"], row["card"]) == (15.0, 14.0, "NVIDIA H100 80GB HBM3")
    roof = wallclock.roofline(found["step_cost"]).iloc[0]
    assert (roof["floor_ms"], roof["bound"]) == (9.0, "arithmetic") and roof["share"] == pytest.approx(60)
    later = json.loads((folder / "step_cost-a.json").read_text())
    later["rows"][0]["over_bare"] = 1.0
    (folder / "step_cost-b.json").write_text(json.dumps(later))  # the same row again: the later file's counts
    (folder / "step_cost-c.json").write_text(json.dumps({**later, "tiny": True}))  # a dry run: left out
    found = wallclock.speed(folder)
    assert list(found["step_cost"]["over_bare"]) == [1.0, 1.25] and set(found["step_cost"]["file"]) == {
        "step_cost-b.json"
    }
    assert found["step_cost"]["kept"].to_numpy() == pytest.approx([14.7 / 15, 1])
    (folder / "step_cost-d.json").write_text("[]")
    with pytest.raises(NotebookError, match="step_cost-d.json"):
        wallclock.speed(folder)


@pytest.mark.parametrize("recorded", [False, True])
def test_tables_and_figure(tmp_path, found, recorded):
    """Every table with nothing and with something recorded; what is missing says so and names its command."""
    speed = wallclock.speed(speed_files(tmp_path / "speed")) if recorded else {}
    summary, paper = wallclock.summary(found), wallclock.paper()
    for script, table in TABLES.items():
        text = repr(table(speed))
        assert (f"python tests/speed/{script}.py" in text) != recorded
        assert recorded == ("no interval" in text) and (recorded or "not recorded" in text)
    text = repr(wallclock_view.published(paper, speed))
    assert "A100 here" in text and "H100 here" in text and "not recorded" in text
    assert ("5.50× in steps, 5.39× on the clock" in text) == recorded
    verdict = repr(wallclock_view.verdict(found, summary, paper, speed, wallclock.criterion(found)))
    assert "0.77 to 0.85" in verdict and "KLASS on Dream-7B mmlu" in verdict
    assert ("1.25 to 1.25 times the bare forward" in verdict) == recorded
    first = repr(wallclock_view.a100(speed))
    assert first.startswith("No A100 was available") and "python tests/speed/step_cost.py" in first
    drawn = wallclock_view.figure(summary, paper, speed)
    marks = {line.get_marker() for axis in drawn.axes for line in axis.lines} - {"None", "|", "_"}
    assert len(drawn.axes) == 2 and marks == {plots.LOOKS[m].marker for m in ("jot", "prophet", "klass", "fastdllm")}
    assert "n = 6 pocket_gsm8k" in wallclock_view.main(summary).caption
    assert "not given" in repr(wallclock_view.hardware(found, {}, speed))
    checks = repr(wallclock_view.checks(found, summary, [{"cell": "x", "n": 3, "equal": 2}]))
    assert "2 of 3 samples" in checks and "does not hold" in checks.replace("**", "")


def rows_of(script: str, *changes: dict, **about) -> str:
    """The made-up row of a script with changes, as the text of a file."""
    with tempfile.TemporaryDirectory() as folder:
        content = json.loads((speed_files(Path(folder)) / f"{script}-a.json").read_text())
    content["hardware"] |= about
    return json.dumps({**content, "rows": [{**content["rows"][0], **change} for change in changes]})


def test_loops_that_differ_say_by_how_many_documents(tmp_path):
    (tmp_path / "b.json").write_text(
        rows_of("fast_against_plain", {}, {"slots": 1, "samples": 50, "equal": 50}, {"cache": "dual", "equal": 198},
                {"dtype": "bfloat16", "equal": 195}, {"dtype": "bfloat16", "slots": 1, "samples": 50, "equal": 49})
    )  # fmt: skip
    table = wallclock_speed.loops(wallclock.speed(tmp_path))
    assert table.frame[["Method", "Cache", "Slots", "Equal in float32", "Equal in bfloat16"]].values.tolist() == [
        ["JoT, τ = 30", "none", 32, "200 of 200", "**195 of 200**\n5 documents differ"],
        ["JoT, τ = 30", "none", 1, "50 of 50", "**49 of 50**\n1 document differs"],
        ["JoT, τ = 30", "dual", 32, "**198 of 200**\n2 documents differ", "not recorded"],
    ]
    assert "Embedded tier" in table.caption and "448 of 450" in table.caption and "244 of 250" in table.caption


def test_processes_stay_with_their_own_series(tmp_path):
    two = {"processes": 2, "shares": [501, 500], "decoding_s": 10.5, "gain": 20 / 10.5, "of_ideal": 10 / 10.5}
    eight = {"processes": 8, "shares": [125] * 7 + [126], "equal_tokens": 1000}
    (tmp_path / "scaling.json").write_text(rows_of("scaling", {}, two))
    (tmp_path / "scaling-x4.json").write_text(rows_of("scaling", {"decoding_s": 21.0}, {**two, "gain": 2.0}, eight))
    (tmp_path / "scaling-y.json").write_text(rows_of("scaling", {}, kind="NVIDIA H200"))
    frame = wallclock_speed.processes(wallclock.speed(tmp_path)).frame
    assert list(frame["Card"]) == ["H100"] * 5 + ["H200"] and list(frame["Processes"]) == [1, 2, 1, 2, 8, 1]
    assert list(frame["Scaling, ×"])[:4] == ["1.00", "1.90", "1.00", "2.00"]
    shares = ["1,001", "500 to 501", "1,001", "500 to 501", "125 to 126", "1,001"]
    assert list(frame["Of each process"]) == shares and frame["Equal tokens"][4] == "1,000\u00a0of\u00a01,001"


def test_batches_of_both_tiers(tmp_path):
    """Rows by model and slots, whatever their files; of rows measured twice the file with the longer name counts."""
    sizes = [{"model": model, "slots": slots} for model in ("pocket-llada", "LLaDA-8B") for slots in (32, 16, 4, 1)]
    (tmp_path / "batch.json").write_text(rows_of("batch_throughput", {"samples": 7}))
    only = wallclock_speed.batches(wallclock.speed(tmp_path))
    assert "Embedded tier" not in only.caption and "Full-size shapes" in only.caption
    (tmp_path / "batch-b.json").write_text(rows_of("batch_throughput", *sizes))
    table = wallclock_speed.batches(wallclock.speed(tmp_path))
    found = list(table.frame[["Model", "Slots"]].itertuples(index=False, name=None))
    assert found == [(model, slots) for model in ("LLaDA-8B", "pocket-llada") for slots in (1, 4, 16, 32)]
    assert set(table.frame["Samples"]) == {32} and "Embedded tier, 5 M parameters" in table.caption


def test_an_a100_fills_its_column(tmp_path, found):
    speed = wallclock.speed(speed_files(tmp_path, "NVIDIA A100-SXM4-80GB"))
    assert "the A100 column is filled" in repr(wallclock_view.a100(speed))
    text = repr(wallclock_view.published(wallclock.paper(), speed))
    assert "5.39× on the clock" in text and "H100 here" in text


# --- timing -------------------------------------------------------------------------------------------------


def test_rows_read():
    step = np.array([0, 0, 1, 2, 3, 3, 4, 3])
    assert timing.rows_read(step, [(0, 8)], "canvas").tolist() == [8, 6, 5, 4, 1]
    assert timing.rows_read(step, [(0, 4), (4, 8)], "block").tolist() == [4, 2, 1, 4, 1]
    assert timing.rows_read(step, [(0, 4), (4, 8)], "canvas").tolist() == [8, 6, 5, 4, 1]
    at_once = np.zeros(8, dtype=int)  # a later block filled with the first, as Prophet does
    assert timing.rows_read(at_once, [(0, 4), (4, 8)], "canvas").tolist() == [8]


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
    timing.record(store, ["pocket-llada"], ["pocket_mmlu"], methods, 2)
    raw = pd.read_csv(store / wallclock.FILE)
    assert list(raw.columns) == list(timing.COLUMNS) and raw.groupby(["method", "doc_id"]).size().ge(2).all()
    assert raw[raw["method"] == "fastdllm"]["bare_seconds"].isna().all() and (raw["cpu_seconds"] > 0).all()
    assert {cell.n for cell in load_store(store).values()} == {2} and wallclock.machine(store) == "CPU"
    before = (store / wallclock.FILE).read_text()
    timing.record(store, ["pocket-llada"], ["pocket_mmlu"], methods, 2)
    assert (store / wallclock.FILE).read_text() == before
    timing.record(store, ["pocket-llada"], ["pocket_mmlu"], methods, 3)
    assert wallclock.timings(store)["doc_id"].nunique() == 3
    with pytest.raises(NotebookError, match="runs code"):
        timing.record(store, ["pocket-llada"], ["humaneval"], methods, 2)


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
@pytest.mark.parametrize("script", ["step_cost", "cache_cost", "batch_throughput", "cpu_pocket"])
def test_scripts_run_dry(script, tmp_path):
    out = tmp_path / "rows.json"
    options = {
        "step_cost": ["--only", "llada", "gsm8k", "jot", "full"],
        "cache_cost": ["--only", "dream", "gsm8k"],
        "batch_throughput": ["--only", "llada", "--slots", "1", "4"],
        "cpu_pocket": ["--threads", "1", "--slots", "1"],
    }
    command = [sys.executable, str(SPEED / f"{script}.py"), "--tiny", "--repeats", "1", "--out", str(out)]
    done = subprocess.run([*command, *options[script]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    content = json.loads(out.read_text())
    assert content["script"] == script and content["rows"] and "| --- |" in done.stdout
    assert not wallclock.speed(tmp_path) or script == "cpu_pocket"  # a dry run is no record
