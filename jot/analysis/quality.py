"""Quality of open continuations (the paper's appendix on it): repetition, diversity and MAUVE, with intervals.

* **Rep-4**, per text and averaged: 1 - distinct 4-grams / all 4-grams of the tokens (Welleck et al. 2020, Su et al.
  2022). Lower is better, down to what people write.
* **Dist-2**, over the corpus: distinct bigrams of all texts / all bigrams (Li et al. 2016, over tokens). It falls as
  texts are added, so it is compared at equal n alone. Dist-2 per text is the mean of the same ratio within a text.
* **MAUVE**: see ``jot.paper.mauve``.

The paper names no definition. Its human reference has the level of a corpus-wide Dist-2 (English web text of that
length has 0.9 and more within a text) and of a Rep-4 per text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis import mauve_noise, tables
from jot.analysis.cells import Cell, Records
from jot.analysis.continuations import NOISE, PAIRS, PAPER_PAIR, Texts, copied, documents_of, found, generated
from jot.paper import encoders, mauve
from jot.paper.criteria import NOT_SHOWN, Judged, judged
from jot.runs.parameters import NotebookError

SMALL = 128  # the paper's n
REP_MARGIN, DIST_MARGIN = 0.01, -0.02  # of the plan's criterion
METRICS = ("mauve", "rep4", "dist2")
KEYS = ("model", "encoder", "n")

Rows = Sequence[np.ndarray]  # token ids of every text


def repetition(rows: Rows, n: int = 4) -> np.ndarray:
    """1 - distinct / all n-grams of each text, (k,); 0 for a text of fewer than n tokens."""
    shares = []
    for row in rows:
        tokens = [int(x) for x in row]
        grams = list(zip(*(tokens[i:] for i in range(n)), strict=False))
        shares.append(1 - len(set(grams)) / len(grams) if grams else 0.0)
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


def linear(value: float, influences: np.ndarray) -> stats.Estimate:
    """A statistic with the percentile bootstrap interval over texts of its linear part."""
    spread = stats.paired_difference_bootstrap(influences - influences.mean(), np.zeros(len(influences)))
    return stats.Estimate(value, value + spread.low, value + spread.high)


def mean(values: np.ndarray) -> stats.Estimate:
    """Mean over texts with its percentile bootstrap interval."""
    return stats.paired_difference_bootstrap(values, np.zeros(len(values)))


# --- MAUVE of a set of continuations ------------------------------------------------------------------------


class Buckets(NamedTuple):
    """The buckets of every text of one model under one encoder."""

    encoder: str
    count: int
    labels: dict[str, np.ndarray]  # text set -> (seeds, n)

    def cut(self, columns: slice) -> Buckets:
        """The same buckets for a part of the prompts."""
        return self._replace(labels={name: x[:, columns] for name, x in self.labels.items()})

    def values(self, name: str) -> np.ndarray:
        """MAUVE against human text per k-means start, at equal n; nan where there is no such text."""
        human, model = self.labels["human"], self.labels.get(name)
        if model is None or not model.shape[1]:
            return np.full(len(human), np.nan)
        return mauve.per_seed(human[:, : model.shape[1]], model, self.count)


def buckets(found: Texts, encoder: str, count: int, device: str | None = None) -> Buckets:
    """Encode and bucket all texts of a model.

    Raises:
        NotebookError: too few texts, or an encoder that is not there.
    """
    if count > found.n:
        raise NotebookError(f"buckets={count} is above the {found.n} texts of {found.model}; use fewer")
    return Buckets(encoder, count, mauve.label(encoders.features(encoder, found, device), count))


def mauve_tables(found: Texts, bucketed: Iterable[Buckets]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """MAUVE per encoder, n and text set; and its differences per comparison of ``PAIRS``.

    The first frame has the mean over k-means starts, their range, the bootstrap interval and, at ``SMALL``, the range
    over disjoint parts of the prompts; the set ``others`` is human text, the ceiling (``texts`` of it, where fewer).
    The second has the bootstrap interval and the permutation test.
    """
    scores, tests = [], []
    for whole in bucketed:
        for n in dict.fromkeys((found.n, min(SMALL, found.n))):
            key = {"model": found.model, "encoder": whole.encoder, "n": n}
            here = whole.cut(slice(n))
            human = here.labels["human"]
            equal = {k: x for k, x in here.labels.items() if k != "human" and x.shape[1] == n}
            influences = {k: mauve.influence(human, x, here.count) for k, x in equal.items()}
            for name, labels in here.labels.items():
                if name != "human":
                    values = here.values(name)
                    low = high = float("nan")
                    if name in influences:
                        _, low, high = linear(values.mean(), influences[name])
                    row = key | {"set": name, "texts": labels.shape[1], "mauve": values.mean()}
                    row |= {"low": np.clip(low, 0, 1), "high": np.clip(high, 0, 1)}
                    row |= {"seed_low": values.min(), "seed_high": values.max()}
                    scores.append(row | (_parts(whole, name, n) if n < found.n else {}))
            for pair, (method, baseline) in PAIRS.items():
                if method in equal and baseline in equal:
                    test = mauve.permutation(human, equal[method], equal[baseline], here.count)
                    _, low, high = linear(test.difference, influences[method] - influences[baseline])
                    tests.append(key | {"pair": pair, "low": low, "high": high} | test._asdict())
    return pd.DataFrame(scores), pd.DataFrame(tests, columns=[*KEYS, "pair", "low", "high", *mauve.Test._fields])


def noise(found: Texts, bucketed: Iterable[Buckets]) -> pd.DataFrame:
    """How MAUVE's intervals and tests behave where both sides are full decoding, per encoder and n.

    Columns as in ``mauve_noise.row``; no row where full decoding is recorded under one seed alone.
    """
    two, one = PAIRS[NOISE]
    rows = [
        {"model": found.model, "encoder": x.encoder, "n": n}
        | mauve_noise.row(x.labels["human"], x.labels[one], x.labels[two], x.count, n)
        for x in bucketed
        if one in x.labels and two in x.labels
        for n in dict.fromkeys((found.n, min(SMALL, found.n)))
    ]
    return pd.DataFrame(rows, columns=None if rows else [*KEYS, "trials"])


def _parts(whole: Buckets, name: str, n: int) -> dict:
    """Range of MAUVE over the disjoint parts of n prompts."""
    starts = range(0, whole.labels[name].shape[1] - n + 1, n)
    values = [whole.cut(slice(start, start + n)).values(name).mean() for start in starts]
    return {"parts": len(values), "part_low": min(values), "part_high": max(values)} if len(values) > 1 else {}


def blind(frame: pd.DataFrame) -> pd.DataFrame:
    """Where full decoding, sampled, is under half the ceiling: MAUVE does not discriminate there (largest n)."""
    rows = []
    for (model, encoder), group in frame.groupby(["model", "encoder"], sort=False):
        at = group[group["n"] == group["n"].max()].set_index("set")["mauve"]
        if {"full-sampled", "others"} <= set(at.index):
            full, ceiling = at["full-sampled"], at["others"]
            rows.append({"model": model, "encoder": encoder, "full": full, "ceiling": ceiling,
                         "blind": bool(full < ceiling / 2)})  # fmt: skip
    return pd.DataFrame(rows, columns=["model", "encoder", "full", "ceiling", "blind"])


# --- repetition and diversity -------------------------------------------------------------------------------


def measures(found: Texts) -> pd.DataFrame:
    """One row per text set: Rep-4, Dist-2 and their intervals, length, steps, speedup, verbatim copies."""
    rows = []
    for name, tokens in found.tokens.items():
        if not tokens:
            continue
        row = {"model": found.model, "task": found.task, "set": name, "n": len(tokens)}
        for key, estimate in (
            ("rep4", mean(repetition(tokens))),
            ("dist2", linear(distinct(tokens), influence(tokens))),
            ("dist2_text", mean(1 - repetition(tokens, 2))),
        ):
            row |= {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
        row["tokens"] = float(np.mean([len(x) for x in tokens]))
        if cell := found.cells.get(name):
            speed = tables.speedup(cell)
            row |= {"steps": cell.column("steps").mean(), "speedup": speed.value}
            row |= {"speedup_low": speed.low, "speedup_high": speed.high}
        if found.task == "pocket_prose":
            hits = copied(found.strings[name])
            row["copied"] = 100 * hits[:, 0].sum() / max(hits[:, 1].sum(), 1)
        rows.append(row)
    return pd.DataFrame(rows)


def difference(method: Rows, baseline: Rows) -> dict[str, stats.Estimate]:
    """Method minus baseline over the same prompts: Rep-4, Dist-2 over the corpus, and Dist-2 per text."""
    return {
        "rep4": stats.paired_difference_bootstrap(repetition(method), repetition(baseline)),
        "dist2": linear(distinct(method) - distinct(baseline), influence(method) - influence(baseline)),
        "dist2_text": stats.paired_difference_bootstrap(1 - repetition(method, 2), 1 - repetition(baseline, 2)),
    }


def agreement(method: Rows, baseline: Rows) -> tuple[float, float]:
    """Share of texts that are the same, and of positions that hold the same token."""
    same = [np.asarray(a) == np.asarray(b) for a, b in zip(method, baseline, strict=True)]
    return float(np.mean([x.all() for x in same])), float(np.mean(np.concatenate(same)))


def comparisons(found: Texts) -> pd.DataFrame:
    """One row per comparison of ``PAIRS`` that is recorded: the differences, and how much the texts differ at all."""
    rows = []
    for name, (method, baseline) in PAIRS.items():
        if method in found.cells and baseline in found.cells:
            one, two = found.tokens[method], found.tokens[baseline]
            same, tokens = agreement(one, two)
            row = {
                "model": found.model,
                "pair": name,
                "n": found.n,
                "same_texts": 100 * same,
                "same_tokens": 100 * tokens,
            }
            for key, estimate in difference(one, two).items():
                row |= {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
            rows.append(row)
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["model", "pair", "n"])


def frames(
    sets: Sequence[Texts], names: Iterable[str], count: int, device: str | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """``measures``, ``comparisons``, ``mauve_tables`` and ``noise`` of all models, encoders in the order given."""
    names, parts = list(names), []
    for one in sets:
        bucketed = [buckets(one, name, count, device) for name in names]
        parts.append((measures(one), comparisons(one), *mauve_tables(one, bucketed), noise(one, bucketed)))
    return tuple(pd.concat(part, ignore_index=True) for part in zip(*parts, strict=True))


# --- the plan's criterion -----------------------------------------------------------------------------------


def _saved(cell: Cell) -> str:
    steps, configured = cell.column("steps").mean(), cell.column("configured_steps").mean()
    return f"JoT takes {steps:.1f} of {configured:.0f} steps"


def quality_kept(records: Records, model: str = "pocket-dream", task: str = "pocket_prose") -> Judged:
    """ "quality-kept" of the plan: JoT minus full decoding of the paper's pair, Rep-4 and Dist-2."""
    cells = {k: cell for k, cell in found(records, model, task).items() if k in PAIRS[PAPER_PAIR]}
    if len(cells) < 2:
        return NOT_SHOWN, f"the paper's pair of {model} is not recorded"
    ids = documents_of(cells)
    method, baseline = (generated(cells[k], ids) for k in ("jot-argmax", "full-sampled"))
    gap = difference(method, baseline)
    rep, dist = gap["rep4"], gap["dist2"]
    words = "; ".join(
        f"{k} {x.value:+.4f} [{x.low:+.4f}, {x.high:+.4f}]" for k, x in (("Rep-4", rep), ("Dist-2", dist))
    )
    same = 100 * agreement(method, baseline)[0]
    detail = f"{words}, n = {len(ids):,}; but {_saved(cells['jot-argmax'])}, {same:.0f} % of texts are the same"
    if greedy := found(records, model, task).get("jot-greedy"):  # the other reading: all of JoT takes the argmax
        other = difference(generated(greedy, ids), baseline)["rep4"]
        detail += f"; were all of JoT greedy, Rep-4 {other.value:+.4f} [{other.low:+.4f}, {other.high:+.4f}]"
    seen = rep.high < REP_MARGIN and dist.low > DIST_MARGIN
    return judged(True, seen, rep.low > REP_MARGIN or dist.high < DIST_MARGIN, detail)


PHENOMENA: dict[str, Callable[[Records], Judged]] = {"quality-kept": quality_kept}


def checks(sets: Sequence[Texts], frame: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """What the tables rest on, each as a statement, whether it holds, and the numbers behind it."""
    lengths = {len(x) for found in sets for name in found.cells for x in found.tokens[name]}
    human = {len(x) for found in sets for name in ("human", "others") for x in found.tokens[name]}
    full = [cell for found in sets for name, cell in found.cells.items() if name.startswith("full")]
    ended = [cell for found in sets for cell in found.cells.values() if not np.array_equal(
        cell.column("tokens_non_eos"), np.array([len(x) for x in cell.recorded.frame["generated"]]))]  # fmt: skip
    shared = [bool(set(map(bytes, found.tokens["human"])) & set(map(bytes, found.tokens["others"]))) for found in sets]
    inside = all(((frame[f"{k}_low"] <= frame[k]) & (frame[k] <= frame[f"{k}_high"])).all() for k in ("rep4", "dist2"))
    known = scores.dropna(subset=["low"])
    inside &= bool(((known["low"] <= known["mauve"]) & (known["mauve"] <= known["high"])).all())
    rows = [
        ("Every text has the full length: no end of text was decoded", len(lengths) == 1 and not ended,
         f"{', '.join(map(str, sorted(lengths)))} tokens, {sum(len(found.cells) for found in sets)} cells"),
        ("So has the human text", human == lengths, f"{', '.join(map(str, sorted(human)))} tokens"),
        ("The human texts of the ceiling are others than the reference", not any(shared),
         f"{sum(len(found.tokens['others']) for found in sets):,} texts"),
        ("Full decoding takes every configured step",
         all((c.column("steps") == c.column("configured_steps")).all() for c in full), f"{len(full)} cells"),
        ("Every interval holds its estimate", inside, f"{2 * len(frame) + len(known)} intervals"),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["statement", "holds", "detail"])
