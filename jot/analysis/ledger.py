"""The claims ledger ``data/paper/claims.yaml``: every number and comparison of the paper's prose with its check.

An entry has an ``id``, its place in the paper (``section``), the ``claim`` in our own words, a ``kind``, and for all
but phenomena and claims that need the full-size weights a ``check``: an expression of numbers, comparisons and the
functions of `ledger_checks` and `ledger_tables`. Numbers that the prose prints stand under ``value`` as text, so that
their digits say how they were rounded; the expression and ``{name}`` in the claim refer to them by name. ``context``
holds further printed numbers that only say where the claim applies; ``reading`` how a vague word was read. ``ours``
marks a check of our own, of what the paper implies and states nowhere; it is not counted among the paper's claims.

Nothing here decodes: phenomena are judged on recorded runs, by the criteria of ``notebooks/ANALYSIS.md``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import yaml

from jot.analysis import ledger_checks, ledger_tables, published, sources
from jot.analysis.cells import Records
from jot.analysis.ledger_cells import Finding, Printed, show
from jot.errors import UserError
from jot.models import home

KINDS = {
    "arithmetic": "a number that follows from the paper's other numbers",
    "comparison": "an ordering or a statement about the paper's own tables",
    "setting": "a configuration that the paper states, against what this package uses",
    "phenomenon": "an effect, looked for in the embedded models' recorded runs",
    "full-size": "a measurement that nothing here can repeat without the 7B and 8B weights",
}
VERDICTS = ("fails", "not seen", "undecided", "not shown", "needs the full-size weights", "seen", "holds")
# Criteria of the first table of notebooks/ANALYSIS.md, in its order; the second table names its own.
FIRST = ("scores-within", "fewer-steps", "most-on-long", "low-threshold-harm")
FUNCTIONS = ledger_checks.FUNCTIONS | ledger_tables.FUNCTIONS

Phenomena = Mapping[str, Callable[[Mapping], tuple[str, str]]]


@dataclass(frozen=True)
class Entry:
    """One claim. ``value`` maps names to printed numbers."""

    id: str
    section: str
    claim: str
    kind: str
    check: str = ""
    criterion: str = ""
    reading: str = ""
    value: Mapping[str, str] = field(default_factory=dict)
    context: tuple[str, ...] = ()
    ours: bool = False

    @property
    def numbers(self) -> list[str]:
        """All numbers of the prose that this entry covers, as printed."""
        return [*self.value.values(), *self.context]

    @property
    def text(self) -> str:
        """The claim with its numbers put in."""
        return self.claim.format(**self.value)


# --- reading ------------------------------------------------------------------------------------------------


def load(path: str | Path | None = None) -> list[Entry]:
    """The entries of the ledger, in the order of the paper.

    Raises:
        UserError: the file is missing, or an entry is not complete; the sentence names it.
    """
    path = Path(path) if path else published.folder() / "claims.yaml"
    if not path.is_file():
        raise UserError(f"{path} is missing; get it from the repository or set JOT_HOME to a checkout.")
    known, entries, ids = {f.name for f in fields(Entry)}, [], set()
    for number, raw in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")) or [], start=1):
        name = raw.get("id", f"number {number}") if isinstance(raw, Mapping) else f"number {number}"
        if not isinstance(raw, Mapping) or not {"id", "section", "claim", "kind"} <= set(raw):
            raise UserError(f"claims.yaml: entry {name} needs id, section, claim and kind")
        if unknown := sorted(set(raw) - known):
            raise UserError(f"claims.yaml: entry {name} has unknown fields: {', '.join(unknown)}")
        if name in ids:
            raise UserError(f"claims.yaml: two entries have the id {name}")
        ids.add(name)
        value = raw.get("value", {})
        numbers = [*value.values(), *raw.get("context", ())]
        if wrong := [n for n in numbers if not isinstance(n, str)]:
            raise UserError(f"claims.yaml: entry {name}: put quotes around {wrong[0]!r}, its digits count")
        entry = Entry(**{**raw, "context": tuple(raw.get("context", ()))})
        _complete(entry)
        entries.append(entry)
    return entries


def _complete(entry: Entry) -> None:
    """Raises UserError unless the entry says how its kind is judged."""
    if entry.kind not in KINDS:
        raise UserError(f"claims.yaml: entry {entry.id} has kind {entry.kind!r}; known are {', '.join(KINDS)}")
    wanted = {"phenomenon": "criterion", "full-size": ""}.get(entry.kind, "check")
    for name in ("check", "criterion"):
        if bool(getattr(entry, name)) != (name == wanted):
            need = "needs" if name == wanted else "cannot have"
            raise UserError(f"claims.yaml: entry {entry.id} of kind {entry.kind} {need} a {name}")
    try:
        _ = entry.text
    except (KeyError, IndexError, ValueError):
        raise UserError(f"claims.yaml: entry {entry.id}: its claim names a value that it does not have") from None


# --- expressions --------------------------------------------------------------------------------------------

_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARISON = {  # how it is written where it holds and where it does not
    ast.Eq: ("=", "≠", operator.eq),
    ast.NotEq: ("≠", "=", operator.ne),
    ast.Lt: ("<", "≥", operator.lt),
    ast.LtE: ("≤", ">", operator.le),
    ast.Gt: (">", "≤", operator.gt),
    ast.GtE: ("≥", "<", operator.ge),
}


def evaluate(expression: str, value: Mapping[str, str] | None = None) -> Finding:
    """Whether an expression holds, with the numbers on both sides of every comparison in it.

    ``==`` between a printed number and another one holds when the other rounds to the digits printed. Other
    comparisons allow for float noise alone.

    Raises:
        UserError: the expression uses something unknown, or is no statement.
    """
    names = {name: Printed(text) for name, text in (value or {}).items()}
    try:
        found = _value(ast.parse(expression, mode="eval").body, names)
    except SyntaxError as error:
        raise UserError(f"claims.yaml: the check {expression!r} is no expression: {error.msg}") from None
    if not isinstance(found, Finding):
        raise UserError(f"claims.yaml: the check {expression!r} gives a number, it must say true or false")
    return found


def _value(node: ast.expr, names: Mapping[str, Printed]):
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str)):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item, names) for item in node.elts]
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](float(_value(node.left, names)), float(_value(node.right, names)))
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return _all([_value(part, names) for part in node.values])
    if isinstance(node, ast.Compare):
        sides = [_value(side, names) for side in (node.left, *node.comparators)]
        return _all([_compare(op, *sides[i : i + 2]) for i, op in enumerate(node.ops)])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        given = [
            item
            for argument in node.args
            for item in (
                _value(argument.value, names) if isinstance(argument, ast.Starred) else [_value(argument, names)]
            )
        ]
        return FUNCTIONS[node.func.id](*given, **{k.arg: _value(k.value, names) for k in node.keywords})
    raise UserError(f"claims.yaml: a check cannot use {ast.unparse(node)!r}")


def _all(parts: Iterable[Finding]) -> Finding:
    """All parts hold; where some do not, only those are told."""
    parts = list(parts)
    broken = [part for part in parts if not part.holds]
    return Finding(not broken, "; ".join(part.detail for part in broken or parts))


def _compare(op: ast.cmpop, left, right) -> Finding:
    yes, no, plain = _COMPARISON[type(op)]
    if isinstance(left, str) or isinstance(right, str) or isinstance(left, bool) or isinstance(right, bool):
        holds = plain(left, right)
    elif isinstance(op, (ast.Eq, ast.NotEq)):
        printed = [side for side in (left, right) if isinstance(side, Printed)]
        if isinstance(left, list) or isinstance(right, list):
            same = list(map(float, left)) == list(map(float, right))
        elif printed:  # the side with fewer digits is the rounded one
            coarse = min(printed, key=lambda side: side.digits)
            same = coarse.fits(float(right if coarse is left else left))
        else:
            same = abs(left - right) <= 1e-9 * max(1.0, abs(left))
        holds = same == isinstance(op, ast.Eq)
    else:
        holds = plain(round(float(left), 9), round(float(right), 9))
    return Finding(bool(holds), f"{show(left)} {yes if holds else no} {show(right)}")


# --- records ------------------------------------------------------------------------------------------------


def recorded(p: SimpleNamespace) -> Records:
    """The record set that phenomena are judged on: ``data/records``, or with ``source="live"`` what the other
    notebooks have decoded into ``results/store``; float32, as the plan has it.

    Raises:
        NotebookError: there are no records.
    """
    place = p.store or (home() / "results" / "store" if p.source == "live" else None)
    return {name: run for name, run in sources.recorded(place).items() if run.meta["config"]["dtype"] == "float32"}


# --- verdicts -----------------------------------------------------------------------------------------------


@cache
def phenomena() -> Phenomena:
    """The criteria of the analysis plan by their ids; each answers a record set with a status and its numbers."""
    from jot.analysis import phenomena

    last: dict[str, object] = {}  # the record set judged last, and what the plan's first table says of it

    def planned(row: int) -> Callable[[Mapping], tuple[str, str]]:
        def judge_row(records: Mapping) -> tuple[str, str]:
            if last.get("records") is not records:
                last.update(records=records, found=_first(records))
            return last["found"][row]

        return judge_row

    return {name: planned(i) for i, name in enumerate(FIRST)} | phenomena.registered(phenomena.plan()["id"])


def _first(records: Mapping) -> list[tuple[str, str]]:
    """Status and detail of the four claims in the plan's first table."""
    from jot.analysis import plan, tables
    from jot.analysis.cells import MODELS, TASKS, find

    if not any(find(records, model, task, name) for model in MODELS for task in TASKS for name in ("full", "jot")):
        return [("not shown", "not recorded")] * len(FIRST)
    found = tables.select(records, MODELS, TASKS, ["full", "jot"])
    claims = plan.claims(records, tables.main(found), tables.paired(found))
    return [(str(status), str(detail)) for status, detail in zip(claims["status"], claims["detail"], strict=True)]


def verdict(entry: Entry, records: Mapping | None, known: Phenomena | None = None) -> tuple[str, str]:
    """Status (one of `VERDICTS`) and the numbers behind it."""
    if entry.kind == "full-size":
        return "needs the full-size weights", ""
    if entry.kind == "phenomenon":
        known = phenomena() if known is None else known
        if entry.criterion not in known:
            raise UserError(f"claims.yaml: entry {entry.id} names an unknown criterion {entry.criterion!r}")
        return known[entry.criterion](records) if records is not None else ("not shown", "no records")
    found = evaluate(entry.check, entry.value)
    return "holds" if found.holds else "fails", found.detail


def judge(entries: Iterable[Entry], records: Mapping | None, known: Phenomena | None = None) -> pd.DataFrame:
    """Every entry with its verdict: ``id section kind claim reading ours criterion status detail``, in order."""
    rows = []
    for entry in entries:
        status, detail = verdict(entry, records, known)
        if status not in VERDICTS:
            raise UserError(f"claims.yaml: entry {entry.id} came out as {status!r}; known are {', '.join(VERDICTS)}")
        rows.append(
            {
                "id": entry.id,
                "section": entry.section,
                "kind": entry.kind,
                "claim": entry.text,
                "reading": entry.reading,
                "ours": entry.ours,
                "criterion": entry.criterion,
                "status": status,
                "detail": detail,
            }
        )
    return pd.DataFrame(rows)
