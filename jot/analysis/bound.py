"""The reversal bound where every conditional is exact: a small mixture of Markov chains, looked at token by token.

Sequences of ``length`` tokens over an alphabet of ``size`` letters come from one of several Markov chains, chosen by
a weight. The posterior of every masked position is computed by forward and backward recursions for each of the
``(size + 1) ** length`` contexts there are, in float64, so a decoder or a trial only looks it up. This is the process
of section 4 of the paper with its one assumption true by construction; a temperature on the conditionals makes it
false by a known amount, which is what the corollary is about.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats as st

from jot import stats

THRESHOLDS = (1.5, 3.0, 10.0, 30.0, 90.0, 300.0)
TRIALS = 40_000
TEMPERATURES = (0.5, 1.0, 2.0)  # of the mis-scaled models: overconfident, right, underconfident
SLACK = 1e-12  # posteriors are sums of products in float64: a tie at 1/2 or at the threshold is a tie to this
KAPPAS = np.geomspace(0.1, 1e4, 400)  # where the corollary's free constant is looked for, beside tau itself


@dataclass(frozen=True, eq=False)
class Process:
    """A mixture of Markov chains.

    Attributes:
        weights: of the chains, ``[chains]``.
        start: distribution of the first token, ``[chains, size]``.
        step: transition matrices, rows sum to 1, ``[chains, size, size]``.
        length: tokens of a sequence.
    """

    weights: np.ndarray
    start: np.ndarray
    step: np.ndarray
    length: int

    @property
    def size(self) -> int:
        return self.start.shape[1]

    @property
    def mask(self) -> int:
        """The digit that stands for a masked position in a context."""
        return self.size

    @cached_property
    def sequences(self) -> np.ndarray:
        """All of them, ``[size ** length, length]``."""
        return np.array(list(itertools.product(range(self.size), repeat=self.length)))

    @cached_property
    def joint(self) -> np.ndarray:
        """Probability of each of ``sequences``."""
        x = self.sequences
        p = self.start[:, x[:, 0]]
        for j in range(1, self.length):
            p = p * self.step[:, x[:, j - 1], x[:, j]]
        return self.weights @ p

    def posterior(self, contexts: np.ndarray) -> np.ndarray:
        """P(token | context) at every position, ``[n, length, size]``; at a revealed one it is the token itself.

        Args:
            contexts: ``[n, length]`` tokens, ``mask`` where nothing is revealed. Rows of probability 0 give nan.
        """
        seen = (contexts[..., None] == np.arange(self.size)) | (contexts == self.mask)[..., None]
        total = np.zeros((len(contexts), self.length, self.size))
        for weight, start, step in zip(self.weights, self.start, self.step, strict=True):
            forward = np.empty_like(total)
            backward = np.ones_like(total)
            forward[:, 0] = start * seen[:, 0]
            for j in range(1, self.length):
                forward[:, j] = (forward[:, j - 1] @ step) * seen[:, j]
            for j in range(self.length - 2, -1, -1):
                backward[:, j] = (backward[:, j + 1] * seen[:, j + 1]) @ step.T
            total += weight * forward * backward  # joint with the evidence, so the chains weigh themselves
        with np.errstate(invalid="ignore"):
            return total / total.sum(-1, keepdims=True)

    @cached_property
    def table(self) -> np.ndarray:
        """The posterior of every context there is, ``[(size + 1) ** length, length, size]``, by ``code``."""
        digits = itertools.product(range(self.size + 1), repeat=self.length)
        return self.posterior(np.array(list(digits)))

    @cached_property
    def place(self) -> np.ndarray:
        """Value of each position in a context's number."""
        return (self.size + 1) ** np.arange(self.length - 1, -1, -1)

    def code(self, contexts: np.ndarray) -> np.ndarray:
        """The number of each context, its row in ``table``."""
        return contexts @ self.place

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """``n`` sequences, ``[n, length]``."""
        return self.sequences[rng.choice(len(self.joint), size=n, p=self.joint / self.joint.sum())]


def example(length: int = 6) -> Process:
    """Three letters and four ways to go on: stay, step up, step down, anything; which one, only the rest tells."""
    eye, noise = np.eye(3), np.full((3, 3), 1 / 3)
    moves = [eye, np.roll(eye, 1, axis=1), np.roll(eye, -1, axis=1), eye]
    sharp = [0.98, 0.95, 0.9, 0.0]
    step = np.stack([s * move + (1 - s) * noise for s, move in zip(sharp, moves, strict=True)])
    start = np.tile([0.6, 0.3, 0.1], (4, 1))
    return Process(np.array([0.45, 0.25, 0.2, 0.1]), start, step, length)


def chain(length: int = 6) -> Process:
    """One Markov chain over three letters: only the nearest revealed neighbors matter."""
    step = np.array([[[0.95, 0.045, 0.005], [0.02, 0.95, 0.03], [0.3, 0.1, 0.6]]])
    return Process(np.ones(1), np.array([[0.7, 0.25, 0.05]]), step, length)


def attaining(tau: float) -> Process:
    """Two tokens whose first one attains the bound: its share q = 1 / (1 + tau) goes to 1/2 or to 0, nothing else.

    The second token is 1 always if the first is the runner-up (1), and with chance 1 / tau if it is the leader (0);
    seen as 1 it makes both equally likely, which happens with probability 2q.
    """
    q = 1 / (1 + tau)
    step = np.array([[[1 - 1 / tau, 1 / tau], [0.0, 1.0]]])
    return Process(np.ones(1), np.array([[1 - q, q]]), step, 2)


# --- trials -------------------------------------------------------------------------------------------------


class Trials(NamedTuple):
    """Tokens ``[n, length]`` and the order ``[n, length]`` in which they are revealed; the last one is followed."""

    tokens: np.ndarray
    order: np.ndarray
    weight: np.ndarray  # [n], sums to 1


def sampled(process: Process, n: int, rng: np.random.Generator, followed: int | None = None) -> Trials:
    """Independent trials: a sequence, an order, one position followed (any, or the one that is named)."""
    tokens = process.draw(n, rng)
    order = rng.permuted(np.tile(np.arange(process.length), (n, 1)), axis=1)
    if followed is not None:
        rest = order[order != followed].reshape(n, -1)
        order = np.concatenate([rest, np.full((n, 1), followed)], axis=1)
    return Trials(tokens, order, np.full(n, 1 / n))


def enumerated(process: Process, followed: int | None = None) -> Trials:
    """Every sequence under every order, with its probability: expectations over these are exact."""
    orders = np.array([o for o in itertools.permutations(range(process.length)) if followed in (None, o[-1])])
    n, m = len(process.sequences), len(orders)
    weight = np.repeat(process.joint, m) / m
    return Trials(np.repeat(process.sequences, m, axis=0), np.tile(orders, (n, 1)), weight)


class Beliefs(NamedTuple):
    """Posterior of the followed position after 0, 1, ... reveals ``[n, length, size]``, and its two best letters."""

    path: np.ndarray
    best: np.ndarray  # [n, length, 2]


def beliefs(process: Process, trials: Trials) -> Beliefs:
    """Look the posterior of the followed position up after every reveal."""
    n, steps = trials.order.shape
    context = np.full((n, steps), process.mask)
    rows, target = np.arange(n), trials.order[:, -1]
    path = np.empty((n, steps, process.size))
    for m in range(steps):
        path[:, m] = process.table[process.code(context), target]
        at = trials.order[:, m]
        context[rows, at] = trials.tokens[rows, at]
    return Beliefs(path, np.argsort(-path, axis=-1, kind="stable")[..., :2])


@cache
def everything(process: Process, followed: int | None = None) -> tuple[Trials, Beliefs]:
    """``enumerated`` and its beliefs, kept: several tables sum over them."""
    trials = enumerated(process, followed)
    return trials, beliefs(process, trials)


class Commits(NamedTuple):
    """What happened to each trial at one threshold, all ``[n]``; meaningless where ``entered`` is False."""

    entered: np.ndarray  # the model's ratio reached the threshold
    paired: np.ndarray  # and the true token is the leader or the runner-up
    runner: np.ndarray  # the true token is the runner-up
    model: np.ndarray  # the model's share of the runner-up at the commit
    share: np.ndarray  # the true share q at the commit
    end: np.ndarray  # the true share after the last reveal
    flipped: np.ndarray  # the true share reached 1/2 at the commit or later


def commits(trials: Trials, seen: Beliefs, tau: float, temperature: float = 1.0) -> Commits:
    """Commit each followed position the first time that the model's top-2 ratio is at least ``tau``.

    Args:
        temperature: the model's conditionals are the true ones to the power 1 / temperature, renormalized; below 1
            it is overconfident. The order of the candidates stays the true one.
    """
    two = np.take_along_axis(seen.path, seen.best, axis=-1)
    ready = two[..., 0] >= tau**temperature * two[..., 1] * (1 - SLACK)  # the same in the model's own ratio
    entered, at, rows = ready.any(1), ready.argmax(1), np.arange(len(two))
    leader, runner = seen.best[rows, at].T
    down, up = seen.path[rows, :, leader], seen.path[rows, :, runner]  # [n, steps]
    with np.errstate(invalid="ignore"):
        q = up / (up + down)  # nan where neither is possible any more: the true token was another one
    later = np.arange(ready.shape[1]) >= at[:, None]
    truth = trials.tokens[rows, trials.order[:, -1]]
    up, down = q[rows, at] ** (1 / temperature), (1 - q[rows, at]) ** (1 / temperature)
    return Commits(
        entered, entered & ((truth == leader) | (truth == runner)), truth == runner, up / (up + down), q[rows, at],
        q[:, -1], (later & (q >= 0.5 - SLACK)).any(1),
    )  # fmt: skip


def rates(
    process: Process, trials: Trials, taus: Sequence[float] = THRESHOLDS, followed: int | None = None
) -> pd.DataFrame:
    """Observed flips per threshold with Wilson intervals, beside the exact rate and the bounds.

    Columns: tau, n (committed, true token in the leading pair), dropped (share of the committed whose is not), flips,
    rate, low, high, exact (by enumeration), mean_bound (mean 2q at the commit), bound (2 / (1 + tau)), drift (mean
    of q at the end minus q at the commit), drift_low, drift_high (normal, over independent trials), exact_drift.
    """
    seen, rows = beliefs(process, trials), []
    whole, all_seen = everything(process, followed)
    for tau in taus:
        got, exact = commits(trials, seen, tau), commits(whole, all_seen, tau)
        keep, n = got.paired, int(got.paired.sum())
        if not n:
            continue
        flips, mass = int(got.flipped[keep].sum()), whole.weight[exact.paired] / whole.weight[exact.paired].sum()
        low, high = stats.wilson(flips, n)
        drift = got.end[keep] - got.share[keep]
        error = float(st.norm.isf(stats.ALPHA / 2) * drift.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan
        rows.append({
            "tau": tau, "n": n, "dropped": 1 - n / got.entered.sum(), "flips": flips, "rate": flips / n, "low": low,
            "high": high, "exact": float(mass @ exact.flipped[exact.paired]),
            "mean_bound": float(2 * got.share[keep].mean()), "bound": 2 / (1 + tau), "drift": float(drift.mean()),
            "drift_low": float(drift.mean()) - error, "drift_high": float(drift.mean()) + error,
            "exact_drift": float(mass @ (exact.end - exact.share)[exact.paired]),
        })  # fmt: skip
    return pd.DataFrame(rows)


def attained(taus: Sequence[float] = THRESHOLDS, n: int = TRIALS, seed: int = 0) -> pd.DataFrame:
    """``rates`` of the process that attains the bound, one process per threshold, and observed over bound."""
    parts = []
    for tau in taus:
        process = attaining(tau)
        parts.append(rates(process, sampled(process, n, np.random.default_rng(seed), 0), [tau], followed=0))
    out = pd.concat(parts, ignore_index=True)
    return out.assign(**{f"{k}_ratio": out[k] / out["bound"] for k in ("rate", "low", "high", "exact")})


def simulated(processes: Mapping[str, Process], n: int = TRIALS, seed: int = 0) -> dict[str, pd.DataFrame]:
    """``rates`` of each process over ``n`` trials, and last, under "attaining", ``attained``."""
    out = {name: rates(x, sampled(x, n, np.random.default_rng(seed))) for name, x in processes.items()}
    return out | {"attaining": attained(n=n, seed=seed)}


def corollary(
    process: Process, temperatures: Sequence[float] = TEMPERATURES, taus: Sequence[float] = THRESHOLDS
) -> pd.DataFrame:
    """Both terms of the corollary for a mis-scaled model, exact: sums over all sequences and orders.

    Columns: temperature, tau, flip (P of a flip of the true share, given the commit and the pair), stopping and
    calibration (the two terms at kappa = tau), best_kappa with best_stopping and best_calibration (the smallest sum),
    markov ((1 + tau) P(x = u), what labels alone give for the calibration term), mean_bound (mean 2q).
    """
    trials, seen = everything(process)
    rows = []
    for temperature, tau in itertools.product(temperatures, taus):
        got = commits(trials, seen, tau, temperature)
        weight, share = trials.weight[got.paired], got.share[got.paired]
        if not weight.sum():
            continue
        order = np.argsort(share)
        share, weight = share[order], weight[order] / weight.sum()
        above = np.concatenate([np.cumsum(weight[::-1])[::-1], [0.0]])  # P(share >= the i-th smallest)
        kappas = np.append(KAPPAS, tau)
        calibration = above[np.searchsorted(share, (1 + SLACK) / (1 + kappas), side="right")]
        best = int(np.argmin(2 / (1 + kappas) + calibration))
        rows.append({
            "temperature": temperature, "tau": tau, "flip": float(weight @ got.flipped[got.paired][order]),
            "stopping": 2 / (1 + tau), "calibration": float(calibration[-1]), "best_kappa": float(kappas[best]),
            "best_stopping": float(2 / (1 + kappas[best])), "best_calibration": float(calibration[best]),
            "markov": (1 + tau) * float(weight @ got.runner[got.paired][order]),
            "mean_bound": float(2 * weight @ share),
        })  # fmt: skip
    return pd.DataFrame(rows)
