"""The statistics against published values, R, enumeration and simulation."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy.stats import binom
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.multitest import multipletests

from jot import stats
from jot.errors import UserError

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


def test_holm():
    """By hand: sorted p times 4, 3, 2, 1, made monotone."""
    adjusted = stats.holm([0.04, 0.01, 0.03, 0.005])
    assert adjusted == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert len(stats.holm([])) == 0


def test_what_is_no_number_is_not_counted():
    with pytest.raises(stats.UserError, match="1 of 2 p-values are no numbers; leave out what has none"):
        stats.holm([0.04, float("nan")])
    for scores in ([1, float("nan"), 0], [1, None, 0]):
        with pytest.raises(stats.UserError, match="1 of 3 scores are no numbers"):
            stats.paired([1, 0, 0], scores)


@given(some.lists(some.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_that_of_statsmodels(p):
    with mock.patch("gc.collect"):  # which it calls each time, for most of a second here
        assert stats.holm(p) == pytest.approx(multipletests(p, method="holm")[1])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-2.9, 1.0, "non-inferior"),
        (-2.9, -0.1, "worse within the margin"),
        (-9.0, -3.1, "inferior beyond the margin"),
        (-5.4, 0.9, "inconclusive"),
        (-5.4, -0.2, "worse, margin undecided"),
        (-3.0, 1.0, "inconclusive"),  # a limit on the margin does not clear it
        (-3.0, 0.0, "inconclusive"),  # nor does one on 0 exclude it
        (0.0, 2.0, "non-inferior"),
        (0.2, 2.0, "better"),
    ],
)
def test_verdict(low, high, expected):
    assert stats.verdict(low, high) == expected
    margin = max(0, -low)
    passed = {"better", "non-inferior", "worse within the margin"}
    assert stats.verdict(low, high, margin + 1e-9) in passed
    assert margin == 0 or stats.verdict(low, high, margin) not in passed


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
    assert stats.ratio_bootstrap(3 * steps, steps, n_boot=500) == pytest.approx((3, 3, 3))
    gap = stats.ratio_difference_bootstrap(3 * steps, steps, 2 * steps, steps, n_boot=500)
    assert gap == pytest.approx((1, 1, 1))


# --- coverage -----------------------------------------------------------------------------------------------
#
# Every interval of the project at a nominal 95 %, at sample sizes that it is used at. Bounds are four standard errors
# of the simulation around what the method is known to give: a percentile bootstrap is a little short at these n.


@pytest.mark.parametrize("n", [100, 200, 500])
def test_wilson_coverage_by_enumeration(n):
    """100 is a fifth of the paper's 500 samples."""
    k = np.arange(n + 1)
    limits = np.array([stats.wilson(int(i), n) for i in k])
    coverage = [
        binom.pmf(k, n, p)[(limits[:, 0] <= p) & (p <= limits[:, 1])].sum() for p in np.linspace(0.05, 0.95, 37)
    ]
    assert 0.945 < np.mean(coverage) < 0.955 and min(coverage) > 0.92


@pytest.mark.parametrize(
    ("n", "repair", "broken"),
    [(400, 0.05, 0.07), (400, 0.02, 0.10), (400, 0.03, 0.03), (2000, 0.06, 0.04), (1000, 0.001, 0.003),
     (500, 0.052, 0.074)],
)  # fmt: skip
def test_tango_coverage_by_simulation(n, repair, broken):
    truth = repair - broken
    draws = np.random.default_rng(0).multinomial(n, [repair, broken, 1 - repair - broken], size=2000)
    known = {pair: stats.tango(*pair, n) for pair in {(int(b), int(c)) for b, c, _ in draws}}
    inside = [known[int(b), int(c)].low <= truth <= known[int(b), int(c)].high for b, c, _ in draws]
    assert 0.93 < np.mean(inside) < 0.975


def steps_of(rng, mean: float, n: int = 150) -> np.ndarray:
    """Skewed step counts, at least 1, shape (n,)."""
    return 1 + rng.gamma(2, (mean - 1) / 2, size=n)


def coverage(interval, truth: float, runs: int = 400, seed: int = 0) -> float:
    """Share of simulated samples whose interval holds the truth."""
    rng = np.random.default_rng(seed)
    found = [interval(rng) for _ in range(runs)]
    return float(np.mean([low <= truth <= high for _, low, high in found]))


def test_ratio_bootstrap_coverage_by_simulation():
    def speedup(rng):
        return stats.ratio_bootstrap(np.full(150, 128), steps_of(rng, 30), n_boot=600)

    assert 0.905 < coverage(speedup, 128 / 30) < 0.99


def test_ratio_bootstrap_coverage_of_a_share_in_clusters():
    """Flips among the commits of a document: both sums vary, and flips of one document go together."""

    def share(rng):
        commits = rng.poisson(8, size=150)
        return stats.ratio_bootstrap(rng.binomial(commits, rng.beta(2, 18, size=150)), commits, n_boot=600)

    assert 0.905 < coverage(share, 0.1) < 0.99


def test_difference_of_ratios_coverage_by_simulation():
    """Two speedups over the same documents, whose steps are correlated."""

    def difference(rng):
        common = steps_of(rng, 20)
        fast, slow = common + steps_of(rng, 10), common + steps_of(rng, 20)
        whole = np.full(150, 128)
        return stats.ratio_difference_bootstrap(whole, fast, whole, slow, n_boot=600)

    assert 0.905 < coverage(difference, 128 / 30 - 128 / 40) < 0.99


def test_ratio_of_speedups_coverage_by_simulation():
    def ratio(rng):
        common = steps_of(rng, 20)
        fast, slow = common + steps_of(rng, 10), common + steps_of(rng, 20)
        whole = np.full(150, 128)
        return stats.ratio_of_ratios(whole, fast, whole, slow, n_boot=600)

    assert 0.905 < coverage(ratio, 40 / 30) < 0.99


def test_paired_bootstrap_coverage_by_simulation():
    def difference(rng):
        base = rng.random(150)
        return stats.paired_difference_bootstrap(base < 0.75, base + rng.normal(0, 0.1, 150) < 0.80, n_boot=600)

    inside = np.random.default_rng(9)
    base = inside.random(2_000_000)
    truth = float((base < 0.75).mean() - (base + inside.normal(0, 0.1, base.size) < 0.80).mean())
    assert 0.905 < coverage(difference, truth, seed=1) < 0.99


def test_kappa_coverage_by_simulation():
    """The finder of failure modes against 50 hand labels; the asymptotic interval is short at this n."""
    chance = np.full((4, 4), 0.1 / 16) + 0.9 * np.eye(4) / 4  # 06 has four modes
    agreed = np.trace(chance)
    truth = (agreed - 1 / 4) / (1 - 1 / 4)

    def interval(rng):
        found = cohens_kappa(rng.multinomial(50, chance.ravel()).reshape(4, 4))
        return stats.Estimate(found.kappa, found.kappa_low, min(1.0, found.kappa_upp))

    assert 0.86 < coverage(interval, truth, runs=200) < 0.995


# --- power --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "share", "difference"), [(2000, 0.10, 0), (2000, 0.10, -1), (1000, 0.20, -1)])
def test_noninferiority_power_by_simulation(n, share, difference):
    p = [(share + difference / 100) / 2, (share - difference / 100) / 2]
    draws = np.random.default_rng(2).multinomial(n, [*p, 1 - share], size=1000)
    passed = np.mean([stats._tango_statistic(int(b), int(c), n, -0.03) > 1.96 for b, c, _ in draws])
    assert stats.noninferiority_power(n, share, difference) == pytest.approx(passed, abs=0.04)
    with pytest.raises(UserError, match="discordant"):
        stats.noninferiority_power(100, 0.01, -5)
