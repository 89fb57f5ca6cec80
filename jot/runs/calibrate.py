"""``jot calibrate``: a threshold with a guarantee, by Learn-then-Test with fixed-sequence testing.

A grid of thresholds fixed beforehand is walked from safe to fast. Each step tests "the risk exceeds epsilon" on fresh
documents, with a p-value that holds at every n; the walk stops at the first p above delta, and the last threshold
before it is certified: over calibration sets its risk exceeds epsilon with chance at most delta (Angelopoulos, Bates,
Candes, Jordan and Lei, "Learn then Test", arXiv 2110.01052). The guarantee holds for one model, task, prompt format,
dtype and decoding, which the result names.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binom

from jot import tasks
from jot.errors import UserError, destination
from jot.models import home
from jot.records import take
from jot.records.store import replace
from jot.runs.frames import defaults, family, runs, samples

GRID = (math.inf, 1000, 300, 150, 120, 90, 60, 30, 10)  # of tau_max, from safe to fast; inf: no exits
LOSSES = {
    "breaks": "full decoding right, JoT wrong",
    "answers": "the final answer differs from full decoding's",
    "score": "drop of the score, repairs counted against breaks",
}

# --- p-values of "the risk exceeds epsilon" -------------------------------------------------------------------


def binomial_p(loss: np.ndarray, epsilon: float) -> float:
    """Exact, for losses of 0 and 1: the chance of so few where the risk is epsilon."""
    return float(binom.cdf(int(np.sum(loss)), len(loss), epsilon))


def betting_p(loss: np.ndarray, epsilon: float, delta: float = 0.05) -> float:
    """For losses in [-1, 1], in an order fixed beforehand: one over the most that bets against "the risk is epsilon"
    ever held (Ville's inequality; stakes as in Waudby-Smith and Ramdas 2024, from the losses before alone)."""
    loss, n = np.asarray(loss, float), len(loss)
    count = np.arange(1, n + 1)
    mean = np.cumsum(loss) / (count + 1)
    spread = (1 + np.cumsum((loss - mean) ** 2)) / (count + 1)
    before = np.concatenate([[1.0], spread[:-1]])
    stake = np.minimum(np.sqrt(2 * math.log(1 / delta) / (n * before)), 0.75 / (1 - epsilon))
    capital = np.cumsum(np.log1p(-stake * (loss - epsilon)))
    return float(min(1.0, math.exp(-max(0.0, capital.max()))))


P_VALUES: dict[str, Callable] = {"breaks": binomial_p, "answers": binomial_p, "score": betting_p}

# --- the walk -------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One threshold of the walk: losses in n documents (their sum), risk, p-value, and whether it is certified."""

    tau: float
    n: int
    losses: float
    risk: float
    p: float
    certified: bool


def loss_of(kind: str, full: pd.DataFrame, jot: pd.DataFrame) -> np.ndarray:
    """Loss of each document, shape (n,), in the one fixed order of ``take``; frames of samples by document."""
    full, jot = full.set_index("doc_id"), jot.set_index("doc_id")
    if set(full.index) != set(jot.index):
        raise UserError("full decoding and JoT do not hold the same documents; run both with one --limit")
    order = take(sorted(full.index))
    full, jot = full.loc[order], jot.loc[order]
    if full[["score"]].isna().any(axis=None) or jot[["score"]].isna().any(axis=None):
        raise UserError("this task has no score; a risk needs one")
    if kind == "answers":
        said = [frame["answer"].where(frame["answer"].fillna("") != "", frame["text"]) for frame in (full, jot)]
        return (said[0].to_numpy() != said[1].to_numpy()).astype(float)
    drop = full["score"].to_numpy(float) - jot["score"].to_numpy(float)
    return (drop > 0.5).astype(float) if kind == "breaks" else drop


def certify(losses: Callable[[float], np.ndarray], kind: str, epsilon: float, delta: float,
            grid: Sequence[float] = GRID) -> list[Step]:  # fmt: skip
    """The walk, to the first threshold that is not certified; ``losses(tau)`` is asked in the order of the grid."""
    walked: list[Step] = []
    for tau in grid:
        loss = losses(tau)
        p = P_VALUES[kind](loss, epsilon)
        walked.append(Step(tau, len(loss), float(loss.sum()), float(loss.mean()), p, p <= delta))
        if p > delta:
            break
    return walked


def certified(walked: Sequence[Step]) -> float | None:
    """The last certified threshold (inf: only without exits), or None where not even that can be certified."""
    return next((step.tau for step in reversed(walked) if step.certified), None)


def needed(risk: float, epsilon: float, delta: float) -> int | None:
    """Documents that would certify a 0/1 loss of this risk; None where the risk is not below epsilon."""
    if risk >= epsilon:
        return None
    size = next(n for n in (2**k for k in range(2, 40)) if binom.cdf(math.floor(risk * n), n, epsilon) <= delta)
    low = size // 2
    while size - low > 1:  # the chance does not fall at every single n; the last doubling is halved down
        middle = (low + size) // 2
        low, size = (low, middle) if binom.cdf(math.floor(risk * middle), middle, epsilon) <= delta else (middle, size)
    return size


# --- records --------------------------------------------------------------------------------------------------


def _recorded(store: Path, model: str, task: str, split: str, dtype: str) -> Callable[[float], pd.DataFrame]:
    """Samples by threshold from a packed folder; nothing is decoded."""
    found = runs(store, model=model, task=task, split=split, seed=0, dtype=dtype)
    default = defaults(family(model), task, "jot")["tau_max"]

    def at(tau: float) -> pd.DataFrame:
        name, setting = ("full", "") if math.isinf(tau) else ("jot", "" if tau == default else f"tau_max={tau:g}")
        run = found[(found["method"] == name) & (found["setting"] == setting)]
        if run.empty:
            raise UserError(f"{store} holds no {name} {setting} of {model} / {task} / {split}; "
                            "name another --store, and it will be decoded there")  # fmt: skip
        return samples(run, store, ["score", "answer", "text", "configured_steps", "steps"])

    return at


def run(o: argparse.Namespace) -> int:
    """``jot calibrate``. Returns the exit code; 1 where no threshold can be certified."""
    o.dtype = o.dtype or "float32"
    names = tasks.get(o.task).splits
    split = o.split or ("calibration" if "calibration" in names else names[-1] if len(names) > 1 else "")
    if split not in names or split == names[0]:
        raise UserError(f"{o.task} needs a split to calibrate on that is not its test split; it has {', '.join(names)}")
    store = Path(o.store or home() / "data" / "records")
    packed = (store / "manifest.json").is_file()
    if not o.store and not packed:
        store = home() / "results" / "records"
    folder = home() / "results" if packed else destination("--store", store)
    name = f"{Path(o.model).name}_{o.task}_{o.loss}.json"
    path = destination("--out", folder / "certified" / name if o.out is None else o.out, "file", name)
    at = _recorded(store, o.model, o.task, split, o.dtype) if packed else _decoding(o, store, split)
    full = at(math.inf)

    def losses(tau: float) -> np.ndarray:
        return loss_of(o.loss, full, full if math.isinf(tau) else at(tau))[: o.limit]

    return report(o, path, split, certify(losses, o.loss, o.epsilon, o.delta))


def _decoding(o: argparse.Namespace, store: Path, split: str) -> Callable[[float], pd.DataFrame]:
    """Samples by threshold, decoded where the store lacks them; the walk asks for no more than it needs."""
    from jot.models import load
    from jot.runs.harness import evaluate

    model = load(o.model, device=o.device, dtype=o.dtype)

    def at(tau: float) -> pd.DataFrame:
        chosen = {} if math.isinf(tau) else {"tau_max": tau}
        how = {"split": split, "limit": o.limit, "store": store, "slots": o.slots, "data": o.data}
        how["allow_code_execution"] = o.allow_code_execution
        return evaluate(model, o.task, "jot" if chosen else "full", **how, **chosen).frame

    return at


def report(o: argparse.Namespace, path: Path, split: str, walked: Sequence[Step]) -> int:
    """Prints the walk and what it certifies, and writes the file that ``jot evaluate --certified`` takes."""
    tau, last = certified(walked), walked[-1]
    print(f"{o.model}  {o.task}/{split}  {o.dtype}; loss {o.loss}: {LOSSES[o.loss]}")
    print(f"{'tau_max':>8} {'n':>6} {'losses':>7} {'risk':>7} {'p':>9}")
    for step in walked:
        name = "none" if math.isinf(step.tau) else f"{step.tau:g}"
        mark = "certified" if step.certified else f"not certified: p above {o.delta:g}"
        print(f"{name:>8} {step.n:>6} {step.losses:>7g} {step.risk:>7.4f} {step.p:>9.2g}  {mark}")
    if not last.certified:
        then = "see its risk"
        if o.loss != "score":
            more = needed(last.risk, o.epsilon, o.delta)
            known = f"about {more:,} documents would certify it if its risk is as seen" if more else ""
            then = known or f"no n would: its risk is not below {o.epsilon:g}"
        print(f"tau_max {last.tau:g}: {then}")
    if tau is None:
        print(f"nothing can be certified with {last.n} documents at epsilon {o.epsilon:g}, delta {o.delta:g}")
        return 1
    walk = [{**step._asdict(), "tau": _json(step.tau)} for step in walked]
    asked = {name: getattr(o, name) for name in ("task", "dtype", "loss", "epsilon", "delta")}
    found = {"model": Path(o.model).name, **asked, "split": split, "n": last.n, "tau_max": _json(tau), "walk": walk}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, json.dumps(found, indent=1) + "\n")
    said = "full decoding alone (no exits)" if math.isinf(tau) else f"tau_max {tau:g}"
    print(f"certified: {said}; P(risk <= {o.epsilon:g}) >= {1 - o.delta:g} over calibration sets, for this model, "
          f"prompt format, dtype and decoding\n{path}")  # fmt: skip
    return 0


def _json(tau: float) -> float | None:
    """JSON has no infinity."""
    return None if math.isinf(tau) else tau


def read(path: str | os.PathLike, model: str, task: str, dtype: str | None) -> Mapping[str, object]:
    """What a file of ``jot calibrate`` certifies: the method and its setting, for the same model, task and dtype."""
    try:
        found = json.loads(Path(path).read_text())
        made = {name: found[name] for name in ("model", "task", "dtype", "tau_max")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no file of `jot calibrate` ({error}); make one with it") from error
    for name, here in (("model", Path(model).name), ("task", task), ("dtype", dtype or made["dtype"])):
        if made[name] != here:
            raise UserError(f"{path} certifies {name} {made[name]}, not {here}; calibrate that one")
    return made
