"""Open continuations: how repetitive and how diverse they are.

* **Rep-4**, per text and averaged: 1 - distinct 4-grams / all 4-grams of the tokens (Welleck et al. 2020, Su et al.
  2022). Lower is better, down to what people write.
* **Dist-2**, over the corpus: distinct bigrams of all texts / all bigrams (Li et al. 2016, over tokens). It falls as
  texts are added, so it is compared at equal n alone. Dist-2 per text is the mean of the same ratio within a text.

The paper names no definition. Its human reference has the level of a corpus-wide Dist-2 (English web text of that
length has 0.9 and more within a text) and of a Rep-4 per text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from jot import stats
from jot.tasks.functions import load

Rows = Sequence[np.ndarray]  # token ids of every text


class Statistic(NamedTuple):
    """A number that texts have together, and the influence of every text on it, in the order of the prompts."""

    value: float
    influence: np.ndarray

    def __sub__(self, other: Statistic) -> Statistic:
        """The difference on the same prompts."""
        return Statistic(self.value - other.value, self.influence - other.influence)


def repetition(rows: Rows, n: int = 4) -> np.ndarray:
    """1 - distinct / all n-grams of each text, (k,); 0 for a text of fewer than n tokens."""
    shares = []
    for row in rows:
        tokens = np.asarray(row).tolist()
        kinds = len(set(zip(*(tokens[i:] for i in range(n)), strict=False)))
        shares.append(1 - kinds / (len(tokens) - n + 1) if kinds else 0.0)
    return np.array(shares)


def _bigrams(row: np.ndarray) -> np.ndarray:
    """One number per pair of neighbors in a text."""
    row = np.asarray(row, dtype=np.int64)
    return row[:-1] * 2**32 + row[1:]


def distinct(rows: Rows) -> float:
    """Distinct / all bigrams over all texts together; nan without any."""
    grams = np.concatenate([np.empty(0, np.int64), *map(_bigrams, rows)])
    return len(np.unique(grams)) / len(grams) if len(grams) else float("nan")


def influence(rows: Rows) -> np.ndarray:
    """Jackknife influence of every text on ``distinct``, (k,): (k - 1) times what leaving it out takes away.

    A resample with repeated texts has too few distinct bigrams, and by simulation the spread of the differences of
    such resamples is about half of the true one. The influences have the right spread, so they are resampled instead.
    """
    grams = [np.unique(_bigrams(row)) for row in rows]
    sizes = [len(g) for g in grams]
    _, column, seen = np.unique(np.concatenate(grams), return_inverse=True, return_counts=True)
    alone = np.bincount(np.repeat(np.arange(len(grams)), sizes), weights=seen[column] == 1, minlength=len(grams))
    tokens = np.array([max(len(row) - 1, 0) for row in rows])
    if len(rows) < 2 or (tokens.sum() == tokens).any():
        return np.zeros(len(rows))
    without = (len(seen) - alone) / (tokens.sum() - tokens)
    return (len(rows) - 1) * (len(seen) / tokens.sum() - without)


def average(values: np.ndarray) -> Statistic:
    return Statistic(float(np.mean(values)), values - np.mean(values))


def measures(rows: Rows) -> dict[str, Statistic]:
    """Rep-4, Dist-2 over the corpus, and Dist-2 per text."""
    return {
        "rep4": average(repetition(rows)),
        "dist2": Statistic(distinct(rows), influence(rows)),
        "dist2_text": average(1 - repetition(rows, 2)),
    }


def limits(values: np.ndarray, influences: np.ndarray, groups: Sequence | None = None) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile bootstrap limits of k statistics (k,) from the influences (k, n) of n texts on them.

    Args:
        groups: what each text belongs to, such as its speech: whole groups are then resampled, of whatever size.
    """
    rows = influences - influences.mean(1, keepdims=True)
    if groups is None:
        draws = stats.bootstrap_sums(rows) / rows.shape[1]
    else:
        sums = pd.DataFrame(rows.T).assign(size=1.0).groupby(np.asarray(groups), sort=False).sum()
        draws = stats.bootstrap_sums(sums.to_numpy().T)
        draws = draws[:-1] / draws[-1]
    low, high = values + np.quantile(draws, [stats.ALPHA / 2, 1 - stats.ALPHA / 2], axis=1)
    return low, high


def intervals(found: Mapping[object, Statistic], speeches: Sequence | None = None) -> pd.DataFrame:
    """By name ``value``, ``low`` and ``high`` over prompts, ``speech_low`` and ``speech_high`` over whole speeches.

    Args:
        found: statistics of the same prompts.
        speeches: the speech of every prompt; None where each prompt is a document of its own.
    """
    values = np.array([each.value for each in found.values()])
    rows = np.stack([each.influence for each in found.values()])
    table = {"value": values} | dict(zip(("low", "high"), limits(values, rows), strict=True))
    if speeches is not None:
        table |= dict(zip(("speech_low", "speech_high"), limits(values, rows, speeches), strict=True))
    return pd.DataFrame(table, index=pd.Index(list(found), tupleize_cols=isinstance(next(iter(found)), tuple)))


def same(method: Rows, baseline: Rows) -> tuple[float, float]:
    """Share of texts that are the same, and of positions that hold the same token."""
    equal = [np.asarray(a) == np.asarray(b) for a, b in zip(method, baseline, strict=True)]
    return float(np.mean([x.all() for x in equal])), float(np.mean(np.concatenate(equal)))


def speeches(task: str) -> dict[str, str]:
    """The speech of every prompt of ``pocket_prose``; of another task nothing, each document stands for itself."""
    if task != "pocket_prose":
        return {}
    return {doc["id"]: f"{doc['president']} {doc['year']}" for doc in load(task)["test"]}
