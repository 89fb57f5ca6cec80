"""The order lemma on an exact process: which decoders reproduce the joint distribution, and by how much others miss it.

A decoder is a rule that says, from the posterior and the mask, which positions are committed now by a draw and which
by the argmax. Its law is computed exactly, by summing its tree, and tested on decoded sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from scipy import stats as st

from jot import stats
from jot.analysis.bound import Process

SAMPLES = 100_000
READY = 3.0  # threshold of the decoder that commits argmaxes in parallel
STRAY = 0.05  # share of the sequences in which the alternative of the power calculation behaves as ``exits``
FEWEST = 5  # expected count below which sequences share a cell of the chi-square test
RESAMPLES = 2000

Rule = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def _best(posterior: np.ndarray, masked: np.ndarray, k: int) -> np.ndarray:
    """The k most confident masked positions of each row, bool ``[n, length]``; ties go to the lowest position."""
    order = np.argsort(-np.where(masked, posterior.max(-1), -1.0), axis=1, kind="stable")
    return masked & (np.argsort(order, axis=1, kind="stable") < k)


def one(posterior: np.ndarray, masked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most confident position, sampled: the order adapts to what was revealed, the lemma's decoder."""
    return _best(posterior, masked, 1), np.zeros_like(masked)


def two(posterior: np.ndarray, masked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two most confident positions at once, each sampled from its own conditional."""
    return _best(posterior, masked, 2), np.zeros_like(masked)


def exits(posterior: np.ndarray, masked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Argmax wherever the ratio reaches ``READY``, in parallel; beside it the most confident position, sampled."""
    ranked = np.sort(posterior, axis=-1)
    ready = masked & (ranked[..., -1] >= READY * ranked[..., -2])
    return _best(posterior, masked, 1) & ~ready, ready


def decoded(process: Process, rule: Rule, n: int, rng: np.random.Generator) -> np.ndarray:
    """``n`` sequences decoded from nothing, ``[n, length]``; ``rule`` says what is sampled and what is argmax."""
    context = np.full((n, process.length), process.mask)
    while (masked := context == process.mask).any():
        posterior = process.table[process.code(context)]
        draw, greedy = rule(posterior, masked)
        below = rng.random((n, process.length, 1)) >= posterior.cumsum(-1)[..., :-1]
        context = np.where(draw, below.sum(-1), np.where(greedy, posterior.argmax(-1), context))
    return context


def distribution(process: Process, rule: Rule) -> np.ndarray:
    """Exact probability that the decoder ends in each of ``process.sequences``: its tree, summed."""
    reached, out = {(process.mask,) * process.length: 1.0}, np.zeros(len(process.sequences))
    while reached:
        ahead: dict[tuple, float] = {}
        for context, mass in reached.items():
            now = np.array(context)
            posterior = process.table[process.code(now)]
            draw, greedy = (chosen[0] for chosen in rule(posterior[None], (now == process.mask)[None]))
            now[greedy] = posterior.argmax(-1)[greedy]
            where = np.flatnonzero(draw)
            for values in itertools.product(range(process.size), repeat=len(where)):
                now[where] = values
                p = mass * posterior[where, values].prod()
                if (now == process.mask).any():
                    ahead[tuple(now)] = ahead.get(tuple(now), 0.0) + p
                else:
                    out[int(np.ravel_multi_index(tuple(now), (process.size,) * process.length))] += p
        reached = ahead
    return out


def lemma(process: Process, n: int = SAMPLES, seed: int = 0, rules: Sequence[Rule] = (one, two, exits)) -> pd.DataFrame:
    """Decoded sequences against the exact joint: chi-square over all of them, and total variation.

    Sequences expected fewer than ``FEWEST`` times are one cell. Columns: decoder, n, cells, statistic, p, variation
    with low and high (basic bootstrap over the decoded sequences), null (what exact samples of this number show on
    average), exact (total variation of the decoder's own law), never (sequences that it cannot produce), power (chance
    that the test at 0.05 sees a decoder which in a share ``STRAY`` of the sequences behaves as ``exits``).
    """
    rng = np.random.default_rng(seed)
    joint = process.joint / process.joint.sum()
    common = n * joint >= FEWEST
    pool = np.where(common, common.cumsum() - 1, common.sum())

    def pooled(values: np.ndarray) -> np.ndarray:
        return np.bincount(pool, values)

    def variation(counts: np.ndarray) -> np.ndarray:
        return abs(counts / n - joint).sum(-1) / 2

    expected = pooled(joint)
    strayed = pooled((1 - STRAY) * joint + STRAY * distribution(process, exits))
    shift, df = n * ((strayed - expected) ** 2 / expected).sum(), len(expected) - 1
    power = float(st.ncx2.sf(st.chi2.isf(stats.ALPHA, df), df, shift))
    null, rows = float(variation(rng.multinomial(n, joint, size=RESAMPLES)).mean()), []
    for rule in rules:
        law = distribution(process, rule)
        index = np.ravel_multi_index(tuple(decoded(process, rule, n, rng).T), (process.size,) * process.length)
        counts = np.bincount(index, minlength=len(joint))
        test = st.chisquare(pooled(counts), n * expected)
        seen, again = float(variation(counts)), variation(rng.multinomial(n, counts / n, size=RESAMPLES))
        # Resampling adds the same upward bias once more, so the interval is the basic one, reflected at the estimate.
        low, high = np.maximum(0.0, 2 * seen - np.quantile(again, [1 - stats.ALPHA / 2, stats.ALPHA / 2]))
        rows.append({
            "decoder": rule.__name__, "n": n, "cells": len(expected), "statistic": float(test.statistic),
            "p": float(test.pvalue), "variation": seen, "low": float(low), "high": float(high),
            "null": null, "exact": float(abs(law - joint).sum() / 2), "never": int((law == 0).sum()), "power": power,
        })  # fmt: skip
    return pd.DataFrame(rows)
