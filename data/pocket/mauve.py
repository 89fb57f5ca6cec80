"""MAUVE (Pillutla et al. 2021) of notebooks 05 and 12, with the influence of every text on it.

Notebook 05 has the definition and what differs from ``mauve-text``. Labels are the buckets of texts, one row a k-means
start; histograms are counts over the last axis.
"""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

STARTS = 5  # of k-means
LAMBDA = np.linspace(1 - 1e-6, 1e-6, 25)  # of human text in the mixtures, from one end of the frontier to the other


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def compress(features):
    """All texts on their leading principal components, the weight of each, and the projection.

    ``features``: text set -> (n, d). Human text weighs as much as all other sets together.
    """
    rows = unit(np.concatenate(list(features.values())).astype(float))
    others = sum(len(x) for name, x in features.items() if name != "human")
    share = {name: others / len(x) if name == "human" and others else 1.0 for name, x in features.items()}
    weights = np.concatenate([np.full(len(x), share[name]) for name, x in features.items()])
    center = np.average(rows, axis=0, weights=weights)
    rows -= center
    values, vectors = np.linalg.eigh((rows * weights[:, None]).T @ rows / weights.sum())
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    kept = np.cumsum(values) / max(values.sum(), 1e-300)
    axes = vectors[:, : int(np.searchsorted(kept, 0.9)) + 1]
    return rows @ axes, weights, lambda more: (unit(more.astype(float)) - center) @ axes


@threadpool_limits.wrap(limits=1)  # sums in one order: the same buckets whatever the number of cores
def buckets_of(features, k, beside):
    """The bucket of every text, (starts, n) a set; the sets of ``beside`` are put into the buckets of the others."""
    rows, weights, project = compress(features)
    ends = np.cumsum([len(x) for x in features.values()])[:-1]
    fits = [KMeans(k, n_init=1, random_state=i).fit(rows.round(6), sample_weight=weights) for i in range(STARTS)]
    found = dict(zip(features, np.split(np.stack([fit.labels_ for fit in fits]), ends, axis=1), strict=True))
    return found | {name: np.stack([fit.predict(project(x).round(6)) for fit in fits]) for name, x in beside.items()}


def histogram(labels, k):
    """Counts (..., k) of labels (..., n)."""
    rows = labels.reshape(-1, labels.shape[-1])
    flat = rows + k * np.arange(len(rows))[:, None]
    return np.bincount(flat.ravel(), minlength=k * len(rows)).reshape(*labels.shape[:-1], k)


def log(x):
    return np.log(np.maximum(x, 1e-300))


def log_mixture(p, q):
    """Of every mixture of p and q, (mixtures, ..., buckets)."""
    weights = LAMBDA.reshape(-1, *[1] * p.ndim)
    return log(weights * p + (1 - weights) * q)


def area(p_kl, q_kl):
    """Below the frontier, from the divergences (mixtures, ...) of human and of model text to every mixture."""
    x, y = np.exp(-5 * q_kl), np.exp(-5 * p_kl)
    return (x[0] + y[-1] + (x[1:] * y[:-1] - x[:-1] * y[1:]).sum(0)) / 2  # trapezoids from (0, 1) to (1, 0)


def score(human, model):
    """MAUVE of histograms over the last axis; leading axes broadcast."""
    p, q = np.broadcast_arrays(*(h / h.sum(-1, keepdims=True) for h in map(np.float64, (human, model))))
    mixture = log_mixture(p, q)
    kl = ((h * log(h)).sum(-1) - np.einsum("...b,k...b->k...", h, mixture) for h in (p, q))
    return area(*kl)


def added(p, q):
    """What every bucket adds to both divergences, (2, mixtures, starts, buckets)."""
    return np.stack([h * (log(h) - log_mixture(p, q)) for h in (p, q)])


def left_out(p, q, a, b):
    """``score`` of counts p and q (starts, buckets) without one text in bucket ``a`` of p and one in ``b`` of q.

    Only those two buckets change, so a point on the frontier takes a factor from each, and the areas of all pairs of
    buckets are sums of products; where ``a`` is ``b`` both texts leave one bucket.
    """
    one = 1 / (p.sum(-1, keepdims=True) - 1)
    p, q = p * one, q * one
    whole = added(p, q)
    less_p, less_q, less_both = (added(*h) - whole for h in ((p - one, q), (p, q - one), (p - one, q - one)))
    total = whole.sum(-1, keepdims=True)
    (ya, xa), (yb, xb) = np.exp(-5 * (total + less_p)), np.exp(-5 * less_q)
    parts = [(xa[:1], xb[:1], 1), (ya[-1:], yb[-1:], 1)]  # as in `area`
    parts += [(xa[1:] * ya[:-1], xb[1:] * yb[:-1], 1), (xa[:-1] * ya[1:], xb[:-1] * yb[1:], -1)]
    areas = sum(sign * np.einsum("ksa,ksb->sab", f, g) for f, g, sign in parts) / 2
    each = np.arange(p.shape[-1])
    areas[:, each, each] = area(*(total + less_both))
    return areas[np.arange(len(p))[:, None], a, b]


def per_start(human, model, k):
    """MAUVE per k-means start, of two label arrays (starts, n)."""
    return score(histogram(human, k), histogram(model, k))


def jackknife(human, model, k):
    """MAUVE per start, and every prompt's influence (its human and its model text together) on it, (starts, n)."""
    p, q, n = histogram(human, k), histogram(model, k), human.shape[-1]
    values = score(p, q)
    if n < 2:
        return values, np.zeros(human.shape)
    return values, (n - 1) * (values[:, None] - left_out(p, q, human, model))


def influence_of(human, model, k):
    """The influences, mean over starts, (n,)."""
    return jackknife(human, model, k)[1].mean(0)
