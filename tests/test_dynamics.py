"""Margins per step, shares of commits, single documents, and the figures of the confidence notebook."""

from __future__ import annotations

import math
from types import SimpleNamespace

import fake_records
import numpy as np
import pandas as pd
import pytest
from scipy import stats as st

from jot import stats
from jot.analysis import cells, dynamics, dynamics_view, sources
from jot.runs.parameters import NotebookError

TASK = "pocket_gsm8k"
LENGTH = 8


def filled(method: str, n: int, seed: int = 0) -> pd.DataFrame:
    """Made-up traces that obey the loop: full decoding commits one position a step, JoT several."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        if method == "full":
            step, rule = rng.permutation(LENGTH), np.ones(LENGTH, np.uint8)
            threshold = np.full(LENGTH, np.nan)
        else:
            step = np.unique(rng.integers(0, 3, LENGTH), return_inverse=True)[1]
            rule = rng.choice([2, 3, 1], LENGTH).astype(np.uint8)
            threshold = np.full(LENGTH, 2.0)
        steps = int(step.max()) + 1
        margin = np.where(rule & 2, 3.0, 1.0)
        counts = np.bincount(step, minlength=steps)
        rows.append(
            {
                "doc_id": f"{TASK}/test/{i}",
                "steps": steps,
                "score": float(i % 3 != 0),
                "generated": rng.integers(0, 5, LENGTH),
                "trace_step": step,
                "trace_rule": rule,
                "trace_margin": margin,
                "trace_threshold": threshold,
                "trace_mean_margin": 4 * rng.random(steps) + np.arange(steps) * (-1 if method == "full" else 1),
                "trace_masked": LENGTH - counts.cumsum() + counts,
            }
        )
    base = fake_records.rows(TASK, "test", rng, n, 0.5, 5)
    made = pd.DataFrame(rows)
    return base.drop(columns=[c for c in made if c in base and c != "doc_id"]).merge(made, on="doc_id")


def made(n: int = 30, models=("pocket-dream", "pocket-llada")) -> dynamics.Traces:
    found = {}
    for model in models:
        found[model, None] = cells.Cell(*fake_records.cell(model, TASK, "full", filled("full", n)))
        for tau in (3.0, 90.0):
            made_up = fake_records.cell(model, TASK, "jot", filled("jot", n, int(tau)), tau_max=tau)
            found[model, tau] = cells.Cell(*made_up)
    return found


# --- parameters ---------------------------------------------------------------------------------------------


def test_thresholds():
    assert dynamics.thresholds(["90", 3, "3"]) == [3.0, 90.0]
    for wrong in ("x", 0.5, None, "nan"):
        with pytest.raises(NotebookError, match="thresholds"):
            dynamics.thresholds([wrong])


def parameters(**changes) -> SimpleNamespace:
    values = {"source": "recorded", "store": None, "models": ["pocket-dream"], "families": ["dream", "llada"],
              "tasks": [TASK], "methods": ["full", "jot"], "limit": None, "seed": 0, "device": None, "dtype": "float32",
              "data": None, "thresholds": ["3", "90"], "documents": 2}  # fmt: skip
    return SimpleNamespace(**values | changes)


def test_points():
    found = dynamics.points(parameters())
    assert list(found) == [("pocket-dream", None), ("pocket-dream", 3.0), ("pocket-dream", 90.0)]
    assert all(point.trace for point in found.values())
    assert list(dynamics.points(parameters(methods=["full"]))) == [("pocket-dream", None)]
    with pytest.raises(NotebookError, match="full and jot"):
        dynamics.points(parameters(methods=["full", "klass"]))
    with pytest.raises(NotebookError, match="one task"):
        dynamics.points(parameters(tasks=[TASK, "pocket_mmlu"]))


def test_load_without_traces_is_one_sentence(tmp_path):
    with pytest.raises(NotebookError, match="there are no traced runs"):
        dynamics.load(parameters(store=tmp_path))


# --- numbers ------------------------------------------------------------------------------------------------


def test_shares_of_commits_by_counting():
    cell = made()["pocket-dream", 3.0]
    frame = cell.recorded.frame
    rules = np.concatenate(list(frame["trace_rule"]))
    found = dynamics.commits(cell)
    for name, rule in (("exit", 2), ("both", 3), ("schedule", 1)):
        assert found[name].value == pytest.approx(100 * (rules == rule).mean())
        assert found[name].low <= found[name].value <= found[name].high
    assert found["per_step"].value == pytest.approx(rules.size / frame["steps"].sum())
    assert found["edge"].value == 0 and math.isnan(dynamics.commits(made()["pocket-dream", None])["edge"].value)


def test_edge_counts_both_sides():
    frame = filled("jot", 1)
    frame.at[0, "trace_margin"] = np.array([2.0009, 1.9991, 2.0011, 1.9, 2.0, 5, 5, 5])
    cell = cells.Cell(*fake_records.cell("pocket-dream", TASK, "jot", frame))
    assert dynamics.near_edge(cell) == 3
    assert dynamics.commits(cell)["edge"].value == pytest.approx(100 * 3 / 8)


def test_band_equals_a_bootstrap_written_out():
    curve = np.array([[4.0, 3, np.nan], [6, 1, 2], [5, np.nan, np.nan], [3, 2, np.nan]])
    frame = dynamics.band(curve)
    assert frame["n"].tolist() == [4, 3, 1] and frame["mean"].tolist() == [4.5, 2.0, 2.0]
    draws = np.concatenate([curve[index] for index in stats.bootstrap_indices(4)])
    with np.errstate(invalid="ignore"):
        means = np.array([row[np.isfinite(row)].mean() if np.isfinite(row).any() else np.nan for row in draws[:, :, 1]])
    assert frame[["low", "high"]].iloc[1].tolist() == pytest.approx(np.nanpercentile(means, [2.5, 97.5]).tolist())
    assert frame[["low", "high"]].iloc[2].isna().all()


def test_rho_and_its_interval():
    cell = made()["pocket-dream", None]
    by_hand = [st.spearmanr(range(LENGTH), values)[0] for values in cell.recorded.frame["trace_mean_margin"]]
    assert np.sort(dynamics.spearman(cell)) == pytest.approx(np.sort(by_hand))
    value, low, high = dynamics.decline(cell)
    assert value == pytest.approx(np.mean(by_hand)) and low < value < high < 0
    short = cells.Cell(
        *fake_records.cell("pocket-dream", TASK, "full", filled("full", 1).assign(trace_mean_margin=[[1, 2]]))
    )
    assert dynamics.spearman(short).size == 0 and math.isnan(dynamics.decline(short).value)


def test_judge(monkeypatch):
    below, above, across = (stats.Estimate(0, *x) for x in ((-0.3, -0.1), (0.1, 0.3), (-0.1, 0.1)))
    dream, llada = (made()[model, None] for model in cells.MODELS)

    def word(*values: stats.Estimate) -> str:
        monkeypatch.setattr(dynamics, "decline", lambda cell, steps=None: values[cell is llada])
        return dynamics.judge(dict(zip(cells.MODELS, (dream, llada), strict=True)))[0]

    assert word(below, below) == "seen" and word(below, across) == "undecided"
    assert word(below, above) == word(across, above) == "not seen"
    assert dynamics.judge({"pocket-llada": llada})[0] == "not shown"


def test_blocks_are_told_apart():
    """A model that decodes in blocks: rho over all steps and, beside it, within the first block."""
    cell = made()["pocket-llada", None]
    up_then_high = [4.0, 3, 2, 1, 12, 11, 10, 9]  # falls in each block of four, jumps between them
    frame = cell.recorded.frame.assign(trace_mean_margin=[up_then_high] * cell.n)
    key, recorded = fake_records.cell("pocket-llada", TASK, "full", frame, decode={"block_length": 4})
    blocks = cells.Cell(key, recorded)
    block, inside = dynamics.first_block(blocks)
    assert block == 4 and inside.value == pytest.approx(-1) and dynamics.decline(blocks).value > 0
    whole = fake_records.cell("pocket-dream", TASK, "full", frame, decode={"block_length": None})
    assert dynamics.first_block(cells.Cell(*whole)) is None
    word, detail = dynamics.judge({"pocket-dream": cells.Cell(*whole), "pocket-llada": blocks})
    assert word == "not seen" and detail.count("within the first block -1.00") == 1 and "blocks of 4" in detail


def test_criterion_from_records(tmp_path, monkeypatch):
    monkeypatch.setenv("JOT_HOME", str(tmp_path))
    records = {cell.id: cell.recorded for (_, tau), cell in made().items() if tau is None}
    assert dynamics.PHENOMENA["dynamics-decline"](records)[0] == "seen"
    bare = {
        k: type(r)(r.meta, r.frame.drop(columns=[c for c in r.frame if c.startswith("trace")]))
        for k, r in records.items()
    }
    assert dynamics.PHENOMENA["dynamics-decline"](bare)[0] == "not shown"
    assert dynamics.PHENOMENA["dynamics-decline"]({})[0] == "not shown"


def test_documents_follow_the_stated_rule():
    traces = made()
    ids = dynamics.chosen(traces, "pocket-dream", 2)
    frame = traces["pocket-dream", None].recorded.frame.set_index("doc_id")
    order = sources.order(TASK, "test", frame.index)
    assert ids == [doc_id for doc_id in order if frame.loc[doc_id, "score"] > 0.5][:2]
    assert dynamics.chosen({}, "pocket-dream", 2) == []
    steps = {doc_id: dynamics.sample(traces["pocket-dream", 90.0], doc_id)["steps"] for doc_id in ids}
    assert steps[dynamics.slowest(traces, "pocket-dream", 90.0, 2)] == max(steps.values())
    assert dynamics.slowest(traces, "pocket-dream", 30.0, 2) == ids[0]
    assert dynamics.slowest({}, "pocket-dream", 90.0, 2) is None


def test_strip():
    row = {"generated": [4, 5], "trace_step": [1, 0], "trace_rule": [1, 3]}
    frame = dynamics.strip(row, {4: " four"})
    assert frame["text"].tolist() == [" four", "5"] and frame["step"].tolist() == [2, 1]
    assert [dynamics_view._short(t) for t in (" four", " ", "<|endoftext|>", "", "extraordinary")] == [
        "four", "␣", "·", "", "extrao…",
    ]  # fmt: skip


# --- what is shown ------------------------------------------------------------------------------------------


def test_tables_and_figures():
    traces = made()
    filling, declines, per_step = dynamics.filling(traces), dynamics.declines(traces), dynamics.per_step(traces)
    assert filling["n"].tolist() == [30] * 6 and len(declines) == 2
    shown = [
        dynamics_view.filling(filling),
        dynamics_view.declines(declines),
        dynamics_view.documents(traces, ["pocket-dream", "pocket-llada"], 2),
    ]
    for table in shown:
        assert "5 M parameters" in table.caption and "n = " in table.caption
        assert "nan" not in table._repr_html_()
    assert "**seen**" in dynamics_view.verdict(traces, declines, filling).text
    assert "does not hold" not in dynamics_view.checks(traces)._repr_html_()
    figure = dynamics_view.margins(traces, per_step, 2)
    assert len(figure.axes) == 6 and figure.axes[0].get_ylabel().endswith("(nats)")
    strips = dynamics_view.strips(traces, {"pocket-dream": 90.0, "pocket-llada": 90.0}, {}, 2)
    assert sum(len(axis.texts) for axis in strips.axes) == 4 * LENGTH


def test_broken_traces_are_noticed():
    traces = made(3, ["pocket-dream"])
    frame = traces["pocket-dream", 3.0].recorded.frame
    frame.at[0, "trace_margin"] = np.zeros(LENGTH)
    shown = dynamics_view.checks(traces)._repr_html_()
    assert shown.count("does not hold") == 1


def test_one_model_without_full_decoding():
    traces = {k: v for k, v in made(4, ["pocket-llada"]).items() if k[1] is not None}
    filling, declines = dynamics.filling(traces), dynamics.declines(traces)
    assert "not among" in dynamics_view.declines(declines).text
    assert "No single document" in dynamics_view.documents(traces, ["pocket-llada"], 2).text
    assert "**not shown**" in dynamics_view.verdict(traces, declines, filling).text
    assert dynamics_view.margins(traces, dynamics.per_step(traces), 2).axes
    assert dynamics_view.strips(traces, {"pocket-llada": 90.0}, {}, 2).axes
