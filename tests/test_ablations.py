"""The ablation notebook on made-up records: its numbers by a second path, what is missing, the plan's criteria."""

from __future__ import annotations

from pathlib import Path

import cells
import fake_records
import numpy as np
import pandas as pd
import pytest
from scipy import stats as st

from jot import stats
from jot.paper import criteria
from jot.runs import frames, grid
from jot.runs.grid import Point

NOTEBOOK = "02_ablations"
GSM8K, DREAM, LLADA = criteria.GSM8K, criteria.DREAM, criteria.LLADA
N = 60
GRIDS = Path(__file__).resolve().parents[1] / "notebooks" / "grids"
GRID = grid.read(GRIDS / "ablations.yaml")
FULL = {"method": "full"}
ABOVE = 0.2  # share of right answers by which the made-up settings differ


def store(folder: Path, made: dict[Point, pd.DataFrame]) -> Path:
    """A live store with these cells."""
    return fake_records.write(folder, dict(fake_records.recorded(point, rows) for point, rows in made.items()))


def page(gave: dict[str, list]) -> str:
    return "\n".join(repr(shown) for all_shown in gave.values() for shown in all_shown)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory) -> tuple[dict, dict, dict]:
    """Dream's gsm8k cells of the grid with correlated noise: what they hold, and the notebook's run on them."""
    rng, made = np.random.default_rng(3), {}
    for point in GRID:
        if (point.model, point.task) == (DREAM, GSM8K):
            made[point] = fake_records.rows(GSM8K, "test", rng, N, rng.uniform(0.5, 0.8), rng.uniform(5, 40))
    folder = tmp_path_factory.mktemp("noisy")
    place = store(folder / "store", made)
    space, gave = cells.run(NOTEBOOK, store=str(place), models=[DREAM], tasks=[GSM8K], out=str(folder / "figures"))
    return made, space, gave


def columns(made: dict, **wanted: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, configured and actual steps of the cell with these settings, in the order of the documents' names."""
    default = {"tau_max": 90, "gamma": 0.5, "window": 8, "tau_min": 1}
    method = wanted.pop("method", "jot")
    for point, rows in reversed(made.items()):  # a cell that the grid has twice holds what came last
        have = default | point.params
        if point.method == method and (method == "full" or {**default, **wanted} == have) and "head_dtype" not in have:
            rows = rows.sort_values("doc_id")
            return tuple(rows[name].to_numpy(dtype=float) for name in ("score", "configured_steps", "steps"))
    raise LookupError(wanted)


@pytest.mark.parametrize(
    ("table", "row", "at", "against", "below"),
    [
        ("threshold", "τ = 60", {"tau_max": 60, "spatial": False}, FULL, {"tau_max": 30, "spatial": False}),
        ("spatial", "γ = 0.9, D = 16", {"gamma": 0.9, "window": 16}, {"spatial": False}, {"spatial": False}),
        ("sweep", "τ = 60, γ = 0.7, D = 8", {"tau_max": 60, "gamma": 0.7}, {}, {}),
        ("sweep", "Full decoding", FULL, {}, None),
        ("tau_min", "γ = 0.9, D = 8, τmin = 30", {"gamma": 0.9, "tau_min": 30}, {"gamma": 0.9}, {"gamma": 0.9}),
    ],
)  # fmt: skip
def test_rows_by_a_second_path(noisy, table, row, at, against, below):
    made, space, _ = noisy
    line = space[table].set_index("row").loc[row]
    one, other = columns(made, **at), columns(made, **against)
    wilson = st.binomtest(int(one[0].sum()), N).proportion_ci(method="wilson")
    assert line["score"] == pytest.approx(100 * one[0].mean()) and line["n"] == N
    assert [line["score_low"], line["score_high"]] == pytest.approx([100 * wilson.low, 100 * wilson.high])
    b, c = int((one[0] > other[0]).sum()), int((one[0] < other[0]).sum())
    assert line["difference"] == pytest.approx(100 * (b - c) / N)
    assert [line["difference_low"], line["difference_high"]] == pytest.approx([100 * x for x in stats.tango(b, c, N)])
    drawn = np.concatenate(list(stats.bootstrap_indices(N)))
    draws = one[1][drawn].sum(1) / one[2][drawn].sum(1)
    assert [line["speedup_low"], line["speedup_high"]] == pytest.approx(np.quantile(draws, [0.025, 0.975]))
    if below is None:
        assert np.isnan(line["ratio"])
        return
    slow = columns(made, **below)
    ratio = draws / (slow[1][drawn].sum(1) / slow[2][drawn].sum(1))
    assert line["ratio"] == pytest.approx(one[1].sum() / one[2].sum() / (slow[1].sum() / slow[2].sum()))
    assert [line["ratio_low"], line["ratio_high"]] == pytest.approx(np.quantile(ratio, [0.025, 0.975]))


@pytest.mark.parametrize(
    ("table", "row", "difference", "ratio"),
    [
        ("threshold", "τ = 10", 61.9 - 81.1, None),
        ("spatial", "γ = 0.9, D = 8", 77.3 - 78.8, 5.75 / 5.30),
        ("sweep", "Full decoding", 81.1 - 78.8, None),
        ("sweep", "τ = 60, γ = 0.5, D = 8", 76.7 - 78.8, None),
        ("tau_min", "γ = 0.5, D = 8, τmin = 30", 77.3 - 80.0, 5.30 / 5.49),
    ],
)
def test_the_papers_rows(noisy, table, row, difference, ratio):
    line = noisy[1][table].set_index("row").loc[row]
    assert line["paper_difference"] == pytest.approx(difference)
    if ratio:
        assert line["paper_ratio"] == pytest.approx(ratio)


def test_references_have_no_reference(noisy):
    for table, own in (("threshold", 1), ("spatial", 1), ("sweep", 1), ("tau_min", 7)):
        frame = noisy[1][table]
        alone = frame["row"] == frame["against"]
        assert alone.sum() == own and (frame["difference"].isna() == alone).all()
        assert (frame["paper_difference"].isna() == alone).all() and frame["paper_score"].notna().all()


def test_steps_of_both_orders(noisy):
    made, space, _ = noisy
    line = space["exits"].iloc[0]
    union, after = columns(made), columns(made, combine="after_exit")
    gap = after[2] - union[2]
    drawn = np.concatenate(list(stats.bootstrap_indices(N)))
    assert line["difference"] == pytest.approx(100 * (after[0] - union[0]).mean())
    assert line["steps"] == pytest.approx(gap.mean())
    assert [line["steps_low"], line["steps_high"]] == pytest.approx(np.quantile(gap[drawn].mean(1), [0.025, 0.975]))


def test_pairs_are_compared_directly(noisy):
    made, space, _ = noisy
    pairs = space["pairs"].drop_duplicates(["what", "one", "other"]).set_index(["one", "other"])
    at = {"γ = 0.9, D = 8": {"gamma": 0.9}, "τ = 10": {"tau_max": 10, "spatial": False}}
    minus = {"γ = 0.5, D = 8": {}, "τ = 30": {"tau_max": 30, "spatial": False}}
    for (one, other), line in pairs.loc[list(zip(at, minus, strict=True))].iterrows():
        first, second = columns(made, **at[one])[0], columns(made, **minus[other])[0]
        assert line["difference"] == pytest.approx(100 * (first - second).mean())
        assert [line["b"], line["c"]] == [(first > second).sum(), (first < second).sum()]
    best, worst = pairs.index[pairs["what"].str.startswith("sweep")][0]
    scores = space["sweep"].query("row != 'Full decoding'").set_index("row")["score"]
    assert (scores[best], scores[worst]) == (scores.max(), scores.min())


def test_the_match_is_the_nearest_speed(noisy):
    made, space, _ = noisy
    line = space["matched"].query("default").iloc[0]
    speeds = {}
    for tau in criteria.TAUS:
        run = columns(made, tau_max=tau, spatial=False)
        speeds[tau] = run[1].sum() / run[2].sum()
    own = columns(made)
    nearest = min(speeds, key=lambda tau: abs(speeds[tau] - own[1].sum() / own[2].sum()))
    bare = columns(made, tau_max=nearest, spatial=False)
    assert line["τ bare"] == nearest and line["bare"] == pytest.approx(speeds[nearest])
    assert line["difference"] == pytest.approx(100 * (own[0] - bare[0]).mean())
    word = "seen" if line["difference_low"] > 0 else "not seen" if line["difference_high"] < 0 else "undecided"
    judged = space["judged"].set_index("id").loc["spatial-matched-speed"]
    assert judged["status"] == word and f"at τ = {nearest:g} without" in judged["detail"]


def test_a_page_without_traces_and_other_tasks(noisy):
    """Every figure of what is there; what is not recorded is said in its place."""
    _, space, gave = noisy
    text = page(gave)
    assert "none of the models and tasks shown belongs" in text  # LLaDA's table
    assert "not recorded" in repr(gave["left-to-right-table"]) and "not shown" in repr(gave["criteria"])
    names = {path.stem for path in Path(space["p"].out).iterdir()}
    assert names == {"ablation_threshold", "ablation_spatial", "ablation_sweep", "ablation_tau_min", "ablation_exits"}
    checks = gave["checks-table"][-1].frame
    held = dict(zip(checks["Statement"], checks[""], strict=True))
    assert held.pop("Every cell has the planned number of documents") != "holds"  # made-up records are few
    assert held.pop("Full decoding takes every configured step") != "holds"  # nor is this, in noise
    assert set(held.values()) == {"holds"}


def test_a_partial_store(tmp_path):
    wanted = [Point.of(DREAM, GSM8K, "full"), Point.of(DREAM, GSM8K, "jot", tau_max=10, spatial=False)]
    rng = np.random.default_rng(0)
    place = store(tmp_path / "store", {p: fake_records.rows(GSM8K, "test", rng, 9, 0.7, 9) for p in wanted})
    space, gave = cells.run(NOTEBOOK, store=str(place), models=[DREAM], tasks=[GSM8K], out=str(tmp_path / "figures"))
    mine = space["threshold"].query("task == @GSM8K", local_dict={"GSM8K": GSM8K}).set_index("row")
    assert mine["n"].tolist() == [9, 9, 0, 0, 0, 0, 0] and mine["difference"].notna().sum() == 1
    assert (space["spatial"]["n"] == 0).all() and "not recorded" in page(gave)
    assert "does not hold" in repr(gave["checks-table"]) and (space["judged"]["status"] == "not shown").all()


# --- the plan's criteria ------------------------------------------------------------------------------------


def flat(task: str, right: float, steps: float, n: int = 400) -> pd.DataFrame:
    """Nested scores (a better setting is right wherever a worse one is) and constant steps."""
    length = fake_records.LENGTH[task]
    made = pd.DataFrame({"doc_id": [f"{task}/test/{i}" for i in range(n)], "configured_steps": length})
    return made.assign(score=(np.arange(n) < round(right * n)).astype(float), steps=min(length, max(1, steps)))


def extreme(kind: str) -> criteria.Evidence:
    """All cells of the ablations: as the paper claims, or against each claim."""
    sign, rows, found = 1 if kind == "claimed" else -1, [], {}
    for p in GRID:
        s, long = p.params, p.task in criteria.LONG
        tau, right, steps = s.get("tau_max", 90), 0.6, 60.0
        if p.method == "full":
            steps = 128
        elif s.get("spatial") is False:
            right += -ABOVE * sign if tau == 10 else 0 if kind == "claimed" else -ABOVE
            steps = 60 + sign * tau / 10
        elif s.get("combine") == "after_exit":
            right -= 0 if kind == "claimed" else ABOVE
        elif "head_dtype" not in s:
            steps, shape = 50 if kind == "claimed" else 100, (s.get("gamma", 0.5), s.get("window", 8))
            if kind == "claimed":
                right -= ABOVE if shape == (0.9, 8) else 0
            else:
                right += 0 if tau == 90 and s.get("tau_min", 1) == 1 else ABOVE * (1 if s.get("tau_min") else -1)
                right -= 2 * ABOVE if shape == (0.5, 8) and tau == 60 else 0
        made = flat(p.task, max(0, right), steps if long else 128 if p.method == "full" else 2)
        name, recorded = fake_records.recorded(p, made)
        found[name] = frames._row(name, recorded.meta)
        rows.append(made.assign(cell=name))
    at = criteria.Evidence()
    at.runs = pd.DataFrame(found.values())
    return at.hold(pd.concat(rows).drop_duplicates(["cell", "doc_id"], keep="last"))


IDS = [
    "threshold-speed", "threshold-harm", "threshold-high", "spatial-speed", "spatial-wide", "spatial-wide-direct",
    "spatial-default", "sweep-robust", "tau-min", "after-exit",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "word"), [("claimed", "seen"), ("reversed", "not seen")])
def test_criteria_in_both_directions(kind, word):
    judged = criteria.judge(extreme(kind), IDS).set_index("id")
    assert judged["status"].to_dict() == dict.fromkeys(IDS, word), judged["detail"].to_dict()


# --- tokens and traces --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[dict, dict]:
    """Full decoding in both precisions: tokens that differ in a known way, and traces of two documents."""
    folder = tmp_path_factory.mktemp("pair")
    points = [Point.of(DREAM, GSM8K, "full"), Point.of(DREAM, GSM8K, "full", head_dtype="bfloat16")]
    rows = fake_records.rows(GSM8K, "test", np.random.default_rng(0), N, 0.5, 9)
    rows = rows.sort_values("doc_id").assign(tokens_non_eos=2, generated=[[1, 2, 0]] * N)
    other = rows.assign(generated=[[1, 3 if i < 9 else 2, int(i >= 30)] for i in range(N)])
    place = store(folder / "store", dict(zip(points, (rows, other), strict=True)))
    two, order = rows.head(2), np.stack([np.arange(4), np.arange(4)[::-1]])
    traced = [
        two.assign(trace=[{"step": [*map(int, step)], "rule": [1] * 4} for step in steps])
        for steps in (order, order[:1].repeat(2, 0))
    ]
    store(place / "traces", dict(zip(points, traced, strict=True)))
    return cells.run(NOTEBOOK, until="pair", store=str(place), models=[DREAM], tasks=[GSM8K])


def test_precision_counts_tokens(pair):
    line = pair[0]["heads"].set_index("method").loc["full"]
    wilson = st.binomtest(21, N).proportion_ci(method="wilson")
    assert [line["same"], line["same_low"], line["same_high"]] == pytest.approx(
        [100 * 21 / N, 100 * wilson.low, 100 * wilson.high]
    )
    assert line["positions"] == pytest.approx(100 * (2 * N - 9) / (2 * N)) and line["difference"] == 0


def test_left_to_right_shares(pair):
    space, gave = pair
    at = space["lefts"].set_index("part")
    assert at.loc["canvas", ["float32", "bfloat16", "difference"]].tolist() == [62.5, 100, 37.5]
    assert at.loc["answer", "float32"] == 75  # of the reversed canvas, the first position alone
    assert at.loc["canvas", "n"] == 2 and "62.50" in repr(gave["left-to-right-table"])


def test_leftmost_by_brute_force(pair):
    rng = np.random.default_rng(0)
    step, rule, upto = rng.integers(0, 6, (40, 9)), rng.integers(0, 4, (40, 9)), rng.integers(0, 10, 40)
    left, scheduled = pair[0]["leftmost"](step, rule, upto)
    for i in range(40):
        chosen = [j for j in range(upto[i]) if rule[i, j] & 1]
        first = [j for j in chosen if min(k for k in range(9) if step[i, k] >= step[i, j]) == j]
        assert (left[i], scheduled[i]) == (len(first), len(chosen))


# --- the public code ----------------------------------------------------------------------------------------


def test_the_public_code_s_rule(tmp_path):
    """Both averages, and what is not recorded yet."""
    how = {"canvas": True, "keep_steps": True, "sample": True, "schedule": "precomputed", "skip_demoted": True}
    named, spelled = Point.of(LLADA, GSM8K, "jot-public", suppress_tokens="none"), Point.of(LLADA, GSM8K, "jot", **how)
    assert named.resolved() == spelled.resolved() and named in grid.read(GRIDS / "public_code.yaml")
    points = {Point.of(LLADA, GSM8K, "full"): (1, 128), Point.of(LLADA, GSM8K, "jot"): (1, 8), spelled: (0, [2, 64])}
    rows = fake_records.rows(GSM8K, "test", np.random.default_rng(0), 2, 0.5, 10)
    made = {p: rows.assign(score=[1.0, right], steps=steps) for p, (right, steps) in points.items()}
    place = store(tmp_path / "store", made)
    given = {"models": [LLADA], "tasks": [GSM8K], "store": str(place), "until": "pair-table"}
    space, gave = cells.run(NOTEBOOK, **given)
    at = space["public"].assign(rule=[key[3] for key in space["keys"]], how=[key[2] for key in space["keys"]])
    line = at[at["rule"] == space["PUBLIC"]].iloc[0]
    assert line["speedup"] == pytest.approx(256 / 66) and line["mean"] == pytest.approx((64 + 2) / 2)
    assert line["difference"] == -50 and at[at["rule"] == "canvas=True"]["n"].tolist() == [0]
    assert page(gave).count("not recorded") > 3 and "out of distribution" not in space["explained"]
    assert (space["said"] == "yes").sum() == len(space["CODE"]) >= 11  # what the page says of our defaults is so


def test_what_a_tenth_of_a_threshold_decides(pair):
    """A margin of 4.5 clears ln 90 and not ln 90.1; where tau_i is lower the higher threshold rises by less."""
    run = pd.DataFrame({
        "trace_rule": [np.array([2, 2, 1, 3, 2])],
        "trace_margin": [np.array([4.5, 4.51, 4.5, np.log(45.52), np.log(45.56)])],
        "trace_threshold": [np.log([90, 90, 90, 45.5, 45.5])],
    })  # fmt: skip
    assert pair[0]["decided"](run).tolist() == [True, False, False, True, False]


# --- the real records, and live -----------------------------------------------------------------------------


def test_parts_of_the_records(tmp_path, root):
    """A model and two tasks, the first documents: LLaDA has two of the five tables."""
    if not (root / "data" / "records" / "manifest.json").is_file():
        pytest.skip("no recorded runs")
    given = {"models": "pocket-llada", "tasks": "pocket_mmlu,pocket_humaneval", "limit": 30, "out": str(tmp_path)}
    space, gave = cells.run(NOTEBOOK, **given)
    assert (space["threshold"]["n"] == 30).all() and len(space["llada"]) == 14 and space["spatial"].empty
    assert "No short task of Dream" in page(gave) and "n = 30 pocket_mmlu" in page(gave)


def test_live(tmp_path):
    """Decoded here, then read again."""
    given = {
        "models": [DREAM],
        "tasks": ["pocket_mmlu"],
        "limit": 2,
        "store": str(tmp_path),
        "out": str(tmp_path / "f"),
    }
    space, _ = cells.run(NOTEBOOK, source="live", **given)
    assert (space["threshold"]["n"] == 2).all() and (space["exits"]["n"] == 2).all()
    before = sorted(path.stat().st_mtime_ns for path in tmp_path.glob("*.jsonl"))
    cells.run(NOTEBOOK, until="threshold", **given)
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.glob("*.jsonl")) == before
