"""The statistics against published values, R, enumeration and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy.stats import binom

from jot.analysis import stats
from jot.errors import UserError

PAPER = {  # step speedups and scores of the paper's Table 1 on Dream-7B: gsm8k, mmlu, hellaswag, humaneval
    "full": ([1, 1, 1, 1], [81.1, 68.2, 73.3, 59.1]),
    "jot": ([5.54, 1.57, 2.26, 19.60], [78.8, 66.7, 72.7, 58.5]),
    "prophet": ([2.79, 1.40, 1.94, 9.17], [68.6, 60.2, 72.4, 56.7]),
    "klass": ([2.45, 1.06, 1.13, 7.92], [82.7, 64.4, 74.8, 59.8]),
    "fastdllm": ([4.08, 1.49, 1.50, 7.32], [78.4, 72.2, 62.5, 53.7]),
}


# --- golden values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("b", "c", "exact", "midp"), [(26, 37, 0.2074, 0.1686), (15, 74, 1.534e-10, None)])
def test_mcnemar_of_the_paper(b, c, exact, midp):
    assert stats.mcnemar_exact(b, c) == pytest.approx(exact, rel=1e-3)
    if midp:
        assert stats.mcnemar_midp(b, c) == pytest.approx(midp, rel=1e-3)


def test_mcnemar_midp_of_r():
    """R package contingencytables, complete response before and after consolidation (Cavo et al. 2012)."""
    assert stats.mcnemar_midp(6, 16) == pytest.approx(0.034690, abs=5e-7)


def test_mcnemar_edges():
    assert stats.mcnemar_exact(0, 0) == stats.mcnemar_midp(0, 0) == 1
    assert stats.mcnemar_midp(7, 7) == stats.mcnemar_exact(7, 7) == 1
    assert stats.mcnemar_exact(0, 1) == 1
    assert stats.mcnemar_midp(0, 1) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("b", "c", "n", "alpha", "low", "high", "digits"),
    [
        (26, 37, 500, 0.05, -0.054, 0.009, 3),
        (15, 74, 500, 0.05, -0.155, -0.083, 3),
        (6, 16, 161, 0.05, -0.1240, -0.0054, 4),  # R contingencytables: Cavo et al. 2012
        (1, 7, 21, 0.05, -0.517, -0.026, 3),  # R contingencytables: Bentur et al. 2009
        (28, 25, 618, 0.10, -0.0148, 0.0247, 4),  # R PropCIs::scoreci.mp(25, 28, 618, 0.9)
    ],
)
def test_tango(b, c, n, alpha, low, high, digits):
    found = stats.tango(b, c, n, alpha)
    assert (round(found.low, digits), round(found.high, digits)) == (low, high)


def test_tango_edges():
    z2 = stats.st.norm.isf(0.025) ** 2
    assert stats.tango(0, 0, 50) == pytest.approx((-z2 / (50 + z2), z2 / (50 + z2)))
    assert stats.tango(50, 0, 50).high == 1 and stats.tango(0, 50, 50).low == -1
    for wrong in ((-1, 0, 5), (3, 3, 5), (0, 0, 0)):
        with pytest.raises(UserError):
            stats.tango(*wrong)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(30, 100, 21.9, 39.6), (7, 100, 3.4, 13.7), (49, 100, 39.4, 58.7), (11, 100, 6.3, 18.6)],
)
def test_wilson(k, n, low, high):
    assert [round(100 * x, 1) for x in stats.wilson(k, n)] == [low, high]


def test_standard_errors_of_the_paper():
    assert round(stats.standard_error_points(0.811, 1319), 1) == 1.1
    assert [round(stats.standard_error_points(p, 164), 1) for p in (0.591, 0.445)] == [3.8, 3.9]


def test_aggregates_of_the_paper():
    speed = {name: round(stats.geometric_mean(values[0]), 2) for name, values in PAPER.items()}
    assert speed == {"full": 1, "jot": 4.43, "prophet": 2.89, "klass": 2.20, "fastdllm": 2.86}
    kept = {name: round(stats.retention(values[1], PAPER["full"][1]), 1) for name, values in PAPER.items()}
    assert kept == {"full": 100, "jot": 98.3, "prophet": 91.9, "klass": 99.9, "fastdllm": 94.7}
    tasks = dict(zip(("gsm8k", "mmlu", "hellaswag", "humaneval"), PAPER["jot"][0], strict=True))
    assert round(stats.leave_one_out(tasks)["humaneval"], 2) == 2.70
    assert round(2 * 256 / (1 + 90), 2) == 5.63  # reversal budget of the paper's section 4


def test_holm():
    """By hand: sorted p times 4, 3, 2, 1, made monotone."""
    adjusted = stats.holm([0.04, 0.01, 0.03, 0.005])
    assert adjusted == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert stats.holm({"x": 0.04, "y": 0.01}) == pytest.approx({"x": 0.04, "y": 0.02})
    assert len(stats.holm([])) == 0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-2.9, 1.0, "non-inferior"),
        (-2.9, -0.1, "worse within the margin"),
        (-9.0, -3.1, "inferior beyond the margin"),
        (-5.4, 0.9, "inconclusive"),
        (-5.4, -0.2, "inconclusive"),
        (-3.0, 1.0, "inconclusive"),  # a limit on the margin does not clear it
        (0.2, 2.0, "non-inferior"),
    ],
)
def test_verdict(low, high, expected):
    assert stats.verdict(low, high) == expected
    margin = stats.smallest_margin(low)
    assert "non" in stats.verdict(low, high, margin + 1e-9) or "within" in stats.verdict(low, high, margin + 1e-9)
    assert margin == 0 or stats.verdict(low, high, margin) in ("inconclusive", "inferior beyond the margin")


# --- properties ---------------------------------------------------------------------------------------------


@given(some.integers(0, 60), some.integers(0, 60), some.integers(1, 200))
def test_tango_is_symmetric_and_inverts_the_test(b, c, extra):
    n = b + c + extra
    low, high = stats.tango(b, c, n)
    assert stats.tango(c, b, n) == pytest.approx((-high, -low), abs=1e-9)
    assert low <= (b - c) / n <= high
    z = stats.st.norm.isf(0.025)
    assert stats._tango_statistic(b, c, n, low) == pytest.approx(z, abs=1e-4)
    assert stats._tango_statistic(b, c, n, high) == pytest.approx(-z, abs=1e-4)


@given(some.integers(0, 80), some.integers(0, 80))
def test_midp_is_below_exact_and_both_are_probabilities(b, c):
    exact, midp = stats.mcnemar_exact(b, c), stats.mcnemar_midp(b, c)
    assert 0 <= midp <= exact <= 1
    if b != c:
        tail = sum(math.comb(b + c, i) for i in range(min(b, c) + 1)) / 2 ** (b + c)
        assert exact == pytest.approx(min(1, 2 * tail))


def test_discordant_counts_repairs_then_breaks():
    assert stats.discordant([1, 1, 0, 0, 1], [1, 0, 1, 0, 0]) == (2, 1)
    with pytest.raises(UserError, match="equal lengths"):
        stats.discordant([1], [1, 0])


def test_resamples_are_shared_and_chunking_does_not_matter():
    """Sums over the cached counts equal those over the plain indices; equal arguments, equal resamples."""
    values = np.random.default_rng(1).integers(1, 128, size=(2, 37)).astype(float)
    plain = np.concatenate([values[:, chunk].sum(2).T for chunk in stats.bootstrap_indices(37, 600, 3)]).T
    assert np.array_equal(stats.bootstrap_sums(values, 600, 3), plain)
    alone = stats.bootstrap_sums(values[1], 600, 3)
    assert np.array_equal(alone[0], plain[1])


def test_a_common_factor_has_no_ratio_uncertainty():
    steps = np.random.default_rng(0).integers(1, 100, 80)
    assert stats.ratio_bootstrap(3 * steps, steps, 500) == pytest.approx((3, 3, 3))
    gap = stats.ratio_difference_bootstrap(3 * steps, steps, 2 * steps, steps, 500)
    assert gap == pytest.approx((1, 1, 1)) and gap.excludes()


def test_speedup_split_is_exact():
    rng = np.random.default_rng(0)
    steps, tokens = rng.integers(1, 128, 50), rng.integers(0, 100, 50)
    split = stats.speedup_split(np.full(50, 128), steps, tokens)
    assert split.ratio == pytest.approx(split.tokens_per_forward * split.padding_factor)
    assert split.mean_of_ratios == pytest.approx(np.mean(128 / steps))
    assert stats.speedup_split([4], [2], [0]).padding_factor == math.inf
    with pytest.raises(UserError, match="zero steps"):
        stats.speedup_split([4], [0], [1])


# --- coverage -----------------------------------------------------------------------------------------------


def test_wilson_coverage_by_enumeration():
    n, k = 200, np.arange(201)
    limits = np.array([stats.wilson(int(i), n) for i in k])
    coverage = [
        binom.pmf(k, n, p)[(limits[:, 0] <= p) & (p <= limits[:, 1])].sum() for p in np.linspace(0.05, 0.95, 37)
    ]
    assert 0.945 < np.mean(coverage) < 0.955 and min(coverage) > 0.92


@pytest.mark.parametrize(("repair", "broken"), [(0.05, 0.07), (0.02, 0.10), (0.03, 0.03)])
def test_tango_coverage_by_simulation(repair, broken):
    n, truth = 400, repair - broken
    draws = np.random.default_rng(0).multinomial(n, [repair, broken, 1 - repair - broken], size=2000)
    known = {pair: stats.tango(*pair, n) for pair in {(int(b), int(c)) for b, c, _ in draws}}
    inside = [known[int(b), int(c)].low <= truth <= known[int(b), int(c)].high for b, c, _ in draws]
    assert 0.935 < np.mean(inside) < 0.965


def test_ratio_bootstrap_coverage_by_simulation():
    """Skewed step counts, n = 150; the percentile interval is a little short at this n."""
    rng = np.random.default_rng(0)
    truth, inside = 128 / 30, []  # mean steps 30
    for _ in range(400):
        steps = 1 + rng.gamma(2, 29 / 2, size=150)
        found = stats.ratio_bootstrap(np.full(150, 128), steps, n_boot=600)
        inside.append(found.low <= truth <= found.high)
    assert 0.915 < np.mean(inside) < 0.975


def test_paired_bootstrap_coverage_by_simulation():
    rng, inside = np.random.default_rng(1), []
    for _ in range(300):
        base = rng.random(150)
        found = stats.paired_difference_bootstrap(base < 0.75, base + rng.normal(0, 0.1, 150) < 0.80, n_boot=600)
        inside.append(found.low <= -0.05 <= found.high)
    assert np.mean(inside) > 0.90


# --- power --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "share", "difference"), [(2000, 0.10, 0), (2000, 0.10, -1), (1000, 0.20, -1)])
def test_noninferiority_power_by_simulation(n, share, difference):
    p = [(share + difference / 100) / 2, (share - difference / 100) / 2]
    draws = np.random.default_rng(2).multinomial(n, [*p, 1 - share], size=1000)
    passed = np.mean([stats._tango_statistic(int(b), int(c), n, -0.03) > 1.96 for b, c, _ in draws])
    assert stats.noninferiority_power(n, share, difference) == pytest.approx(passed, abs=0.04)


def test_mcnemar_power_by_simulation():
    draws = np.random.default_rng(3).multinomial(2000, [0.04, 0.06, 0.90], size=500)
    seen = np.mean([stats.mcnemar_exact(int(b), int(c)) < 0.05 for b, c, _ in draws])
    assert stats.mcnemar_power(2000, 0.10, -2) == pytest.approx(seen, abs=0.06)
    with pytest.raises(UserError, match="discordant"):
        stats.noninferiority_power(100, 0.01, -5)
