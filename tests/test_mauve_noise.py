"""Intervals of MAUVE differences where nothing differs: how often they hold 0, against paths written out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jot.analysis import mauve_noise, mauve_noise_view, quality
from jot.analysis.continuations import NOISE
from jot.paper import mauve


def labels(n: int, buckets: int = 8, starts: int = 2, seed: int = 0, tilt: float = 0.0) -> np.ndarray:
    """Bucket labels of n texts, the same text in corresponding buckets of every start."""
    weights = np.exp(tilt * np.linspace(-1, 1, buckets))
    row = np.random.default_rng(seed).choice(buckets, n, p=weights / weights.sum())
    return np.stack([(row + i) % buckets for i in range(starts)])


def test_limits_are_those_of_the_tables():
    rng = np.random.default_rng(1)
    influences, values = rng.normal(size=(3, 40)), np.array([0.1, 0.0, -0.2])
    low, high = mauve_noise.limits(values, influences)
    for i in range(3):
        assert quality.linear(values[i], influences[i])[1:] == pytest.approx((low[i], high[i]))


def test_one_comparison_by_hand():
    human, one, two = labels(60, seed=1), labels(60, seed=2, tilt=1), labels(60, seed=3, tilt=1)
    found = mauve_noise.alike(human, one, two, 8, 30, trials=4, seed=5)
    rng = np.random.default_rng(5)
    for difference in found.difference:
        at, swap = rng.permutation(60)[:30], rng.integers(2, size=30).astype(bool)
        a, b = one[:, at].copy(), two[:, at].copy()
        a[:, swap], b[:, swap] = b[:, swap], a[:, swap].copy()
        gap = mauve.per_seed(human[:, at], a, 8) - mauve.per_seed(human[:, at], b, 8)
        assert difference == pytest.approx(gap.mean())
    again = mauve_noise.alike(human, one, two, 8, 30, trials=4, seed=5)
    assert (found.low == again.low).all() and found.hold == int(((found.low <= 0) & (0 <= found.high)).sum())


def test_two_draws_of_one_policy_hold_zero():
    human, one, two = labels(400, seed=1), labels(400, seed=2, tilt=1), labels(400, seed=3, tilt=1)
    row = mauve_noise.row(human, one, two, 8, 100, trials=60)
    assert row["coverage"] == pytest.approx(100 * row["held"] / 60) and row["coverage_high"] > 95
    assert row["parts"] == 4 and 0 <= row["parts_held"] <= 4 and 0 < row["spread"] < 0.5
    identical = mauve_noise.row(human, one, one, 8, 100, trials=5)
    assert identical["spread"] == 0 and identical["held"] == 5 and identical["parts_kept"] == 4


def frames(missed: bool, narrow: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    key = {"model": "pocket-dream", "encoder": "ngram", "n": quality.SMALL}
    held = 80 if narrow else 98
    noise = key | {"trials": 100, "held": held, "coverage": held, "coverage_low": held - 8, "coverage_high": held + 1.9,
                   "spread": 0.14, "parts": 7, "parts_held": 6, "parts_kept": 6}  # fmt: skip
    test = key | {
        "pair": NOISE,
        "difference": -0.2,
        "low": -0.4,
        "high": -0.1 if missed else 0.1,
        "p": 0.005,
        "error": 0.002,
    }
    return pd.DataFrame([noise]), pd.DataFrame([test])


def test_what_an_interval_is_good_for_is_computed():
    said = "one interval at that n is no sign of a difference"
    trust = mauve_noise_view.trust(*frames(missed=True, narrow=False))
    assert said in trust and "pocket-dream, ngram, label swap p = 0.005" in trust and "as often as they should" in trust
    assert "Of the 7 label swaps over disjoint parts 1 have p of at most 0.05" in trust and "narrow" not in trust
    assert said not in mauve_noise_view.trust(*frames(missed=False, narrow=False))
    narrow = mauve_noise_view.trust(*frames(missed=True, narrow=True))
    assert "these intervals are too narrow" in narrow and "as often as they should" not in narrow
    assert "Too narrow over alike sides: pocket-dream, ngram, n = 128" in narrow
    assert mauve_noise_view.trust(pd.DataFrame(), pd.DataFrame()) == ""
