"""The plan's criteria on composition for the ledger; their home is ``jot.paper.criteria``."""

from __future__ import annotations

from jot.analysis import tables
from jot.analysis.cells import DEFAULT_TAU, Records, family, lookup
from jot.analysis.phenomena import DREAM, LLADA, MARGIN, difference, every, spell
from jot.paper.criteria import NOT_SHOWN, Judged, judged
from jot.runs.grid import Point

GSM8K, HUMANEVAL = "pocket_gsm8k", "pocket_humaneval"
RETUNED = {"dream": 30, "llada": 60}  # the paper's choice, from a sweep on its HumanEval test set


def _cached(model: str, task: str, taus: dict[str, int]) -> Point:
    """JoT in the dual cache, greedy in blocks of 32."""
    kind = family({"model": model})
    greedy = {"temperature": 0.0, "ranking": "confidence"} if kind == "dream" else {}
    return Point.of(model, task, "jot", cache="dual", block_length=32, tau_max=taus[kind], **greedy)


def compose_gsm8k(records: Records) -> Judged:
    pairs = {m: (_cached(m, GSM8K, RETUNED), Point.of(m, GSM8K, "full")) for m in (DREAM, LLADA)}
    parts = {m: difference(records, *pair) for m, pair in pairs.items()}
    return every(parts, lambda x: x.low > -MARGIN, lambda x: x.high < -MARGIN)


def compose_humaneval(records: Records) -> Judged:
    pairs = {m: (Point.of(m, HUMANEVAL, "fastdllm"), _cached(m, HUMANEVAL, RETUNED)) for m in (DREAM, LLADA)}
    parts = {m: difference(records, *pair) for m, pair in pairs.items()}
    return every(parts, lambda x: x.low > 0, lambda x: x.high < 0)


def compose_horizon(records: Records) -> Judged:
    points = {"alone": Point.of(DREAM, HUMANEVAL, "jot"), "in the cache": _cached(DREAM, HUMANEVAL, DEFAULT_TAU)}
    speed = {name: tables.speedup(cell) if (cell := lookup(records, p)) else None for name, p in points.items()}
    alone, cached = speed.values()
    detail = "; ".join(f"{name} {spell(value, '×')}" for name, value in speed.items())
    if not (alone and cached):
        return NOT_SHOWN, detail
    return judged(True, alone.low > cached.high, alone.high < cached.low, detail)


PHENOMENA = {
    "compose-gsm8k": compose_gsm8k,
    "compose-humaneval": compose_humaneval,
    "compose-horizon": compose_horizon,
}
