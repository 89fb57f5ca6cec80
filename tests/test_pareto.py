"""The aggregate trade-off: joint draws by a second path, frontiers by brute force, missing cells named."""

from __future__ import annotations

import fake_records
import numpy as np
import pytest

from jot.analysis import cells, pareto, published
from jot.analysis import pareto_view as view
from jot.errors import UserError
from jot.records import Recorded
from jot.runs.grid import Point

N = 60
DREAM, LLADA = cells.MODELS
TWO = ["pocket_gsm8k", "pocket_mmlu"]


@pytest.fixture(scope="module")
def records() -> dict:
    rng, out = np.random.default_rng(1), {}
    for p in pareto.points(cells.MODELS, TWO, pareto.METHODS):
        steps = fake_records.LENGTH[p.task] * (1 if p.method == "full" else rng.uniform(0.1, 0.6))
        rows = fake_records.rows(p.task, "test", rng, N, rng.uniform(0.55, 0.85), steps)
        out |= dict([fake_records.recorded(p, rows)])
    return out


@pytest.fixture(scope="module")
def found(records):
    return pareto.select(records, cells.MODELS, TWO)[0]


@pytest.fixture(scope="module")
def joint(found):
    return pareto.cloud(found, DREAM, n_boot=600)


def test_draws_by_a_second_path(found, joint):
    """Plain indices, one set of resamples a task, the same for every method."""
    speed, quality, speed_draws, quality_draws = joint.aggregate()
    per_task = {}
    for j, task in enumerate(TWO):
        drawn = np.random.default_rng(j)
        index = np.concatenate([drawn.integers(N, size=(size, N)) for size in (256, 256, 88)])
        for entry in joint.entries:
            f = found[DREAM, entry, task].recorded.frame.sort_values("doc_id")
            configured, steps, score = (f[k].to_numpy(dtype=float) for k in ("configured_steps", "steps", "score"))
            draws = configured[index].sum(1) / steps[index].sum(1), score[index].mean(1)
            per_task[entry, task] = (configured.sum() / steps.sum(), score.mean(), *draws)
    for i, entry in enumerate(joint.entries):
        a, b = (per_task[entry, task] for task in TWO)
        base = [per_task["full", task] for task in TWO]
        assert speed[i] == pytest.approx(np.sqrt(a[0] * b[0]))
        assert quality[i] == pytest.approx(50 * (a[1] / base[0][1] + b[1] / base[1][1]))
        assert speed_draws[i] == pytest.approx(np.sqrt(a[2] * b[2]))
        assert quality_draws[i] == pytest.approx(50 * (a[3] / base[0][3] + b[3] / base[1][3]))
    frame = pareto.aggregate(DREAM, joint).set_index("entry")
    for name, draws in (("speedup", speed_draws), ("retention", quality_draws)):
        limits = np.quantile(draws, [0.025, 0.975], axis=1)
        assert frame[f"{name}_low"].to_numpy() == pytest.approx(limits[0])
        assert frame[f"{name}_high"].to_numpy() == pytest.approx(limits[1])


def test_tasks_are_resampled_apart(joint):
    draws = joint.speed_draws[joint.entries.index("jot")]
    assert abs(np.corrcoef(draws)[0, 1]) < 0.15
    methods = joint.score_draws[:, 0]
    assert np.corrcoef(methods[joint.entries.index("full")], methods[joint.entries.index("jot")])[0, 1] > 0.3


def test_frontier_by_brute_force():
    rng = np.random.default_rng(2)
    speed, quality = rng.integers(1, 5, (6, 50)), rng.integers(1, 5, (6, 50))
    on = pareto.frontier(speed, quality)
    for k in range(50):
        points = list(zip(speed[:, k], quality[:, k], strict=True))
        for i, (x, y) in enumerate(points):
            beaten = any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
            assert on[i, k] == (not beaten)
    assert pareto.frontier(np.array([2, 2, 1]), np.array([5, 5, 5])).tolist() == [True, True, False]


def test_shares_of_draws(joint):
    frame = pareto.aggregate(DREAM, joint).set_index("entry")
    speed, quality, speed_draws, quality_draws = joint.aggregate()
    names = [i for i, e in enumerate(joint.entries) if e in pareto.METHODS]
    expected = pareto.frontier(speed_draws[names], quality_draws[names]).mean(1) * 100
    assert frame["frontier"].dropna().tolist() == pytest.approx(expected.tolist())
    assert frame["fastest"].dropna().sum() == pytest.approx(100)
    assert frame.loc["klass-skip", ["frontier", "fastest"]].isna().all()
    assert np.isnan(frame.loc["jot 90", "frontier_all"]) and not np.isnan(frame.loc["jot 60", "frontier_all"])
    assert (frame["frontier"].dropna() > 0).any()
    jot = pareto.against_jot(DREAM, joint).set_index("entry")
    i, j = joint.entries.index("jot"), joint.entries.index("prophet")
    assert jot.loc["prophet", "ratio"] == pytest.approx(speed[i] / speed[j])
    assert jot.loc["prophet", "gap"] == pytest.approx(quality[i] - quality[j])
    better = (speed_draws[i] > speed_draws[j]) & (quality_draws[i] > quality_draws[j])
    assert jot.loc["prophet", "dominates"] == pytest.approx(100 * better.mean())


def test_leaving_out_a_task(joint):
    frame = pareto.leave_one_out(DREAM, joint).set_index(["entry", "without"])
    i = joint.entries.index("klass")
    assert frame.loc[("klass", "pocket_gsm8k"), "speedup"] == pytest.approx(joint.speed[i, 1])
    assert frame.loc[("klass", ""), "speedup"] == pytest.approx(np.sqrt(joint.speed[i].prod()))
    assert "full" not in frame.index.get_level_values(0)


def test_incomplete_methods_are_left_out_and_named(records):
    gone = cells.lookup(records, Point.of(DREAM, "pocket_gsm8k", "klass")).id
    some = {k: v for k, v in records.items() if k != gone}
    found, missing = pareto.select(some, cells.MODELS, TWO)
    assert missing == {(DREAM, "klass"): ["pocket_gsm8k"]} and (DREAM, "klass", "pocket_mmlu") not in found
    assert view.left_out(missing) == f"{DREAM}: KLASS (no pocket_gsm8k)"
    made = pareto.clouds(found, n_boot=60)
    points, left, jot = (pareto.over(made, f) for f in (pareto.aggregate, pareto.leave_one_out, pareto.against_jot))
    paper, paper_left = pareto.published_points(published.load("main_results"))
    n = view.sizes(found)
    told = repr(view.verdict(points, left, paper, n, missing))
    assert "KLASS (no pocket_gsm8k)" in told and "of the 4 methods" in told and "of the 5 methods" in told
    for table in (
        view.points(points, n, missing),
        view.against_jot(jot, n, missing),
        view.leave_one_out(left, n, missing),
    ):
        assert "KLASS (no pocket_gsm8k)" in table.caption and f"n = {N} pocket_gsm8k" in table.caption
        assert "5 M parameters" in table.caption
    assert "no intervals" in view.published(paper, paper_left).caption
    assert view.figure(made, points, paper, n).get_suptitle().startswith("Aggregate speed")
    assert "does not hold" in repr(view.checks(made, points, n, cells.PLANNED))


def test_without_full_decoding_there_is_no_aggregate(records):
    some = {k: v for k, v in records.items() if v.meta["config"]["method"]["name"] != "full"}
    found, missing = pareto.select(some, [DREAM], TWO)
    assert pareto.clouds(found) == {} and missing[DREAM, "full"] == TWO
    empty = pareto.over({}, pareto.aggregate)
    assert "No model has full decoding" in repr(view.verdict(empty, empty, empty, view.sizes(found), missing))


def test_without_jot(records):
    found, missing = pareto.select(records, [LLADA], TWO, ["full", "prophet"])
    made = pareto.clouds(found, n_boot=60)
    assert made[LLADA].entries == ["full", "prophet"] and not missing
    points, left = (pareto.over(made, f) for f in (pareto.aggregate, pareto.leave_one_out))
    paper = pareto.published_points(published.load("main_results"))[0]
    assert "not complete" in repr(view.verdict(points, left, paper, view.sizes(found), missing))
    assert "not among" in repr(view.against_jot(pareto.over(made, pareto.against_jot), view.sizes(found), missing))
    with pytest.raises(UserError, match="no method 'calibrated'"):
        pareto.entries(DREAM, ["calibrated"])


def test_one_document_and_no_right_answer(records):
    one = {k: Recorded(v.meta, v.frame.iloc[:1].assign(score=0.0)) for k, v in records.items()}
    found, _ = pareto.select(one, [DREAM], TWO)
    joint = pareto.cloud(found, DREAM, n_boot=40)
    speed, quality, _, _ = joint.aggregate()
    assert np.isfinite(speed).all() and np.isnan(quality).all()


def test_other_documents_are_refused(found):
    cell = found[DREAM, "jot", "pocket_mmlu"]
    other = cells.Cell(cell.id, Recorded(cell.recorded.meta, cell.recorded.frame.iloc[1:]))
    with pytest.raises(UserError, match="cannot share"):
        pareto.cloud({**found, (DREAM, "jot", "pocket_mmlu"): other}, DREAM, n_boot=10)


def test_the_papers_points():
    points, left = pareto.published_points(published.load("main_results"))
    at = points.set_index(["model", "entry"])
    dream = at.loc["Dream-7B"].loc[["jot", "prophet", "klass", "fastdllm"]]
    assert dream["speedup"].round(2).tolist() == [4.43, 2.89, 2.20, 2.86]
    assert dream["retention"].round(1).tolist() == [98.3, 91.9, 99.9, 94.7]
    without = left.set_index(["model", "entry", "without"])["speedup"]
    assert round(without["Dream-7B", "jot", "humaneval"], 2) == 2.70
    assert without["LLaDA-8B", "jot", ""] == pytest.approx(at.loc[("LLaDA-8B", "jot"), "speedup"])
    assert at.loc[("LLaDA-8B", "fastdllm"), "on"] and not at.loc[("LLaDA-8B", "prophet"), "on"]
    lacking = published.load("main_results").iloc[1:]
    with pytest.raises(UserError, match="lacks a cell of Dream-7B"):
        pareto.published_points(lacking)
