"""Statistics of paired decoding runs, thin over statsmodels and scipy.

Conventions. Scores and proportions are fractions in [0, 1]; everything named in *points* is a percentage.
In a paired comparison ``b`` counts *repairs* (only the method is right) and ``c`` counts *breaks* (only the
baseline is right), so a difference is always method minus baseline: ``(b - c) / n``. Intervals are two-sided
with level ``1 - alpha``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import optimize
from scipy import stats as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from jot.errors import UserError

ALPHA = 0.05
MARGIN = 3.0  # points; the paper's own wording ("within 3 percentage points"), chosen after its results
N_BOOT = 10_000
CHUNK = 256  # resamples drawn at once: 256 x 2,000 documents of int64 is 4 MB


class Interval(NamedTuple):
    """Lower and upper limit, in the unit of the estimate."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A value with its interval, all in one unit."""

    value: float
    low: float
    high: float


# --- one proportion -----------------------------------------------------------------------------------------


def wilson(k: float, n: int, alpha: float = ALPHA) -> Interval:
    """Wilson score interval of the proportion ``k / n`` (fractions)."""
    if not 0 <= k <= n or n < 1:
        raise UserError(f"a proportion needs 0 <= k <= n and n >= 1, not k={k}, n={n}")
    low, high = proportion_confint(k, n, alpha=alpha, method="wilson")
    return Interval(max(0.0, float(low)), min(1.0, float(high)))


def _numbers(name: str, values: Sequence[float]) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    if missing := int(np.isnan(values).sum()):
        raise UserError(f"{missing} of {values.size} {name} are no numbers; leave out what has none")
    return values


# --- two paired proportions ---------------------------------------------------------------------------------


def discordant(method: np.ndarray, baseline: np.ndarray) -> tuple[int, int]:
    """Repairs and breaks ``(b, c)`` of two 0/1 score vectors over the same documents, shape (n,)."""
    method, baseline = _numbers("scores", method) > 0.5, _numbers("scores", baseline) > 0.5
    if method.shape != baseline.shape:
        raise UserError(f"a paired comparison needs equal lengths, not {method.shape} and {baseline.shape}")
    return int((method & ~baseline).sum()), int((~method & baseline).sum())


def mcnemar_exact(b: int, c: int) -> float:
    """Two-sided exact McNemar p: twice the smaller binomial tail of ``b`` in ``b + c``, at most 1."""
    if b + c == 0:
        return 1.0
    return min(1.0, float(mcnemar([[0, b], [c, 0]], exact=True).pvalue))


def mcnemar_midp(b: int, c: int) -> float:
    """McNemar mid-p: the exact p minus the probability of the observed split; 1 when ``b == c``."""
    if b == c:
        return 1.0
    return mcnemar_exact(b, c) - float(st.binom.pmf(min(b, c), b + c, 0.5))


def _tango_nuisance(b: int, c: int, n: int, delta: float) -> float:
    """Maximum-likelihood probability of a break when the difference is held at ``delta``."""
    half = -b - c + (2 * n - b + c) * delta
    return (np.sqrt(max(0.0, half * half + 8 * n * c * delta * (1 - delta))) - half) / (4 * n)


def _tango_statistic(b: int, c: int, n: int, delta: float) -> float:
    """Score statistic of the hypothesis that the paired difference equals ``delta``; falls in ``delta``."""
    variance = n * (2 * _tango_nuisance(b, c, n, delta) + delta * (1 - delta))
    gap = b - c - n * delta
    return gap / np.sqrt(variance) if variance > 0 else 1e9 * float(np.sign(gap))


def tango(b: int, c: int, n: int, alpha: float = ALPHA) -> Interval:
    """Tango's score interval of the paired difference ``(b - c) / n`` (fractions).

    Written out because no Python library has it: the set of differences that the score test with the
    constrained nuisance estimate does not reject (T. Tango, Statistics in Medicine 17, 1998, 891-908).
    """
    if min(b, c) < 0 or n < 1 or b + c > n:
        raise UserError(f"a paired difference needs b, c >= 0 and b + c <= n, not b={b}, c={c}, n={n}")
    z, estimate, edge = float(st.norm.isf(alpha / 2)), (b - c) / n, 1 - 1e-12

    def limit(sign: int) -> float:
        def excess(delta: float) -> float:
            return float(_tango_statistic(b, c, n, delta)) + sign * z

        inner, outer = estimate, sign * edge
        if excess(inner) * excess(outer) > 0:  # the estimate itself sits at the edge of [-1, 1]
            return float(sign)
        return float(optimize.brentq(excess, inner, outer, xtol=1e-12))

    return Interval(limit(-1), limit(+1))


def verdict(low: float, high: float, margin: float = MARGIN) -> str:
    """Verdict on a difference from its interval; all three in points, method minus baseline.

    * ``better``: the interval lies above 0;
    * ``non-inferior``: it lies above ``-margin`` and holds 0;
    * ``worse within the margin``: above ``-margin``, yet wholly below 0;
    * ``inferior beyond the margin``: wholly below ``-margin``;
    * ``worse, margin undecided``: wholly below 0, with ``-margin`` inside;
    * ``inconclusive``: both ``-margin`` and 0 lie inside.
    """
    if low > -margin:
        return "better" if low > 0 else "worse within the margin" if high < 0 else "non-inferior"
    if high < -margin:
        return "inferior beyond the margin"
    return "worse, margin undecided" if high < 0 else "inconclusive"


def holm(pvalues: Sequence[float]) -> np.ndarray:
    """Holm-adjusted p-values in the order given.

    As ``multipletests(pvalues, method="holm")``, which collects garbage at every call: half a second in a notebook.
    """
    p = _numbers("p-values", pvalues)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def noninferiority_power(
    n: int, discordance: float, difference: float = 0.0, margin: float = MARGIN, alpha: float = ALPHA
) -> float:
    """Chance that the lower Tango limit clears ``-margin`` (normal approximation of the score test).

    ``discordance`` is the expected share of documents on which the two methods differ (fraction);
    ``difference`` the true difference and ``margin`` are in points.
    """
    delta, null, z = difference / 100, -margin / 100, float(st.norm.isf(alpha / 2))
    b, c = n * (discordance + delta) / 2, n * (discordance - delta) / 2
    if min(b, c) < 0:
        raise UserError("the true difference cannot exceed the share of discordant pairs")
    under_null = np.sqrt((2 * _tango_nuisance(b, c, n, null) + null * (1 - null)) / n)
    under_truth = np.sqrt(max(discordance - delta**2, 1e-300) / n)
    return float(st.norm.cdf((delta - null - z * under_null) / under_truth))


def paired(method: np.ndarray, baseline: np.ndarray) -> dict:
    """Two 0/1 score vectors over the same documents, in the same order, shape (n,): all that is said about them.

    Returns:
        n; repairs b and breaks c; McNemar's exact p and mid-p; the difference method minus baseline in points with
        Tango's 95 % limits low and high.
    """
    b, c = discordant(method, baseline)
    n = len(np.asarray(method))
    low, high = tango(b, c, n)
    return {"n": n, "b": b, "c": c, "p": mcnemar_exact(b, c), "midp": mcnemar_midp(b, c),
            "difference": 100 * (b - c) / n, "low": 100 * low, "high": 100 * high}  # fmt: skip


# --- bootstrap over documents -------------------------------------------------------------------------------


def bootstrap_indices(n: int, n_boot: int = N_BOOT, seed: int = 0) -> Iterator[np.ndarray]:
    """The resamples of ``n`` documents, in chunks of shape (<= CHUNK, n), the same for equal arguments.

    This is the definition that every interval shares: methods compared on one set of documents see one set
    of resamples.
    """
    rng = np.random.default_rng(seed)
    for start in range(0, n_boot, CHUNK):
        yield rng.integers(n, size=(min(CHUNK, n_boot - start), n))


@lru_cache(maxsize=4)
def _bootstrap_counts(n: int, n_boot: int, seed: int) -> np.ndarray:
    """How often each document occurs in each resample, uint8 of shape (n_boot, n): 20 MB at n = 2,000."""
    parts = []
    for chunk in bootstrap_indices(n, n_boot, seed):
        flat = chunk + np.arange(len(chunk))[:, None] * n
        parts.append(np.bincount(flat.ravel(), minlength=chunk.size).reshape(chunk.shape).astype(np.uint8))
    return np.concatenate(parts)


def bootstrap_sums(values: np.ndarray, n_boot: int = N_BOOT, seed: int = 0) -> np.ndarray:
    """Sums of the rows of ``values`` (k, n) over every resample, (k, n_boot), one index set for all rows."""
    values = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if values.shape[1] == 0:
        raise UserError("a bootstrap needs at least one document")
    counts = _bootstrap_counts(values.shape[1], n_boot, seed)
    parts = [counts[i : i + 2048].astype(np.float64) @ values.T for i in range(0, n_boot, 2048)]
    return np.concatenate(parts).T


def _resampled(
    statistic: Callable, rows: Sequence, n_boot: int = N_BOOT, seed: int = 0, alpha: float = ALPHA
) -> Estimate:
    """A statistic of sums over documents with its percentile interval; ``rows`` are resampled together."""
    values = np.stack([np.asarray(row, dtype=float) for row in rows])
    draws = statistic(*bootstrap_sums(values, n_boot, seed))
    low, high = np.nanquantile(draws, [alpha / 2, 1 - alpha / 2])
    return Estimate(float(statistic(*values.sum(axis=1))), float(low), float(high))


def ratio_bootstrap(num: np.ndarray, den: np.ndarray, **how: float) -> Estimate:
    """Ratio of sums ``sum(num) / sum(den)`` over documents with a percentile bootstrap interval.

    Here and below ``how`` takes ``n_boot``, ``seed`` and ``alpha``.
    """
    return _resampled(lambda a, b: a / b, (num, den), **how)


def ratio_of_ratios(num: np.ndarray, den: np.ndarray, num2: np.ndarray, den2: np.ndarray, **how: float) -> Estimate:
    """One ratio of sums over another on the same documents, resampled together: how much faster one method is."""
    return _resampled(lambda a, b, c, d: a / b / (c / d), (num, den, num2, den2), **how)


def ratio_difference_bootstrap(
    num: np.ndarray, den: np.ndarray, num2: np.ndarray, den2: np.ndarray, **how: float
) -> Estimate:
    """Difference of two ratios of sums over the same documents, resampled together."""
    return _resampled(lambda a, b, c, d: a / b - c / d, (num, den, num2, den2), **how)


def paired_difference_bootstrap(method: np.ndarray, baseline: np.ndarray, **how: float) -> Estimate:
    """Mean of ``method - baseline`` over documents with a percentile bootstrap interval."""
    delta = np.asarray(method, dtype=float) - np.asarray(baseline, dtype=float)
    return _resampled(lambda total: total / delta.size, (delta,), **how)
