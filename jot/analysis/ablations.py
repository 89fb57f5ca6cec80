"""The paper's ablation tables as cells, and the criteria of ``notebooks/ANALYSIS.md`` that rest on them.

All of it is exploratory: intervals only. Scores are in percent, differences in points, speedups and ratios are
factors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from jot import stats
from jot.analysis import tables
from jot.analysis.cells import MODELS, TASKS, TAUS, Cell, Records, family, lookup
from jot.analysis.plan import LONG
from jot.analysis.spelling import interval
from jot.paper.criteria import NOT_SHOWN, Judged, judged
from jot.records import Recorded
from jot.runs.grid import Point

Key = TypeVar("Key", bound=Hashable)
Setting = Mapping[str, object]  # of JoT, or FULL

FULL: Setting = {"method": "full"}
PARAMETERS = ("tau_max", "tau_min", "gamma", "window")
SHAPES = ((0.9, 16), (0.9, 8), (0.7, 8), (0.5, 16), (0.5, 8), (0.5, 4), (0.3, 8))  # (gamma, D), the paper's order
DREAM = MODELS[0]
HEADS = ("float32", "bfloat16")  # precision in which logits leave the head


def bare(tau: float) -> Setting:
    """JoT without spatial modulation."""
    return {"tau_max": tau, "spatial": False}


def shaped(tau: float, gamma: float = 0.5, window: int = 8, **more: object) -> Setting:
    """JoT with spatial modulation."""
    return {"tau_max": tau, "gamma": gamma, "window": window, **more}


def point(model: str, task: str, setting: Setting, seed: int = 0) -> Point:
    """The cell of a setting on the test split."""
    return Point.of(model, task, setting.get("method", "jot"), seed=seed,
                    **{k: v for k, v in setting.items() if k != "method"})  # fmt: skip


def _above(settings: tuple[Setting, ...]) -> Callable[[Setting], Setting]:
    """The row above; the first row of JoT stands for itself."""
    return lambda s: settings[max(settings.index(s) - 1, 1)] if s in settings[1:] else s


class Ablation(NamedTuple):
    """One table of the paper.

    Attributes:
        label: of the published table, ``published.load(label)``.
        families: families that we decoded it with; the paper has ``published``'s alone.
        tasks: without the prefix of the packaged tasks.
        keys: the parameters that name a row.
        settings: the rows.
        reference: the row whose score a row's is compared with; itself for none.
        beside: the row whose speedup a row's is divided by; itself for none.
    """

    id: str
    label: str
    title: str
    families: tuple[str, ...]
    tasks: tuple[str, ...]
    keys: tuple[str, ...]
    settings: tuple[Setting, ...]
    reference: Callable[[Setting], Setting]
    beside: Callable[[Setting], Setting]


ALL = tuple(task.removeprefix("pocket_") for task in TASKS)
_BARE = (FULL, *(bare(tau) for tau in TAUS))
_LLADA = (FULL, *(shaped(tau) for tau in TAUS))
_SWEEP = tuple(shaped(tau, *shape) for tau in (60, 90, 120) for shape in ((0.3, 8), (0.5, 8), (0.5, 16), (0.7, 8)))

ABLATIONS = {
    ablation.id: ablation
    for ablation in (
        Ablation("threshold", "threshold_ablation", "Threshold without spatial modulation", ("dream", "llada"), ALL,
                 ("tau_max",), _BARE, lambda s: FULL, _above(_BARE)),
        Ablation("spatial", "spatial_ablation", "Spatial modulation", ("dream",), ALL, ("gamma", "window"),
                 (bare(90), *(shaped(90, *shape) for shape in SHAPES)), lambda s: bare(90), lambda s: bare(90)),
        Ablation("sweep", "sweep", "Sweep", ("dream",), ALL, ("tau_max", "gamma", "window"), (FULL, *_SWEEP),
                 lambda s: shaped(90), lambda s: s if s is FULL else shaped(90)),
        Ablation("tau_min", "tau_min_ablation", "Floor of the threshold", ("dream",), ("gsm8k", "humaneval"),
                 ("gamma", "window", "tau_min"),
                 tuple(shaped(90, *shape, tau_min=low) for shape in SHAPES for low in (1, 30)),
                 lambda s: {**s, "tau_min": 1}, lambda s: {**s, "tau_min": 1}),
        Ablation("llada", "llada_ablation", "Threshold of LLaDA", ("llada",), ALL, ("tau_max",), _LLADA,
                 lambda s: FULL, _above(_LLADA)),
    )
}  # fmt: skip


# --- cells and numbers --------------------------------------------------------------------------------------


def gather(records: Records, wanted: Mapping[Key, Point]) -> dict[Key, Cell]:
    """The recorded cells among those wanted."""
    found = {key: lookup(records, p) for key, p in wanted.items()}
    return {key: cell for key, cell in found.items() if cell}


class Speed(NamedTuple):
    """A step speedup and its bootstrap draws, shape (n_boot,)."""

    value: float
    draws: np.ndarray

    def estimate(self) -> stats.Estimate:
        low, high = np.quantile(self.draws, [stats.ALPHA / 2, 1 - stats.ALPHA / 2])
        return stats.Estimate(self.value, float(low), float(high))

    def over(self, other: Speed) -> stats.Estimate:
        """Ratio of two speedups over the same documents, resampled together."""
        return Speed(self.value / other.value, self.draws / other.draws).estimate()


_SPEEDS: WeakKeyDictionary[Recorded, Speed] = WeakKeyDictionary()  # a cell stands in several tables


def speeds(found: Mapping[Key, Cell]) -> dict[Key, Speed]:
    """Configured over actual steps of every cell, as a ratio of sums; cells of equal n share their resamples."""
    new = {cell.id: cell for cell in found.values() if cell.recorded not in _SPEEDS}
    for n in {cell.n for cell in new.values()}:
        cells = [cell for cell in new.values() if cell.n == n]
        columns = [(cell.column("configured_steps"), cell.column("steps")) for cell in cells]
        sums = stats.bootstrap_sums(np.stack([column for both in columns for column in both]))
        for i, (cell, (configured, steps)) in enumerate(zip(cells, columns, strict=True)):
            _SPEEDS[cell.recorded] = Speed(float(configured.sum() / steps.sum()), sums[2 * i] / sums[2 * i + 1])
    return {key: _SPEEDS[cell.recorded] for key, cell in found.items()}


def difference(method: Cell, reference: Cell) -> stats.Estimate:
    """Paired difference of scores in points, with Tango's interval."""
    result = tables.compare(method, reference)
    return stats.Estimate(result["difference"], result["low"], result["high"])


def short_task(task: str) -> str:
    """A task's name as the paper's tables carry it."""
    return task.removeprefix("pocket_")


def shown(ablation: Ablation, models: Iterable[str], tasks: Iterable[str]) -> list[tuple[str, str]]:
    """The (model, task) pairs of an ablation among those asked for."""
    tasks = list(tasks)
    return [(m, t) for m in models if family({"model": m}) in ablation.families for t in tasks
            if short_task(t) in ablation.tasks]  # fmt: skip


def kept(models: Iterable[str], families: Iterable[str]) -> list[str]:
    """The models of these families."""
    return [m for m in models if family({"model": m}) in list(families)]


def points(models: Iterable[str], tasks: Iterable[str], seed: int = 0) -> list[Point]:
    """Every cell that the tables need, each once."""
    models, tasks = list(models), list(tasks)
    wanted = [point(m, t, s, seed) for a in ABLATIONS.values() for m, t in shown(a, models, tasks) for s in a.settings]
    wanted += [Point.of(m, t, "jot", seed=seed, combine=c) for m in models for t in tasks for c in ("or", "after_exit")]
    wanted += [Point.of(m, t, method, seed=seed, head_dtype=head) for m in models for t in tasks
               if short_task(t) in ("gsm8k", "humaneval") for method in ("full", "jot") for head in HEADS]  # fmt: skip
    return list(dict.fromkeys(wanted))


# --- the plan's criteria ------------------------------------------------------------------------------------


def _points(e: stats.Estimate) -> str:
    return interval(*e, sign="+", gap=" ")


def _factor(e: stats.Estimate) -> str:
    return interval(*e, digits=3, gap=" ")


class NotRecorded(LookupError):
    """A cell that a criterion needs is not among the records."""


def _all(records: Records, wanted: Mapping[Key, Point]) -> dict[Key, Cell]:
    found = gather(records, wanted)
    if len(found) < len(wanted):
        raise NotRecorded(f"{len(wanted) - len(found)} of {len(wanted)} cells are not recorded")
    return found


def _differences(records: Records, wanted: Mapping[Key, tuple[Point, Point]]) -> dict[Key, stats.Estimate]:
    """Score of the first minus that of the second, per key."""
    cells = _all(records, {(k, i): p for k, both in wanted.items() for i, p in enumerate(both)})
    return {k: difference(cells[k, 0], cells[k, 1]) for k in wanted}


def threshold_speed(records: Records) -> Judged:
    """Speedups of both long tasks fall from tau 10 to 150 without exception, in both models."""
    keys = [(m, t, tau) for m in MODELS for t in LONG for tau in TAUS]
    found = _all(records, {(m, t, tau): point(m, t, bare(tau)) for m, t, tau in keys})
    at = {k: s.estimate() for k, s in speeds(found).items()}
    pairs = [(at[m, t, a], at[m, t, b]) for m in MODELS for t in LONG for a, b in zip(TAUS, TAUS[1:], strict=False)]
    falling = sum(low_tau.value > high_tau.value for low_tau, high_tau in pairs)
    reversed_apart = sum(high_tau.low > low_tau.high for low_tau, high_tau in pairs)
    detail = f"falls in {falling} of {len(pairs)} neighboring pairs, reversed with intervals apart in {reversed_apart}"
    return judged(True, falling == len(pairs), reversed_apart > 0, detail)


def threshold_harm(records: Records) -> Judged:
    """Tau 10 without spatial modulation costs accuracy on both long tasks (Dream)."""
    at = _differences(records, {t: (point(DREAM, t, bare(10)), point(DREAM, t, FULL)) for t in LONG})
    detail = "; ".join(f"{t}: {_points(e)} points" for t, e in at.items())
    return judged(True, all(e.high < 0 for e in at.values()), any(e.low > -stats.MARGIN for e in at.values()), detail)


def threshold_high(records: Records) -> Judged:
    """Tau 120 and 150 without spatial modulation come close to full decoding on gsm8k (Dream)."""
    at = _differences(records, {tau: (point(DREAM, LONG[0], bare(tau)), point(DREAM, LONG[0], FULL))
                                for tau in (120, 150)})  # fmt: skip
    detail = "; ".join(f"τ = {tau}: {_points(e)} points" for tau, e in at.items())
    seen, unseen = all(e.low > -stats.MARGIN for e in at.values()), any(e.high < -stats.MARGIN for e in at.values())
    return judged(True, seen, unseen, detail)


def _spatial_ratio(records: Records, task: str, setting: Setting) -> stats.Estimate:
    found = _all(records, {"spatial": point(DREAM, task, setting), "none": point(DREAM, task, bare(90))})
    tables.compare(found["spatial"], found["none"])  # refuses cells that do not share their documents
    at = speeds(found)
    return at["spatial"].over(at["none"])


def spatial_speed(records: Records) -> Judged:
    """(0.9, 16) over no modulation is faster on both long tasks (Dream, 90)."""
    at = {t: _spatial_ratio(records, t, shaped(90, 0.9, 16)) for t in LONG}
    detail = "; ".join(f"{t}: ratio of speedups {_factor(e)}" for t, e in at.items())
    return judged(True, all(e.low > 1 for e in at.values()), any(e.high < 1 for e in at.values()), detail)


def spatial_wide(records: Records) -> Judged:
    """Gamma 0.9 costs accuracy on gsm8k (Dream, 90, D 8 against none)."""
    pair = point(DREAM, LONG[0], shaped(90, 0.9, 8)), point(DREAM, LONG[0], bare(90))
    e = _differences(records, {"": pair})[""]
    return judged(True, e.high < 0, e.low > -1, f"{_points(e)} points")


def spatial_default(records: Records) -> Judged:
    """(0.5, 8) stays within 3 points of no modulation on gsm8k, by interval, and is faster (Dream, 90)."""
    e = _differences(records, {"": (point(DREAM, LONG[0], shaped(90)), point(DREAM, LONG[0], bare(90)))})[""]
    ratio = _spatial_ratio(records, LONG[0], shaped(90))
    seen = -stats.MARGIN < e.low and e.high < stats.MARGIN and ratio.low > 1
    detail = f"{_points(e)} points, ratio of speedups {_factor(ratio)}"
    return judged(True, seen, e.high < -stats.MARGIN or ratio.high < 1, detail)


def sweep_robust(records: Records) -> Judged:
    """The other eleven configurations of the sweep stay close to the default on gsm8k (Dream)."""
    others = [s for s in _SWEEP if s != shaped(90)]
    at = _differences(records, {i: (point(DREAM, LONG[0], s), point(DREAM, LONG[0], shaped(90)))
                                for i, s in enumerate(others)})  # fmt: skip
    lows, highs = [e.low for e in at.values()], [e.high for e in at.values()]
    values = [e.value for e in at.values()]
    detail = (
        f"{len(at)} differences from {min(values):+.1f} to {max(values):+.1f} points, lowest limit {min(lows):+.1f}"
    )
    return judged(True, min(lows) > -stats.MARGIN, min(highs) < -stats.MARGIN, detail)


def tau_min(records: Records) -> Judged:
    """A floor of 30 brings no benefit: at most 1 of 14 differences above 0 (Dream)."""
    at = _differences(records, {(t, shape): tuple(point(DREAM, t, shaped(90, *shape, tau_min=low)) for low in (30, 1))
                                for t in LONG for shape in SHAPES})  # fmt: skip
    better = sum(e.low > 0 for e in at.values())
    return judged(True, better <= 1, better >= 3, f"{better} of {len(at)} lower limits above 0")


def after_exit(records: Records) -> Judged:
    """`after_exit` and `or` score within 3 points of each other, by interval, in all eight comparisons."""
    wanted = {(m, t): tuple(Point.of(m, t, "jot", combine=c) for c in ("after_exit", "or"))
              for m in MODELS for t in TASKS}  # fmt: skip
    at = _differences(records, wanted)
    within = sum(-stats.MARGIN < e.low and e.high < stats.MARGIN for e in at.values())
    beyond = sum(e.low > stats.MARGIN or e.high < -stats.MARGIN for e in at.values())
    widest = max(at.values(), key=lambda e: abs(e.value))
    detail = f"{within} of {len(at)} intervals within, {beyond} wholly beyond; largest {_points(widest)} points"
    return judged(True, within == len(at), beyond > 0, detail)


def _guarded(check: Callable[[Records], Judged]) -> Callable[[Records], Judged]:
    def guarded(records: Records) -> Judged:
        try:
            return check(records)
        except NotRecorded as missing:
            return NOT_SHOWN, str(missing)

    guarded.__doc__ = check.__doc__
    return guarded


PHENOMENA: dict[str, Callable[[Records], Judged]] = {
    check.__name__.replace("_", "-"): _guarded(check)
    for check in (threshold_speed, threshold_harm, threshold_high, spatial_speed, spatial_wide, spatial_default,
                  sweep_robust, tau_min, after_exit)
}  # fmt: skip
