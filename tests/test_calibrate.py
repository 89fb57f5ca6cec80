"""A threshold with a guarantee: p-values against MAPIE and simulation, the walk, the command, its file."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mapie.risk_control import control_fwer
from scipy.stats import binom, binomtest

from jot import cli
from jot.errors import UserError
from jot.records import take
from jot.runs import calibrate


@given(st.integers(1, 400), st.data(), st.sampled_from([0.01, 0.03, 0.1, 0.5]))
def test_p_values_of_zero_one_losses_are_exact(n, data, epsilon):
    k = data.draw(st.integers(0, n))
    loss = np.array([1.0] * k + [0.0] * (n - k))
    p = calibrate.binomial_p(loss, epsilon)
    assert p == pytest.approx(binomtest(k, n, epsilon, alternative="less").pvalue, abs=1e-12)


@pytest.mark.parametrize(("epsilon", "breaks", "repairs"), [(0.03, 0.05, 0.02), (0.03, 0.031, 0.0), (0.1, 0.1, 0.0)])
def test_a_betting_p_is_small_no_more_often_than_it_may(epsilon, breaks, repairs):
    """Under a risk of epsilon or a little above, a p below delta occurs with at most delta."""
    rng, delta, hits, runs = np.random.default_rng(0), 0.05, 0, 2000
    for _ in range(runs):
        loss = rng.choice([1.0, -1.0, 0.0], size=400, p=[breaks, repairs, 1 - breaks - repairs])
        hits += calibrate.betting_p(loss, epsilon) <= delta
    assert binomtest(hits, runs, delta, alternative="greater").pvalue > 0.01


def test_a_betting_p_sees_a_risk_far_below():
    loss = np.random.default_rng(0).choice([1.0, -1.0, 0.0], size=2000, p=[0.005, 0.01, 0.985])
    assert calibrate.betting_p(loss, 0.03) < 1e-4 and calibrate.betting_p(loss + 0.05, 0.03) == 1.0


@given(st.lists(st.integers(0, 12), min_size=9, max_size=9))
def test_the_walk_is_fixed_sequence_testing(counts):
    n, asked = 300, []

    def losses(tau):
        asked.append(tau)
        k = counts[calibrate.GRID.index(tau)]
        return np.array([1.0] * k + [0.0] * (n - k))

    walked = calibrate.certify(losses, "breaks", 0.03, 0.05)
    p = np.array([binom.cdf(k, n, 0.03) for k in counts])
    valid = list(control_fwer(p, 0.05, "fixed_sequence"))
    assert [calibrate.GRID.index(step.tau) for step in walked if step.certified] == valid
    assert calibrate.certified(walked) == (calibrate.GRID[valid[-1]] if valid else None)
    assert asked == list(calibrate.GRID[: len(walked)])  # nothing beyond the first failure is decoded


def test_the_guarantee_holds_just_above_epsilon():
    """A grid whose third threshold has a risk just above epsilon: it is certified with at most delta."""
    rng, runs, wrong = np.random.default_rng(1), 2000, 0
    risks = dict(zip(calibrate.GRID, (0.0, 0.01, 0.0301, 0.0301, 0.0301, 0.04, 0.05, 0.1, 0.2), strict=True))
    for _ in range(runs):
        walked = calibrate.certify(lambda tau: (rng.random(1000) < risks[tau]).astype(float), "breaks", 0.03, 0.05)
        wrong += risks[calibrate.certified(walked)] > 0.03
    assert binomtest(wrong, runs, 0.05, alternative="greater").pvalue > 0.01


def test_documents_needed():
    assert calibrate.needed(0.03, 0.03, 0.05) is None and calibrate.needed(0.2, 0.03, 0.05) is None
    n = calibrate.needed(0.02, 0.03, 0.05)
    assert binom.cdf(math.floor(0.02 * n), n, 0.03) <= 0.05 < binom.cdf(math.floor(0.02 * (n // 2)), n // 2, 0.03)


def frame(scores, answers=None, texts=None):
    ids = [f"t/test/{i}" for i in range(len(scores))]
    texts = [""] * len(scores) if texts is None else texts
    answers = [""] * len(scores) if answers is None else answers
    return pd.DataFrame({"doc_id": ids, "score": np.array(scores, float), "answer": answers, "text": texts})


def test_losses():
    full, jot = frame([1, 1, 0, 0], list("abcd"), list("ABCD")), frame([1, 0, 1, 0], list("axcd"), list("ABCE"))
    order = [int(name[-1]) for name in take(sorted(full["doc_id"]))]
    assert list(calibrate.loss_of("breaks", full, jot)) == [[0, 1, 0, 0][i] for i in order]
    assert list(calibrate.loss_of("score", full, jot)) == [[0, 1, -1, 0][i] for i in order]
    assert list(calibrate.loss_of("answers", full, jot)) == [[0, 1, 0, 0][i] for i in order]
    code = frame([1, 1], texts=["x", "y"]), frame([1, 1], texts=["x", "z"])  # an answer is empty for code
    assert calibrate.loss_of("answers", *code).sum() == 1
    with pytest.raises(UserError, match="the same documents"):
        calibrate.loss_of("breaks", full, jot.head(2))
    with pytest.raises(UserError, match="no score"):
        calibrate.loss_of("breaks", frame([np.nan, 1]), frame([1, 1]))


def test_the_command_decodes_resumes_and_writes_what_evaluate_takes(tmp_path, capsys):
    words = ["calibrate", "--model", "pocket-llada", "--task", "pocket_mmlu", "--store", str(tmp_path / "s"),
             "--device", "cpu", "--limit", "14", "--epsilon", "0.2"]  # fmt: skip
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    path = tmp_path / "s" / "certified" / "pocket-llada_pocket_mmlu_breaks.json"
    made = json.loads(path.read_text())
    assert "certified: tau_max" in told and made["n"] == 14 and made["walk"][0]["tau"] is None
    records = {p: p.read_bytes() for p in (tmp_path / "s").glob("*.jsonl")}
    assert cli.main(words) == 0 and capsys.readouterr().out == told  # nothing is decoded again
    assert {p: p.read_bytes() for p in (tmp_path / "s").glob("*.jsonl")} == records
    evaluate = ["evaluate", "--model", "pocket-llada", "--task", "pocket_mmlu", "--limit", "4", "--device", "cpu",
                "--store", str(tmp_path / "e"), "--certified", str(path)]  # fmt: skip
    assert cli.main(evaluate) == 0 and f"tau_max={made['tau_max']:g}" in capsys.readouterr().out
    for wrong, said in (
        ([*evaluate, "--method", "full"], "gives JoT its threshold"),
        ([w.replace("pocket_mmlu", "pocket_gsm8k") if w == "pocket_mmlu" else w for w in evaluate], "certifies task"),
        ([*evaluate[:-1], str(tmp_path / "none.json")], "no file of `jot calibrate`"),
        ([*words, "--epsilon", "1"], "--epsilon=1.0 must be a number, below 1"),
        ([*words, "--split", "test"], "that is not its test split"),
    ):
        assert cli.main(wrong) == 2 and said in capsys.readouterr().err
    assert cli.main([*words, "--epsilon", "0.01"]) == 1
    assert "nothing can be certified with 14 documents" in capsys.readouterr().out
