"""Composition with a cache and the temperature table, on made-up cells whose numbers are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fake_records import scored
from scipy import stats

from jot.analysis import cells, composability, composability_view, plots, published, temperature, temperature_view
from jot.analysis.sources import gpu_hours
from jot.errors import UserError
from jot.runs.grid import Point

GSM, CODE = composability.TASKS
MODELS = list(cells.MODELS)


def right(count: int, n: int = 100, offset: int = 0) -> list[float]:
    return [float(offset <= i < offset + count) for i in range(n)]


def made(model: str, task: str, key: str, scores: list[float], steps: int = 10) -> tuple:
    """One cell of the composability table; under the dual cache 4 of its forwards open blocks."""
    point = composability.rows(model, task)[key].point
    name, recorded = scored(point, scores, 128 if point.method == "full" else steps)
    cache = recorded.meta["config"]["decode"].get("cache")
    if cache:
        kind = {"dual": "forwards_block", "prefix": "forwards_suffix"}[cache]
        rest = recorded.frame["steps"] - 4
        recorded.frame = recorded.frame.assign(forwards_full=4, **{kind: rest})
    return name, recorded


@pytest.fixture(scope="module")
def records() -> dict:
    rng = np.random.default_rng(0)
    out = {}
    for model in MODELS:
        for task in composability.TASKS:
            for method in temperature.METHODS:
                for t in temperature.TEMPERATURES:
                    out |= [scored(temperature.point(model, task, method, t), right(60 + int(10 * t)))]
            for i, key in enumerate(composability.rows(model, task)):  # some cells stand in both tables
                out |= [made(model, task, key, (rng.random(100) < 0.7).astype(float).tolist(), 8 + i)]
    return out


@pytest.fixture(scope="module")
def found(records) -> dict:
    return composability.select(records, MODELS)


@pytest.fixture(scope="module")
def frame(found) -> pd.DataFrame:
    return composability.frame(found)


# --- which cells --------------------------------------------------------------------------------------------


def test_the_cells_of_the_table_are_those_of_the_grid(root):
    from jot.runs.grid import read

    asked = {cells.resolved(p)[0].get("name", "") + str(cells.resolved(p)) + p.model + p.task
             for p in read(root / "notebooks" / "grids" / "composability.yaml")}  # fmt: skip
    for point in composability.wanted(MODELS):
        key = cells.resolved(point)[0].get("name", "") + str(cells.resolved(point)) + point.model + point.task
        in_main_table = point == Point.of(point.model, point.task, point.method)
        assert key in asked or in_main_table, point
    keys = {str(cells.resolved(p)) + p.model + p.task for p in temperature.wanted(MODELS)}
    grid = read(root / "notebooks" / "grids" / "temperature.yaml")
    assert keys == {str(cells.resolved(p)) + p.model + p.task for p in grid}
    assert gpu_hours(composability.wanted(["GSAI-ML/LLaDA-8B-Instruct"], ["gsm8k"]), 10) > 0


def test_retuned_thresholds_are_the_paper_s():
    table = published.load("composability")
    chosen = table[(table["task"] == "gsm8k") & (table["method"] == "jot") & table["value"].notna()]
    for model, group in chosen.groupby("model"):
        assert set(group["tau_max"]) == {composability.RETUNED[cells.family({"model": model})]}


def test_missing_cells_are_left_out(records, found):
    assert len(found) == len(composability.wanted(MODELS)) == 2 * 14 + 2 * 11
    part = {k: r for k, r in records.items() if "fastdllm" not in k and "dream" in k}
    thin = composability.frame(composability.select(part, MODELS))
    assert set(thin["model"]) == {"pocket-dream"} and "fastdllm_difference" not in thin
    paper = composability.published_rows(published.load("composability"), published.load("main_results"))
    for table in (composability_view.table(thin, paper), composability_view.differences(thin),
                  composability_view.costs(thin)):  # fmt: skip
        assert len(table.frame) and "n = 100 pocket_gsm8k" in table.caption
    lost = {k: c for k, c in found.items() if k != (MODELS[0], CODE, "fastdllm")}
    assert "not recorded" in repr(composability_view.table(composability.frame(lost), paper))
    assert len(plots.show(composability_view.figure(thin)).data) > 5000
    with pytest.raises(UserError, match="none of the composability cells"):
        composability.select(records, MODELS, seed=3)


# --- numbers ------------------------------------------------------------------------------------------------


def test_positions_run_by_hand(found):
    """50 prompt tokens, a canvas of 128, blocks of 32."""
    plain, dual = found[MODELS[0], GSM, "full"], found[MODELS[0], GSM, "dual-30"]
    assert (composability.tokens(plain) == 128 * 178).all()
    steps = dual.column("steps")[0]
    assert (composability.tokens(dual) == 4 * 178 + (steps - 4) * 32).all()
    assert composability.token_speedup(dual).value == pytest.approx(128 * 178 / (4 * 178 + (steps - 4) * 32))
    assert composability.token_speedup(plain) == pytest.approx((1, 1, 1))
    prefix = found["pocket-llada", GSM, "prefix"]
    assert composability.tokens(prefix) is None and composability.token_speedup(prefix) is None


def test_differences_from_raw_rows(found, frame):
    for _, row in frame.iterrows():
        own = found[row["model"], row["task"], row["row"]].recorded.frame.set_index("doc_id")["score"]
        low, high = stats.binomtest(int(own.sum()), len(own)).proportion_ci(method="wilson")
        assert [row["score_low"], row["score_high"]] == pytest.approx([100 * low, 100 * high])
        for name in ("full", "fastdllm"):
            other = found[row["model"], row["task"], name].recorded.frame.set_index("doc_id")["score"]
            if row["row"] == name:
                assert np.isnan(row[f"{name}_difference"])
                continue
            gap = own - other
            assert row[f"{name}_difference"] == pytest.approx(100 * gap.mean())
            assert (row[f"{name}_b"], row[f"{name}_c"]) == ((gap > 0).sum(), (gap < 0).sum())
            assert row[f"{name}_low"] < row[f"{name}_difference"] < row[f"{name}_high"]
    assert np.allclose(frame["steps"], frame["forwards_full"] + frame["forwards_suffix"] + frame["forwards_block"])


def test_retuning_on_the_documents_that_are_reported():
    """Thresholds that are each right on documents of their own: the best of them gains by luck alone."""
    from jot.records import take

    n = 60
    ids = [f"{GSM}/test/{i}" for i in range(n)]
    order = {doc: i for i, doc in enumerate(take(ids))}
    first, second = [float(order[doc] < n // 2) for doc in ids], [float(order[doc] >= n // 2) for doc in ids]
    out = {}
    for tau in cells.TAUS:
        scores = {10: first, 30: second}.get(tau, [0.0] * n)
        out |= [made("pocket-dream", GSM, f"dual-{tau}", scores)]
    found = composability.select(out, MODELS)
    row = composability.retuning(found).iloc[0]
    assert row["best"] == 10 and row["claimed"] == 50 and row["chosen"] == [10, 30] and row["honest"] == 0
    assert row["retuned"] == 30 and row["at_retuned"] == 50
    table = composability_view.retuning(composability.retuning(found))
    assert "+50.00" in repr(table) and "Only the test split is recorded" in table.caption
    del out[next(name for name in out if "tau150" in name)]
    empty = composability.retuning(composability.select(out, MODELS))
    assert empty.empty and "No complete sweep" in composability_view.retuning(empty).caption
    one = {}
    for tau in cells.TAUS:
        one |= [made("pocket-dream", GSM, f"dual-{tau}", [1.0])]
    single = composability.retuning(composability.select(one, MODELS))
    assert pd.isna(single["honest"].iloc[0]) and len(composability_view.retuning(single).frame) == 1


def test_published_rows_have_our_keys():
    rows = composability.published_rows(published.load("composability"), published.load("main_results"))
    at = rows.set_index(["family", "task", "row"])
    assert at.loc[("dream", GSM, "fastdllm"), "score"].item() == 78.4
    assert at.loc[("dream", CODE, "dual-90"), "speedup"].item() == 7.44
    assert at.loc[("llada", CODE, "jot-alone"), "score"].item() == 44.5
    assert at.loc[("llada", GSM, "full"), "score"].item() == 74.5
    assert ("llada", GSM, "dual-10") not in at.index  # a dash in the paper
    assert set(rows["row"]) <= set(composability.rows("pocket-dream", GSM)) | set(
        composability.rows("pocket-llada", GSM)
    )


def test_checks_can_fail(found, frame):
    held = composability.checks(found, frame).set_index("statement")["holds"]
    assert held.sum() == len(held) - 1  # all but the planned number of documents
    key = (MODELS[0], GSM, "dual-30")
    recorded = found[key].recorded
    changed = type(recorded)(recorded.meta, recorded.frame.assign(forwards_full=3))
    broken = composability.checks({**found, key: cells.Cell("x", changed)}, frame)["holds"]
    assert broken.sum() == held.sum() - 2  # the sum, and the blocks


def test_table_and_figure(frame, tmp_path):
    paper = composability.published_rows(published.load("composability"), published.load("main_results"))
    table = composability_view.table(frame, paper)
    text = repr(table)
    assert "8.47" in text and "5 M parameters" in table.caption and "another tier" in table.caption
    assert len(table.frame) == 14 + 11
    first = plots.save(composability_view.figure(frame), tmp_path / "a" / "f")
    again = plots.save(composability_view.figure(frame), tmp_path / "b" / "f")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]


# --- criteria of composition --------------------------------------------------------------------------------


def judged(name: str, *parts: tuple) -> str:
    return (composability.PHENOMENA | temperature.PHENOMENA)[name](dict(parts))[0]


def test_compose_gsm8k():
    def pair(model: str, score: int) -> list[tuple]:
        key = f"dual-{composability.RETUNED[cells.family({'model': model})]}"
        return [made(model, GSM, "full", right(320, 400)), made(model, GSM, key, right(score, 400))]

    fine = pair("pocket-llada", 320)
    assert judged("compose-gsm8k", *pair("pocket-dream", 320), *fine) == "seen"
    assert judged("compose-gsm8k", *pair("pocket-dream", 308), *fine) == "undecided"
    assert judged("compose-gsm8k", *pair("pocket-dream", 200), *fine) == "not seen"
    assert judged("compose-gsm8k", *fine) == "not shown" and judged("compose-gsm8k") == "not shown"
    assert judged("compose-gsm8k", *pair("pocket-dream", 200)) == "not shown"  # one model is not enough


def test_compose_humaneval():
    def pair(model: str, score: int) -> list[tuple]:
        key = f"dual-{composability.RETUNED[cells.family({'model': model})]}"
        return [made(model, CODE, "fastdllm", right(320, 400)), made(model, CODE, key, right(score, 400))]

    low = pair("pocket-llada", 280)
    assert judged("compose-humaneval", *pair("pocket-dream", 280), *low) == "seen"
    assert judged("compose-humaneval", *pair("pocket-dream", 319), *low) == "undecided"
    assert judged("compose-humaneval", *pair("pocket-dream", 380), *low) == "not seen"
    assert judged("compose-humaneval", *low) == "not shown"


def test_compose_horizon():
    alone = made("pocket-dream", CODE, "jot-alone", right(50), 5)
    for steps, word in ((10, "seen"), (5, "undecided")):
        assert judged("compose-horizon", alone, made("pocket-dream", CODE, "dual-90", right(50), steps)) == word
    slow = made("pocket-dream", CODE, "jot-alone", right(50), 20)
    assert judged("compose-horizon", slow, made("pocket-dream", CODE, "dual-90", right(50), 10)) == "not seen"
    assert judged("compose-horizon", alone) == "not shown"


# --- temperature --------------------------------------------------------------------------------------------


def test_temperature_frame(records):
    frame = temperature.frame(temperature.select(records, MODELS))
    assert len(frame) == 2 * 2 * 4 * 4
    one = frame.set_index(["model", "task", "method", "temperature"]).loc[("pocket-dream", CODE, "fastdllm-raw", 1.0)]
    assert one["score"] == 70 and one["cold_difference"] == 10 and one["full_difference"] == 0
    assert one["gate_difference"] == 0 and (one["cold_b"], one["cold_c"]) == (10, 0)
    assert frame[frame["temperature"] == 0]["cold_difference"].isna().all()
    assert frame[frame["method"] == "full"]["full_difference"].isna().all()
    for table in (temperature_view.table(frame), temperature_view.differences(frame)):
        assert "5 M parameters" in table.caption and "n = 100 pocket_gsm8k" in table.caption
    assert len(temperature_view.table(frame).frame) == 16
    part = frame[~((frame["method"] == "full") & (frame["temperature"] > 0.1))]
    assert "not recorded" in repr(temperature_view.table(part))
    lost = {k: c for k, c in temperature.select(records, MODELS).items() if k[2:] != ("full", 0.5)}
    shown = temperature_view.differences(temperature.frame(lost)).frame
    blank = shown["Minus full decoding at this T, points"] == "not recorded"
    assert set(shown[blank]["T"]) == {"0.5"} and blank.sum() == 2 * 2 * 3
    assert len(plots.show(temperature_view.figure(part)).data) > 5000
    assert temperature.select({}, MODELS) == {}


def test_the_paper_s_numbers_are_read_from_a_file(records, monkeypatch, tmp_path):
    prose = temperature.prose()
    assert list(prose.columns) == ["place", "claim", "value"] and len(prose) == 2
    shown = temperature_view.beside_paper(temperature.frame(temperature.select(records, MODELS)), prose)
    assert {"53.7", "0.6"} <= set(shown.frame["Score, %"])
    none = temperature_view.beside_paper(temperature.frame(temperature.select(records, ["pocket-llada"])), prose)
    assert "Not recorded here" in none.caption and len(none.frame) == 2
    monkeypatch.setattr(published, "folder", lambda: tmp_path)
    with pytest.raises(UserError, match="prose.csv cannot be read"):
        temperature.prose()
    (tmp_path / "prose.csv").write_text("place,claim,value\na,b,c\n")
    with pytest.raises(UserError, match="cannot be read"):
        temperature.prose()


def test_the_paper_s_numbers_are_in_its_text(shared):
    text = (shared / "paper" / "jot.tex").read_text()
    first, second = temperature.prose()["value"]
    assert f"drops from ${first:g}$ to ${second:g}$ pass@1 on Dream HumanEval" in text


def test_temperature_criteria():
    def at(method: str, t: float, score: int, model: str = "pocket-dream", task: str = CODE) -> tuple:
        return scored(temperature.point(model, task, method, t), right(score, 400))

    cold = at("fastdllm", 0.0, 320)
    for score, word in ((200, "seen"), (290, "undecided"), (320, "not seen")):
        assert judged("temperature-collapse", cold, at("fastdllm", 0.1, score)) == word
    assert judged("temperature-collapse", cold) == "not shown"
    published_gate = at("fastdllm", 0.1, 200)
    for score, word in ((320, "seen"), (200, "undecided"), (150, "not seen")):
        assert judged("temperature-unit", published_gate, at("fastdllm-raw", 0.1, score)) == word
    assert judged("temperature-unit", published_gate) == "not shown"
    warm = [at(m, t, 320, model, GSM) for model in MODELS for t in temperature.TEMPERATURES for m in ("full", "jot")]
    assert judged("temperature-transfer", *warm) == "seen" and judged("temperature-transfer", *warm[:-1]) == "not shown"
    assert judged("temperature-transfer", *warm, at("jot", 1.0, 308, "pocket-llada", GSM)) == "undecided"
    assert judged("temperature-transfer", *warm, at("jot", 1.0, 200, "pocket-llada", GSM)) == "not seen"
    assert judged("temperature-transfer", warm[0], at("jot", 0.0, 200, MODELS[0], GSM)) == "not shown"


def test_verdict_names_the_criteria(frame):
    from jot.analysis import phenomena

    judged_frame = phenomena.judge({}, composability.PHENOMENA)
    text = repr(composability_view.verdict(judged_frame, frame))
    assert text.count("not shown") == 3 and "5 M parameters" in text
