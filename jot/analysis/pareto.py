"""Figure 1 of the paper on recorded cells: aggregate speed against quality retention, resampled jointly.

Speed is the geometric mean of the step speedups over tasks, retention the mean ratio of scores to full decoding, in
percent. Documents are resampled within each task, the same for every method, and independently from task to task.
Exploratory: intervals only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis.cells import DEFAULT_TAU, MODELS, TASKS, TAUS, Cell, Records, family, lookup
from jot.errors import UserError
from jot.runs.grid import Point

METHODS = ("full", "prophet", "klass", "fastdllm", "jot")
VARIANTS = {"klass-skip": ("klass", {"first_kl": "skip"}), "fastdllm-plain": ("fastdllm", {"cache": None})}
LABELS = {
    "full": "Full decoding", "prophet": "Prophet", "klass": "KLASS", "fastdllm": "Fast-dLLM (dual cache)",
    "jot": "JoT (default)", "klass-skip": "KLASS (first divergence skipped)", "fastdllm-plain": "Fast-dLLM (no cache)",
}  # fmt: skip
Missing = Mapping[tuple[str, str], Sequence[str]]  # (model, entry) -> tasks that are not recorded


def entries(model: str, methods: Iterable[str] = METHODS) -> dict[str, tuple[str, dict]]:
    """What a panel shows: the methods, their variants and JoT's threshold grid, as (method, settings) by name.

    The default threshold of a family stands under "jot" and once more on the grid.
    """
    methods = list(methods)
    if unknown := [m for m in methods if m not in METHODS]:
        raise UserError(f"the figure has no method {unknown[0]!r}; use {', '.join(METHODS)}")
    out: dict[str, tuple[str, dict]] = {m: (m, {}) for m in METHODS if m in methods or m == "full"}
    out |= {name: variant for name, variant in VARIANTS.items() if variant[0] in methods}
    if "jot" in methods:
        out["jot"] = ("jot", {"tau_max": DEFAULT_TAU[family({"model": model})]})
        out |= {f"jot {tau}": ("jot", {"tau_max": tau}) for tau in TAUS}
    return out


def label(entry: str) -> str:
    """An entry's name as it is shown."""
    return LABELS.get(entry) or f"JoT, τ = {entry.split()[1]}"


def points(models: Iterable[str], tasks: Iterable[str], methods: Iterable[str], seed: int = 0) -> list[Point]:
    """Every cell of the figure, each once."""
    tasks, methods = list(tasks), list(methods)
    found = [Point.of(m, t, method, seed=seed, **settings) for m in models for t in tasks
             for method, settings in entries(m, methods).values()]  # fmt: skip
    return list(dict.fromkeys(found))


def select(
    records: Records, models: Iterable[str] = MODELS, tasks: Iterable[str] = TASKS, methods: Iterable[str] = METHODS,
    seed: int = 0,
) -> tuple[dict[tuple[str, str, str], Cell], dict[tuple[str, str], list[str]]]:  # fmt: skip
    """Cells by (model, entry, task) of the entries that every task has, and what the others lack."""
    found, missing = {}, {}
    tasks, methods = list(tasks), list(methods)
    for model in models:
        for entry, (method, settings) in entries(model, methods).items():
            cells = {t: lookup(records, Point.of(model, t, method, seed=seed, **settings)) for t in tasks}
            if lacking := [t for t, cell in cells.items() if cell is None]:
                missing[model, entry] = lacking
            else:
                found |= {(model, entry, t): cell for t, cell in cells.items()}
    return found, missing


class Cloud(NamedTuple):
    """Bootstrap draws of one model's entries.

    Attributes:
        entries: their names, the first axis of the arrays.
        tasks: the second axis of ``speed`` and ``score``.
        speed, score: point values, (entries, tasks); speedups and fractions.
        speed_draws, score_draws: (entries, tasks, n_boot).
    """

    entries: list[str]
    tasks: list[str]
    speed: np.ndarray
    score: np.ndarray
    speed_draws: np.ndarray
    score_draws: np.ndarray

    def aggregate(self, without: str | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Geometric-mean speedup and retention in percent, (entries,), and their draws, (entries, n_boot)."""
        kept = [i for i, task in enumerate(self.tasks) if task != without]
        base = self.entries.index("full")
        speed, speed_draws = (np.exp(np.log(x[:, kept]).mean(1)) for x in (self.speed, self.speed_draws))
        with np.errstate(invalid="ignore", divide="ignore"):  # a tiny n can draw no right answer at all
            kept_quality, draws = (
                100 * (x[:, kept] / x[base : base + 1, kept]).mean(1) for x in (self.score, self.score_draws)
            )
        return speed, kept_quality, speed_draws, draws


def cloud(found: Mapping[tuple[str, str, str], Cell], model: str, n_boot: int = stats.N_BOOT) -> Cloud | None:
    """The joint bootstrap of one model; None where full decoding is not complete.

    Raises:
        UserError: two methods of a task were decoded on different documents, weights or hardware.
    """
    names = list(dict.fromkeys(e for m, e, _ in found if m == model))
    tasks = list(dict.fromkeys(t for m, _, t in found if m == model))
    if "full" not in names:
        return None
    shape = (len(names), len(tasks))
    speed, score = np.empty(shape), np.empty(shape)
    speed_draws, score_draws = np.empty((*shape, n_boot)), np.empty((*shape, n_boot))
    for j, task in enumerate(tasks):
        cells = [found[model, name, task] for name in names]
        _same_documents(cells)
        rows = [c.column(k) for c in cells for k in ("configured_steps", "steps", "score")]
        sums = stats.bootstrap_sums(np.stack(rows), n_boot, seed=j).reshape(len(names), 3, n_boot)
        totals = np.stack(rows).sum(1).reshape(len(names), 3)
        speed[:, j], score[:, j] = totals[:, 0] / totals[:, 1], totals[:, 2] / cells[0].n
        speed_draws[:, j], score_draws[:, j] = sums[:, 0] / sums[:, 1], sums[:, 2] / cells[0].n
    return Cloud(names, tasks, speed, score, speed_draws, score_draws)


def clouds(found: Mapping[tuple[str, str, str], Cell], n_boot: int = stats.N_BOOT) -> dict[str, Cloud]:
    """The joint bootstrap of every model that has full decoding of every task."""
    made = {model: cloud(found, model, n_boot) for model in dict.fromkeys(m for m, _, _ in found)}
    return {model: joint for model, joint in made.items() if joint}


def over(made: Mapping[str, Cloud], measure: Callable[[str, Cloud], pd.DataFrame]) -> pd.DataFrame:
    """``aggregate``, ``against_jot`` or ``leave_one_out`` of every model in one frame."""
    frames = [measure(model, joint) for model, joint in made.items()]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _same_documents(cells: Sequence[Cell]) -> None:
    def key(cell: Cell) -> tuple:
        config = cell.config
        return (config["fingerprint"], config["dtype"], cell.recorded.meta["hardware"].get("kind"),
                tuple(sorted(cell.recorded.frame["doc_id"])))  # fmt: skip

    first = key(cells[0])
    for cell in cells[1:]:
        if key(cell) != first:
            raise UserError(
                f"{cell.id} and {cells[0].id} differ in documents, weights, dtype or hardware, so they cannot share "
                "resamples; decode both alike"
            )


def frontier(speed: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """Which points no other point beats in both, bool of the shape given, (entries,) or (entries, draws).

    A point is beaten by one that is at least as good in both and better in one; equal points do not beat each other.
    """
    speed, quality = np.asarray(speed), np.asarray(quality)
    beaten = np.zeros(speed.shape, dtype=bool)
    for i in range(len(speed)):
        as_good = (speed >= speed[i]) & (quality >= quality[i])
        better = (speed > speed[i]) | (quality > quality[i])
        beaten[i] = (as_good & better).any(0)
    return ~beaten


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.nanquantile(draws, [stats.ALPHA / 2, 1 - stats.ALPHA / 2])
    return float(low), float(high)


def _spread(name: str, value: float, draws: np.ndarray) -> dict[str, float]:
    low, high = _interval(draws)
    return {name: float(value), f"{name}_low": low, f"{name}_high": high}


def aggregate(model: str, joint: Cloud) -> pd.DataFrame:
    """One row per entry: both aggregates with intervals, and the share of draws on the frontier, in percent.

    ``frontier`` is among the methods of the paper's figure, ``frontier_all`` among all entries; ``on`` and ``on_all``
    say the same of the point values. ``fastest`` is the share of draws with the highest speed of the methods.
    """
    speed, quality, speed_draws, quality_draws = joint.aggregate()
    main = [i for i, entry in enumerate(joint.entries) if entry in METHODS]
    among = {"": main, "_all": _distinct(joint)}
    at = {key: {i: k for k, i in enumerate(kept)} for key, kept in among.items()}
    share = {k: 100 * frontier(speed_draws[kept], quality_draws[kept]).mean(1) for k, kept in among.items()}
    on = {k: frontier(speed[kept], quality[kept]) for k, kept in among.items()}
    top = 100 * (speed_draws[main] == speed_draws[main].max(0)).mean(1)
    rows = []
    for i, entry in enumerate(joint.entries):
        row = {"model": model, "entry": entry, "tasks": len(joint.tasks)}
        row |= _spread("speedup", speed[i], speed_draws[i]) | _spread("retention", quality[i], quality_draws[i])
        for key in among:
            k = at[key].get(i)
            row |= {f"frontier{key}": np.nan if k is None else share[key][k], f"on{key}": k is not None and on[key][k]}
        row["fastest"] = top[at[""][i]] if i in at[""] else np.nan
        rows.append(row)
    return pd.DataFrame(rows)


def _distinct(joint: Cloud) -> list[int]:
    """Entries without the grid's copy of JoT's default."""
    if "jot" not in joint.entries:
        return list(range(len(joint.entries)))
    i = joint.entries.index("jot")
    copies = {j for j, e in enumerate(joint.entries) if j != i and (joint.speed[j] == joint.speed[i]).all()
              and (joint.score[j] == joint.score[i]).all() and e.startswith("jot ")}  # fmt: skip
    return [j for j in range(len(joint.entries)) if j not in copies]


def against_jot(model: str, joint: Cloud) -> pd.DataFrame:
    """JoT at its default against every other method and variant: ratio of speeds, difference of retentions.

    ``dominates`` and ``dominated``: shares of draws, in percent, where JoT is better in both, and where it is worse.
    """
    if "jot" not in joint.entries:
        return pd.DataFrame()
    speed, quality, speed_draws, quality_draws = joint.aggregate()
    jot, rows = joint.entries.index("jot"), []
    for i, entry in enumerate(joint.entries):
        if entry.startswith("jot"):
            continue
        ratio, gap = speed_draws[jot] / speed_draws[i], quality_draws[jot] - quality_draws[i]
        row = {"model": model, "entry": entry}
        row |= _spread("ratio", speed[jot] / speed[i], ratio) | _spread("gap", quality[jot] - quality[i], gap)
        rows.append(row | {"dominates": 100 * float(((ratio > 1) & (gap > 0)).mean()),
                           "dominated": 100 * float(((ratio < 1) & (gap < 0)).mean())})  # fmt: skip
    return pd.DataFrame(rows)


def leave_one_out(model: str, joint: Cloud) -> pd.DataFrame:
    """Geometric-mean speedup over all tasks and without each, with intervals; full decoding is left out."""
    rows = []
    for without in (None, *joint.tasks) if len(joint.tasks) > 1 else (None,):
        speed, _, draws, _ = joint.aggregate(without)
        rows += [{"model": model, "entry": entry, "without": without or "", **_spread("speedup", speed[i], draws[i])}
                 for i, entry in enumerate(joint.entries) if entry != "full"]  # fmt: skip
    return pd.DataFrame(rows)


def published_points(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The paper's aggregates, recomputed from ``published.load("main_results")``, and the same without each task.

    Raises:
        UserError: a method lacks a task.
    """
    points, left_out = [], []
    for model, group in table.groupby("model", sort=False):
        score, speed = (group[group["metric"] == k].pivot(index="method", columns="task", values="value")
                        .reindex(columns=group["task"].drop_duplicates()) for k in ("score", "speedup"))  # fmt: skip
        if score.isna().any(axis=None) or speed.isna().any(axis=None):
            raise UserError(f"the paper's Table 1 lacks a cell of {model}; transcribe it again")
        for method in group["method"].drop_duplicates():
            retention = stats.retention(score.loc[method], score.loc["full"])
            mean = stats.geometric_mean(speed.loc[method])
            points.append({"model": model, "entry": method, "speedup": mean, "retention": retention})
            if method != "full":
                without = stats.leave_one_out(speed.loc[method].to_dict())
                left_out += [{"model": model, "entry": method, "without": task, "speedup": value}
                             for task, value in {"": mean, **without}.items()]  # fmt: skip
    frame = pd.DataFrame(points)
    frame["on"] = frame.groupby("model", sort=False, group_keys=False)[["speedup", "retention"]].apply(
        lambda g: pd.Series(frontier(g["speedup"].to_numpy(), g["retention"].to_numpy()), index=g.index)
    )
    return frame, pd.DataFrame(left_out)
