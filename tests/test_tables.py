"""Tables from made-up records: selection, pairing, calibration, marks; every interval by a second path."""

from __future__ import annotations

import math

import fake_records
import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from jot.analysis import cells, display, paper, plan, plots, published, render, sources, tables
from jot.errors import UserError
from jot.records import Recorded

Z = stats.norm.isf(0.025)


@pytest.fixture(scope="module")
def records():
    return fake_records.records(200)


@pytest.fixture(scope="module")
def found(records):
    return tables.select(records)


@pytest.fixture(scope="module")
def main(found):
    return tables.main(found)


@pytest.fixture(scope="module")
def paired(found):
    return tables.paired(found)


def replaced(recorded: Recorded, **columns) -> Recorded:
    return Recorded(recorded.meta, recorded.frame.assign(**columns))


# --- a second path to every interval ------------------------------------------------------------------------


def test_score_intervals_from_raw_rows(found, main):
    """Wilson's limits as the roots of their defining equation."""
    for _, row in main.iterrows():
        right = found[row["model"], row["task"], row["method"]].recorded.frame["score"]
        p, n = right.mean(), len(right)
        roots = sorted(np.roots([1 + Z**2 / n, -(2 * p + Z**2 / n), p * p]).real)
        assert row["score"] == pytest.approx(100 * p)
        assert [row["score_low"], row["score_high"]] == pytest.approx([100 * r for r in roots])


def test_speedup_intervals_from_raw_rows(found, main):
    """The same resamples drawn as plain indices with numpy."""
    drawn = np.random.default_rng(0)
    indices = np.concatenate(
        [drawn.integers(200, size=(256, 200)) for _ in range(39)] + [drawn.integers(200, size=(16, 200))]
    )
    for _, row in main[main["method"] == "jot"].iterrows():
        frame = found[row["model"], row["task"], "jot"].recorded.frame.sort_values("doc_id")
        configured, steps = frame["configured_steps"].to_numpy(), frame["steps"].to_numpy()
        draws = configured[indices].sum(1) / steps[indices].sum(1)
        assert row["speedup"] == pytest.approx(configured.sum() / steps.sum())
        assert [row["speedup_low"], row["speedup_high"]] == pytest.approx(np.quantile(draws, [0.025, 0.975]))


def test_paired_intervals_from_raw_rows(found, paired):
    """Tango's statistic with the nuisance maximized numerically, not by its closed form."""

    def statistic(delta: float, b: int, c: int, n: int) -> float:
        def loss(q: float) -> float:
            cells = [(b, q + delta), (c, q), (n - b - c, 1 - 2 * q - delta)]
            return -sum(k * math.log(max(p, 1e-300)) for k, p in cells if k)

        low, high = max(0, -delta), (1 - delta) / 2
        q = optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-10}).x
        return (b - c - n * delta) / math.sqrt(n * (2 * q + delta - delta**2))

    for _, row in paired.iterrows():
        rows = [
            found[row["model"], row["task"], m].recorded.frame.set_index("doc_id")["score"]
            for m in (row["method"], "full")
        ]
        gap = rows[0] - rows[1]
        b, c, n = int((gap > 0).sum()), int((gap < 0).sum()), len(gap)
        assert (row["b"], row["c"], row["n"]) == (b, c, n)
        assert row["difference"] == pytest.approx(100 * (b - c) / n)
        assert row["p"] == pytest.approx(stats.binomtest(b, b + c).pvalue if b + c else 1)
        assert statistic(row["low"] / 100, b, c, n) == pytest.approx(Z, abs=1e-3)
        assert statistic(row["high"] / 100, b, c, n) == pytest.approx(-Z, abs=1e-3)


def test_holm_covers_the_confirmatory_family_alone(paired):
    default = paired[paired["method"] == "jot"]
    assert len(default) == cells.CONFIRMATORY and paired[paired["method"] != "jot"]["holm"].isna().all()
    order = default.sort_values("p")
    expected = np.minimum(1, np.maximum.accumulate(order["p"].to_numpy() * np.arange(8, 0, -1)))
    assert order["holm"].to_numpy() == pytest.approx(expected)


# --- cells --------------------------------------------------------------------------------------------------


def test_select_takes_defaults_and_leaves_variants_alone(records, found):
    assert {cell.tau for (m, _, method), cell in found.items() if method == "jot" and "dream" in m} == {90}
    assert {cell.tau for (m, _, method), cell in found.items() if method == "jot" and "llada" in m} == {30}
    rows = records[found["pocket-dream", "pocket_mmlu", "jot"].id].frame
    variants = [
        fake_records.cell("pocket-dream", "pocket_mmlu", "jot", rows, spatial=False),
        fake_records.cell("pocket-dream", "pocket_mmlu", "jot", rows, seed=1),
        fake_records.cell("pocket-dream", "pocket_mmlu", "jot", rows, decode={"temperature": 1}),
    ]
    again = tables.select({**records, **dict(variants)})
    assert {k: c.id for k, c in again.items()} == {k: c.id for k, c in found.items()}
    other = tables.select({**records, **dict(variants)}, ["pocket-dream"], ["pocket_mmlu"], ["jot"], seed=1)
    assert [c.id for c in other.values()] == [variants[1][0]]


def test_two_cells_that_both_fit_are_refused(records, found):
    name, recorded = found["pocket-dream", "pocket_mmlu", "jot"]
    twin = Recorded({**recorded.meta, "config": {**recorded.meta["config"], "fingerprint": "other"}}, recorded.frame)
    with pytest.raises(UserError, match="2 recorded cells fit"):
        tables.select({**records, "twin": twin})


def test_nothing_recorded_is_one_sentence(records):
    with pytest.raises(UserError, match="none of the table's cells"):
        tables.select(records, seed=5)


@pytest.mark.parametrize("key", ["documents", "dtype", "fingerprint", "hardware", "prompts"])
def test_unlike_cells_are_not_paired(found, key):
    one, two = found["pocket-llada", "pocket_mmlu", "jot"], found["pocket-llada", "pocket_mmlu", "full"]
    meta, frame = two.recorded
    if key == "documents":
        frame = frame.iloc[1:]
    elif key == "prompts":
        frame = frame.assign(prompt_hash="other")
    elif key == "hardware":
        meta = {**meta, "hardware": {"kind": "another"}}
    else:
        meta = {**meta, "config": {**meta["config"], key: "other"}}
    with pytest.raises(UserError, match="cannot be paired"):
        tables.compare(one, cells.Cell(two.id, Recorded(meta, frame)))


# --- calibration and marks ----------------------------------------------------------------------------------


def test_calibration_takes_the_smallest_passing_threshold(found):
    full = found["pocket-llada", "pocket_mmlu", "full"]
    right = full.recorded.frame["score"].to_numpy()

    def losing(share: float) -> cells.Cell:
        worse = right.copy()
        worse[np.flatnonzero(right)[: int(share * len(right))]] = 0
        return cells.Cell("x", replaced(full.recorded, score=worse))

    assert tables.calibrate({10: losing(0.2), 30: losing(0.0), 60: losing(0.1), 90: losing(0.0)}, full) == 30
    assert tables.calibrate({10: losing(0.2), 30: losing(0.1)}, full) is None
    assert tables.calibrate({}, full) is None


def test_calibration_needs_the_whole_grid_on_dev(records):
    assert tables.choose(records, "pocket-dream", "pocket_mmlu")[1]
    thin = {}
    for name, recorded in records.items():
        config = recorded.meta["config"]
        if (config["split"], config["method"].get("tau_max")) != ("dev", 60):
            thin[name] = recorded
    assert tables.choose(thin, "pocket-dream", "pocket_mmlu") == (None, False)
    assert "grid not recorded" in repr(render.calibration(tables.calibration(thin)))


def test_marks_need_a_separated_next(found):
    full = found["pocket-llada", "pocket_mmlu", "full"]
    right = np.zeros(full.n)
    right[:150] = 1
    near, far = right.copy(), right.copy()
    near[149] = 0
    far[100:150] = 0
    group = {
        (m, "t", method): cells.Cell(method, replaced(full.recorded, score=score))
        for m, method, score in (("m", "full", right), ("m", "jot", near), ("m", "calibrated", far))
    }
    marks = tables.main(group).set_index("method")["score_mark"].to_dict()
    assert marks == {"full": "", "jot": "second", "calibrated": ""}
    assert set(tables.main(group)["speedup_mark"]) == {""}  # equal speeds: nothing to mark


def test_calibrated_equal_to_the_default_is_one_row_for_the_marks(found):
    default = found["pocket-llada", "pocket_gsm8k", "jot"]
    full = found["pocket-llada", "pocket_gsm8k", "full"]
    key = ("pocket-llada", "pocket_gsm8k")
    frame = tables.main({(*key, "full"): full, (*key, "jot"): default, (*key, "calibrated"): default})
    assert frame.set_index("method")["speedup_mark"].to_dict() == {
        "full": "",
        "jot": "best",
        "calibrated": "best",
    }


# --- derived tables and text --------------------------------------------------------------------------------


def test_decomposition_and_checks(found, main, paired):
    split = tables.decomposition(found)
    assert (split["tokens_per_forward"] * split["padding_factor"]).to_numpy() == pytest.approx(
        split["ratio"].to_numpy()
    )
    checks = plan.checks(found, main, paired).set_index("statement")["holds"]
    assert checks.sum() == len(checks) - 1  # all but the planned number of documents
    broken = {**found}
    key = ("pocket-dream", "pocket_gsm8k", "full")
    broken[key] = cells.Cell(found[key].id, replaced(found[key].recorded, steps=1))
    assert plan.checks(broken, main, paired)["holds"].sum() < checks.sum()


def test_aggregate_leaves_each_task_out(main):
    row = tables.aggregate(main).iloc[0]
    speeds = main[(main["model"] == row["model"]) & (main["method"] == row["method"])].set_index("task")["speedup"]
    assert row["geometric_mean"] == pytest.approx(np.exp(np.log(speeds).mean()))
    rest = speeds.drop("pocket_humaneval")
    assert row["without pocket_humaneval"] == pytest.approx(np.exp(np.log(rest).mean()))


def test_every_table_says_tier_n_and_method(records, found, main, paired):
    paper_rows = tables.published_rows(published.load("main_results"))
    shown = [
        render.main(main, paper_rows),
        render.paired(paired),
        render.decomposition(tables.decomposition(found)),
    ]
    for table in shown:
        assert "mbedded tier, 5 M parameters" in table.caption and "n = 200 pocket_gsm8k" in table.caption
        html = table._repr_html_()
        assert html.count("<tr>") >= len(table.frame) + 1 and "style" not in html and "class" not in html
    assert "Wilson" in shown[0].caption and "bootstrap" in shown[0].caption and "Tango" in shown[1].caption
    assert "19.60" in repr(shown[0]) and "Dream-7B (published)" in repr(shown[0])
    calibration = render.calibration(tables.calibration(records))
    for table in (render.power(paired), render.aggregate(tables.aggregate(main)), calibration):
        assert len(table.frame) and table.caption


def test_verdict_states_the_claims_of_the_plan(records, main, paired):
    claims = plan.claims(records, main, paired)
    text = repr(render.verdicts(paired, main, claims))
    assert "of 8 comparisons" in text and "n = 200 pocket_gsm8k" in text
    assert claims["status"].isin(["seen", "not seen", "undecided"]).all()
    assert claims["status"].iloc[1] == claims["status"].iloc[3] == "seen"
    part = paired[paired["task"] == "pocket_mmlu"]
    assert plan.claims({}, main, part)["status"].iloc[[0, 3]].to_list() == ["not shown", "not shown"]
    assert "No pair" in repr(render.verdicts(paired.iloc[:0], main, claims))


def test_claims_follow_the_plan(main, paired):
    def status(verdicts, frame=main):
        mine = paired[paired["method"] == "jot"].assign(verdict=verdicts)
        return plan.claims({}, frame, mine)["status"].to_list()

    good, bad, open_ = "worse within the margin", "inferior beyond the margin", "inconclusive"
    assert status([good] * 5 + [bad] * 3)[0] == "seen"
    assert status([good] * 4 + [bad] * 4)[0] == "not seen"
    assert status([good] * 4 + [bad] * 3 + [open_])[0] == "undecided"
    fast = main.assign(speedup_low=1.2, speedup_high=1.4)
    assert status([good] * 8, fast)[1:3] == ["seen", "undecided"]
    assert status([good] * 8, main.assign(speedup_low=0.9, speedup_high=1.04))[1] == "not seen"
    long = main["task"].isin(plan.LONG)
    apart = fast.assign(speedup_low=np.where(long, 3, 1.2), speedup_high=np.where(long, 4, 1.4))
    assert status([good] * 8, apart)[2] == "seen"
    turned = fast.assign(speedup_low=np.where(long, 1.1, 3), speedup_high=np.where(long, 1.2, 4))
    assert status([good] * 8, turned)[2] == "not seen"


def test_cells_of_text_become_plain_tags():
    table = display.Table(pd.DataFrame({("a", "x"): ["**1.0**\n[<0, 2]"], ("a", "y"): ["__2__"]}), "Cap & tion")
    html = table._repr_html_()
    assert '<th colspan="2">a</th>' in html and "Cap &amp; tion" in html
    assert "<td><b>1.0</b><br><sub>[&lt;0, 2]</sub></td><td><ins>2</ins></td>" in html


def test_figure_is_repeatable(main, tmp_path):
    paper_rows = tables.published_rows(published.load("main_results"))
    first = plots.save(plots.main_results(main, paper_rows), tmp_path / "a" / "main_results")
    second = plots.save(plots.main_results(main, paper_rows), tmp_path / "b" / "main_results")
    assert [p.suffix for p in first] == [".png", ".pdf"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    assert len(plots.show(plots.main_results(main[main["task"] == "pocket_mmlu"])).data) > 5000


# --- limits, live plans, decoding again ---------------------------------------------------------------------


def test_limits_are_nested_and_bounded(records):
    few, more = sources.first(records, 20), sources.first(records, 50)
    for name, recorded in few.items():
        assert len(recorded.frame) == 20 and set(recorded.frame["doc_id"]) <= set(more[name].frame["doc_id"])
    assert sources.first(records, None) is records
    with pytest.raises(UserError, match="limit=201 is above the 200 recorded"):
        sources.first(records, 201)


def test_the_cells_a_live_table_needs():
    wanted = list(sources.main_cells(["pocket-llada"], ["pocket_mmlu"], ["full", "jot"]))
    assert [(c.method, c.tau, c.split) for c in wanted] == [("full", None, "test"), ("jot", 30, "test")]
    wanted = list(sources.main_cells(["pocket-llada"], ["pocket_mmlu"], ["full", "jot", "calibrated"]))
    assert len(wanted) == len(set(wanted)) == 2 + 6 + 6  # full on both splits, the grid on both
    assert sources.gpu_hours(wanted, None) == 0
    real = list(sources.main_cells(["GSAI-ML/LLaDA-8B-Instruct"], ["gsm8k"], ["full"]))
    assert sources.gpu_hours(real, None) == pytest.approx(1319 * 256 * sources.SECONDS_PER_FORWARD / 3600)


def test_agreement_and_the_margin_where_two_runs_parted():
    def row(doc, tokens, step, margin, threshold):
        return {"doc_id": doc, "score": float(tokens[0]), "generated": tokens, "trace_step": step,
                "trace_margin": margin, "trace_threshold": threshold}  # fmt: skip

    recorded = [row("a", [1, 2], [0, 1], [5, 5], [4, 4]), row("b", [1, 2], [0, 1], [4.5001, 2], [4.5, 4])]
    live = [row("a", [1, 2], [0, 1], [5, 5], [4, 4]), row("b", [1, 3], [1, 2], [6, 2], [4.5, 4])]
    seen = paper.agreement(pd.DataFrame(recorded), pd.DataFrame(live))
    assert (seen.n, seen.scores, seen.tokens) == (2, 2, 1)
    assert seen.margins == pytest.approx([1e-4])  # position 0 exited a step earlier in the record
    bare = [{k: v for k, v in r.items() if not k.startswith("trace")} for r in recorded]
    assert paper.agreement(pd.DataFrame(bare), pd.DataFrame(live)).margins == pytest.approx([2])


def test_report_and_live_table(found):
    live = {c.id: Recorded(c.recorded.meta, c.recorded.frame.iloc[: 5 + (k[2] == "full")]) for k, c in found.items()}
    lines = paper.report(found, live)
    assert any("5/5 scores equal, 5/5 tokens equal" in line for line in lines) and lines[-1].startswith("In all")
    cut = paper.live_table(found, live)
    assert {cell.n for cell in cut.values()} == {5} and len(tables.main(cut)) == len(found)
    assert "out of time" in paper.report(found, {})[0]
