"""The phenomena that ``notebooks/ANALYSIS.md`` lists beyond the confirmatory family, each judged by code.

Every module of a topic registers its criteria as ``PHENOMENA``: id -> function of a record set that gives a status
and a sentence of detail. Here they are put together, beside the plan's own words.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping

import pandas as pd

from jot.analysis import render, stats, tables
from jot.analysis.cells import MODELS, Cell, Records, lookup
from jot.analysis.display import Table
from jot.analysis.parameters import home
from jot.errors import UserError
from jot.grid import Point

Judged = tuple[str, str]  # status, detail
SEEN, NOT_SEEN, UNDECIDED, NOT_SHOWN = "seen", "not seen", "undecided", "not shown"
MODULES = ("composability", "temperature", "ablations", "failures", "dynamics", "quality", "wallclock")
DREAM, LLADA = MODELS
MARGIN = stats.MARGIN

# --- helpers for criteria -----------------------------------------------------------------------------------


def status(complete: bool, seen: bool, unseen: bool) -> str:
    """The word for a criterion; what is enough for "not seen" needs no further cell."""
    if unseen:
        return NOT_SEEN
    if not complete:
        return NOT_SHOWN
    return SEEN if seen else UNDECIDED


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
    value, low, high = estimate
    if unit == "×":
        return f"{value:.2f}× [{low:.2f}, {high:.2f}]"
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def every(parts: Mapping[str, stats.Estimate | None], seen: Callable, unseen: Callable) -> Judged:
    """Seen where each part is, not seen where any part is not; ``parts`` are named for the detail."""
    known = [part for part in parts.values() if part]
    whole = len(known) == len(parts)
    word = status(whole, all(map(seen, known)), any(map(unseen, known)))
    return word, "; ".join(f"{name} {spell(part)}" for name, part in parts.items())


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
    both = fast is not None and slow is not None
    word = status(
        kept is not None and both,
        kept is not None and kept.low > -MARGIN and both and slow.high < fast.low,
        (kept is not None and kept.high < -MARGIN) or (both and slow.low > fast.high),
    )
    return word, f"KLASS minus full {spell(kept)}; speedups {spell(slow, '×')} against {spell(fast, '×')} of JoT"


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
    detail = f"{result['b']:,} repairs, {share:.1f} % [{low:.1f}, {high:.1f}]; {result['c']:,} breaks"
    return status(True, low > 1, high < 1), detail


PHENOMENA: dict[str, Callable[[Records], Judged]] = {
    "prophet-loses": prophet_loses,
    "klass-slow": klass_slow,
    "fastdllm-hellaswag": fastdllm_hellaswag,
    "choice-flat": choice_flat,
    "llada-low": llada_low,
    "two-sided": two_sided,
}

# --- all of them --------------------------------------------------------------------------------------------


def plan() -> pd.DataFrame:
    """The table of further phenomena as the plan has it: id, claim, seen, not_seen."""
    path = home() / "notebooks" / "ANALYSIS.md"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); check notebooks/ out") from error
    _, _, section = text.partition("## Further phenomena")
    lines = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines[2:]]
    return pd.DataFrame(rows, columns=["id", "claim", "seen", "not_seen"])


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
    shown = pd.DataFrame(
        {
            "Phenomenon": frame["id"],
            "Claim of the paper": frame["claim"],
            "Seen where": frame["seen"],
            "Not seen where": frame["not_seen"],
            "Status": [f"**{word}**" for word in frame["status"]],
            "Detail": [_unbroken(detail) for detail in frame["detail"]],
        }
    )
    caption = (
        "Phenomena of the plan, criteria fixed before these runs; embedded tier, 5 M parameters. Exploratory: "
        f"differences of scores in points with {render.TANGO}, speedups with 95 % bootstrap intervals, shares "
        "with Wilson's. Seen or not seen at this scale only; undecided: neither criterion is met; not shown: a cell "
        "is not recorded."
    )
    return Table(shown, caption)
