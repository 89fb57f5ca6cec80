"""The aggregate trade-off: joint draws by a second path, frontiers by brute force, missing cells named."""

from __future__ import annotations

from types import SimpleNamespace

import cells
import fake_records
import numpy as np
import pandas as pd
import pytest

from jot import stats
from jot.records import Cell
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError

N = 60
DREAM, LLADA = "pocket-dream", "pocket-llada"
TWO = ["pocket_gsm8k", "pocket_mmlu"]
FULL, JOT, FIRST = "Full decoding", "JoT (default)", "KLASS (first divergence skipped)"
RUNS = [(m, {}) for m in ("full", "prophet", "klass", "fastdllm", "jot")]
RUNS += [("klass", {"first_kl": "skip"}), ("fastdllm", {"cache": None})]
RUNS += [("jot", {"tau_max": tau}) for tau in (10, 30, 60, 90, 120, 150)]


@pytest.fixture(scope="module")
def records() -> dict:
    rng, out = np.random.default_rng(1), {}
    for model in (DREAM, LLADA):
        for task in TWO:
            for method, settings in RUNS:
                steps = fake_records.LENGTH[task] * (1 if method == "full" else rng.uniform(0.1, 0.6))
                rows = fake_records.rows(task, "test", rng, N, rng.uniform(0.55, 0.85), steps)
                out |= dict([fake_records.of(Point.of(model, task, method, **settings), rows)])
    return out


@pytest.fixture(scope="module")
def shown(records, tmp_path_factory):
    """Both models, two tasks: the namespace of the notebook, and what its cells gave."""
    folder = tmp_path_factory.mktemp("pareto")
    store = fake_records.write(folder / "store", records)
    return cells.run("03_pareto", store=str(store), tasks=TWO, out=str(folder))


def raw(records, task: str, **of) -> pd.DataFrame:
    """The rows of a made-up run of the first model, in the order of their documents as text."""
    for meta, frame in records.values():
        config = meta["config"]
        if (config["model"], config["task"]) == (DREAM, task) and of.items() <= config["method"].items():
            return frame.sort_values("doc_id")
    raise LookupError(of)


NAMED = {FULL: {"name": "full"}, JOT: {"name": "jot", "tau_max": 90}, FIRST: {"name": "klass", "first_kl": "skip"}}


def test_draws_by_a_second_path(records, shown):
    """Plain indices, one set of resamples a task, the same for every method."""
    space, _ = shown
    for entry, of in NAMED.items():
        per_task = []
        for j, task in enumerate(TWO):
            index = np.concatenate(list(stats.bootstrap_indices(N, seed=j)))
            run, full = raw(records, task, **of), raw(records, task, name="full")
            c, s, y = (run[name].to_numpy(float) for name in ("configured_steps", "steps", "score"))
            y0 = full["score"].to_numpy()
            index = np.vstack([np.arange(N), index])  # first the documents as they are
            speed, mean = c[index].sum(1) / s[index].sum(1), (c / s)[index].mean(1)
            per_task.append([speed, mean, y[index].mean(1) / y0[index].mean(1)])
        (a, a2, q), (b, b2, r) = np.array(per_task)
        expected = {"speedup": np.sqrt(a * b), "mean": np.sqrt(a2 * b2), "retention": 50 * (q + r)}
        for name, made in zip(expected, (space["speed"], space["mean"], space["retention"]), strict=True):
            assert made.loc[DREAM, entry].to_numpy() == pytest.approx(expected[name])
            low, high = np.quantile(expected[name][1:], [0.025, 0.975])
            row = space["points"].loc[(DREAM, entry)]
            assert [row[name], row[f"{name}_low"], row[f"{name}_high"]] == pytest.approx([expected[name][0], low, high])


def test_tasks_are_resampled_apart(shown):
    draws = np.log(shown[0]["speeds"].xs((DREAM, JOT), level=("model", "entry")).to_numpy())
    assert abs(np.corrcoef(draws)[0, 1]) < 0.05
    kept = [shown[0]["by_task"].loc[(DREAM, TWO[0], "retention", entry)] for entry in (JOT, FIRST)]
    assert np.corrcoef(kept)[0, 1] > 0.1  # of one task the same for every method


def test_frontier_by_brute_force(shown):
    on_frontier, rng = shown[0]["on_frontier"], np.random.default_rng(2)
    speed, quality = rng.integers(1, 5, (6, 50)), rng.integers(1, 5, (6, 50))
    on = on_frontier(speed, quality)
    for k in range(50):
        points = list(zip(speed[:, k], quality[:, k], strict=True))
        for i, (x, y) in enumerate(points):
            beaten = any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
            assert on[i, k] == (not beaten)
    assert on_frontier(np.array([[2], [2], [1]]), np.array([[5], [5], [5]]))[:, 0].tolist() == [True, True, False]


def test_shares_of_draws(shown):
    space, gave = shown
    points, five = space["points"].loc[DREAM], list(space["FIVE"].values())
    speed, kept = (space[k].loc[DREAM].loc[five].to_numpy() for k in ("speed", "retention"))
    assert points.loc[five, "frontier"].tolist() == pytest.approx(
        (100 * space["on_frontier"](speed, kept)[:, 1:].mean(1)).tolist()
    )
    assert points["fastest"].sum() == pytest.approx(100) and points.loc[FIRST, ["frontier", "fastest"]].isna().all()
    assert "JoT, τ = 90" not in points.index and "JoT, τ = 60" in points.index  # the default stands once
    row = space["compared"].set_index(["model", "entry"]).loc[(DREAM, "Prophet")]
    i, j = five.index(JOT), five.index("Prophet")
    assert row["ratio"] == pytest.approx(speed[i, 0] / speed[j, 0])
    assert row["gap"] == pytest.approx(kept[i, 0] - kept[j, 0])
    better = (speed[i, 1:] > speed[j, 1:]) & (kept[i, 1:] > kept[j, 1:])
    assert row["better"] == pytest.approx(100 * better.mean())
    assert "mean of ratios" in gave["points"][0].frame["Geometric-mean speedup, ×"].iloc[1]


def test_leaving_out_a_task(shown):
    left = shown[0]["left"].set_index(["model", "entry", "without"])["speedup"]
    by_task = shown[0]["speeds"][0]
    assert left[DREAM, "KLASS", "Without pocket_gsm8k"] == pytest.approx(by_task[DREAM, "pocket_mmlu", "KLASS"])
    both = by_task.xs((DREAM, "KLASS"), level=("model", "entry"))
    assert left[DREAM, "KLASS", "All tasks, ×"] == pytest.approx(np.sqrt(both.prod()))
    assert FULL not in left.index.get_level_values("entry")


def test_incomplete_methods_are_left_out_and_named(records, tmp_path):
    gone = {"klass": "pocket_gsm8k"}
    some = {k: v for k, v in records.items() if not (
        v.meta["config"]["model"] == DREAM and gone.get(v.meta["config"]["method"]["name"]) == v.meta["config"]["task"]
        and not v.meta["config"]["method"].get("first_kl") == "skip")}  # fmt: skip
    store = fake_records.write(tmp_path / "store", some)
    space, gave = cells.run("03_pareto", store=str(store), tasks=TWO, out=str(tmp_path))
    assert (DREAM, "KLASS") not in space["whole"] and (DREAM, FIRST) in space["whole"]
    told = repr(gave["verdict"][0])
    assert f"{DREAM}: KLASS (no pocket_gsm8k)" in told and "of the 4 methods" in told and "of the 5 methods" in told
    for cell in ("points", "against-table", "left"):
        caption = gave[cell][-1].caption
        assert "KLASS (no pocket_gsm8k)" in caption and f"n = {N} pocket_gsm8k" in caption
        assert "5 M parameters" in caption
    assert "does not hold" in repr(gave["checks"][-1])  # fewer documents than planned
    assert "not recorded" in set(gave["points"][-1].frame["Without the tail, ×"])


def test_what_cannot_be_shown_is_one_sentence(records, tmp_path):
    some = {k: v for k, v in records.items() if v.meta["config"]["method"]["name"] != "full"}
    store = fake_records.write(tmp_path / "store", some)
    with pytest.raises(NotebookError, match="no model has full decoding of every task"):
        cells.run("03_pareto", until="load", store=str(store), tasks=TWO)
    with pytest.raises(NotebookError, match="unknown value 'calibrated'"):
        cells.run("03_pareto", until="load", methods="full,calibrated")


def test_without_jot(records, tmp_path):
    store = fake_records.write(tmp_path / "store", records)
    few = {"models": LLADA, "methods": "full,prophet", "tasks": TWO[:1], "limit": 7}
    space, gave = cells.run("03_pareto", store=str(store), out=str(tmp_path), **few)
    assert space["points"].loc[LLADA].index.tolist() == [FULL, "Prophet"]
    assert "add jot to the methods" in repr(gave["verdict"][0]) and "n = 7 pocket_gsm8k" in gave["points"][-1].caption
    assert "not among" in repr(gave["against-table"][-1])


def test_without_the_tail(records, tmp_path):
    """Both sides ended at the end of text: 40 steps of full decoding over 10, and over 20 in half of the documents."""
    ended = {}
    for task in TWO:
        length = fake_records.LENGTH[task]
        for method, steps in (("full", np.full(N, 40)), ("jot", np.repeat([10, 20], N // 2))):
            _, (meta, rows) = fake_records.scored(Point.of(DREAM, task, method), [1.0] * N, length)
            config = {**meta["config"], "decode": {**meta["config"]["decode"], "stop_at_eos": True}}
            made = Cell(config)
            ended[made.id] = ({**meta, "cell": made.id, "config": config}, rows.assign(steps=steps, cell=made.key))
    store = fake_records.write(tmp_path / "store", {**records, **ended})
    space, gave = cells.run("03_pareto", store=str(store), until="points", tasks=TWO)
    row = space["points"].loc[(DREAM, JOT)]
    assert row["tail_speedup"] == pytest.approx(40 / 15) and row["tail_mean"] == pytest.approx(3)
    assert row["tail_speedup_low"] < 40 / 15 < row["tail_speedup_high"]
    column = gave["points"][-1].frame.set_index(["Model", "Method"])["Without the tail, ×"]
    assert column[DREAM, JOT].startswith("2.67") and column[LLADA, JOT] == "not recorded"


def test_the_papers_points(shown):
    at = shown[0]["published"].set_index(["model", "method"])
    dream = at.loc["Dream-7B"].loc[["jot", "prophet", "klass", "fastdllm"]]
    assert dream["speedup"].round(2).tolist() == [4.43, 2.89, 2.20, 2.86]
    assert dream["retention"].round(1).tolist() == [98.3, 91.9, 99.9, 94.7]
    assert round(at.loc[("Dream-7B", "jot"), "Without humaneval"], 2) == 2.70
    assert at.loc[("LLaDA-8B", "fastdllm"), "on"] and not at.loc[("LLaDA-8B", "prophet"), "on"]


def test_aggregate_coverage_by_simulation(shown):
    """Geometric mean of four speedups and mean of four score ratios, tasks resampled apart, as in Figure 1."""
    steps, full, kept, n = [10, 2, 3, 20], [0.8, 0.7, 0.7, 0.6], [0.78, 0.66, 0.7, 0.58], 150
    tasks, rng, inside = list("abcd"), np.random.default_rng(5), {"speed": [], "retention": []}
    space = dict(shown[0])
    space["p"] = SimpleNamespace(tasks=tasks)
    space["stats"] = SimpleNamespace(bootstrap_sums=lambda rows, seed: stats.bootstrap_sums(rows, 600, seed))
    scope = {name: _in(space, shown[0][name]) for name in ("drawn", "geometric")}
    truth = {"speed": 30 / np.prod(steps) ** 0.25, "retention": 100 * np.mean(np.divide(kept, full))}
    space["whole"] = pd.MultiIndex.from_tuples([("m", FULL), ("m", JOT)], names=["model", "entry"])
    for _ in range(120):
        parts = []
        for j, task in enumerate(tasks):
            hard, taken = rng.random(n), np.clip(rng.poisson(steps[j] - 1, n) + 1, 1, None)
            for entry, used, share in ((FULL, np.full(n, 30), full[j]), (JOT, taken, kept[j])):
                of = {"model": "m", "task": task, "entry": entry, "doc_id": np.arange(n), "configured_steps": 30.0}
                parts.append(pd.DataFrame({**of, "steps": used, "score": hard < share}))
        rows = pd.concat(parts).astype({"score": float}).assign(ratio=lambda x: x["configured_steps"] / x["steps"])
        draws = rows.groupby(["model", "task"]).apply(scope["drawn"], include_groups=False)
        speed = scope["geometric"](draws.xs("speedup", level="measure")).loc["m", JOT]
        quality = draws.xs("retention", level="measure").groupby(level="entry").mean().loc[JOT]
        for name, made in (("speed", speed), ("retention", quality)):
            low, high = np.quantile(made[1:], [0.025, 0.975])
            inside[name].append(low <= truth[name] <= high)
    assert all(0.88 < np.mean(held) < 0.995 for held in inside.values()), {k: np.mean(v) for k, v in inside.items()}


def _in(space: dict, function):
    """A notebook's function with other names around it."""
    return type(function)(function.__code__, space, function.__name__)
