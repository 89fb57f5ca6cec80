"""Notebook 01 on made-up and on recorded runs: every interval by a second path, the rules of choice, parts missing."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path

import cells
import fake_records
import numpy as np
import pandas as pd
import pytest
from fake_records import changed
from scipy import optimize, stats
from test_frozen import Rows
from tokenizers import Tokenizer

from jot.errors import UserError
from jot.paper import criteria, show
from jot.records.pack import pack
from jot.runs import grid
from jot.runs.frames import runs, samples
from jot.runs.grid import Point

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "data" / "records"
NAME = "01_main_results"
Z = stats.norm.isf(0.025)
N = 120
GREEDY = {"block_length": 32, "temperature": 0.0, "ranking": "confidence"}
GAP = 0.1 * math.log(9)  # nats: the edge of the nucleus of 0.9 at temperature 0.1
recorded = pytest.mark.skipif(not (RECORDS / "manifest.json").is_file(), reason="no recorded runs")


def default(found: dict, method: str) -> str:
    """The id of the run of pocket-dream on gsm8k at its defaults."""
    for name, run in found.items():
        config = run.meta["config"]
        key = config["model"], config["task"], config["split"], config["method"]["name"], config["seed"]
        if key == ("pocket-dream", "pocket_gsm8k", "test", method, 0) and config["method"].get("tau_max") in (None, 90):
            return name
    raise KeyError(method)


def baselines() -> dict:
    """Baselines and variants of the grid, two other draws, one other training seed."""
    rng, made = np.random.default_rng(1), []
    names = ("prophet", "klass", "fastdllm", "prophet-answer", "klass-ported", "fastdllm-nocache")
    for point in grid.read(ROOT / "notebooks" / "grids" / "main.yaml"):
        if point.name in names:
            i, length = names.index(point.name), fake_records.LENGTH[point.task]
            made.append((point, 0.8 - 0.05 * i, length * (0.2 + 0.1 * i)))
    for model, task, method in itertools.product(criteria.MODELS, criteria.TASKS, ("full", "jot")):
        steps = fake_records.LENGTH[task] * (1 if method == "full" else 0.3)
        made += [(Point.of(model, task, method, seed=seed), 0.8, steps) for seed in (1, 2, 3)]
    found = [fake_records.of(point, fake_records.rows(point.task, "test", rng, N, share, steps))
             for point, share, steps in made]  # fmt: skip
    third = [(point.model, run) for (point, *_), (_, run) in zip(made, found, strict=True) if point.seed == 3]
    trained = [changed(run, model=f"{model}-seed1", fingerprint=f"{model}-seed1", seed=0) for model, run in third]
    return dict(found + trained)


def everything() -> dict:
    """Table 1 with its grid and seeds; beside them other orders, runs that stop, and the confirm split, in part."""
    found, rng = fake_records.records(N) | baselines(), np.random.default_rng(3)
    for model, task in itertools.product(("pocket-dream", "pocket-llada"), ("pocket_gsm8k", "pocket_humaneval")):
        for method in ("full", "jot"):
            rows = fake_records.rows(task, "confirm", rng, N, 0.8, 128 if method == "full" else 9)
            found |= [fake_records.cell(model, task, method, rows, split="confirm")]
    at = {"model": "pocket-dream", "task": "pocket_gsm8k"}
    for method in ("full", "jot"):  # every third answer without its last line; ended early, with the same scores
        meta, frame = found[name := default(found, method)]
        frame = frame.assign(text=["#### 1" if i % 3 else "so 1" for i in range(N)])
        found[name] = type(found[name])(meta, lambda frame=frame: frame)
        fewer = frame.assign(steps=np.maximum(1, frame["steps"] // 4))
        found |= [fake_records.of(Point.of(**at, method=method, stop_at_eos=True), fewer)]
        if method == "full":  # other draws that change nothing
            found |= [fake_records.of(Point.of(**at, method="full", seed=seed), frame) for seed in (1, 2)]
    found |= [fake_records.of(Point.of(**at, method="full", **GREEDY), frame.assign(text="#### 1"))]
    return found


def traced(found: dict, margin: float) -> dict:
    frame = found[default(found, "full")].frame.iloc[:20]
    traces = [{"step": [0, 1, 2], "margin": [9.0, margin, 5.0]}] * 20
    return dict([fake_records.of(Point.of("pocket-dream", "pocket_gsm8k", "full"), frame.assign(trace=traces))])


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    found, folder = everything(), tmp_path_factory.mktemp("fake")
    pack(fake_records.write(folder / "live", found), folder / "packed")
    fake_records.write(folder / "packed" / "traces", traced(found, GAP + 0.01))
    return folder / "packed"


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory) -> tuple[dict, dict]:
    return cells.run(NAME, store=store, out=tmp_path_factory.mktemp("figures"))


def texts(gave: dict, cell: str) -> pd.DataFrame:
    return gave[cell][-1].frame


# --- a second path to every interval ------------------------------------------------------------------------


def test_scores_and_speedups_from_raw_rows(whole):
    """Wilson's limits as the roots of their defining equation; resamples drawn as plain indices with numpy."""
    space, _ = whole
    drawn = np.random.default_rng(0)
    indices = np.concatenate([drawn.integers(N, size=(256, N)) for _ in range(39)] + [drawn.integers(N, size=(16, N))])
    assert len(space["main"]) == 2 * (4 * 7 + 1) + space["main"]["name"].eq("calibrated").sum()
    for row in space["main"].to_dict("records"):
        run = space["at"][row["cell"]]
        p, steps, configured = run["score"].mean(), run["steps"].to_numpy(), run["configured_steps"].to_numpy()
        roots = sorted(np.roots([1 + Z**2 / N, -(2 * p + Z**2 / N), p * p]).real)
        assert [row["score"], row["score_low"], row["score_high"]] == pytest.approx([100 * x for x in (p, *roots)])
        assert row["mean_ratio"] == pytest.approx((configured / steps).mean())
        if row["name"] in ("jot", "klass"):
            draws = configured[indices].sum(1) / steps[indices].sum(1)
            expected = [configured.sum() / steps.sum(), *np.quantile(draws, [0.025, 0.975])]
            assert [row["speedup"], row["speedup_low"], row["speedup_high"]] == pytest.approx(expected)


def tango_statistic(delta: float, b: int, c: int, n: int) -> float:
    """With the nuisance maximized numerically, not by its closed form."""

    def loss(q: float) -> float:
        parts = [(b, q + delta), (c, q), (n - b - c, 1 - 2 * q - delta)]
        return -sum(k * math.log(max(p, 1e-300)) for k, p in parts if k)

    bounds = max(0, -delta), (1 - delta) / 2
    q = optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-10}).x
    return (b - c - n * delta) / math.sqrt(n * (2 * q + delta - delta**2))


def test_pairs_from_raw_rows(whole):
    space, _ = whole
    for frame in (space["pairs"], space["others"].head(6)):
        for row in frame.to_dict("records"):
            gap = (space["at"][row["cell"]]["score"] - space["at"][row["base"]]["score"].to_numpy()).to_numpy()
            b, c = int((gap > 0).sum()), int((gap < 0).sum())
            assert (row["b"], row["c"], row["n"]) == (b, c, N) and row["difference"] == pytest.approx(100 * (b - c) / N)
            assert row["p"] == pytest.approx(stats.binomtest(b, b + c).pvalue if b + c else 1)
            assert tango_statistic(row["low"] / 100, b, c, N) == pytest.approx(Z, abs=1e-3)
            assert tango_statistic(row["high"] / 100, b, c, N) == pytest.approx(-Z, abs=1e-3)


def by_hand(p: pd.Series) -> np.ndarray:
    order = p.sort_values()
    return pd.Series(np.minimum(1, np.maximum.accumulate(order * np.arange(len(p), 0, -1))), order.index)[p.index]


def test_holm_covers_its_family_alone(whole):
    space, _ = whole
    default = space["pairs"][space["pairs"]["name"] == "jot"]
    assert len(default) == 8 and default["holm"].to_numpy() == pytest.approx(by_hand(default["p"]).to_numpy())
    assert space["pairs"][space["pairs"]["name"] != "jot"]["holm"].isna().all()
    for _, group in space["others"].groupby("model"):
        assert len(group) == 12 and group["holm"].to_numpy() == pytest.approx(by_hand(group["p"]).to_numpy())
    fresh = space["fresh"]
    own = fresh[(fresh["name"] == "jot") & (fresh["base_name"] == "full")]
    assert len(own) == 4 and own["holm"].to_numpy() == pytest.approx(by_hand(own["p"]).to_numpy())
    assert fresh.drop(own.index)["holm"].isna().all()


def test_pooled_seeds_by_hand(whole):
    """Three made-up seeds of four documents: the mean of documents' means, and t with two degrees of freedom."""
    space, _ = whole
    scores = {"a": [1, 1, 0, 1], "b": [1, 0, 0, 1], "c": [0, 1, 1, 1], "full": [0, 1, 0, 1]}
    space["at"].update({name: pd.DataFrame({"score": np.array(x, float)}) for name, x in scores.items()})
    group = pd.DataFrame({"cell": list("abc"), "base": "full", "difference": 0.0, "low": 0.0, "high": 0.0})
    found = space["pool"](group)
    of_runs = [25, 0, 25]  # points
    assert found["difference"] == pytest.approx(50 / 3) == found["run_difference"]
    half = stats.t.ppf(0.975, 2) * np.std(of_runs, ddof=1) / math.sqrt(3)
    assert found["run_high"] - found["run_difference"] == pytest.approx(half)
    assert (found["differ"], found["n"]) == (3, 4)
    for name in scores:
        del space["at"][name]


# --- rules --------------------------------------------------------------------------------------------------


def test_the_calibrated_threshold_is_the_smallest_that_passes(whole, store):
    space, _ = whole
    found = runs(store, split="dev", setting=["", *(f"tau_max={tau}" for tau in space["TAUS"])])
    for (model, task), group in found.groupby(["model", "task"]):
        read = samples(group, store, ["score"]).pivot(index="doc_id", columns=["method", "tau"], values="score")
        full, jot = read["full"].iloc[:, 0], read["jot"]
        lows = {tau: space["compare"](*(pd.DataFrame({"doc_id": read.index, "score": x.to_numpy()})
                                        for x in (jot[tau], full)))["low"] for tau in jot}  # fmt: skip
        passed = min((tau for tau, low in lows.items() if low > -3), default=np.nan)
        assert space["chosen"][model, task, "dev"] == pytest.approx(passed, nan_ok=True)


def test_marks_go_to_methods_that_keep_the_answers_and_are_told_apart(whole):
    space, _ = whole
    at = {}
    for name, right in (("full", 500), ("jot", 500), ("klass", 498), ("prophet", 200)):
        at[name] = pd.DataFrame({"doc_id": range(1000), "score": [1.0] * right + [0.0] * (1000 - right)})
    group = pd.DataFrame({"name": list(at), "cell": list(at), "score": [50, 50, 49.8, 20], "speedup": [1, 16, 8, 128]})
    before = space["at"], space["drawn"]  # what the cell reads
    try:
        space["at"], space["drawn"] = at, {name: np.full(10, s) for name, s in group[["name", "speedup"]].to_numpy()}
        assert space["marks"](group, "score") == {}  # two documents between JoT and KLASS
        assert space["marks"](group, "speedup") == {"jot": "**", "klass": "__"}  # not Prophet, which lost the answers
        assert space["marks"](group[group["name"] != "full"], "speedup") == {}  # nothing to have kept them against
        at["klass"]["score"] = at["full"]["score"]
        at["jot"]["score"] = [1.0] * 600 + [0.0] * 400
        assert space["marks"](group.assign(score=[50, 60, 50, 20]), "score") == {"jot": "**"}
    finally:
        space["at"], space["drawn"] = before


def test_ends_at_the_end_of_text(whole):
    """A quarter of the steps under full decoding as well: what was 128 over 4 s steps is 32 over s."""
    space, gave = whole
    row = space["main"].set_index(["model", "task", "name"]).loc[("pocket-dream", "pocket_gsm8k", "jot")]
    run, ended = space["at"][row["cell"]], space["at"][row["stopped"]]
    assert row["stop_speedup"] == pytest.approx(32 * N / ended["steps"].sum())
    assert (
        row["stop_mean_ratio"] == pytest.approx((32 / ended["steps"]).mean())
        and (run["steps"].to_numpy() > ended["steps"].to_numpy()).any()
    )
    table = texts(gave, "table")
    stops = table["pocket_gsm8k", "Both stopped, ×"]
    assert stops[0] == "1.00" and f"{row['stop_speedup']:.2f}" in stops[4] and stops[1] == "not recorded"
    assert texts(gave, "checks")["Over"].iloc[-1] == "2 cells" and texts(gave, "checks")[""].iloc[-1] == "holds"


def test_only_a_number_after_the_marks_counts_strictly(whole):
    space, gave = whole
    row = space["strict"].iloc[0]
    for kind in ("cell", "base"):
        run, hard = space["at"][row[kind]], space["strictly"][row[kind]]
        last_lines = np.array([int(doc.rpartition("/")[2]) % 3 > 0 for doc in run["doc_id"]])
        if kind == "cell" or row["base_name"] == "full":
            assert hard["score"].to_numpy() == pytest.approx(run["score"].to_numpy() * last_lines)
    assert list(texts(gave, "strict-table")["Model"]) == ["pocket-dream", "pocket-dream", "pocket-llada"]


def test_no_choice_is_said_in_place_of_an_interval(whole):
    space, gave = whole
    table = texts(gave, "noise")
    assert len(table) == 4 * 6 and set(table["Model"]) == {"pocket-dream"}
    told = table[table["Difference, points"] == "degenerate: no draw had a choice"]
    assert list(told["Task"]) == ["pocket_gsm8k"] * 3 and "itself" in told["Compared"].iloc[0]
    assert f"smallest margin {GAP + 0.01:.4f} against 0.2197 in 20 traced documents" in gave["noise"][-1].caption
    other = space["floor"][space["floor"]["task"] == "pocket_mmlu"].iloc[0]
    assert other["outcomes"] < 100 and other["outcomes_low"] < other["outcomes"] < other["outcomes_high"]


# --- the page -----------------------------------------------------------------------------------------------


def test_every_table_says_tier_n_and_method(whole):
    _, gave = whole
    shown = {name: found[-1] for name, found in gave.items() if found and isinstance(found[-1], show.Table)}
    assert len(shown) >= 17 and all(table._repr_html_() and table.caption for table in shown.values())
    for name in ("confirm-table", "table", "paired", "matched", "strict-table", "secondary", "split-table", "training",
                 "noise"):  # fmt: skip
        assert "mbedded tier, 5 M parameters" in shown[name].caption and f"n = {N} pocket_gsm8k" in shown[name].caption
    assert "Wilson" in shown["table"].caption and "bootstrap" in shown["table"].caption
    assert "Tango" in shown["paired"].caption and "19.60" in repr(shown["table"])
    assert "T = 0.1" in repr(shown["matched"]) and "no cache" in repr(shown["paired"])
    assert len(shown["split-table"].whole) == 2 * (4 * 7 + 1) + shown["split-table"].whole["Method"].str.contains(
        "calibrated"
    ).sum() > len(shown["split-table"].frame) == 2 * 4 * 2  # fmt: skip


def test_verdict_states_the_plan_s_claims_and_what_can_inform(whole):
    _, gave = whole
    text = gave["verdict"][0].text
    assert "of 8 comparisons" in text and "can inform" in text and f"n = {N} pocket_gsm8k" in text
    assert len(re.findall(r"\*\*(?:seen|not seen|undecided)\*\*", text)) == 4
    assert "Confirm split, Holm over 4" in text and "Both sides stopped" in text and "new training run" not in text


def test_claims_follow_the_plan():
    pairs = pd.DataFrame(itertools.product(criteria.MODELS, criteria.TASKS), columns=["model", "task"])
    pairs = pairs.assign(b=3, c=1, speedup_low=1.2, speedup_high=1.4)
    harm = {model: {"p": 0.001, "difference": -9.0} for model in criteria.MODELS}

    def status(verdicts, control=harm, **columns):
        return criteria.main_claims(pairs.assign(verdict=verdicts, **columns), control)["status"].to_list()

    good, bad, open_ = "worse within the margin", "inferior beyond the margin", "worse, margin undecided"
    assert status([good] * 5 + [bad] * 3)[0] == status(["better"] * 5 + [open_] * 3)[0] == "seen"
    assert status([good] * 4 + [bad] * 4)[0] == "not seen"
    assert status([good] * 4 + [bad] * 3 + [open_])[0] == "undecided"
    assert status([good] * 8)[1:3] == ["seen", "undecided"]
    assert status([good] * 8, speedup_low=0.9, speedup_high=1.04)[1] == "not seen"
    long = pairs["task"].isin(criteria.LONG)
    apart = {"speedup_low": np.where(long, 3, 1.2), "speedup_high": np.where(long, 4, 1.4)}
    turned = {"speedup_low": np.where(long, 1.1, 3), "speedup_high": np.where(long, 1.2, 4)}
    assert status([good] * 8, **apart)[2] == "seen" and status([good] * 8, **turned)[2] == "not seen"
    mild = {model: {"p": 0.2, "difference": -1.0} for model in criteria.MODELS}
    assert [status([good] * 8, control)[3] for control in (harm, mild, {}, dict([*harm.items()][:1]))] == [
        "seen", "not seen", "not shown", "not shown"]  # fmt: skip
    few = criteria.main_claims(pairs.head(3).assign(verdict=good, c=[1, 0, 0], b=[3, 0, 0]), harm)
    assert list(few["status"]) == ["not shown"] * 3 + ["seen"]
    assert few["detail"].iloc[0] == "3 of 3 lose less, 0 more, by interval; 1 can inform, 1 of these lose less"


def evidence(folder: Path, made: list[tuple]) -> criteria.Evidence:
    return criteria.Evidence(fake_records.write(folder / f"{len(list(folder.iterdir()))}", dict(made)))


def scores(right: int, n: int = 400, offset: int = 0) -> list[float]:
    return [float(offset <= i < offset + right) for i in range(n)]


def test_criteria_of_the_main_table(tmp_path):
    """Each word of each criterion, from runs of which all but the number of right answers and the steps is the same."""

    def run(method: str, right: int, model="pocket-dream", task="pocket_gsm8k", steps=None, offset=0, **settings):
        return fake_records.scored(Point.of(model, task, method, **settings), scores(right, offset=offset), steps)

    def word(name: str, *made: tuple) -> str:
        return criteria.judge(evidence(tmp_path, list(made)), [name])["status"].iloc[0]

    jot, full = run("jot", 320), run("full", 320)
    for right, told in ((200, "seen"), (319, "undecided"), (360, "not seen")):
        assert word("prophet-loses", jot, run("prophet", right)) == told
        blocks = run("full", right, **GREEDY)
        assert word("headline-matched", jot, blocks) == told
    assert word("prophet-loses", jot) == word("headline-matched", jot, full) == "not shown"
    for right, steps, told in ((319, 64, "seen"), (319, 16, "undecided"), (319, 4, "not seen"), (200, 64, "not seen")):
        assert word("klass-slow", jot, full, run("klass", right, steps=steps)) == told
    assert word("klass-slow", jot, full) == word("klass-slow", full, run("klass", 200, steps=64)) == "not shown"
    swag = {"task": "pocket_hellaswag"}
    for right, told in ((200, "seen"), (320, "not seen"), (308, "undecided")):
        assert word("fastdllm-hellaswag", run("full", 320, **swag), run("fastdllm", right, **swag)) == told
        low = run("jot", right, "pocket-llada", tau_max=10)
        assert word("llada-low", run("full", 320, "pocket-llada"), low) == told
    choices = itertools.product(criteria.MODELS, criteria.TASKS[1:3], (10, 150))
    flat = [run("jot", 300, model, task, tau_max=tau) for model, task, tau in choices]
    assert word("choice-flat", *flat) == "seen" and word("choice-flat", *flat[1:]) == "not shown"
    assert word("choice-flat", *flat, run("jot", 200, "pocket-llada", "pocket_mmlu", tau_max=10)) == "not seen"
    for shift, told in ((40, "seen"), (0, "not seen"), (4, "undecided")):
        assert word("two-sided", full, run("jot", 320, offset=shift)) == told


def test_criteria_of_the_confirm_split(tmp_path):
    def run(model, task, method, right, steps=16, **params):
        _, made = fake_records.scored(Point.of(model, task, method, **params), scores(right), steps)
        return changed(made, split="confirm")

    def four(right: int, steps: int = 16, base: int = 320) -> list[tuple]:
        keys = itertools.product(criteria.MODELS, criteria.LONG)
        return [
            made for m, t in keys for end in ({}, {"stop_at_eos": True})
            for made in (run(m, t, "full", base, 128, **end), run(m, t, "jot", right, steps, **end))
        ]  # fmt: skip

    def words(*names: str, made: list[tuple]) -> list[str]:
        ids = [f"confirm-{name}" for name in names]
        return list(criteria.judge(evidence(tmp_path, made), ids)["status"])

    assert words("score", "tail", made=four(320)) == ["seen", "seen"]
    assert words("score", "tail", made=four(200, steps=64)) == ["not seen", "not seen"]
    assert words("score", "tail", "matched", "gain", "cache", "calibrated", "spatial", made=four(320)[:-1]) == [
        "seen", "not shown", "not shown", "not shown", "not shown", "not shown", "not shown"]  # fmt: skip
    lost = four(320)
    plain = [run(m, t, "jot", 300, spatial=False, tau_max=60 if "dream" in m else 18)
             for m, t in itertools.product(criteria.MODELS, criteria.LONG)]  # fmt: skip
    assert words("spatial", made=lost + plain) == ["seen"]
    better = [run("pocket-llada", "pocket_gsm8k", "jot", 340, spatial=False, tau_max=18)]
    assert words("spatial", made=lost + plain + better) == ["not seen"]
    assert words("spatial", made=lost + plain[:3]) == ["not shown"]


# --- parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "verdict"),
    [
        (["jot"], "among these runs: add full to compare"),
        (["full", "jot", "fastdllm-nocache"], "of 1 comparisons"),
    ],
)
def test_few_methods(store, tmp_path, methods, verdict):
    """What is not asked for is not shown, and nothing breaks."""
    space, gave = cells.run(NAME, store=store, out=tmp_path, models=["pocket-llada"], tasks=["pocket_gsm8k"],
                            methods=methods)  # fmt: skip
    assert list(space["main"]["name"]) == methods and verdict in gave["verdict"][0].text
    assert "add full" in gave["paired"][-1].caption.lower() or "full" in methods
    assert (tmp_path / "main_results.png").is_file()


def test_a_partial_store(store, tmp_path):
    """Without a part of the dev grid, a method on one task, a seed, the confirm split; traces that could choose."""
    found = everything()
    lost = ("pocket-dream_pocket-gsm8k_jot_tau60_dev", "pocket-dream_pocket-mmlu_klass_test", "confirm", "seed1")
    thin = {name: run for name, run in found.items() if not any(part in name for part in lost)}
    tasks = ["pocket_gsm8k", "pocket_mmlu"]
    thin = {name: run for name, run in thin.items() if run.meta["config"]["split"] != "confirm"}
    thin = {name: run for name, run in thin.items() if run.meta["config"]["task"] in tasks}
    place = fake_records.write(tmp_path / "store", thin)
    fake_records.write(place / "traces", traced(found, GAP - 0.01))
    _, gave = cells.run(NAME, store=place, out=tmp_path, tasks=tasks)
    assert "grid not recorded" in repr(gave["calibration-table"][-1])
    table = texts(gave, "table")
    klass = table[(table["", "Model"] == "pocket-dream") & (table["", "Method"] == "KLASS")].iloc[0]
    assert klass["pocket_mmlu", "Score, %"] == "not recorded" != klass["pocket_gsm8k", "Score, %"]
    assert set(texts(gave, "confirm-table")["Difference, points"]) == {"not recorded"}
    assert "not recorded" in set(texts(gave, "training")["Difference, points"])
    assert "degenerate" not in repr(gave["noise"][-1])  # a commit close enough for a draw to matter
    assert "Confirm split, not recorded" in gave["verdict"][0].text


def test_live(tmp_path, monkeypatch):
    store = tmp_path / "live"
    _, gave = cells.run(NAME, until="checks", source="live", store=store, out=tmp_path, models=["pocket-llada"],
                        tasks=["pocket_mmlu"], methods=["full", "jot"], limit=2, device="cpu")  # fmt: skip
    table = texts(gave, "table")
    assert list(table["", "Method"])[:2] == ["Full decoding", "JoT (default), τ = 30"]
    assert "not recorded" not in set(table["pocket_mmlu", "Both stopped, ×"])  # what the grid lists is decoded
    found = runs(store)
    assert set(found["n"]) == {2} and set(found["setting"]) == {"", "stop_at_eos=True"} and len(found) == 4
    assert texts(gave, "checks")[""].iloc[-1] == "holds"


def test_mistakes_are_one_sentence(store):
    for wrong, told in [
        ({"methods": ["klas"]}, "unknown value 'klas'; did you mean 'klass'"),
        ({"models": ["pocket-dreem"]}, "did you mean 'pocket-dream'"),
        ({"seed": 5}, "none of these runs is among the records"),
        ({"limit": N + 1}, f"limit={N + 1} is above the {N} recorded documents"),
    ]:
        with pytest.raises(UserError, match=re.escape(told)):
            cells.run(NAME, until="table-one", store=store, **wrong)


# --- as recorded ----------------------------------------------------------------------------------------------


def printed(cell: str) -> list[list[str]]:
    """The rows of a table of the committed notebook."""
    notebook = json.loads((ROOT / "notebooks" / f"{NAME}.ipynb").read_text(encoding="utf-8"))
    outputs = next(c["outputs"] for c in notebook["cells"] if c["id"] == cell)
    return Rows("".join(outputs[-1]["data"]["text/html"])).rows


def written(frame: pd.DataFrame) -> pd.Series:
    """The texts of packed rows; where one is null, the tokenizer of both families makes it of the tokens."""
    words = Tokenizer.from_file(str(ROOT / "data" / "models" / "pocket-llada" / "tokenizer.json"))
    made = words.decode_batch([ids[:n].tolist() for ids, n in frame[["generated", "tokens_non_eos"]].to_numpy()])
    return frame["text"].fillna(pd.Series(made, frame.index))


def raw(model: str, task: str, key: str, *columns: str) -> pd.DataFrame:
    """Rows of a run straight from the file of its family."""
    frame = pd.read_parquet(RECORDS / f"{model[:12]}.{task}.test.parquet", columns=["cell", "doc_id", *columns],
                            filters=[("cell", "==", key)])  # fmt: skip
    return frame.set_index("doc_id").sort_index()


@recorded
def test_pooled_seeds_as_recorded():
    """Two intervals by the normal formula over documents, and t over seeds, from the files alone."""
    found, rows = runs(RECORDS, method=["full", "jot"], setting="", split="test", seed=0), printed("pooled-table")
    expected = {
        ("pocket-dream", "pocket_gsm8k"): ("+3.9", (2.8, 5.1), (-1.0, 8.8)),
        ("pocket-dream", "pocket_humaneval"): ("+0.3", (-1.0, 1.6), (-3.4, 4.0)),
        ("pocket-llada", "pocket_gsm8k"): ("+0.0", (-1.0, 1.0), (-4.4, 4.4)),
        ("pocket-llada", "pocket_humaneval"): ("-3.5", (-4.6, -2.5), (-5.8, -1.3)),
    }
    for (model, task), (value, these, run) in expected.items():
        mine = found[found["model"].str.startswith(model) & (found["task"] == task)]
        score = {(x.model, x.method): raw(model, task, x.cell[-10:], "score")["score"] for x in mine.itertuples()}
        gaps = pd.DataFrame({m: score[m, "jot"] - score[m, "full"] for m in dict.fromkeys(mine["model"])}) * 100
        middle, of_runs = gaps.mean(axis=1), gaps.mean()
        half = Z * middle.std() / math.sqrt(len(gaps)), stats.t.ppf(0.975, 2) * of_runs.std() / math.sqrt(3)
        assert gaps.shape[1] == 3
        assert (middle.mean() - half[0], middle.mean() + half[0]) == pytest.approx(these, abs=0.06)
        assert (middle.mean() - half[1], middle.mean() + half[1]) == pytest.approx(run, abs=0.06)
        row = next(row for row in rows if row[:2] == [model, task])
        numbers = [[float(x) for x in re.findall(r"[-+]\d+\.\d+", cell)] for cell in row[5:]]
        assert row[5].startswith(value) and numbers[0][1:] == pytest.approx(these, abs=0.11)
        assert numbers[1][1:] == pytest.approx(run, abs=0.06)


@recorded
def test_matched_and_strict_as_recorded():
    matched = {(row[1], row[3]): row for row in printed("matched") if len(row) > 3 and row[2].startswith("JoT")}
    assert "+2.1 [+0.4, +3.8]" in matched["pocket_gsm8k", "Full decoding, greedy in blocks"]
    assert "+5.6 [+3.7, +7.5]" in matched["pocket_gsm8k", "Full decoding"]
    found = runs(RECORDS, model="pocket-llada", task="pocket_gsm8k", method=["full", "jot"], setting="", split="test")
    right = {}
    for x in found[found["seed"] == 0].itertuples():
        run = raw("pocket-llada", "pocket_gsm8k", x.cell[-10:], "score", "text", "generated", "tokens_non_eos")
        right[x.method] = (run["score"] > 0.5) & written(run).str.contains(r"####\s*-?\d")
    b, c = int((right["jot"] & ~right["full"]).sum()), int((~right["jot"] & right["full"]).sum())
    row = next(row for row in printed("strict-table") if row[0] == "pocket-llada")
    assert row[-3:-1] == [str(b), str(c)] and row[-4] == "+1.4 [-0.1, +3.0]"
