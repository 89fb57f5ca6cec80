"""MAUVE with fixed buckets: the divergence frontier of two histograms, its spread, and a paired permutation test.

Follows mauve-text 0.4.0 (Pillutla et al. 2021): features of unit length, principal components up to 0.9 of the
variance, k-means, KL frontier with 25 mixtures and scaling constant 5. One thing differs: mauve-text makes new
buckets for every pair of texts. Here one set of buckets serves all policies of a model, human text counting as much
as all of them together, so that two policies are measured alike and swapping their texts leaves the buckets alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from jot.errors import UserError

SCALE, VARIANCE = 5.0, 0.9
WEIGHTS = np.linspace(1 - 1e-6, 1e-6, 25)  # of human text in the mixtures, from one end of the frontier to the other
SEEDS = 5  # k-means starts
PERMUTATIONS = 1000
TRIALS = 200  # comparisons of sides that are alike
HUMAN = "human"


class Test(NamedTuple):
    """A permutation test: the observed difference, its two-sided p, and the Monte Carlo error of p."""

    difference: float
    p: float
    error: float


# --- the measure --------------------------------------------------------------------------------------------


def score(human: np.ndarray, model: np.ndarray) -> np.ndarray:
    """MAUVE of histograms over the last axis (counts or shares); leading axes broadcast. 1 where they are equal."""
    p, q = (h / h.sum(-1, keepdims=True) for h in (np.asarray(x, dtype=float) for x in (human, model)))
    p, q = np.broadcast_arrays(p, q)
    mixture = _log_mixture(p, q)
    own = (np.einsum("...b,...b->...", h, _log(h)) for h in (p, q))
    return _area(*(x - np.einsum("...b,k...b->k...", h, mixture) for x, h in zip(own, (p, q), strict=True)))


def _log_mixture(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Logarithm of every mixture of p and q, (mixtures, ..., buckets)."""
    weights = WEIGHTS.reshape(-1, *[1] * p.ndim)
    return _log(weights * p + (1 - weights) * q)


def _log(x: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(x, 1e-300))


def _area(p_kl: np.ndarray, q_kl: np.ndarray) -> np.ndarray:
    """Area below the frontier, from the divergences (mixtures, ...) of human and of model text to every mixture."""
    x, y = np.exp(-SCALE * q_kl), np.exp(-SCALE * p_kl)
    return (x[0] + y[-1] + (x[1:] * y[:-1] - x[:-1] * y[1:]).sum(0)) / 2  # trapezoids from (0, 1) to (1, 0)


def per_seed(human: np.ndarray, model: np.ndarray, buckets: int) -> np.ndarray:
    """MAUVE per k-means start, (seeds,), of two label arrays (seeds, n)."""
    return score(histogram(human, buckets), histogram(model, buckets))


def histogram(labels: np.ndarray, buckets: int) -> np.ndarray:
    """Counts of shape (..., buckets) of labels (..., n)."""
    rows = labels.reshape(-1, labels.shape[-1])
    flat = rows + buckets * np.arange(len(rows))[:, None]
    return np.bincount(flat.ravel(), minlength=buckets * len(rows)).reshape(*labels.shape[:-1], buckets)


# --- its spread and its test --------------------------------------------------------------------------------


def influence(human: np.ndarray, model: np.ndarray, buckets: int) -> np.ndarray:
    """Jackknife influence of every prompt (its human and its model text together) on MAUVE, mean over starts, (n,).

    By simulation their spread is that of MAUVE over new prompts, a little above it; a plain bootstrap, which repeats
    texts and so empties buckets, has too little of it at the paper's n.
    """
    return _jackknife(human, model, buckets)[1].mean(0)


def _jackknife(human: np.ndarray, model: np.ndarray, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """MAUVE per start (k,) and every prompt's influence on it (k, n)."""
    p, q = histogram(human, buckets), histogram(model, buckets)
    values, n = score(p, q), human.shape[-1]
    if n < 2:
        return values, np.zeros(human.shape)
    return values, (n - 1) * (values[:, None] - _left_out(p, q, human, model))


def _left_out(p: np.ndarray, q: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``score`` of counts p and q (starts, buckets) without one text in bucket ``a`` of p and one in ``b`` of q.

    Only those two buckets change. Their parts of a divergence add up, so those of a point on the frontier multiply, and
    the areas of all pairs of buckets are sums of products; where ``a`` is ``b`` both texts leave one bucket.
    """
    one = 1 / (p.sum(-1, keepdims=True) - 1)
    p, q = p * one, q * one

    def added(*sides: np.ndarray) -> np.ndarray:  # by every bucket to both divergences, (2, mixtures, starts, buckets)
        mixture = _log_mixture(*sides)
        return np.stack([h * (_log(h) - mixture) for h in sides])

    whole = added(p, q)
    less_p, less_q, less_both = (added(*h) - whole for h in ((p - one, q), (p, q - one), (p - one, q - one)))
    total = whole.sum(-1, keepdims=True)
    (ya, xa), (yb, xb) = np.exp(-SCALE * (total + less_p)), np.exp(-SCALE * less_q)

    def pairs(f: np.ndarray, g: np.ndarray) -> np.ndarray:
        return np.einsum("ksa,ksb->sab", f, g)

    area = pairs(xa[:1], xb[:1]) + pairs(ya[-1:], yb[-1:])  # as in `_area`
    area += pairs(xa[1:] * ya[:-1], xb[1:] * yb[:-1]) - pairs(xa[:-1] * ya[1:], xb[:-1] * yb[1:])
    area /= 2
    each = np.arange(p.shape[-1])
    area[:, each, each] = _area(*(total + less_both))
    return area[np.arange(len(p))[:, None], a, b]


def permutation(
    human: np.ndarray, method: np.ndarray, baseline: np.ndarray, buckets: int, draws: int = PERMUTATIONS, seed: int = 0
) -> Test:
    """Label swap paired by prompt: is MAUVE(method) - MAUVE(baseline), mean over k-means starts, more than chance?

    Under the null the two texts of a prompt are exchangeable. Two-sided, with the observed labels counted in.
    """
    reference = histogram(human, buckets)[:, None]
    observed = float((per_seed(human, method, buckets) - per_seed(human, baseline, buckets)).mean())
    swap = np.random.default_rng(seed).integers(2, size=(draws, human.shape[1])).astype(np.float32)
    one, two = (np.eye(buckets, dtype=np.float32)[x] for x in (method, baseline))  # (starts, n, buckets)
    moved = swap @ (two - one)  # (starts, draws, buckets): what a swap brings to the method
    first, second = one.sum(1, keepdims=True), two.sum(1, keepdims=True)
    parts = np.array_split(moved, -(-draws // 50), axis=1)  # 50 draws at once stay in the processor's cache
    null = np.concatenate([score(reference, first + x) - score(reference, second - x) for x in parts], axis=1)
    p = (1 + int((np.abs(null.mean(0)) >= abs(observed) - 1e-12).sum())) / (draws + 1)
    return Test(observed, p, float(np.sqrt(p * (1 - p) / draws)))


def alike(
    human: np.ndarray, one: np.ndarray, two: np.ndarray, buckets: int, n: int, trials: int = TRIALS, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Comparisons of two sides that are alike: n random prompts, the two seeds' texts of each swapped at random.

    Args:
        human, one, two: bucket labels (starts, prompts) of human text and of one policy under two seeds.

    Returns:
        Differences of MAUVE (trials,) and the prompts' influences on them (trials, n). An interval of a difference is
        calibrated where 95 in 100 of such comparisons hold 0.
    """
    rng, starts, found = np.random.default_rng(seed), len(human), []
    for _ in range(trials):
        at, swap = rng.permutation(human.shape[1])[:n], rng.integers(2, size=n).astype(bool)
        sides = np.where(swap, two[:, at], one[:, at]), np.where(swap, one[:, at], two[:, at])
        values, influences = _jackknife(np.tile(human[:, at], (2, 1)), np.concatenate(sides), buckets)
        found.append([x[:starts].mean(0) - x[starts:].mean(0) for x in (values, influences)])
    return np.array([value for value, _ in found]), np.array([row for _, row in found])


# --- buckets ------------------------------------------------------------------------------------------------


@threadpool_limits.wrap(limits=1)  # sums in one order: the same buckets whatever the number of cores
def label(
    features: Mapping[str, np.ndarray], buckets: int, seeds: int = SEEDS, beside: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """The bucket of every text: per set an array of shape (seeds, n), one row a k-means start.

    Args:
        features: text set -> (n, d).
        beside: further sets, put into the buckets of the others without a say in them.

    Raises:
        UserError: fewer texts than buckets.
    """
    total = sum(map(len, features.values()))
    if not 2 <= buckets <= total:
        raise UserError(f"buckets={buckets} must be at least 2 and at most the number of texts, {total}")
    rows, weights, project = compress(features)
    rows = rows.round(6)
    ends = np.cumsum([len(x) for x in features.values()])[:-1]
    starts = [KMeans(buckets, n_init=1, random_state=seed).fit(rows, sample_weight=weights) for seed in range(seeds)]
    found = dict(zip(features, np.split(np.stack([s.labels_ for s in starts]), ends, axis=1), strict=True))
    return found | {
        name: np.stack([s.predict(project(x).round(6)) for s in starts]) for name, x in (beside or {}).items()
    }


def compress(features: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, Callable]:
    """All texts (rows of unit length) on their leading principal components, the weight of each, and the projection.

    Args:
        features: text set -> (n, d). Human text weighs as much as all other sets together.
    """
    rows = _unit(np.concatenate(list(features.values())))
    others = sum(len(x) for name, x in features.items() if name != HUMAN)
    weights = np.concatenate(
        [np.full(len(x), others / len(x) if name == HUMAN and others else 1.0) for name, x in features.items()]
    )
    center = np.average(rows, axis=0, weights=weights)
    rows -= center
    values, vectors = np.linalg.eigh((rows * weights[:, None]).T @ rows / weights.sum())
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    share = np.cumsum(values) / max(values.sum(), 1e-300)
    axes = vectors[:, : int(np.searchsorted(share, VARIANCE)) + 1]
    return rows @ axes, weights, lambda more: (_unit(more) - center) @ axes


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
