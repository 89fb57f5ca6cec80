"""The criteria of ``notebooks/ANALYSIS.md``, answered by a frame of records.

Those that are differences of scores between two runs stand in ``data/paper/criteria.yaml``; the others are code, here
or in the one notebook that shows them. A criterion has two halves, "seen" and "not seen", and needs all of its runs:
with one missing it is not shown, also where what is recorded would meet a half. Where both are met, neither decides.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from jot import stats
from jot.errors import UserError
from jot.models import home
from jot.paper import show, texts, timing, traces
from jot.records import natural
from jot.runs.frames import defaults, family, folder, order, runs, samples
from jot.runs.parameters import NotebookError

SEEN, NOT_SEEN, UNDECIDED, NOT_SHOWN = "seen", "not seen", "undecided", "not shown"
MODELS = DREAM, LLADA = ("pocket-dream", "pocket-llada")  # the paper's order: Dream first
GSM8K, MMLU, HELLASWAG, HUMANEVAL = TASKS = ("pocket_gsm8k", "pocket_mmlu", "pocket_hellaswag", "pocket_humaneval")
LONG = (GSM8K, HUMANEVAL)
TAUS = (10, 30, 60, 90, 120, 150)  # the grid of the paper's threshold ablations

Judged = tuple[str, str]  # status, detail


def judged(complete: bool, seen: bool, unseen: bool, detail: str) -> Judged:
    """The word for a criterion, and its numbers.

    Args:
        complete: whether all of its runs are recorded.
        seen, unseen: which of its halves is met.
    """
    if not complete:
        return NOT_SHOWN, detail
    if seen and unseen:
        return UNDECIDED, f"{detail}; both criteria are met"
    return SEEN if seen else NOT_SEEN if unseen else UNDECIDED, detail


points = partial(show.interval, sign="+", gap=" ")  # -1.2 [-2.0, -0.4]
times = partial(show.interval, digits=2, unit="×", gap=" ")  # 4.21× [4.10, 4.33]
factor = "{:.3f} [{:.3f}, {:.3f}]".format
exact = "{:+.4f} [{:+.4f}, {:+.4f}]".format


def told(parts: Mapping[str, stats.Estimate], spell: Callable = points, unit: str = "") -> str:
    """Each part after its name, if it has one."""
    return "; ".join(f"{name} {spell(*part)}{unit}".strip() for name, part in parts.items())


def lies(estimate: stats.Estimate, where: str) -> bool:
    """Whether an interval lies ``above 0`` or ``below -3``, or ``within 3`` of 0 or ``beyond 3`` of it, as a whole."""
    word, bound = where.split()
    low, high, x = estimate.low, estimate.high, float(bound)
    return {"above": low > x, "below": high < x, "within": -x < low and high < x, "beyond": low > x or high < -x}[word]


def each(
    parts: Mapping[str, stats.Estimate], seen: str, unseen: str, spell: Callable = points, unit: str = ""
) -> Judged:
    """Seen where each part ``lies`` so, not seen where any does."""
    met = all(lies(part, seen) for part in parts.values()), any(lies(part, unseen) for part in parts.values())
    return judged(True, *met, told(parts, spell, unit))


class NotRecorded(LookupError):
    """A run that a criterion needs is not among the records."""


@dataclass(eq=False)
class Evidence:
    """Recorded runs of the test split, named by method and what it sets: ``full``, ``jot spatial=False tau_max=10``.

    What is the default of a family, task and method may be named or not. Differences are in points with Tango's
    interval, speedups are ratios of sums with a bootstrap over documents.
    """

    store: str | Path | None = None
    dtype: str = "float32"
    seed: int = 0
    limit: int | None = None
    split: str = "test"
    _read: dict[str, pd.DataFrame] = field(default_factory=dict, init=False)

    def hold(self, rows: pd.DataFrame) -> Evidence:
        """Samples that a notebook has read already, of whole runs, so that they are not read again."""
        self._read |= {cell: run.set_index("doc_id") for cell, run in rows.groupby("cell", sort=False)}
        return self

    @cached_property
    def runs(self) -> pd.DataFrame:
        return runs(self.store, dtype=self.dtype, seed=self.seed)

    @cached_property
    def confirm(self) -> Evidence:
        """The same of the confirm split."""
        return replace(self, split="confirm")

    def run(self, model: str, task: str, name: str) -> pd.DataFrame:
        """The samples of a run, one row a document.

        Raises:
            NotRecorded: it is not there.
        """
        method, *words = name.split()
        default = {f"{key}={value}" for key, value in defaults(family(model), task, method).items()}
        setting = " ".join(sorted(set(words) - default))
        beside = self.runs.query("model == @model and task == @task and split == @self.split")
        at = beside[(beside["method"] == method) & (beside["setting"] == setting)]
        if at.empty:
            raise NotRecorded(f"{model} {task} {name}")
        key = at["cell"].iloc[0]
        if key not in self._read:  # a file holds all runs of a model, task and split: read together, once
            columns = ["score", "configured_steps", "steps"] + ["generated"] * (task == PROSE)
            beside = at.head(1) if task == PROSE or self.limit is not None else beside
            beside = beside[~beside["cell"].isin(list(self._read))]
            self.hold(samples(beside, self.store, columns, self.limit, paired=False))
        return self._read[key]

    def pair(self, model: str, task: str, name: str, other: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        one, two = self.run(model, task, name), self.run(model, task, other)
        if not one.index.equals(two.index):
            raise UserError(f"{model} / {task}: {name} and {other} do not hold the same documents; use one --limit")
        return one, two

    def paired(self, model: str, task: str, name: str, other: str) -> dict:
        one, two = self.pair(model, task, name, other)
        return stats.paired(one["score"], two["score"])

    def difference(self, model: str, task: str, name: str, other: str) -> stats.Estimate:
        """Score of the first minus that of the second, in points."""
        found = self.paired(model, task, name, other)
        return stats.Estimate(found["difference"], found["low"], found["high"])

    def speedup(self, model: str, task: str, name: str) -> stats.Estimate:
        run = self.run(model, task, name)
        return stats.ratio_bootstrap(run["configured_steps"], run["steps"])

    def ratio(self, model: str, task: str, name: str, other: str) -> stats.Estimate:
        """Speedup of the first over that of the second."""
        one, two = self.pair(model, task, name, other)
        return stats.ratio_of_ratios(one["configured_steps"], one["steps"], two["configured_steps"], two["steps"])


# --- which there are ----------------------------------------------------------------------------------------

Rule = Callable[[Evidence], Judged]
CODED: dict[str, Rule] = {}  # by id of the plan; not shown where a rule raises NotRecorded


def criterion(rule: Rule) -> Rule:
    """Enters a function under its name."""
    CODED[rule.__name__.replace("_", "-")] = rule
    return rule


def compared(
    at: Evidence, parts: Mapping[str, Sequence[str]], seen: str, unseen: str, split: str = "test", unit: str = ""
) -> Judged:
    """A criterion of ``data/paper/criteria.yaml``, which says what the arguments are."""
    at = at.confirm if split == "confirm" else at
    return each({name: at.difference(*key) for name, key in parts.items()}, seen, unseen, unit=unit)


def known() -> dict[str, Rule]:
    """All criteria but those of a single notebook, by id."""
    listed = yaml.safe_load(_text("data/paper/criteria.yaml"))
    return {name: partial(compared, **entry) for name, entry in listed.items()} | CODED


# --- the main table -----------------------------------------------------------------------------------------

PASSED = ("better", "non-inferior", "worse within the margin")


def main_claims(compared: pd.DataFrame, control: Mapping[str, Mapping]) -> pd.DataFrame:
    """The plan's first table: claim, status, detail.

    Args:
        compared: JoT at its default against full decoding, a row a model and task: ``model task b c verdict`` and
            JoT's ``speedup_low speedup_high``.
        control: by model ``p`` and ``difference`` of the positive control on dev; a model without its runs is missing.
    """
    passed = compared["verdict"].isin(PASSED)
    worse = int((compared["verdict"] == "inferior beyond the margin").sum())
    informs = compared["b"] + compared["c"] > 0
    faster = compared["speedup_low"] > 1
    apart, turned = [], []
    for _, group in compared.groupby("model", sort=False):
        long, short = group[group["task"].isin(LONG)], group[~group["task"].isin(LONG)]
        apart.append(long["speedup_low"].min() > short["speedup_high"].max())
        turned.append(short["speedup_low"].max() > long["speedup_high"].min())
    harm = {model: control[model] for model in MODELS if model in control}
    harmed = [one["p"] < 0.01 and one["difference"] < 0 for one in harm.values()]
    losses = "; ".join(f"{m}: {one['difference']:+.1f} points, p = {one['p']:.1g}" for m, one in harm.items())
    whole = len(compared) == len(MODELS) * len(TASKS)
    rows = {
        "Scores stay within the margin on most benchmarks": judged(
            whole, passed.sum() >= 5, worse >= 4,
            f"{passed.sum()} of {len(compared)} lose less, {worse} more, by interval; {informs.sum()} can inform, "
            f"{(passed & informs).sum()} of these lose less"),
        "Fewer steps on every benchmark": judged(
            whole, faster.all(), (compared["speedup_high"] < 1.05).any(),
            f"{faster.sum()} of {len(compared)} lower limits above 1"),
        "Most of all on long generations": judged(
            whole, all(apart), any(turned), f"intervals apart in {sum(apart)} of {len(apart)} models"),
        "Too low a threshold does harm (positive control, dev)": judged(
            len(harm) == len(MODELS), all(harmed), not any(harmed), losses),
    }  # fmt: skip
    return pd.DataFrame([(claim, *found) for claim, found in rows.items()], columns=["claim", "status", "detail"])


# --- ablations ----------------------------------------------------------------------------------------------


@criterion
def klass_slow(at: Evidence) -> Judged:
    gap = at.difference(DREAM, GSM8K, "klass", "full")
    slow, fast = (at.speedup(DREAM, GSM8K, name) for name in ("klass", "jot"))
    detail = f"KLASS minus full {points(*gap)}; speedups {times(*slow)} against {times(*fast)} of JoT"
    seen, unseen = lies(gap, "above -3") and slow.high < fast.low, lies(gap, "below -3") or slow.low > fast.high
    return judged(True, seen, unseen, detail)


@criterion
def two_sided(at: Evidence) -> Judged:
    result = at.paired(DREAM, GSM8K, "jot", "full")
    low, high = (100 * x for x in stats.wilson(result["b"], result["n"]))
    shown = show.interval(100 * result["b"] / result["n"], low, high, unit=" %", gap=" ")
    return judged(True, low > 1, high < 1, f"{result['b']:,} repairs, {shown}; {result['c']:,} breaks")


@criterion
def threshold_speed(at: Evidence) -> Judged:
    speeds = [
        [at.speedup(model, task, f"jot spatial=False tau_max={tau}") for tau in both]
        for model in MODELS for task in LONG for both in itertools.pairwise(TAUS)
    ]  # fmt: skip
    falls = sum(lower.value > higher.value for lower, higher in speeds)
    apart = sum(higher.low > lower.high for lower, higher in speeds)
    detail = f"falls in {falls} of {len(speeds)} neighboring pairs, reversed with intervals apart in {apart}"
    return judged(True, falls == len(speeds), apart > 0, detail)


@criterion
def spatial_speed(at: Evidence) -> Judged:
    keys = {f"{t}: ratio of speedups": (DREAM, t, "jot gamma=0.9 window=16", "jot spatial=False") for t in LONG}
    return each({name: at.ratio(*key) for name, key in keys.items()}, "above 1", "below 1", factor)


@criterion
def spatial_default(at: Evidence) -> Judged:
    gap, ratio = (ask(DREAM, GSM8K, "jot", "jot spatial=False") for ask in (at.difference, at.ratio))
    seen, unseen = lies(gap, "within 3") and ratio.low > 1, lies(gap, "below -3") or ratio.high < 1
    return judged(True, seen, unseen, f"{points(*gap)} points, ratio of speedups {factor(*ratio)}")


@criterion
def sweep_robust(at: Evidence) -> Judged:
    shapes = [(0.3, 8), (0.5, 8), (0.7, 8), (0.5, 16)]
    names = [(tau, g, d) for tau in (60, 90, 120) for g, d in shapes if (tau, g, d) != (90, 0.5, 8)]
    found = [at.difference(DREAM, GSM8K, f"jot tau_max={tau} gamma={g} window={d}", "jot") for tau, g, d in names]
    values, lows, highs = zip(*found, strict=True)
    detail = f"{len(found)} differences from {min(values):+.1f} to {max(values):+.1f} points"
    seen, unseen = min(lows) > -stats.MARGIN, min(highs) < -stats.MARGIN
    return judged(True, seen, unseen, f"{detail}, lowest limit {min(lows):+.1f}")


@criterion
def tau_min(at: Evidence) -> Judged:
    shapes = [(0.9, 16), (0.9, 8), (0.7, 8), (0.5, 16), (0.5, 8), (0.5, 4), (0.3, 8)]
    found = [
        at.difference(DREAM, task, *(f"jot gamma={g} window={d} tau_min={floor}" for floor in (30, 1)))
        for task in LONG for g, d in shapes
    ]  # fmt: skip
    better = sum(e.low > 0 for e in found)
    return judged(True, better <= 1, better >= 3, f"{better} of {len(found)} lower limits above 0")


@criterion
def after_exit(at: Evidence) -> Judged:
    found = [at.difference(model, task, "jot combine=after_exit", "jot") for model in MODELS for task in TASKS]
    within, beyond = (sum(lies(e, where) for e in found) for where in ("within 3", "beyond 3"))
    widest = max(found, key=lambda e: abs(e.value))
    detail = f"{within} of {len(found)} intervals within, {beyond} wholly beyond; largest {points(*widest)} points"
    return judged(True, within == len(found), beyond > 0, detail)


@criterion
def compose_horizon(at: Evidence) -> Judged:
    in_cache = "jot block_length=32 cache=dual ranking=confidence temperature=0 top_p=False"
    alone, cached = (at.speedup(DREAM, HUMANEVAL, name) for name in ("jot", in_cache))
    detail = f"alone {times(*alone)}; in the cache {times(*cached)}"
    return judged(True, alone.low > cached.high, alone.high < cached.low, detail)


@criterion
def confirm_spatial(at: Evidence) -> Judged:
    near = {DREAM: 60, LLADA: 18}  # without spatial modulation about as fast as the default, on test
    keys = {f"{m} {t}": (m, t, "jot", f"jot spatial=False tau_max={near[m]}") for m in MODELS for t in LONG}
    parts = {name: at.confirm.difference(*key) for name, key in keys.items()}
    better, worse = (sum(lies(part, where) for part in parts.values()) for where in ("above 0", "below 0"))
    return judged(True, better >= 2 and not worse, worse > 0, told(parts))


@criterion
def confirm_tail(at: Evidence) -> Judged:
    """Both sides ended at their end of text: full decoding's steps over JoT's."""
    keys = itertools.product(MODELS, LONG, ["jot stop_at_eos=True"], ["full stop_at_eos=True"])
    return each({f"{key[0]} {key[1]}": at.confirm.ratio(*key) for key in keys}, "above 5", "below 5", times)


# --- time ---------------------------------------------------------------------------------------------------

BUSY = 1.1  # clock over processor time from which the machine had other work: then the clock says more about that


@criterion
def wallclock_below(at: Evidence) -> Judged:
    """From the timings of the embedded pair: JoT's speedup on the clock over that in steps, ratios of sums."""
    place = folder(at.store)
    try:
        raw = timing.read(place if (place / timing.FILE).is_file() else place / "cpu")
    except NotebookError:
        raise NotRecorded("the timings of the embedded pair") from None
    raw = raw[raw["machine"] == "CPU"]
    if raw.empty:
        raise NotRecorded("timings of the embedded pair on a CPU")
    raw = raw if at.limit is None else timing.first(raw, at.limit)
    by = raw.groupby(["model", "task", "method", "doc_id"], sort=False)
    found = by[["steps", "seconds", "cpu_seconds"]].median().reset_index("doc_id")
    parts = {}
    for model, task in itertools.product(MODELS, LONG):
        if missing := {(model, task, "full"), (model, task, "jot")} - set(found.index):
            raise NotRecorded(f"timings of {' '.join(min(missing))}")
        full, mine = (found.loc[[(model, task, name)]].set_index("doc_id") for name in ("full", "jot"))
        both = full.merge(mine, left_index=True, right_index=True, suffixes=("_full", ""))
        sums = (both[name] for name in ("seconds_full", "seconds", "steps_full", "steps"))
        parts[f"{model} {task}"] = stats.ratio_of_ratios(*sums)
    lower, apart = sum(part.value < 1 for part in parts.values()), sum(part.high < 1 for part in parts.values())
    n = found.groupby(["model", "task"])["doc_id"].nunique().min()
    detail = f"{told(parts, factor)}; of {len(parts)} estimates {lower} and of their intervals {apart} wholly below 1"
    detail += f"; n = {n} a task"
    if (ratio := found["seconds"].sum() / found["cpu_seconds"].sum()) > BUSY:
        return NOT_SHOWN, f"the machine was busy, clock over processor time {ratio:.1f}; {detail}"
    # "Below 1" is read as: the whole interval lies below; an estimate alone may do so by less than it is known to.
    return judged(True, apart == len(parts), all(part.low > 1 for part in parts.values()), detail)


# --- failures -----------------------------------------------------------------------------------------------

PAPER_N = 500  # documents of the paper's failure analysis


def slow_errors(run: pd.DataFrame) -> Judged:
    """Whether the slowest fifth errs more than the fastest, Wilson intervals apart; ties in the documents' order."""
    if len(run) < 5:
        return NOT_SHOWN, "needs 5 documents"
    run = run.loc[sorted(run.index, key=natural)]
    fifths = np.array_split(np.argsort((run["configured_steps"] / run["steps"]).to_numpy(), kind="stable"), 5)
    errors = [run["score"].iloc[at] < 0.5 for at in (fifths[0], fifths[-1])]
    slow, fast = (stats.Estimate(e.sum() / len(e), *stats.wilson(e.sum(), len(e))) for e in errors)
    parts = (show.interval(*(100 * x for x in part), unit=" %", gap=" ") for part in (slow, fast))
    detail = f"error {' in the slowest fifth, '.join(parts)} in the fastest; n = {len(run):,}"
    return judged(True, slow.low > fast.high, slow.high < fast.low, detail)


def rejections(scored: Mapping[float, pd.DataFrame], task: str, split: str = "test") -> Judged:
    """Whether McNemar, at the paper's n, keeps the first threshold and rejects the second.

    Args:
        scored: by threshold, one row a document with ``score`` and full decoding's ``score_full``.
    """
    if min(map(len, scored.values())) < PAPER_N:
        return NOT_SHOWN, f"needs {PAPER_N} documents"
    parts, rejected = [], []
    for tau, both in scored.items():
        both = both.loc[order(task, split, both.index)[:PAPER_N]]
        r = stats.paired(both["score"], both["score_full"])
        rejected.append(r["p"] < stats.ALPHA)
        parts.append(f"τ = {tau:g}: {r['difference']:+.1f} points, b = {r['b']}, c = {r['c']}, p = {r['p']:.2g}")
    former, latter = rejected
    return judged(True, latter and not former, former and not latter, f"{'; '.join(parts)}; n = {PAPER_N}")


@criterion
def errors_slow(at: Evidence) -> Judged:
    return slow_errors(at.run(DREAM, GSM8K, "jot"))


@criterion
def aggressive_rejects(at: Evidence) -> Judged:
    found = {tau: at.pair(DREAM, GSM8K, f"jot tau_max={tau}", "full") for tau in (90, 30)}
    return rejections({tau: run.assign(score_full=full["score"]) for tau, (run, full) in found.items()}, GSM8K)


# --- dynamics -----------------------------------------------------------------------------------------------


def falling(full: Mapping[str, pd.DataFrame]) -> Judged:
    """Whether mean margin falls over the steps of full decoding: the interval of the mean rho below 0 in every model.

    Args:
        full: by model, the traced samples of full decoding with the columns of their run.
    """
    values, parts = [], []
    for model, run in full.items():
        run = run.sort_values("doc_id", key=lambda ids: ids.map(natural), kind="stable")
        curves, block = traces.by_step(run["trace_mean_margin"]), run["block"].iloc[0]
        values.append(traces.mean(traces.rho(curves)))
        text = f"{model}: mean rho {show.interval(*values[-1], digits=2, sign='+', gap=' ')}"
        if pd.notna(block):
            inside = traces.mean(traces.rho(curves.iloc[:, : int(block)]))
            text += f" over all steps, which run through blocks of {block:g}; within the first block "
            text += show.interval(*inside, digits=2, sign="+", gap=" ")
        parts.append(f"{text}, n = {len(run):,}")
    falls, rises = all(v.high < 0 for v in values), any(v.low > 0 for v in values)
    return judged(set(MODELS) <= set(full), falls, rises, "; ".join(parts))


@criterion
def dynamics_decline(at: Evidence) -> Judged:
    place = folder(at.store) / "traces"
    if not place.is_dir():
        raise NotRecorded("traced runs")
    found, full = runs(place, dtype=at.dtype, seed=at.seed, split="test"), {}
    found = found[(found["task"] == GSM8K) & (found["method"] == "full") & (found["setting"] == "")]
    for model in MODELS:
        run = found[found["model"] == model]
        if run.empty:
            raise NotRecorded(f"traced full decoding of {model}")
        limit = None if at.limit is None else min(at.limit, int(run["n"].iloc[0]))
        full[model] = samples(run, place, ["trace_mean_margin"], limit)
    return falling(full)


# --- open text ----------------------------------------------------------------------------------------------

PROSE, NO_END = "pocket_prose", "suppress_tokens=[2040] temperature=1 top_p=0.95"  # Dream samples, its end banned
REP_MARGIN, DIST_MARGIN = 0.01, -0.02


def kept(at: Evidence, name: str) -> tuple[stats.Estimate, stats.Estimate, str]:
    """Rep-4 and Dist-2 of a run of JoT minus those of full decoding; and how much there was to lose."""
    method, baseline = at.pair(DREAM, PROSE, name, f"full {NO_END}")
    ids = order(PROSE, "test", method.index)
    one, two = (texts.measures(list(run["generated"][ids])) for run in (method, baseline))
    found = texts.intervals({measure: one[measure] - two[measure] for measure in ("rep4", "dist2")})
    steps, same = method["steps"].mean(), 100 * texts.same(method["generated"], baseline["generated"])[0]
    note = f"JoT takes {steps:.1f} of {method['configured_steps'].mean():.0f} steps, {same:.0f} % of texts are the same"
    return *(stats.Estimate(*row) for row in found.to_numpy()), f"n = {len(ids):,}; but {note}"


def fluent(rep: stats.Estimate, dist: stats.Estimate, note: str) -> Judged:
    """Whether repetition hardly rises, and diversity hardly falls."""
    seen, unseen = rep.high < REP_MARGIN and dist.low > DIST_MARGIN, rep.low > REP_MARGIN or dist.high < DIST_MARGIN
    return judged(True, seen, unseen, f"{told({'Rep-4': rep, 'Dist-2': dist}, exact)}, {note}")


@criterion
def quality_kept(at: Evidence) -> Judged:
    rep, dist, note = kept(at, f"jot {NO_END}")
    with suppress(NotRecorded):  # the other reading of the paper's words: all of JoT takes the argmax
        greedy, *_ = kept(at, "jot suppress_tokens=[2040] temperature=0 top_p=False")
        note += f"; were all of JoT greedy, Rep-4 {exact(*greedy)}"
    return fluent(rep, dist, note)


# --- all of them --------------------------------------------------------------------------------------------

NOT_BLIND = "Second round: criteria that are not blind"  # a heading of the plan
BY = f"differences of scores in points with {show.TANGO}, speedups with 95 % bootstrap intervals, shares with Wilson's"


def _text(name: str) -> str:
    """A file of the checkout."""
    path = home() / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); check {path.parent.name}/ out") from error


def _sections() -> dict[str, str]:
    """The plan's text by heading."""
    parts = re.split(r"^## (.+)\n", _text("notebooks/ANALYSIS.md"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def plan() -> pd.DataFrame:
    """The tables of criteria as the plan has them: id, claim, seen, not_seen, and the section."""
    rows = []
    for section, text in _sections().items():
        for table in text.split("\n| id |")[1:]:
            for line in itertools.takewhile(lambda line: line.startswith("|"), table.splitlines()[2:]):
                cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
                rows.append([*cells[:4], section])
    return pd.DataFrame(rows, columns=["id", "claim", "seen", "not_seen", "section"])


def deviations() -> list[str]:
    """The plan's list of deviations, one text each."""
    return [" ".join(text.split()) for text in re.split(r"^\* ", _sections()["Deviations"], flags=re.M)[1:]]


def exceptions(ids: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of these criteria those that the plan's deviations name: written not blind to some runs, or settled later."""
    listed = deviations()
    parts = [[t for t in listed if "not blind" in t], [t for t in listed if "not blind" not in t]]
    sighted, settled = (
        [name for name in ids if any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for text in part)]
        for part in parts
    )
    return sighted, [name for name in settled if name not in sighted]


def judge(
    evidence: Evidence, ids: Iterable[str] | None = None, decided: Mapping[str, Judged] | None = None
) -> pd.DataFrame:
    """Status and detail of criteria, by default of all that ``known`` has, with the plan's own words beside them.

    Args:
        decided: answers that a page has found itself, by id.
    """
    rules, found = known(), {}
    for name in rules if ids is None else ids:
        try:
            found[name] = decided[name] if decided and name in decided else rules[name](evidence)
        except NotRecorded as missing:
            found[name] = NOT_SHOWN, f"not recorded: {missing}"
    return given(found)


def given(answers: Mapping[str, Judged]) -> pd.DataFrame:
    """The same where a page decides all of them from its own table (guarantee, exit sets, further rules)."""
    rows = plan().set_index("id").loc[[*answers]].reset_index()
    return rows.assign(status=[word for word, _ in answers.values()], detail=[detail for _, detail in answers.values()])


def table(frame: pd.DataFrame, tier: str = show.tier(DREAM), by: str = BY) -> show.Table:
    """The frame of ``judge``: claim, criterion as planned, what came out; whose runs, and what their intervals are."""
    sighted, settled = exceptions(list(frame["id"]))
    valued = list(frame["id"][frame["section"] == NOT_BLIND])
    reasons = {
        "value known when it was written": valued,
        "written when part of the JoT threshold grid had been decoded, so not blind to it": sighted,
        "how it is measured was settled later": settled,
    }
    excepted = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in reasons.items() if names)
    fixed = "criteria fixed in notebooks/ANALYSIS.md before these runs"
    fixed += f", with exceptions listed there under Deviations ({excepted})" if excepted else ""
    shown = {
        "Phenomenon": [name + ("\nnot blind" if name in sighted + valued else "") for name in frame["id"]],
        "Claim of the paper": frame["claim"],
        "Seen where": frame["seen"],
        "Not seen where": frame["not_seen"],
        "Status": [f"**{word}**" for word in frame["status"]],
        "Detail": [re.sub(r"\[[^]]*\]", lambda m: m[0].replace(" ", "\u00a0"), text) for text in frame["detail"]],
    }
    caption = (
        f"Phenomena of the plan, {fixed}; {tier}. Exploratory: {by}. Seen or not seen at this scale only; "
        "undecided: neither criterion is met, or both; not shown: a run is not recorded."
    )
    return show.table(pd.DataFrame(shown), caption)
