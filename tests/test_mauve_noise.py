"""Intervals of MAUVE differences where nothing differs: how often they hold 0, against paths written out."""

from __future__ import annotations

import numpy as np
import pytest

from jot.paper import mauve, texts


def labels(n: int, buckets: int = 8, starts: int = 2, seed: int = 0, tilt: float = 0.0) -> np.ndarray:
    """Bucket labels of n texts, the same text in corresponding buckets of every start."""
    weights = np.exp(tilt * np.linspace(-1, 1, buckets))
    row = np.random.default_rng(seed).choice(buckets, n, p=weights / weights.sum())
    return np.stack([(row + i) % buckets for i in range(starts)])


def test_one_comparison_by_hand():
    human, one, two = labels(60, seed=1), labels(60, seed=2, tilt=1), labels(60, seed=3, tilt=1)
    values, influences = mauve.alike(human, one, two, 8, 30, trials=4, seed=5)
    rng = np.random.default_rng(5)
    for difference, row in zip(values, influences, strict=True):
        at, swap = rng.permutation(60)[:30], rng.integers(2, size=30).astype(bool)
        a, b = one[:, at].copy(), two[:, at].copy()
        a[:, swap], b[:, swap] = b[:, swap], a[:, swap].copy()
        gap = mauve.per_seed(human[:, at], a, 8) - mauve.per_seed(human[:, at], b, 8)
        assert difference == pytest.approx(gap.mean())
        assert row == pytest.approx(mauve.influence(human[:, at], a, 8) - mauve.influence(human[:, at], b, 8))
    again = mauve.alike(human, one, two, 8, 30, trials=4, seed=5)
    assert (values == again[0]).all() and (influences == again[1]).all()


def test_two_draws_of_one_policy_hold_zero():
    human, one, two = labels(400, seed=1), labels(400, seed=2, tilt=1), labels(400, seed=3, tilt=1)
    low, high = texts.limits(*mauve.alike(human, one, two, 8, 100, trials=60))
    assert ((low <= 0) & (0 <= high)).mean() > 0.85
    values, influences = mauve.alike(human, one, one, 8, 100, trials=5)
    assert (values == 0).all() and (influences == 0).all()
