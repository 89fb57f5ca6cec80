"""The one parameter vocabulary of the notebooks, and the checks that make papermill strict about it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from jot.errors import UserError, is_text
from jot.models import home


class NotebookError(UserError):
    """A user's mistake inside a notebook: shown as its one sentence, without a traceback."""


class Parameter(NamedTuple):
    """Kind (text, path, list, int, float, bool), meaning, whether None will do, known values, lower bound."""

    kind: str
    meaning: str
    optional: bool = False
    choices: tuple[str, ...] = ()
    low: float | None = None


VOCABULARY = {
    "source": Parameter("text", "recorded rows, or decode live on this machine", choices=("recorded", "live")),
    "store": Parameter("path", "record folder; default data/records, or results/store when live", optional=True),
    "models": Parameter("list", "models to show: packaged names, local folders or hub ids"),
    "families": Parameter("list", "model families to keep", choices=("dream", "llada")),
    "tasks": Parameter("list", "tasks to show"),
    "methods": Parameter("list", "decoding methods to show"),
    "limit": Parameter("int", "first n documents of each task's fixed order; None for all", optional=True, low=1),
    "seed": Parameter("int", "seed of the decoding draws", low=0),
    "device": Parameter("text", "torch device of live runs; None picks one", optional=True),
    "dtype": Parameter("text", "weights' dtype of live runs", choices=("float32", "bfloat16", "float16")),
    "data": Parameter(
        "path", "folder with the benchmarks' data; None reads the packaged tasks or the hub", optional=True
    ),
    "out": Parameter("path", "folder for the figures; default results/figures", optional=True),
    "model": Parameter("text", "the model to show: a packaged name, a local folder or a hub id"),
}


def sound(text: str) -> bool:
    """Whether text can name a file: no NUL, and nothing that UTF-8 cannot hold."""
    return "\0" not in text and is_text(text)


def _number(name: str, value: Any, whole: bool) -> int | float:
    """A number from a number or from text; YAML 1.1 reads ``1e-3`` as text."""
    try:
        number = float(value)
        if isinstance(value, bool) or number != number or (whole and number != int(number)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise NotebookError(f"parameter {name}={value!r} is not a {'whole ' if whole else ''}number") from None
    return int(number) if whole else number


def coerce(name: str, value: Any, spec: Parameter) -> Any:
    """``value`` as ``spec`` asks for it, or NotebookError in one sentence."""
    if value is None or (spec.optional and isinstance(value, str) and value.lower() in ("none", "null", "")):
        if spec.optional:
            return None
        raise NotebookError(f"parameter {name} cannot be empty: give {spec.meaning}")
    if spec.kind in ("int", "float"):
        value = _number(name, value, spec.kind == "int")
        if spec.low is not None and value < spec.low:
            raise NotebookError(f"parameter {name}={value} must be at least {spec.low}")
        return value
    if spec.kind == "bool":
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise NotebookError(f"parameter {name}={value!r} must be True or False")
        return value
    if spec.kind == "list":
        items = value.strip("[]() ").split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise NotebookError(f"parameter {name}={value!r} must be a list or comma-separated names")
        items = [str(item).strip(" '\"") for item in items]
        if not all(items) or not items:
            raise NotebookError(f"parameter {name}={value!r} holds an empty name: give {spec.meaning}")
    else:
        if not isinstance(value, (str, os.PathLike)):
            raise NotebookError(f"parameter {name}={value!r} must be text: {spec.meaning}")
        items = [str(value)]
    for item in items:
        if not sound(item):
            raise NotebookError(f"parameter {name}={item!r} holds a character that no text may; take it out")
        if spec.choices and item not in spec.choices:
            raise NotebookError(f"parameter {name}: unknown value {item!r}{closest(item, spec.choices)}")
    return items if spec.kind == "list" else items[0]


def closest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def spec_of(name: str, default: Any) -> Parameter:
    """The vocabulary's entry, or one for a notebook's own parameter: from its default, or from a type in its place."""
    if name in VOCABULARY:
        return VOCABULARY[name]
    kinds = {bool: "bool", int: "int", float: "float", str: "text", list: "list", tuple: "list"}
    if isinstance(default, type):
        return Parameter(kinds[default], f"of type {default.__name__}")
    return Parameter(kinds.get(type(default), "text"), f"like {default!r}", optional=default is None)


def _assigned(source: str) -> dict[str, Any]:
    """Names assigned at the top level of a cell, with their literal values."""
    found = {}
    for node in ast.parse(source).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name):
                with contextlib.suppress(ValueError):
                    found[target.id] = ast.literal_eval(node.value)
    return found


def parameters(path: str | Path) -> dict[str, Any]:
    """Names and default values of the cell tagged ``parameters``."""
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    tagged = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise UserError(f"{Path(path).name} has {len(tagged)} cells tagged 'parameters'; it needs exactly one")
    return _assigned("".join(tagged[0]["source"]))


def check(scope: Mapping[str, Any], names: str, **own: Any) -> SimpleNamespace:
    """Validate the parameters of the running notebook and return them, typed, with paths resolved.

    Args:
        scope: the notebook's ``globals()``.
        names: the vocabulary names it uses, separated by spaces.
        **own: its own parameters with their type or a value of it, such as ``tau_max=float``.

    Raises:
        NotebookError: an unknown parameter was injected, or a value does not fit.
    """
    declared = [*names.split(), *own]
    for cell in scope.get("In", ()):
        if cell.lstrip().startswith("# Parameters\n"):  # papermill's mark on the cell that it injects
            for name in _assigned(cell):
                if name not in declared:
                    raise NotebookError(f"unknown parameter {name!r}{closest(name, declared)}")
    values = {name: coerce(name, scope[name], spec_of(name, own.get(name))) for name in declared}
    for name in ("store", "data", "out"):
        if values.get(name) is not None:
            values[name] = Path(os.path.expanduser(values[name])).resolve()
    if "out" in values and values["out"] is None:
        values["out"] = home() / "results" / "figures"
    return SimpleNamespace(**values)
