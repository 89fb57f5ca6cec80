"""Composition with a cache and temperatures: the notebook's cells on made-up runs whose numbers are known, the plan's
criteria in both directions, and the matched comparisons on the recorded runs."""

from __future__ import annotations

import itertools

import cells
import fake_records
import numpy as np
import pandas as pd
import pytest
from fake_records import scored
from scipy import stats

from jot.paper import criteria
from jot.records import take
from jot.runs import grid
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError

GSM, CODE = "pocket_gsm8k", "pocket_humaneval"
DREAM, LLADA = "pocket-dream", "pocket-llada"
TAUS, HEAT = (10, 30, 60, 90, 120, 150), (0.0, 0.1, 0.5, 1.0)
GREEDY = {DREAM: {"block_length": 32, "temperature": 0.0, "ranking": "confidence"}, LLADA: {"block_length": 32}}
DEFAULT, RETUNED = {DREAM: 90, LLADA: 30}, {DREAM: 30, LLADA: 60}
NOTEBOOK = "08_composability"


def right(count: int, n: int = 100) -> list[float]:
    return [float(i < count) for i in range(n)]


def dual(model: str, task: str, method: str = "jot", **settings: object) -> Point:
    return Point.of(model, task, method, cache="dual", **GREEDY[model], **settings)


def made(point: Point, scores: list[float], steps: int = 10) -> tuple:
    """One run; under a cache 4 of its forwards open blocks."""
    name, recorded = scored(point, scores, 128 if point.method == "full" else steps)
    cache = recorded.meta["config"]["decode"].get("cache")
    if cache:
        kind = {"dual": "forwards_block", "prefix": "forwards_suffix"}[cache]
        rest = recorded.frame["steps"] - 4
        recorded.frame = recorded.frame.assign(forwards_full=4, **{kind: rest})
    return name, recorded


def composed(model: str, task: str) -> list[Point]:
    """What the table on composition shows, in its order."""
    plain, greedy = Point.of(model, task, "full"), GREEDY[model]
    found = [plain] + [Point.of(model, task, "full", cache=None, **greedy)] * (model == DREAM)
    found += [dual(model, task, "full"), Point.of(model, task, "fastdllm"), Point.of(model, task, "jot")]
    if model == DREAM:
        found += [Point.of(model, task, "jot", cache=None, tau_max=tau, **greedy) for tau in (30, 90)]
    found += [dual(model, task, tau_max=tau) for tau in TAUS]
    if model == DREAM:
        return [*found, dual(model, task, tau_max=30, block_start=True)]
    return [*found, Point.of(model, task, "jot", cache="prefix", **greedy)]


def heated(model: str, task: str, method: str, t: float) -> Point:
    nucleus = {"top_p": 0.9} if model == DREAM else {}
    rule = {"gate": {"fastdllm": "proposal", "fastdllm-raw": "raw"}[method]} if method.startswith("fast") else {}
    return Point.of(model, task, method.removesuffix("-raw"), temperature=t, **nucleus, **rule)


HEATED = [heated(model, task, method, t) for model, task in itertools.product((DREAM, LLADA), (GSM, CODE))
          for method in ("full", "jot", "fastdllm", "fastdllm-raw") for t in HEAT]  # fmt: skip


@pytest.fixture(scope="module")
def records() -> dict:
    rng = np.random.default_rng(0)
    out = dict([scored(point, right(60 + int(10 * dict(point.settings)["temperature"]))) for point in HEATED])
    for model, task in itertools.product((DREAM, LLADA), (GSM, CODE)):
        for i, point in enumerate(composed(model, task)):  # some runs stand in both tables
            out |= [made(point, (rng.random(100) < 0.7).astype(float).tolist(), 8 + i)]
    return out


@pytest.fixture(scope="module")
def shown(records, tmp_path_factory):
    """The namespace of the notebook, and what its cells gave."""
    folder = tmp_path_factory.mktemp("composability")
    store = fake_records.write(folder / "store", records)
    return cells.run(NOTEBOOK, store=str(store), out=str(folder))


def raw(records: dict, point: Point) -> pd.DataFrame:
    """The rows of a made-up run by document."""
    return records[scored(point, [1.0])[0]].frame.set_index("doc_id").sort_index()


# --- the page -----------------------------------------------------------------------------------------------


def test_a_live_notebook_decodes_what_it_shows():
    def keys(points):
        return {scored(point, [1.0])[0] for point in points}

    listed = keys(grid.read(cells.ROOT / "notebooks" / "grids" / "composability.yaml"))
    warm = keys(grid.read(cells.ROOT / "notebooks" / "grids" / "temperature.yaml"))
    shown = keys(point for model in (DREAM, LLADA) for task in (GSM, CODE) for point in composed(model, task))
    assert shown <= listed | warm and warm == keys(HEATED)


def test_rows_and_their_order(shown):
    space, gave = shown
    table = space["table"]
    assert len(table) == 2 * 14 + 2 * 11 and table["decoded"].notna().all()
    labels = table[(table["model"] == DREAM) & (table["task"] == GSM)]["label"].tolist()
    assert labels[:5] == ["Full decoding", "Full decoding, greedy in blocks", "Full decoding, dual cache",
                          "Fast-dLLM, dual cache", "JoT alone, τ = 90"]  # fmt: skip
    assert labels[5:7] == ["JoT, greedy in blocks, τ = 30", "JoT, greedy in blocks, τ = 90"]
    frame = gave["table"][-1].frame
    assert len(frame) == 25 and "another tier" in gave["table"][-1].caption
    row = frame[frame["", "Configuration"] == "JoT, dual cache, τ = 30"].iloc[0]
    assert row["", "Order, cache, temperature"] == "blocks of 32 by confidence, dual cache, T = 0"
    assert (row[GSM, "Paper: score"], row[CODE, "Paper: speedup"]) == ("76.5", "8.47")
    assert "mean of ratios" in row[GSM, "Speedup, ×"]
    for cell in ("differences-table", "costs", "cache-table", "temperature-differences"):
        few, whole = gave[cell][-1].frame, gave[cell][-1].whole
        assert 0 < len(few) <= 24 and len(few) <= len(whole), cell
    assert len(gave["differences-table"][-1].whole) == 46 and len(gave["costs"][-1].whole) == 50
    assert len(gave["temperature-differences"][-1].whole) == 60 and len(gave["temperature"][-1].frame) == 16


def test_positions_run_by_hand(shown):
    """50 prompt tokens, a canvas of 128, blocks of 32."""
    at = shown[0]["table"].set_index(["model", "task", "label"])
    plain, cached = (at.loc[(DREAM, GSM, label)] for label in ("Full decoding", "JoT, dual cache, τ = 30"))
    assert plain["positions"] == 128 * 178 and plain["token_speedup"] == 1
    run = 4 * 178 + (cached["steps"] - 4) * 32
    assert cached["positions"] == run and cached["token_speedup"] == pytest.approx(128 * 178 / run)
    prefix = at.loc[(LLADA, GSM, "JoT, prefix cache, τ = 30")]
    assert prefix[["positions", "token_speedup"]].isna().all()


def test_differences_from_raw_rows(records, shown):
    """Against each baseline; the matched one shares order, cache and temperature."""
    table = shown[0]["table"].set_index(["model", "task", "label"])
    baselines = {"full": lambda m, t: Point.of(m, t, "full"), "fast": lambda m, t: Point.of(m, t, "fastdllm"),
                 "matched": lambda m, t: dual(m, t, "full")}  # fmt: skip
    for model, task, tau in itertools.product((DREAM, LLADA), (GSM, CODE), TAUS):
        row, own = table.loc[(model, task, f"JoT, dual cache, τ = {tau}")], raw(records, dual(model, task, tau_max=tau))
        low, high = stats.binomtest(int(own["score"].sum()), 100).proportion_ci(method="wilson")
        assert [row["score_low"], row["score_high"]] == pytest.approx([100 * low, 100 * high])
        for name, other in baselines.items():
            gap = own["score"] - raw(records, other(model, task))["score"]
            assert row[f"{name}_difference"] == pytest.approx(100 * gap.mean())
            assert (row[f"{name}_b"], row[f"{name}_c"]) == ((gap > 0).sum(), (gap < 0).sum())
            assert row[f"{name}_low"] < row[f"{name}_difference"] < row[f"{name}_high"]
    assert table["full_b"][DREAM, GSM, "Full decoding"] != table["full_b"][DREAM, GSM, "Full decoding"]  # itself: none
    assert np.isnan(table["matched_b"][LLADA, GSM, "JoT, prefix cache, τ = 30"])  # no full decoding under that cache


def test_the_price_of_the_cache(records, shown):
    """JoT loses or gains by the dual cache, and so does full decoding: the difference of the two by hand."""
    at = shown[0]["effects"].set_index(["model", "task", "rule"])
    none = Point.of(LLADA, GSM, "jot")
    own = raw(records, dual(LLADA, GSM, tau_max=30))["score"] - raw(records, none)["score"]
    base = raw(records, dual(LLADA, GSM, "full"))["score"] - raw(records, Point.of(LLADA, GSM, "full"))["score"]
    row = at.loc[(LLADA, GSM, "JoT, τ = 30")]
    assert row["dual_difference"] == pytest.approx(100 * own.mean())
    assert row["more"] == pytest.approx(100 * (own - base).mean()) and row["more_low"] < row["more"] < row["more_high"]
    whole = shown[1]["cache-table"][-1].whole
    assert "not recorded" in set(whole["Prefix minus none, points"]) and "b, c" in whole["Dual minus none, points"][0]


def test_retuning_on_the_documents_that_are_reported(tmp_path):
    """Thresholds that are each right on documents of their own: the best of them gains by luck alone."""
    n = 60
    ids = [f"{GSM}/test/{i}" for i in range(n)]
    order = {doc: i for i, doc in enumerate(take(ids))}
    halves = [float(order[doc] < n // 2) for doc in ids], [float(order[doc] >= n // 2) for doc in ids]
    right_on = {10: halves[0], 30: halves[1]}
    points = {tau: made(dual(DREAM, GSM, tau_max=tau), right_on.get(tau, [0.0] * n)) for tau in TAUS}
    few = {"models": DREAM, "tasks": GSM, "out": str(tmp_path), "until": "retuning"}
    store = fake_records.write(tmp_path / "a", dict(points.values()))
    row = cells.run(NOTEBOOK, store=str(store), **few)[1]["retuning"][-1].frame.iloc[0]
    assert row["Optimism, points"] == "+50.00" and row["τ chosen on each half"] == "10, 30"
    assert (row["τ best on test"], row["Would claim, %"], row["Score there, %"]) == ("10", "50.00", "50.00")
    store = fake_records.write(tmp_path / "b", dict(made for tau, made in points.items() if tau != 150))
    table = cells.run(NOTEBOOK, store=str(store), **few)[1]["retuning"][-1]
    assert table.frame.empty and "No complete sweep" in table.caption


def test_temperatures(shown, shared):
    space, gave = shown
    whole = gave["temperature-differences"][-1].whole.set_index(["Model", "Task", "Method", "T"])
    row = whole.loc[(DREAM, CODE, "Fast-dLLM, gate on raw probabilities", "1")]
    assert row.iloc[1].startswith("+10.0") and row.iloc[2].startswith("+0.0") and row.iloc[3].startswith("+0.0")
    assert (
        not whole.xs("0", level="T").iloc[:, 1].any() and not whole.xs("Full decoding", level="Method").iloc[:, 2].any()
    )
    paper = gave["temperature-paper"][-1].frame
    first, second = paper["Score, %"][:2]
    text = (shared / "paper" / "jot.tex").read_text()
    assert f"drops from ${first}$ to ${second}$ pass@1 on Dream HumanEval" in text
    ticks = space["figure"].axes[-1].get_xticks()
    assert list(ticks) == list(HEAT)  # a numeric axis


def test_a_partial_store_says_what_is_not_recorded(records, tmp_path):
    """One family, without Fast-dLLM on one task, without full decoding at one temperature."""
    gone = {scored(Point.of(DREAM, CODE, "fastdllm"), [1.0])[0], scored(heated(DREAM, GSM, "full", 0.5), [1.0])[0]}
    part = {name: run for name, run in records.items() if name not in gone and run.meta["config"]["model"] == DREAM}
    store = fake_records.write(tmp_path / "store", part)
    space, gave = cells.run(NOTEBOOK, store=str(store), models=DREAM, families="dream", limit=50, out=str(tmp_path))
    frame = gave["table"][-1].frame.set_index(("", "Configuration"))
    assert frame.loc["Fast-dLLM, dual cache", (CODE, "Score, %")] == "not recorded"
    assert "not recorded" in set(gave["temperature"][-1].frame["T = 0.5"])
    assert "n = 50 pocket_gsm8k" in gave["table"][-1].caption
    told = repr(gave["verdict"][0])
    assert "not shown" in told and "pocket-dream, pocket_gsm8k, JoT, dual cache, τ = 30" in told
    assert "does not hold" in repr(gave["checks"][-1])  # the planned number of documents
    with pytest.raises(NotebookError, match="none of the composability cells"):
        cells.run(NOTEBOOK, until="load", store=str(store), models=DREAM, seed=3)


def test_checks_can_fail(records, tmp_path):
    name = scored(dual(DREAM, GSM, tau_max=30), [1.0])[0]
    meta, frame = records[name]
    store = fake_records.write(tmp_path / "store", {**records, name: (meta, frame.assign(forwards_full=3))})
    held = cells.run(NOTEBOOK, store=str(store), models=DREAM, tasks=GSM, out=str(tmp_path))[0]["held"]
    assert (~held[""]).sum() == 3  # the sum, the blocks, and the planned number of documents


# --- criteria of the plan -----------------------------------------------------------------------------------


@pytest.fixture
def judged(tmp_path):
    numbers = itertools.count()

    def judged(name: str, *parts: tuple) -> str:
        if not parts:
            parts = (scored(Point.of(DREAM, "pocket_mmlu", "full"), [1.0]),)  # some other run
        store = fake_records.write(tmp_path / str(next(numbers)), dict(parts))
        return criteria.judge(criteria.Evidence(store), [name])["status"].item()

    return judged


def retuned(model: str, task: str, other: Point, score: int) -> list[tuple]:
    """JoT in the cache at the retuned threshold with this many of 400 right, the other with 320."""
    return [made(other, right(320, 400)), made(dual(model, task, tau_max=RETUNED[model]), right(score, 400))]


@pytest.mark.parametrize("name", ["compose-gsm8k", "compose-gsm8k-matched"])
def test_compose_gsm8k(judged, name):
    def pair(model: str, score: int) -> list[tuple]:
        other = dual(model, GSM, "full") if name.endswith("matched") else Point.of(model, GSM, "full")
        return retuned(model, GSM, other, score)

    fine = pair(LLADA, 320)
    for score, word in ((320, "seen"), (308, "undecided"), (200, "not seen")):
        assert judged(name, *pair(DREAM, score), *fine) == word
    assert judged(name, *fine) == judged(name) == "not shown"
    assert judged(name, *pair(DREAM, 200)) == "not shown"  # one model is not enough


def test_compose_humaneval(judged):
    low = retuned(LLADA, CODE, Point.of(LLADA, CODE, "fastdllm"), 280)
    for score, word in ((280, "seen"), (319, "undecided"), (380, "not seen")):
        parts = retuned(DREAM, CODE, Point.of(DREAM, CODE, "fastdllm"), score)
        assert judged("compose-humaneval", *parts, *low) == word
    assert judged("compose-humaneval", *low) == "not shown"


def test_compose_horizon(judged):
    alone, slow = (made(Point.of(DREAM, CODE, "jot"), right(50), steps) for steps in (5, 20))
    for first, steps, word in ((alone, 10, "seen"), (alone, 5, "undecided"), (slow, 10, "not seen")):
        assert judged("compose-horizon", first, made(dual(DREAM, CODE, tau_max=90), right(50), steps)) == word
    assert judged("compose-horizon", alone) == "not shown"


def test_temperature_criteria(judged):
    def at(method: str, t: float, score: int, model: str = DREAM, task: str = CODE) -> tuple:
        return scored(heated(model, task, method, t), right(score, 400))

    cold = at("fastdllm", 0.0, 320)
    for score, word in ((200, "seen"), (290, "undecided"), (320, "not seen")):
        assert judged("temperature-collapse", cold, at("fastdllm", 0.1, score)) == word
    gate = at("fastdllm", 0.1, 200)
    for score, word in ((320, "seen"), (200, "undecided"), (150, "not seen")):
        assert judged("temperature-unit", gate, at("fastdllm-raw", 0.1, score)) == word
    assert judged("temperature-collapse", cold) == judged("temperature-unit", gate) == "not shown"
    warm = [at(m, t, 320, model, GSM) for model in (DREAM, LLADA) for t in HEAT for m in ("full", "jot")]
    assert judged("temperature-transfer", *warm) == "seen" and judged("temperature-transfer", *warm[:-1]) == "not shown"
    assert judged("temperature-transfer", *warm, at("jot", 1.0, 308, LLADA, GSM)) == "undecided"
    assert judged("temperature-transfer", *warm, at("jot", 1.0, 200, LLADA, GSM)) == "not seen"


# --- the recorded runs --------------------------------------------------------------------------------------


@pytest.mark.skipif(not (cells.ROOT / "data" / "records" / "manifest.json").is_file(), reason="no recorded runs")
def test_the_matched_comparisons():
    """The values that an independent recomputation gave, in points."""
    at = criteria.Evidence()
    expected = {(DREAM, GSM): (-1.3, -2.6, -0.01), (DREAM, CODE): (-2.5, -4.0, -1.1),
                (LLADA, GSM): (0.65, -0.6, 1.9), (LLADA, CODE): (-0.3, -1.7, 1.0)}  # fmt: skip
    cache = {DREAM: "block_length=32 cache=dual ranking=confidence temperature=0 top_p=False", LLADA: "cache=dual"}
    for (model, task), values in expected.items():
        own, base = f"jot tau_max={RETUNED[model]} {cache[model]}", f"full {cache[model]}"
        found = at.difference(model, task, own, base)
        assert list(found) == pytest.approx(values, abs=0.06)
