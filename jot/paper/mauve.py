"""MAUVE with fixed buckets: the divergence frontier of two histograms, its spread, and a paired permutation test.

Follows mauve-text 0.4.0 (Pillutla et al. 2021): features of unit length, principal components up to 0.9 of the
variance, k-means, KL frontier with 25 mixtures and scaling constant 5. One thing differs: mauve-text makes new
buckets for every pair of texts. Here one set of buckets serves all policies of a model, human text counting as much
as all of them together, so that two policies are measured alike and swapping their texts leaves the buckets alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from jot.errors import UserError

SCALE, VARIANCE = 5.0, 0.9
WEIGHTS = np.linspace(1 - 1e-6, 1e-6, 25)  # of human text in the mixtures, from one end of the frontier to the other
SEEDS = 5  # k-means starts
PERMUTATIONS = 1000
HUMAN = "human"


class Test(NamedTuple):
    """A permutation test: the observed difference, its two-sided p, and the Monte Carlo error of p."""

    difference: float
    p: float
    error: float


def score(human: np.ndarray, model: np.ndarray) -> np.ndarray:
    """MAUVE of histograms over the last axis (counts or shares); leading axes broadcast. 1 where they are equal."""
    p, q = (np.asarray(h, dtype=float) for h in (human, model))
    p, q = np.broadcast_arrays(p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True))
    p_own, q_own = ((h * _log(h)).sum(-1) for h in (p, q))
    p_mixed, q_mixed = [], []
    for weight in WEIGHTS:
        mixture = _log(weight * p + (1 - weight) * q)
        p_mixed.append((p * mixture).sum(-1))
        q_mixed.append((q * mixture).sum(-1))
    return _area(p_own - np.stack(p_mixed), q_own - np.stack(q_mixed))


def _log(x: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(x, 1e-300))


def _area(p_kl: np.ndarray, q_kl: np.ndarray) -> np.ndarray:
    """Area below the frontier, from the divergences (mixtures, ...) of human and of model text to every mixture."""
    zero, one = np.zeros(p_kl.shape[1:]), np.ones(p_kl.shape[1:])
    x, y = np.exp(-SCALE * q_kl), np.exp(-SCALE * p_kl)
    return np.trapezoid(np.stack([one, *y, zero]), np.stack([zero, *x, one]), axis=0)


def _left_out(p: np.ndarray, q: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``score`` of counts p and q of n texts each, without one text in bucket ``a`` of p and one in ``b`` of q.

    Only those two buckets change, so their terms are exchanged in sums that all such pairs share.
    """
    n = p.sum() - 1
    p, q, same, w = p / n, q / n, a == b, WEIGHTS[:, None]
    at_a, at_b = (p[a] - 1 / n, q[a] - same / n), (p[b] - same / n, q[b] - 1 / n)
    mixture, mixture_a, mixture_b = (_log(w * x + (1 - w) * y) for x, y in ((p, q), at_a, at_b))
    found = []
    for side, h in enumerate((p, q)):
        own, own_a, own_b = (x * _log(x) for x in (h, at_a[side], at_b[side]))
        mixed, mixed_a, mixed_b = h * mixture, at_a[side] * mixture_a, at_b[side] * mixture_b
        alone = own.sum() - own[a] + own_a + np.where(same, 0, own_b - own[b])
        with_other = mixed.sum(1, keepdims=True) - mixed[:, a] + mixed_a + np.where(same, 0, mixed_b - mixed[:, b])
        found.append(alone - with_other)
    return _area(*found)


def compress(features: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """All texts (rows of unit length) on their leading principal components, and the weight of each.

    Args:
        features: text set -> (n, d). Human text weighs as much as all other sets together.
    """
    rows = np.concatenate([np.asarray(x, dtype=np.float64) for x in features.values()])
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    others = sum(len(x) for name, x in features.items() if name != HUMAN)
    weights = np.concatenate(
        [np.full(len(x), others / len(x) if name == HUMAN and others else 1.0) for name, x in features.items()]
    )
    rows -= np.average(rows, axis=0, weights=weights)
    values, vectors = np.linalg.eigh((rows * weights[:, None]).T @ rows / weights.sum())
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    share = np.cumsum(values) / max(values.sum(), 1e-300)
    return rows @ vectors[:, : int(np.searchsorted(share, VARIANCE)) + 1], weights


def label(features: Mapping[str, np.ndarray], buckets: int, seeds: int = SEEDS) -> dict[str, np.ndarray]:
    """The bucket of every text: per set an array of shape (seeds, n), one row a k-means start.

    Raises:
        UserError: fewer texts than buckets.
    """
    total = sum(map(len, features.values()))
    if not 2 <= buckets <= total:
        raise UserError(f"buckets={buckets} must be at least 2 and at most the number of texts, {total}")
    with threadpool_limits(1):  # sums in one order: the same buckets whatever the number of cores
        return _label(features, buckets, seeds)


def _label(features: Mapping[str, np.ndarray], buckets: int, seeds: int) -> dict[str, np.ndarray]:
    rows, weights = compress(features)
    rows = rows.round(6)
    ends = np.cumsum([len(x) for x in features.values()])[:-1]
    runs = [
        KMeans(buckets, n_init=1, random_state=seed).fit(rows, sample_weight=weights).labels_ for seed in range(seeds)
    ]
    return dict(zip(features, np.split(np.stack(runs), ends, axis=1), strict=True))


def histogram(labels: np.ndarray, buckets: int, times: np.ndarray | None = None) -> np.ndarray:
    """Counts of shape (seeds, buckets); with ``times`` (draws, n), each text's weight, (seeds, draws, buckets)."""
    if times is None:
        return np.stack([np.bincount(row, minlength=buckets) for row in labels])
    return np.stack([times.astype(np.float32) @ np.eye(buckets, dtype=np.float32)[row] for row in labels])


def per_seed(human: np.ndarray, model: np.ndarray, buckets: int) -> np.ndarray:
    """MAUVE per k-means start, (seeds,), of two label arrays (seeds, n)."""
    return score(histogram(human, buckets), histogram(model, buckets))


def influence(human: np.ndarray, model: np.ndarray, buckets: int) -> np.ndarray:
    """Jackknife influence of every prompt (its human and its model text together) on MAUVE, mean over starts, (n,).

    By simulation their spread is that of MAUVE over new prompts, a little above it; a plain bootstrap, which repeats
    texts and so empties buckets, has too little of it at the paper's n.
    """
    n = human.shape[1]
    total = np.zeros(n)
    for one, two in zip(human, model, strict=True):
        p, q = (np.bincount(x, minlength=buckets).astype(float) for x in (one, two))
        kinds, kind = np.unique(one * buckets + two, return_inverse=True)
        total += (n - 1) * (score(p, q) - _left_out(p, q, kinds // buckets, kinds % buckets)[kind]) if n > 1 else 0
    return total / len(human)


def permutation(
    human: np.ndarray, method: np.ndarray, baseline: np.ndarray, buckets: int, draws: int = PERMUTATIONS, seed: int = 0
) -> Test:
    """Label swap paired by prompt: is MAUVE(method) - MAUVE(baseline), mean over k-means starts, more than chance?

    Under the null the two texts of a prompt are exchangeable. Two-sided, with the observed labels counted in.
    """
    reference = histogram(human, buckets)
    observed = float((per_seed(human, method, buckets) - per_seed(human, baseline, buckets)).mean())
    swap = np.random.default_rng(seed).integers(2, size=(draws, human.shape[1]))
    kept = 1 - swap
    one = histogram(method, buckets, kept) + histogram(baseline, buckets, swap)
    two = histogram(method, buckets, swap) + histogram(baseline, buckets, kept)
    null = (score(reference[:, None], one) - score(reference[:, None], two)).mean(0)
    p = (1 + int((np.abs(null) >= abs(observed) - 1e-12).sum())) / (draws + 1)
    return Test(observed, p, float(np.sqrt(p * (1 - p) / draws)))
