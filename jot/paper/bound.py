"""The reversal bound where every conditional is exact: a small mixture of Markov chains, and decoders of it.

Sequences of ``length`` tokens over an alphabet of ``size`` letters come from one of several Markov chains, chosen by
a weight. The posterior of every masked position is computed by forward and backward recursions for each of the
``(size + 1) ** length`` contexts there are, in float64, so a trial or a decoder only looks it up. This is the process
of section 4 of the paper with its one assumption true by construction; a temperature on the conditionals makes it
false by a known amount, which is what the corollary is about.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

SLACK = 1e-12  # posteriors are sums of products in float64: a tie at 1/2 or at the threshold is a tie to this


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
        return self.posterior(np.array(list(itertools.product(range(self.size + 1), repeat=self.length))))

    def code(self, contexts: np.ndarray) -> np.ndarray:
        """The number of each context, its row in ``table``."""
        return contexts @ (self.size + 1) ** np.arange(self.length - 1, -1, -1)

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """``n`` sequences, ``[n, length]``."""
        return self.sequences[rng.choice(len(self.joint), size=n, p=self.joint / self.joint.sum())]


def mixture(length: int = 6) -> Process:
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


# --- trials: one position stays masked, the others are revealed one by one -----------------------------------------


@dataclass(frozen=True)
class Trials:
    """Sequences under an order of reveals; the last position of the order is followed and never revealed.

    Attributes:
        truth: the token of the followed position, ``[n]``.
        weight: probability of each trial, sums to 1, ``[n]``.
        path: posterior of the followed position after 0, 1, ... reveals, ``[n, length, size]``.
        best: leader and runner-up then, ``[n, length, 2]``.
    """

    truth: np.ndarray
    weight: np.ndarray
    path: np.ndarray
    best: np.ndarray

    @cached_property
    def two(self) -> np.ndarray:
        """Their probabilities, ``[n, length, 2]``."""
        return np.take_along_axis(self.path, self.best, axis=-1)


def _followed(process: Process, tokens: np.ndarray, order: np.ndarray, weight: np.ndarray) -> Trials:
    n, steps = order.shape
    context = np.full((n, steps), process.mask)
    rows, target = np.arange(n), order[:, -1]
    path = np.empty((n, steps, process.size))
    for m in range(steps):
        path[:, m] = process.table[process.code(context), target]
        context[rows, order[:, m]] = tokens[rows, order[:, m]]
    return Trials(tokens[rows, target], weight, path, np.argsort(-path, axis=-1, kind="stable")[..., :2])


def sampled(process: Process, n: int, seed: int = 0, followed: int | None = None) -> Trials:
    """Independent trials: a sequence, an order, one position followed (any, or the one that is named)."""
    rng = np.random.default_rng(seed)
    tokens = process.draw(n, rng)
    order = rng.permuted(np.tile(np.arange(process.length), (n, 1)), axis=1)
    if followed is not None:
        rest = order[order != followed].reshape(n, -1)
        order = np.concatenate([rest, np.full((n, 1), followed)], axis=1)
    return _followed(process, tokens, order, np.full(n, 1 / n))


def enumerated(process: Process, followed: int | None = None) -> Trials:
    """Every sequence under every order, with its probability: expectations over these are exact."""
    orders = np.array([o for o in itertools.permutations(range(process.length)) if followed in (None, o[-1])])
    n, m = len(process.sequences), len(orders)
    tokens, order = np.repeat(process.sequences, m, axis=0), np.tile(orders, (n, 1))
    return _followed(process, tokens, order, np.repeat(process.joint, m) / m)


def commits(trials: Trials, tau: float, temperature: float = 1.0) -> pd.DataFrame:
    """The trials that commit: the first time that the model's top-2 ratio is at least ``tau``.

    Args:
        temperature: the model's conditionals are the true ones to the power 1 / temperature, renormalized; below 1
            it is overconfident. The order of the candidates stays the true one.

    Returns:
        One row a commit: weight; paired (the true token is the leader or the runner-up); runner (it is the
        runner-up); share, the true share q of the runner-up among the two, and end, the same after the last reveal;
        flipped (it reached 1/2 at the commit or later).
    """
    ready = trials.two[..., 0] >= tau**temperature * trials.two[..., 1] * (1 - SLACK)  # in the true ratio
    rows = np.flatnonzero(ready.any(1))
    at = ready[rows].argmax(1)
    leader, runner = trials.best[rows, at].T
    down, up = trials.path[rows, :, leader], trials.path[rows, :, runner]  # [n, steps]
    with np.errstate(invalid="ignore"):
        q = up / (up + down)  # nan where neither is possible any more: the true token was another one
    later, truth = np.arange(q.shape[1]) >= at[:, None], trials.truth[rows]
    return pd.DataFrame({
        "weight": trials.weight[rows], "paired": (truth == leader) | (truth == runner), "runner": truth == runner,
        "share": q[np.arange(len(rows)), at], "end": q[:, -1], "flipped": (later & (q >= 0.5 - SLACK)).any(1),
    })  # fmt: skip


# --- decoders: which positions are committed now by a draw, and which by the argmax -------------------------------

Rule = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def best(posterior: np.ndarray, masked: np.ndarray, k: int) -> np.ndarray:
    """The k most confident masked positions of each row, bool ``[n, length]``; ties go to the lowest position."""
    order = np.argsort(-np.where(masked, posterior.max(-1), -1.0), axis=1, kind="stable")
    return masked & (np.argsort(order, axis=1, kind="stable") < k)


def one(posterior: np.ndarray, masked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most confident position, sampled: the order adapts to what was revealed, the lemma's decoder."""
    return best(posterior, masked, 1), np.zeros_like(masked)


def law(process: Process, rule: Rule) -> np.ndarray:
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
