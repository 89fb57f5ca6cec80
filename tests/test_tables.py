"""Tables from made-up records: selection, pairing, calibration, marks; every interval by a second path."""

from __future__ import annotations

import math

import fake_records
import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from jot.analysis import cells, phenomena, plan, plots, published, render, seeds, sources, tables
from jot.errors import UserError
from jot.paper import show as display
from jot.records import Recorded
from jot.reproduce import again as paper
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError

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


# --- cells by their configuration ---------------------------------------------------------------------------


def test_lookup_is_exact(records):
    """What differs in any setting that decodes differently is another cell; what resolves alike is the same."""
    rows = fake_records.rows("pocket_gsm8k", "test", np.random.default_rng(0), 5, 0.5, 20)
    variants = [
        Point.of("pocket-dream", "pocket_gsm8k", "jot", spatial=False),
        Point.of("pocket-dream", "pocket_gsm8k", "jot", temperature=0.5),
        Point.of("pocket-dream", "pocket_gsm8k", "jot", head_dtype="bfloat16"),
        Point.of("pocket-dream", "pocket_gsm8k", "jot", seed=4),
        Point.of("pocket-dream", "pocket_gsm8k", "jot", "dev", combine="after_exit"),
        Point.of("results/models/pocket-dream-seed1", "pocket_gsm8k", "jot"),
        Point.of("pocket-dream", "pocket_gsm8k", "fastdllm"),
        Point.of("pocket-dream", "pocket_gsm8k", "fastdllm", cache="none"),
        Point.of("pocket-dream", "pocket_gsm8k", "klass", first_kl="skip"),
    ]
    made = [fake_records.of(point, rows) for point in variants]
    everything = {**records, **dict(made)}
    assert len(everything) == len(records) + len(variants)
    for point, (name, _) in zip(variants, made, strict=True):
        assert cells.lookup(everything, point).id == name and cells.lookup(records, point) is None
    default = cells.lookup(everything, Point.of("pocket-dream", "pocket_gsm8k", "jot"))
    assert default.tau == 90 and default.n == 200
    spelled = {"tau_max": "90", "tau_min": 1.0, "temperature": 0.1, "top_p": 0.9, "cache": None, "block_start": "no"}
    assert cells.lookup(everything, Point.of("pocket-dream", "pocket_gsm8k", "jot", **spelled)).id == default.id
    limited = Point("pocket-dream", "pocket_gsm8k", "jot", limit=3, trace=True, store="sub")
    assert cells.lookup(everything, limited).id == default.id
    assert cells.lookup(everything, Point.of("pocket-dream", "pocket_gsm8k", "jot", tau_max=90.5)) is None
    assert cells.lookup({}, variants[0]) is None
    empty = {name: replaced(r) for name, r in everything.items()}
    for recorded in empty.values():
        recorded.frame = recorded.frame.iloc[:0]
    assert cells.lookup(empty, variants[0]) is None
    with pytest.raises(UserError, match="did you mean 'tau_max'"):
        cells.lookup(everything, Point.of("pocket-dream", "pocket_gsm8k", "jot", tau_mx=3))


def test_baselines_and_variants(records):
    everything = {**records, **fake_records.baselines()}
    found = tables.select(everything, methods=cells.ALL)
    of = {method for m, t, method in found if (m, t) == ("pocket-llada", "pocket_gsm8k")}
    assert of == {*cells.ALL} - {"calibrated"}  # no threshold of these passes
    assert {t for _, t, method in found if method == "prophet-answer"} == {"pocket_gsm8k"}
    assert cells.baseline("GSAI-ML/LLaDA-8B-Instruct", "gsm8k", "prophet-answer") is None
    configs = {method: found["pocket-dream", "pocket_gsm8k", method].config for method in of}
    assert configs["fastdllm"]["decode"]["cache"] == "dual" and configs["fastdllm"]["decode"]["temperature"] == 0
    assert "cache" not in configs["fastdllm-nocache"]["decode"]
    assert configs["klass-ported"]["method"]["first_kl"] == "skip"
    assert configs["prophet"]["method"]["region"] == "masked"
    thin = {k: r for k, r in everything.items() if "klass" not in k}
    assert not [key for key in tables.select(thin, methods=cells.ALL) if key[2].startswith("klass")]
    with pytest.raises(UserError, match="unknown method 'klas'"):
        tables.select(everything, methods=["full", "klas"])


# --- the secondary family, seeds ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything(records):
    return {**records, **fake_records.baselines()}


@pytest.fixture(scope="module")
def whole(everything):
    return tables.select(everything, methods=cells.ALL)


def test_secondary_family_from_raw_rows(whole):
    frame = tables.secondary(whole)
    assert len(frame) == 2 * 4 * 3 and set(frame["against"]) == set(cells.BASELINES)
    drawn = np.random.default_rng(0)
    indices = np.concatenate(
        [drawn.integers(200, size=(256, 200)) for _ in range(39)] + [drawn.integers(200, size=(16, 200))]
    )
    for _, row in frame.iterrows():
        jot, other, full = (
            whole[row["model"], row["task"], m].recorded.frame.set_index("doc_id").sort_index()
            for m in ("jot", row["against"], "full")
        )
        gap = jot["score"] - other["score"]
        b, c = int((gap > 0).sum()), int((gap < 0).sum())
        assert (row["b"], row["c"], row["n"]) == (b, c, 200)
        assert row["p"] == pytest.approx(stats.binomtest(b, b + c).pvalue if b + c else 1)
        assert row["full_difference"] == pytest.approx(100 * (other["score"] - full["score"]).mean())
        draws = other["steps"].to_numpy()[indices].sum(1) / jot["steps"].to_numpy()[indices].sum(1)
        assert row["ratio"] == pytest.approx(other["steps"].sum() / jot["steps"].sum())
        assert [row["ratio_low"], row["ratio_high"]] == pytest.approx(np.quantile(draws, [0.025, 0.975]))
    for _, group in frame.groupby("model"):
        order = group.sort_values("p")
        expected = np.minimum(1, np.maximum.accumulate(order["p"].to_numpy() * np.arange(12, 0, -1)))
        assert order["holm"].to_numpy() == pytest.approx(expected)
    shown = render.secondary(frame)
    assert "12 of 12 recorded for pocket-dream" in shown.caption and "n = 200 pocket_gsm8k" in shown.caption


def test_variants_have_no_marks_and_stand_below(whole):
    frame = tables.main(whole)
    variants = frame["method"].isin(cells.VARIANTS)
    assert variants.sum() == 2 * (4 * 2 + 1) and set(frame[variants]["score_mark"]) == {""}
    assert set(frame[variants]["speedup_mark"]) == {""}
    without = tables.main({k: cell for k, cell in whole.items() if k[2] not in cells.VARIANTS})
    pd.testing.assert_frame_equal(frame[~variants].reset_index(drop=True), without)
    table = render.main(frame).frame
    methods = [m.split(", τ")[0] for m in table["", "Method"]]
    assert methods[:5] == ["Full decoding", "Prophet (our port)", "KLASS", "Fast-dLLM", "JoT (default)"]
    assert methods[-3:] == [label for label, *_ in cells.VARIANTS.values()]
    lost = frame[~((frame["method"] == "klass") & (frame["task"] == "pocket_gsm8k"))]
    again = render.main(lost)
    assert [m.split(", τ")[0] for m in again.frame["", "Method"]] == methods and "not recorded" in repr(again)
    assert "Variants, below the methods" in again.caption


@pytest.mark.parametrize("methods", [["full"], ["jot"], ["prophet", "klass"], ["full", "fastdllm-nocache"]])
def test_tables_of_few_methods(everything, methods):
    """What is not asked for is not shown, and nothing breaks."""
    found = tables.select(everything, ["pocket-llada"], ["pocket_gsm8k"], methods)
    main, paired, others = tables.main(found), tables.paired(found), tables.secondary(found)
    claims = plan.claims(everything, main, paired)
    assert set(claims["status"].iloc[:3]) == {"not shown"}
    assert "No pair" in repr(render.verdicts(paired, main, claims, others=others))
    shown = [render.main(main), render.paired(paired), render.secondary(others), render.power(paired)]
    shown += [render.decomposition(tables.decomposition(found)), render.aggregate(tables.aggregate(main))]
    assert len(shown[0].frame) == len(methods) and "not both recorded" in shown[2].caption
    assert all(table._repr_html_() and repr(table) for table in shown)
    assert plan.checks(found, main, paired)["holds"].sum() == 4  # all but the planned number of documents
    assert len(plots.show(plots.main_results(main)).data) > 1000


def test_paired_and_confirmatory_rows_leave_the_baselines_out(whole, paired):
    pd.testing.assert_frame_equal(tables.paired(whole), paired)


def test_forwards_are_split_where_there_is_a_cache(whole):
    key = ("pocket-llada", "pocket_gsm8k", "fastdllm")
    rows = whole[key].recorded.frame.assign(forwards_full=4, forwards_block=6, steps=10)
    cached = {**whole, key: cells.Cell("x", Recorded(whole[key].recorded.meta, rows))}
    table = render.decomposition(tables.decomposition(cached)).frame.set_index(["Model", "Task", "Method"])
    column = table["Forwards full / suffix / in-block"]
    assert column["pocket-llada", "pocket_gsm8k", "Fast-dLLM"] == "4.0 / 0.0 / 6.0"
    assert column["pocket-llada", "pocket_gsm8k", "Full decoding"] == ""


def test_noise_floor(everything):
    frame = seeds.noise(everything)
    assert len(frame) == 4 * (3 + 3) and set(frame["model"]) == {"pocket-dream"}
    task = "pocket_mmlu"
    one, two = (
        cells.lookup(everything, Point.of("pocket-dream", task, "full", seed=s)).recorded.frame.set_index("doc_id")
        for s in (0, 2)
    )
    row = frame[(frame["task"] == task) & (frame["seeds"] == "seed 0 to 2")].iloc[0]
    assert row["outcomes"] == pytest.approx(100 * (one["score"] == two["score"]).mean())
    assert row["b"] == int(((two["score"] == 1) & (one["score"] == 0)).sum()) and row["answers"] == 100
    assert row["outcomes_low"] < row["outcomes"] < row["outcomes_high"]
    assert "repairs" in seeds.noise_table(frame).caption.lower() and len(seeds.noise_table(frame).frame) == 24
    assert "not recorded" in seeds.noise_table(seeds.noise({})).caption
    assert "more than 0.22 apart" in seeds.nucleus_note()


def test_answers_that_are_missing_agree_with_each_other_alone(found):
    cell = found["pocket-llada", "pocket_mmlu", "full"]
    answers = [None if i < 50 else "A" for i in range(200)]
    one = cells.Cell("x", replaced(cell.recorded, answer=answers))
    assert seeds.agreement(one, one)["answers"] == 100
    assert seeds.agreement(one, cells.Cell("y", replaced(cell.recorded, answer="A")))["answers"] == 75


def test_training_seeds_are_all_there(everything):
    frame = seeds.training(everything)
    assert len(frame) == 2 * 4 * 3
    two = frame[frame["seed"] == 2]
    assert two["full"].isna().all() and two["n"].isna().all()
    one = frame[(frame["seed"] == 1) & (frame["model"] == "pocket-llada") & (frame["task"] == "pocket_gsm8k")].iloc[0]
    assert one["difference"] == pytest.approx(one["jot"] - one["full"]) and one["tau"] == 30
    table = seeds.training_table(frame)
    assert len(table.frame) == 24 and "0 (shipped)" in repr(table) and "not recorded" in repr(table)
    half = {k: r for k, r in everything.items() if "full" not in k}
    assert seeds.training(half)["difference"].isna().all() if "difference" in seeds.training(half) else True
    assert "not recorded" in repr(seeds.training_table(seeds.training(half)))


# --- phenomena ----------------------------------------------------------------------------------------------


def test_the_plan_s_phenomena_are_read_from_the_plan():
    plan_rows = phenomena.plan().set_index("id")
    assert len(plan_rows) == 26 and set(phenomena.PHENOMENA) <= set(plan_rows.index)
    assert plan_rows.loc["after-exit", "claim"] == "or and after_exit lead to the same scores (ours)"
    assert plan_rows.loc["two-sided", "seen"] == "share of repairs: lower limit above 1 %"


def judged(name: str, *made: tuple) -> tuple[str, str]:
    return phenomena.PHENOMENA[name](dict(made))


def scores(right: int, n: int = 400, offset: int = 0) -> list[float]:
    return [float(offset <= i < offset + right) for i in range(n)]


def test_criteria_of_the_main_table():
    def at(method: str, model: str = "pocket-dream", task: str = "pocket_gsm8k", **settings: object) -> Point:
        return Point.of(model, task, method, **settings)

    made = fake_records.scored
    jot, full = made(at("jot"), scores(320)), made(at("full"), scores(320))
    assert judged("prophet-loses", jot, made(at("prophet"), scores(200)))[0] == "seen"
    assert judged("prophet-loses", jot, made(at("prophet"), scores(319)))[0] == "undecided"
    assert judged("prophet-loses", jot, made(at("prophet"), scores(360)))[0] == "not seen"
    assert judged("prophet-loses", jot) == ("not shown", "JoT minus Prophet not recorded")
    assert judged("klass-slow", jot, full, made(at("klass"), scores(319), 64))[0] == "seen"
    assert judged("klass-slow", jot, full, made(at("klass"), scores(319), 16))[0] == "undecided"  # as fast as JoT
    assert judged("klass-slow", jot, full, made(at("klass"), scores(319), 4))[0] == "not seen"
    assert judged("klass-slow", jot, full, made(at("klass"), scores(200), 64))[0] == "not seen"
    assert judged("klass-slow", jot, full)[0] == "not shown"
    assert judged("klass-slow", full, made(at("klass"), scores(200), 64))[0] == "not shown"  # JoT's speed is missing
    swag = {"task": "pocket_hellaswag"}
    whole = made(at("full", **swag), scores(320))
    for right, word in ((200, "seen"), (320, "not seen"), (308, "undecided")):
        assert judged("fastdllm-hellaswag", whole, made(at("fastdllm", **swag), scores(right)))[0] == word
    low = made(at("full", "pocket-llada"), scores(320))
    for right, word in ((200, "seen"), (320, "not seen"), (308, "undecided")):
        assert judged("llada-low", low, made(at("jot", "pocket-llada", tau_max=10), scores(right)))[0] == word
    flat = [
        made(at("jot", m, t, tau_max=tau), scores(300))
        for m in cells.MODELS for t in ("pocket_mmlu", "pocket_hellaswag") for tau in (10, 150)
    ]  # fmt: skip
    assert judged("choice-flat", *flat)[0] == "seen" and judged("choice-flat", *flat[1:])[0] == "not shown"
    moved = made(at("jot", "pocket-llada", "pocket_mmlu", tau_max=10), scores(200))
    assert judged("choice-flat", *flat, moved)[0] == "not seen"
    assert judged("choice-flat", moved, *flat[5:6])[0] == "not shown"
    for shift, word in ((40, "seen"), (0, "not seen"), (4, "undecided")):
        assert judged("two-sided", full, made(at("jot"), scores(320, offset=shift)))[0] == word
    assert "0 repairs, 0.0 %" in judged("two-sided", full, jot)[1]


def test_every_phenomenon_once(monkeypatch):
    assert list(phenomena.registered(["two-sided", "compose-gsm8k"])) == ["two-sided", "compose-gsm8k"]
    with pytest.raises(UserError, match="the plan has no phenomenon 'two-side'"):
        phenomena.judge({}, ["two-side"])
    monkeypatch.setattr(phenomena, "MODULES", ("composability", "temperature"))
    with pytest.raises(UserError, match="no module has a criterion for 'quality-kept'"):
        phenomena.registered(["quality-kept"])
    monkeypatch.setattr(phenomena, "PHENOMENA", {**phenomena.PHENOMENA, "compose-gsm8k": lambda _: ("seen", "")})
    with pytest.raises(UserError, match="registered twice, the second time in composability"):
        phenomena.registered(["compose-humaneval"])


def test_judged_phenomena_as_a_table():
    frame = phenomena.judge({}, phenomena.PHENOMENA)
    assert set(frame["status"]) == {"not shown"} and list(frame["id"]) == list(phenomena.PHENOMENA)
    table = phenomena.table(frame)
    assert "5 M parameters" in table.caption and "Exploratory" in table.caption and len(table.frame) == 6


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
    lazy = {k: Recorded(r.meta, lambda r=r: r.frame) for k, r in records.items()}
    cut = sources.first(lazy, 20)
    assert {r.n for r in cut.values()} == {20} and not any("frame" in vars(r) for r in cut.values())
    assert all(set(cut[k].frame["doc_id"]) == set(few[k].frame["doc_id"]) for k in few)
    with pytest.raises(UserError, match="limit=201 is above the 200 recorded"):
        sources.first(records, 201)


def test_the_cells_a_live_table_needs():
    wanted = list(sources.main_cells(["pocket-llada"], ["pocket_mmlu"], ["full", "jot"]))
    assert [(c.method, c.tau, c.split) for c in wanted] == [("full", None, "test"), ("jot", 30, "test")]
    wanted = list(sources.main_cells(["pocket-llada"], ["pocket_mmlu"], ["full", "jot", "calibrated"]))
    assert len(wanted) == len(set(wanted)) == 2 + 6 + 6  # full on both splits, the grid on both
    assert sources.gpu_hours(wanted, None) == 0
    every = list(sources.main_cells(["pocket-llada"], ["pocket_gsm8k", "pocket_mmlu"], cells.ALL, 3))
    others = [c for c in every if isinstance(c, Point)]
    assert [(c.task, c.method) for c in others[:6]] == [("pocket_gsm8k", m) for m in ("prophet", "klass", "fastdllm",
            "prophet", "klass", "fastdllm")]  # fmt: skip
    assert len(others) == 6 + 5 and {c.seed for c in others} == {3}
    with pytest.raises(NotebookError, match="unknown value 'klas'; did you mean 'klass'"):
        list(sources.main_cells(["pocket-llada"], ["pocket_mmlu"], ["klas"]))
    beside = list(sources.beside_cells(["pocket-dream", "someone/dream"], ["pocket_mmlu"]))
    assert {(c.model, c.seed) for c in beside} == {("pocket-dream", 1), ("pocket-dream", 2), ("pocket-dream-seed1", 0),
            ("pocket-dream-seed2", 0)}  # fmt: skip
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
