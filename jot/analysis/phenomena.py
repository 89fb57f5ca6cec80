"""The phenomena that ``notebooks/ANALYSIS.md`` lists beyond the confirmatory family, each judged by code.

Every module of a topic registers its criteria as ``PHENOMENA``: id -> function of a record set that gives a status
and a sentence of detail. Here they are put together, beside the plan's own words.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping

import pandas as pd

from jot import stats
from jot.analysis import render, tables
from jot.analysis.cells import MODELS, Cell, Records, lookup
from jot.analysis.spelling import interval
from jot.errors import UserError
from jot.paper.criteria import NOT_SHOWN, Judged, judged
from jot.paper.show import Table
from jot.runs.grid import Point
from jot.runs.parameters import home

MODULES = ("composability", "temperature", "ablations", "failures", "dynamics", "quality", "wallclock")
DREAM, LLADA = MODELS
MARGIN = stats.MARGIN

# --- helpers for criteria -----------------------------------------------------------------------------------


def difference(records: Records, method: Point, reference: Point) -> stats.Estimate | None:
    """Paired difference of scores in points with Tango's interval; None where one of the two is not recorded."""
    cells = [lookup(records, point) for point in (method, reference)]
    return gap(*cells) if all(cells) else None


def gap(method: Cell, reference: Cell) -> stats.Estimate:
    """Paired difference of scores in points with Tango's interval."""
    result = tables.compare(method, reference)
    return stats.Estimate(result["difference"], result["low"], result["high"])


def spell(estimate: stats.Estimate | None, unit: str = "") -> str:
    """``-1.2 [-2.0, -0.4]`` for points, ``4.21× [4.10, 4.33]`` for factors, or that it is not recorded."""
    if estimate is None:
        return "not recorded"
    if unit == "×":
        return interval(*estimate, digits=2, unit=unit, gap=" ")
    return interval(*estimate, sign="+", gap=" ")


def every(parts: Mapping[str, stats.Estimate | None], seen: Callable, unseen: Callable) -> Judged:
    """Seen where each part is, not seen where any part is not; ``parts`` are named for the detail."""
    known = [part for part in parts.values() if part]
    detail = "; ".join(f"{name} {spell(part)}" for name, part in parts.items())
    return judged(len(known) == len(parts), all(map(seen, known)), any(map(unseen, known)), detail)


def _gsm8k(method: str, model: str = DREAM, **settings: object) -> Point:
    return Point.of(model, "pocket_gsm8k", method, **settings)


# --- the main table -----------------------------------------------------------------------------------------


def prophet_loses(records: Records) -> Judged:
    """Prophet (our port) loses more than JoT on gsm8k (Dream)."""
    found = difference(records, _gsm8k("jot"), _gsm8k("prophet"))
    return every({"JoT minus Prophet": found}, lambda x: x.low > 0, lambda x: x.high < 0)


def klass_slow(records: Records) -> Judged:
    """KLASS keeps accuracy on gsm8k with less speed than JoT (Dream)."""
    klass, jot, full = (lookup(records, _gsm8k(name)) for name in ("klass", "jot", "full"))
    kept = gap(klass, full) if klass and full else None
    fast, slow = (tables.speedup(cell) if cell else None for cell in (jot, klass))
    detail = f"KLASS minus full {spell(kept)}; speedups {spell(slow, '×')} against {spell(fast, '×')} of JoT"
    if not (kept and fast and slow):
        return NOT_SHOWN, detail
    seen = kept.low > -MARGIN and slow.high < fast.low
    return judged(True, seen, kept.high < -MARGIN or slow.low > fast.high, detail)


def fastdllm_hellaswag(records: Records) -> Judged:
    """Fast-dLLM degrades on hellaswag (Dream)."""
    points = (Point.of(DREAM, "pocket_hellaswag", method) for method in ("fastdllm", "full"))
    found = difference(records, *points)
    return every({"Fast-dLLM minus full": found}, lambda x: x.high < -MARGIN, lambda x: x.low > -MARGIN)


def choice_flat(records: Records) -> Judged:
    """Multiple choice hardly moves with the threshold, at JoT's other defaults."""
    parts = {
        f"{model} {task}": difference(records, *(Point.of(model, task, "jot", tau_max=tau) for tau in (10, 150)))
        for model in MODELS
        for task in ("pocket_mmlu", "pocket_hellaswag")
    }
    return every(parts, lambda x: x.low > -MARGIN and x.high < MARGIN, lambda x: x.low > MARGIN or x.high < -MARGIN)


def llada_low(records: Records) -> Judged:
    """Threshold 10 breaks LLaDA on gsm8k."""
    found = difference(records, _gsm8k("jot", LLADA, tau_max=10), _gsm8k("full", LLADA))
    return every({"τ = 10 minus full": found}, lambda x: x.high < -MARGIN, lambda x: x.low > -MARGIN)


def two_sided(records: Records) -> Judged:
    """JoT also repairs (Dream, gsm8k): the share of documents that only JoT gets right."""
    jot, full = lookup(records, _gsm8k("jot")), lookup(records, _gsm8k("full"))
    if not (jot and full):
        return NOT_SHOWN, "not recorded"
    result = tables.compare(jot, full)
    low, high = (100 * x for x in stats.wilson(result["b"], result["n"]))
    share = 100 * result["b"] / result["n"]
    shown = interval(share, low, high, unit=" %", gap=" ")
    detail = f"{result['b']:,} repairs, {shown}; {result['c']:,} breaks"
    return judged(True, low > 1, high < 1, detail)


PHENOMENA: dict[str, Callable[[Records], Judged]] = {
    "prophet-loses": prophet_loses,
    "klass-slow": klass_slow,
    "fastdllm-hellaswag": fastdllm_hellaswag,
    "choice-flat": choice_flat,
    "llada-low": llada_low,
    "two-sided": two_sided,
}

# --- all of them --------------------------------------------------------------------------------------------


def _section(heading: str) -> list[str]:
    """The lines below a heading of the plan."""
    path = home() / "notebooks" / "ANALYSIS.md"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); check notebooks/ out") from error
    return text.partition(f"\n## {heading}\n")[2].split("\n## ")[0].splitlines()


def plan() -> pd.DataFrame:
    """The table of further phenomena as the plan has it: id, claim, seen, not_seen."""
    lines = [line for line in _section("Further phenomena") if line.startswith("|")]
    rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines[2:]]
    return pd.DataFrame(rows, columns=["id", "claim", "seen", "not_seen"])


def deviations() -> list[str]:
    """The plan's list of deviations, one text each."""
    found: list[str] = []
    for line in _section("Deviations"):
        if line.startswith("* "):
            found.append(line[2:].strip())
        elif found and line.strip():
            found[-1] += " " + line.strip()
    return found


def exceptions(ids: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of these criteria those that the plan's deviations name: written not blind to some runs, or settled later."""
    texts = deviations()
    blind = [text for text in texts if "not blind" not in text]
    sighted = [text for text in texts if "not blind" in text]
    named = [[name for name in ids if any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for text in part)]
             for part in (sighted, blind)]  # fmt: skip
    return named[0], [name for name in named[1] if name not in named[0]]


def fixed(ids: Iterable[str]) -> str:
    """When these criteria were fixed, for a caption: before the runs, but for the exceptions that the plan lists."""
    sighted, settled = exceptions(list(ids))
    reasons = {
        "written when part of the JoT threshold grid had been decoded, so not blind to it": sighted,
        "how it is measured was settled later": settled,
    }
    told = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in reasons.items() if names)
    before = "criteria fixed in notebooks/ANALYSIS.md before these runs"
    return f"{before}, with exceptions listed there under Deviations ({told})" if told else before


def opening(text: str) -> str:
    """The same with a capital letter, to begin a sentence."""
    return text[:1].upper() + text[1:]


def registered(ids: Iterable[str]) -> dict[str, Callable[[Records], Judged]]:
    """The criteria of these ids; modules are imported in order until all are found.

    Raises:
        UserError: an id that no module has, or that two have.
    """
    wanted, found = list(ids), dict(PHENOMENA)
    for name in MODULES:
        if set(wanted) <= set(found):
            break
        theirs = importlib.import_module(f"jot.analysis.{name}").PHENOMENA
        if twice := sorted(set(theirs) & set(found)):
            raise UserError(f"the criterion {twice[0]!r} is registered twice, the second time in {name}")
        found |= theirs
    if missing := [name for name in wanted if name not in found]:
        raise UserError(f"no module has a criterion for {missing[0]!r}")
    return {name: found[name] for name in wanted}


def judge(records: Records, ids: Iterable[str] | None = None) -> pd.DataFrame:
    """Status and detail of phenomena, all of the plan by default, with the plan's own words beside them."""
    rows = plan()
    if ids is not None:
        ids = list(ids)
        if unknown := [name for name in ids if name not in set(rows["id"])]:
            raise UserError(f"the plan has no phenomenon {unknown[0]!r}")
        rows = rows.set_index("id").loc[ids].reset_index()
    judged = [criterion(records) for criterion in registered(rows["id"]).values()]
    return rows.assign(status=[word for word, _ in judged], detail=[detail for _, detail in judged])


def _unbroken(detail: str) -> str:
    """A detail whose intervals stay on one line."""
    return re.sub(r"\[[^]]*\]", lambda interval: interval[0].replace(" ", "\u00a0"), str(detail))


def table(frame: pd.DataFrame) -> Table:
    """The frame of ``judge``: claim, criterion as planned, what came out."""
    sighted, _ = exceptions(list(frame["id"]))
    shown = pd.DataFrame(
        {
            "Phenomenon": [name + ("\nnot blind" if name in sighted else "") for name in frame["id"]],
            "Claim of the paper": frame["claim"],
            "Seen where": frame["seen"],
            "Not seen where": frame["not_seen"],
            "Status": [f"**{word}**" for word in frame["status"]],
            "Detail": [_unbroken(detail) for detail in frame["detail"]],
        }
    )
    caption = (
        f"Phenomena of the plan, {fixed(frame['id'])}; embedded tier, 5 M parameters. Exploratory: "
        f"differences of scores in points with {render.TANGO}, speedups with 95 % bootstrap intervals, shares "
        "with Wilson's. Seen or not seen at this scale only; undecided: neither criterion is met, or both; not shown: "
        "a cell is not recorded."
    )
    return Table(shown, caption)
