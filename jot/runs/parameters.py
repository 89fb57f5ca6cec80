"""The one parameter vocabulary of the notebooks, and the checks that make papermill strict about it."""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jot.errors import Kind, UserError, closest, destination, local
from jot.models import home
from jot.runs.frames import family


class NotebookError(UserError):
    """A user's mistake inside a notebook: shown as its one sentence, without a traceback."""


NAMES = Kind(str, many=True)
TEXT, ANY_TEXT = Kind(str), Kind(str, optional=True)
PATHS = ("store", "data", "out")
VOCABULARY = {  # kind and meaning
    "source": (Kind(str, names=("recorded", "live")), "recorded rows, or decode live on this machine"),
    "store": (ANY_TEXT, "record folder; default data/records, or results/store when live"),
    "models": (NAMES, "models to show: packaged names, local folders or hub ids"),
    "families": (Kind(str, names=("dream", "llada"), many=True), "model families to keep"),
    "tasks": (NAMES, "tasks to show"),
    "methods": (NAMES, "decoding methods to show"),
    "limit": (Kind(int, 1, optional=True), "first n documents of each task's fixed order; None for all"),
    "seed": (Kind(int, 0), "seed of the decoding draws"),
    "device": (ANY_TEXT, "torch device of live runs; None picks one"),
    "dtype": (Kind(str, names=("float32", "bfloat16", "float16")), "weights' dtype of live runs"),
    "data": (ANY_TEXT, "folder with the benchmarks' data; None reads the packaged tasks or the hub"),
    "out": (ANY_TEXT, "folder for the figures; default results/figures"),
    "model": (TEXT, "the model to show: a packaged name, a local folder or a hub id"),
}


def coerce(name: str, value: Any, default: Any = None) -> Any:
    """A parameter's value as the vocabulary asks for it; one of a notebook's own, as its default or type does."""
    of = default if isinstance(default, type) else type(default)
    if of in (list, tuple):
        own = Kind(many=True)
    else:
        own = Kind(of if of in (bool, int, float) else str, optional=default is None)
    kind, meaning = VOCABULARY.get(name, (own, "of this notebook alone"))
    try:
        return kind.read(f"parameter {name}", value)
    except UserError as error:
        raise NotebookError(f"{error} ({meaning})") from None


def unformatted(path: str | os.PathLike) -> str:
    """A path for papermill, which would fill what stands in braces."""
    return os.fspath(path).replace("{", "{{").replace("}", "}}")


# --- notebooks ----------------------------------------------------------------------------------------------


def parameters(path: str | Path) -> dict[str, Any]:
    """Names and default values of the cell tagged ``parameters``, as papermill reads them."""
    import nbformat
    import papermill

    tagged = [c for c in nbformat.read(path, 4).cells if "parameters" in c.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise UserError(f"{Path(path).name} has {len(tagged)} cells tagged 'parameters'; it needs exactly one")
    logging.getLogger("papermill.translators").setLevel(logging.ERROR)
    return {name: _literal(found["default"]) for name, found in papermill.inspect_notebook(unformatted(path)).items()}


def _literal(text: str) -> Any:
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return None


def given(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values for a notebook's parameters, each as its default or the vocabulary asks for it."""
    declared = parameters(path)
    if unknown := [name for name in values if name not in declared]:
        raise UserError(f"{path.stem}: unknown parameter {unknown[0]!r}{closest(str(unknown[0]), declared)}")
    try:
        return {name: coerce(name, value, declared[name]) for name, value in values.items()}
    except NotebookError as error:
        raise UserError(f"{path.stem}: {error}") from None


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """With whole paths in place of those relative to the current folder."""
    paths = {name: local(f"parameter {name}", values[name]) for name in PATHS if values.get(name) is not None}
    paths = {name: Path(os.path.expanduser(path)).resolve() for name, path in paths.items()}
    for name in paths.keys() & ({"out", "store"} if values.get("source") == "live" else {"out"}):
        destination(f"parameter {name}", paths[name])
    return {**values, **paths}


def check(scope: Mapping[str, Any], names: str, **own: Any) -> SimpleNamespace:
    """Validate the parameters of the running notebook and return them, typed, with paths resolved.

    Args:
        scope: the notebook's ``globals()``.
        names: the vocabulary names it uses, separated by spaces.
        **own: its own parameters with their type or a value of it, such as ``tau_max=float``.
    """
    declared = [*names.split(), *own]
    for cell in scope.get("In", ()):
        if cell.lstrip().startswith("# Parameters\n"):  # papermill's mark on the cell that it injects
            for name in re.findall(r"(?m)^(\w+) = ", cell):
                if name not in declared:
                    raise NotebookError(f"unknown parameter {name!r}{closest(name, declared)}")
    values = resolved({name: coerce(name, scope[name], own.get(name)) for name in declared})
    if "out" in values and values["out"] is None:
        values["out"] = home() / "results" / "figures"
    if {"models", "families"} <= set(values):
        kept = [model for model in values["models"] if family(model) in (None, *values["families"])]
        if not kept:
            of, kinds = ", ".join(values["models"]), ", ".join(values["families"])
            raise NotebookError(f"no model of {of} is of the families {kinds}")
        values["models"] = kept
    return SimpleNamespace(**values)
