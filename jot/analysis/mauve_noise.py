"""What a MAUVE difference and its interval do where nothing differs: full decoding against itself, seed against seed.

An interval of a difference is calibrated where 95 in 100 of such comparisons hold 0. At the paper's n a histogram has
few texts a bucket: MAUVE is biased downwards (alike for both sides, so it is compared at equal n alone) and moves much
with the draw. So the interval is tried out: many comparisons, each of random prompts whose two texts are swapped at
random, which makes the two sides exactly alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jot import stats
from jot.paper import mauve

TRIALS = 200


class Trials(NamedTuple):
    """Differences of MAUVE between sides that are alike, and their limits, each of shape (trials,)."""

    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def hold(self) -> int:
        """How many intervals hold 0."""
        return int(((self.low <= 0) & (self.high >= 0)).sum())


def limits(values: np.ndarray, influences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Limits of k statistics from their influences (k, n), by the percentile bootstrap of the linear part."""
    centered = influences - influences.mean(1, keepdims=True)
    draws = stats.bootstrap_sums(centered) / influences.shape[1]
    return tuple(values + np.quantile(draws, [stats.ALPHA / 2, 1 - stats.ALPHA / 2], axis=1))


def alike(
    human: np.ndarray, one: np.ndarray, two: np.ndarray, buckets: int, n: int, trials: int = TRIALS, seed: int = 0
) -> Trials:
    """Comparisons of two sides that are alike: n random prompts, the two seeds' texts of each swapped at random.

    Args:
        human, one, two: bucket labels (starts, prompts) of human text and of one policy under two seeds.
    """
    rng, values, influences = np.random.default_rng(seed), [], []
    for _ in range(trials):
        at, swap = rng.permutation(human.shape[1])[:n], rng.integers(2, size=n).astype(bool)
        sides = np.where(swap, two[:, at], one[:, at]), np.where(swap, one[:, at], two[:, at])
        first, second = (mauve.per_seed(human[:, at], side, buckets).mean() for side in sides)
        values.append(first - second)
        first, second = (mauve.influence(human[:, at], side, buckets) for side in sides)
        influences.append(first - second)
    return Trials(np.array(values), *limits(np.array(values), np.array(influences)))


def row(human: np.ndarray, one: np.ndarray, two: np.ndarray, buckets: int, n: int, trials: int = TRIALS) -> dict:
    """How intervals and the label swap behave at n: over ``trials``, and over the disjoint parts of n prompts.

    ``held`` of ``trials`` intervals hold 0, in percent ``coverage`` with Wilson limits; ``spread``: 95 % of the
    differences are no larger; of ``parts`` disjoint parts, in their order, ``parts_held`` intervals hold 0 and
    ``parts_kept`` label swaps have p above 0.05.
    """
    made = alike(human, one, two, buckets, n, trials)
    low, high = stats.wilson(made.hold, trials)
    found = {"trials": trials, "held": made.hold, "coverage": 100 * made.hold / trials,
             "coverage_low": 100 * low, "coverage_high": 100 * high,
             "spread": float(np.quantile(np.abs(made.difference), 1 - stats.ALPHA))}  # fmt: skip
    parts = [slice(start, start + n) for start in range(0, human.shape[1] - n + 1, n)]
    values, influences, kept = [], [], 0
    for at in parts:
        h, a, b = human[:, at], one[:, at], two[:, at]
        test = mauve.permutation(h, b, a, buckets)
        values.append(test.difference)
        influences.append(mauve.influence(h, b, buckets) - mauve.influence(h, a, buckets))
        kept += test.p > stats.ALPHA
    lows, highs = limits(np.array(values), np.array(influences))
    return found | {"parts": len(parts), "parts_held": int(((lows <= 0) & (highs >= 0)).sum()), "parts_kept": int(kept)}
