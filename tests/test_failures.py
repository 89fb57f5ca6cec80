"""Failure modes found in text, and notebook 06 on made-up records whose tables can be told by hand."""

from __future__ import annotations

import json
import re

import cells as notebook
import fake_records
import numpy as np
import pandas as pd
import pytest
from scipy import stats as st

from jot.errors import UserError
from jot.paper import criteria
from jot.records import natural
from jot.runs import frames
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError

TASK = "pocket_gsm8k"
NAME = "06_failure_analysis"
DOC = {
    "id": "pocket_gsm8k/test/0",
    "question": "Ann has 4 boxes of 6 pens. She gives away half of them and buys 5 more. How many has she?",
    "answer": "4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 17. #### 17",
    "final": "17",
    "intermediates": ["24", "12", "17"],
}


@pytest.fixture(scope="module")
def space():
    """The functions of the notebook's cells."""
    found, _ = notebook.run(NAME, until="labels", limit=30)
    return found


# --- modes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4 * 6 = 24. 24 * 2 = 48. 48 + 5 = 53. #### 53", "branch"),  # one wrong operator, consistent
        ("4 * 6 = 26. 26 / 2 = 13. 13 + 5 = 18. #### 18", "branch"),  # one wrong value, consistent
        ("4 * 6 = 24. 24 / 2 = 12. #### 12", "anchor"),
        ("4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 18. #### 24", "anchor"),
        ("4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 17. 17 + 5 = 22. #### 22", "overrun"),
        ("4 * 6 = 17. 17 / 2 = 9. 9 + 5 = 14. #### 14", "other"),  # 17 stands too early to be the right result
        ("4 * 6 = 25. 26 / 2 = 19. #### 3", "other"),
        ("4 * 6 = 24. 24 / 2 = 12. 12 + 9 = 21. 21 + 5 = 25. #### 25", "other"),
        ("", "other"),
        ("#### ", "other"),
        ("5 / 0 = 0. #### 0", "other"),
    ],
)
def test_mode(space, text, expected):
    assert space["mode_of"](text, DOC) == expected


def test_faults_are_counted_one_by_one(space):
    _, *solution = space["worked"](DOC)
    count = lambda text, answer: space["faults"](space["chain"](text), answer, *solution)  # noqa: E731
    assert count("4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 17.", 17) == 0
    assert count("4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 18.", 18) == 1  # does not hold
    assert count("4 * 6 = 24. 24 / 2 = 12. 13 + 5 = 18.", 18) == 1  # 13 is from nowhere
    assert count("4 * 6 = 24. 24 / 2 = 12.", 12) == 1  # a step is missing
    assert count("4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 17.", 7) == 1  # answer is not the last result
    assert count("", None) == 4


def test_worked_solutions_of_the_real_benchmark(space):
    doc = {"question": "Natalia sold 48 clips.", "answer": "She sold 48/2 = <<48/2=24>>24 clips.\n#### 1,072"}
    final, values, given = space["worked"](doc)
    assert (final, values) == (1072, [24]) and 48 in given


def test_documents_of_the_real_benchmark_have_the_ids_of_its_records(space, tmp_path):
    doc = {"question": "Natalia sold 48 clips.", "answer": "She sold 48/2 = <<48/2=24>>24 clips.\n#### 1,072"}
    (tmp_path / "test.jsonl").write_text(json.dumps(doc))
    found = space["documents"]("gsm8k", tmp_path)
    assert found == {"gsm8k/test/0": {**doc, "id": "gsm8k/test/0", "final": "1072"}}


def test_find_marks_right_answers(space):
    frame = pd.DataFrame({"text": ["#### 12", "x"], "score": [0.0, 1.0]}, index=["a", "b"])
    assert space["find"](frame, {"a": DOC, "b": DOC}).to_dict() == {"a": "anchor", "b": "right"}


def test_documents_are_refused_in_a_sentence(space):
    with pytest.raises(NotebookError, match="no worked solutions"):
        space["documents"]("pocket_mmlu")
    with pytest.raises(NotebookError, match="documents of gsm8k are needed"):
        space["documents"]("gsm8k")


# How many wrong outputs were drawn for labelling, per model: full decoding, JoT at its default, JoT at a third of it.
LABELLED = {
    "pocket-dream": ((None, 8), (90, 9), (30, 8)),
    "pocket-llada": ((None, 8), (30, 9), (10, 8)),
}


def drawn(traced: pd.DataFrame) -> list[tuple[str, str, float | None]]:
    """The outputs that were labelled: wrong traced outputs, drawn without repeating a document of a model; each as
    document, model, and tau_max or None for full decoding."""
    draw, found = np.random.default_rng(0), []
    for model, groups in LABELLED.items():
        taken: set[str] = set()
        for tau, size in groups:
            run = traced[(traced["model"] == model) & (traced["method"] == ("full" if tau is None else "jot"))]
            run = run if tau is None else run[run["tau"] == tau]
            ids = sorted(set(run.loc[run["score"] < 0.5, "doc_id"]) - taken, key=natural)
            picked = [ids[i] for i in sorted(draw.choice(len(ids), size=size, replace=False))]
            taken |= set(picked)
            found += [(doc_id, model, None if tau is None else float(tau)) for doc_id in picked]
    return found


def test_labels_are_complete(space):
    """Fifty outputs, known modes, and of every text the finder can say something."""
    frame, modes = space["labels"], set(space["MEANING"])
    sizes = {model: sum(size for _, size in groups) for model, groups in LABELLED.items()}
    assert frame["model"].value_counts().to_dict() == sizes and sum(sizes.values()) == 50
    assert set(frame["label"]) <= modes and (frame["note"].str.len() > 0).all()
    assert not frame.duplicated(["doc_id", "model"]).any()
    assert (frame["tau"].isna() == (frame["method"] == "full")).all()
    assert set(frame["found"]) <= modes


def test_labels_are_the_fixed_sample(root, space):
    folder = root / "data" / "records" / "traces"
    if not folder.is_dir():
        pytest.skip("no traced runs")
    frame = space["labels"]
    traced = frames.samples(frames.runs(folder, task=TASK).query("rest == ''"), folder, ["score"])
    assert [(r.doc_id, r.model, None if np.isnan(r.tau) else r.tau) for r in frame.itertuples()] == drawn(traced)


# --- the notebook on made-up records ------------------------------------------------------------------------

RULES = {"full": [1, 1, 1], "jot": [2, 3, 1]}


def rows(scores, steps, tokens=None, **columns) -> pd.DataFrame:
    """Made-up samples of the first documents of the split; an answer is its score."""
    frame = fake_records.rows(TASK, "test", np.random.default_rng(0), len(scores), 0.5, 5)
    answers = ["1" if score else "2" for score in scores]
    tokens = tokens if tokens is not None else [[1, 2, 3]] * len(scores)
    made = {"score": np.asarray(scores, float), "steps": steps, "answer": answers, "generated": tokens}
    return frame.assign(tokens_non_eos=3, **made | columns)


def traced(frame: pd.DataFrame, rules: list, margin: float = 5.0, threshold: float | None = 4.0) -> pd.DataFrame:
    """With a trace: position i committed in step i, the mean margin of the first step growing by document."""
    traces = [
        {"step": [0, 1, 2], "rule": rules, "margin": [margin] * 3, "threshold": [threshold] * 3,
         "mean_margin": [float(i), 2.0, 1.0], "masked": [3, 2, 1]}
        for i in range(len(frame))
    ]  # fmt: skip
    return frame.assign(trace=traces)


def store(folder, full: pd.DataFrame, jot: dict, model: str = "pocket-dream", traces: dict | None = None, **more):
    """A store of full decoding, JoT by threshold, and further full decodings by seed; traced twins beside it."""

    def cells(full, jot):
        found = [fake_records.of(Point.of(model, TASK, "full"), full)]
        return dict(found + [fake_records.of(Point.of(model, TASK, "jot", tau_max=t), f) for t, f in jot.items()])

    made = cells(full, jot)
    made |= dict(fake_records.of(Point.of(model, TASK, "full", seed=s), f) for s, f in more.get("seeds", {}).items())
    fake_records.write(folder, made)
    if traces:
        fake_records.write(folder / "traces", cells(traces["full"], {t: f for t, f in traces.items() if t != "full"}))
    return folder


def shown(gave: dict, name: str) -> pd.DataFrame:
    return gave[name][-1].frame


def test_tables_by_hand(tmp_path):
    """Eight documents: two repairs, one break, one threshold of two recorded, traces beside."""
    full = rows([1, 0, 0, 1, 1, 0, 1, 1], 128)
    tokens = [[1, 2, 3], [1, 2, 9], [1, 8, 9], [7, 2, 3]] + [[1, 2, 3]] * 4
    jot = rows([1, 1, 1, 0, 1, 0, 1, 1], [2, 4, 4, 8, 2, 8, 2, 2], tokens)
    both = {"full": traced(full, RULES["full"], threshold=None), 90: traced(jot, RULES["jot"])}
    place = store(tmp_path, full, {90: jot}, traces=both)
    space, gave = notebook.run(NAME, store=place, out=tmp_path / "figures")
    row = shown(gave, "outcomes").iloc[0]
    assert (row["Run"], row["Repairs b"], row["Breaks c"], row["Exact p"]) == ("JoT, τ = 90", "2", "1", "1.000")
    assert row["Difference, points"].startswith("+12.5\n") and row["Speedup, ×"] == f"{8 * 128 / 32:.2f}"
    missing = shown(gave, "outcomes").set_index("Run").loc[["JoT, τ = 30", "full, seed 1"], "Score, %"]
    assert (missing == "not recorded").all()
    row = shown(gave, "agreement").iloc[0]
    assert row["Same outcome, %"].startswith("62.5\n") and row["Same tokens throughout, %"].startswith("62.5\n")
    groups = shown(gave, "by-steps")
    assert groups["Steps"].tolist() == ["8", "4", "2"] and groups["n"].tolist() == ["2", "2", "4"]
    assert [text.split("\n")[0] for text in groups["JoT error, %"]] == ["100.0", "0.0", "0.0"]
    assert [text.split("\n")[0] for text in groups["Full error, %"]] == ["50.0", "100.0", "0.0"]
    assert len(shown(gave, "by-margin")) == 5 and shown(gave, "by-margin")["Margin, nats"].iloc[0] == "0.0 to 1.0"
    rules = shown(gave, "differences").set_index("Committed by")
    assert rules["First differences"].tolist() == ["1", "1", "1"]  # positions 0, 1 and 2 of the rules 2, 3 and 1
    assert rules["In repairs"].tolist() == [0, 1, 1] and rules["In breaks"].tolist() == [1, 0, 0]
    assert set(rules["Of all answer tokens, %"]) == {"33.3"}
    assert shown(gave, "examples")["Mode"].tolist() == ["other"]
    modes = shown(gave, "modes").set_index(["Run", "Mode"])
    assert modes.loc[("Full decoding", f"other\n{space['MEANING']['other']}"), "Documents"] == "3"
    assert shown(gave, "checks")[""].tolist()[:4] == ["holds"] * 4
    assert "further seeds is not recorded" in gave["noise"][-1].text
    for table in (x for results in gave.values() for x in results if hasattr(x, "caption")):
        assert "nan" not in table._repr_html_().lower().replace("finance", "")
        assert "5 M parameters" in table.caption or table.caption.startswith("Checks")
    assert len(space["figure"].axes) == 3 and (tmp_path / "figures" / "failure_analysis.png").is_file()


def test_noise_without_a_choice_is_no_evidence(tmp_path):
    """Equal tokens under another seed are degenerate only where the traced margins leave no draw a choice."""
    full, jot = rows([1, 0] * 4, 128), rows([1, 1] * 4, 3)
    for margin, words in ((0.25, "says nothing of how stable"), (0.1, "sometimes drew a token")):
        both = {"full": traced(full, RULES["full"], margin, None), 90: traced(jot, RULES["jot"])}
        place = store(tmp_path / words, full, {90: jot}, traces=both, seeds={1: full})
        space, gave = notebook.run(NAME, until="agreement", store=place)
        assert space["edge"] == pytest.approx(0.1 * np.log(9)) and words in gave["noise"][-1].text
        for name in ("outcomes", "agreement"):
            row = shown(gave, name).set_index("Run").loc["full, seed 1"]
            assert row.str.contains("no draw had a choice").sum() == (3 if margin == 0.25 else 0)


def test_groups_never_part_equal_steps(space):
    steps = pd.Series([64, 2, 8, 8, 8, 8, 8, 8, 8, 8, 128, 1])
    assert space["untorn"](steps, 1).tolist() == [2, 4, *[3] * 8, 1, 5]
    assert space["untorn"](steps, 3).tolist() == [1, 2, *[1] * 8, 1, 2]  # what is left stands last


def test_fifths_and_how_far_ties_move_them(space):
    values = pd.Series([2.0, 64, 16, 16, 16, 16, 16, 16, 16, 16, 1])
    assert space["fifth"](values).tolist() == [1, 5, 1, 2, 2, 3, 3, 4, 4, 5, 1]
    assert space["fifth"](pd.Series([3.0])).tolist() == [1]
    both = pd.DataFrame({"speedup": values, "score": [1, 1, 0, *[1] * 8]})
    moved = space["tie_orders"](both, 500)
    assert moved[0] == pytest.approx((0, 100 / 3)) and moved[2] == (0, 50)  # the one error among the tied: in, or not
    apart = space["tie_orders"](both.assign(speedup=range(11)), 20)
    assert all(low == high for low, high in apart)


def test_trend_equals_a_fit_written_out(space):
    rng = np.random.default_rng(3)
    x, length = rng.normal(size=300), rng.integers(10, 60, 300).astype(float)
    y = (rng.random(300) < 1 / (1 + np.exp(1 + x - 0.01 * length))).astype(float)
    design, beta = np.column_stack([np.ones(300), x, length]), np.zeros(3)
    for _ in range(30):  # Newton's method
        mu = 1 / (1 + np.exp(-design @ beta))
        hessian = design.T @ (design * (mu * (1 - mu))[:, None])
        beta = beta + np.linalg.solve(hessian, design.T @ (y - mu))
    error = np.sqrt(np.linalg.inv(hessian)[1, 1])
    row = space["odds"](pd.DataFrame({"x": x, "length": length, "score": 1 - y}), "x", "length")
    limits = np.exp(beta[1] + error * st.norm.isf(0.025) * np.array([0, -1, 1]))
    assert [float(v) for v in re.findall(r"\d+\.\d+", row["Odds ratio"])] == pytest.approx(limits, abs=0.0051)
    assert float(row["p"]) == pytest.approx(2 * st.norm.sf(abs(beta[1]) / error), rel=0.05)


@pytest.mark.parametrize("y", [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
def test_trend_that_cannot_be_fitted(space, y):
    both = pd.DataFrame({"x": range(6), "length": [3, 1, 2, 3, 1, 2], "score": 1 - np.asarray(y, float)})
    assert space["odds"](both, "x", "length")["Odds ratio"] == "not estimable"


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"tasks": [TASK, "pocket_mmlu"]}, "one task, not 2"),
        ({"methods": ["full", "jot", "klas"]}, "did you mean 'klass'"),
        ({"gamma": 2.0}, "gamma"),
        ({"gamma": 0.4}, "with these settings is not recorded"),
        ({"model": "pocket-dreem"}, "did you mean 'pocket-dream'"),
        ({"limit": 5000}, "is above the 2000 recorded documents"),
    ],
)
def test_mistakes_are_one_sentence(parameters, told):
    with pytest.raises(UserError, match=told):
        notebook.run(NAME, until="pairs", **parameters)


@pytest.mark.slow
def test_live(tmp_path):
    """Nothing is decoded twice: with few documents the traced runs are the runs."""
    how = {"source": "live", "store": tmp_path, "limit": 1, "device": "cpu", "out": tmp_path / "figures"}
    space, gave = notebook.run(NAME, model="pocket-llada", tau_max=30.0, **how)
    assert shown(gave, "outcomes")["n"].tolist()[:2] == ["1", "1"] and set(space["twin"]) == {"full", *space["jots"]}
    assert not list(tmp_path.glob("*.jsonl")) and len(list((tmp_path / "traces").glob("*.jsonl"))) == 3
    assert (shown(gave, "checks")[""] == "holds").all()


# --- criteria -----------------------------------------------------------------------------------------------


def run_of(scores, steps) -> pd.DataFrame:
    return rows(scores, steps).set_index("doc_id")


def test_criteria():
    n, rng = 600, np.random.default_rng(0)
    steps = rng.integers(1, 60, n)
    easy = (steps < 30).astype(float)
    assert criteria.slow_errors(run_of(easy, steps))[0] == "seen"
    assert criteria.slow_errors(run_of(1 - easy, steps))[0] == "not seen"
    assert criteria.slow_errors(run_of([1] * n, steps))[0] == "undecided"
    assert criteria.slow_errors(run_of([1], 1)) == ("not shown", "needs 5 documents")
    same = run_of([1] * n, 5).assign(score_full=1.0)
    worse = run_of(rng.random(n) > 0.2, 5).assign(score_full=1.0)
    word = lambda first, second: criteria.rejections({90: first, 30: second}, TASK)[0]  # noqa: E731
    assert (word(same, worse), word(worse, same), word(worse, worse)) == ("seen", "not seen", "undecided")
    assert criteria.rejections({90: same.head(9), 30: worse}, TASK) == ("not shown", "needs 500 documents")


def test_criteria_from_records(tmp_path):
    place = store(tmp_path, rows([1] * 20, 128), {90: rows([1] * 20, 9)})
    words = criteria.judge(criteria.Evidence(place), ["errors-slow", "aggressive-rejects"])["status"]
    assert words.tolist() == ["undecided", "not shown"]


# --- the paper's numbers ------------------------------------------------------------------------------------


@pytest.fixture
def paper(root):
    return pd.read_csv(root / "data" / "paper" / "failure_analysis.csv")


def test_published_numbers_stand_in_the_paper(shared, paper):
    source = shared / "paper" / "jot.tex"
    if not source.is_file():
        pytest.skip(f"no paper source at {source}")
    section = source.read_text().split(r"\label{app:failure_modes}")[1].split(r"\subsection")[0]
    printed = {float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", section.replace(",", ""))}
    fractions = {10.0 ** int(x) for x in re.findall(r"10\^\{(-\d+)\}", section)}
    assert set(paper["value"]) <= printed | fractions
    quintiles = re.findall(r"(\d+)/(\d+)/(\d+)/(\d+)/(\d+)\\%\$ at \$\\tau_\{\\max\}=(\d+)", section)
    for *errors, tau in quintiles:
        each = paper[(paper["place"] == "quintiles") & (paper["tau_max"] == float(tau))].sort_values("quantity")
        assert each["value"].tolist() == [float(x) for x in errors]
    assert len(quintiles) == 2


def test_the_papers_agreement_is_that_of_outcomes(paper):
    """26 repairs and 37 breaks of 500 leave 87.4 %; at the other threshold 15 and 74 leave 82.2 %."""
    printed = paper.set_index(["quantity", "tau_max"])["value"]
    for tau, b, c in ((90, 26, 37), (30, 15, 74)):
        assert 100 * (1 - (b + c) / 500) == pytest.approx(printed["agreement", tau])
        assert 100 * b / 500 == pytest.approx(printed["repairs", tau])
        assert 100 * (b - c) / 500 == pytest.approx(printed["difference", tau])
