"""Runs the code cells of a notebook in this process: its namespace, and what each cell gave, by cell id.

Or a committed one as ``jot figures`` does, in a kernel, and compares what it shows.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import children
import IPython.display
import matplotlib.pyplot as plt
import pandas as pd
import papermill
import pytest
from jupyter_client.provisioning import local_provisioner
from nbformat import v4

from jot.runs import notebooks

ROOT = Path(__file__).resolve().parents[1]


class Handle:
    """Takes the place of a display handle; keeps what it was last given."""

    def __init__(self, shown: object) -> None:
        self.shown = shown

    def update(self, shown: object) -> None:
        self.shown = shown


@contextmanager
def _collecting(shown: list) -> Iterator[None]:
    real = IPython.display.display

    def display(*things: object, display_id: str | None = None, **_: object):
        handles = [Handle(thing) for thing in things]
        shown.extend(handles)
        return handles[0] if display_id else None

    IPython.display.display = display
    try:
        yield
    finally:
        IPython.display.display = real


def run(name: str, until: str | None = None, **parameters: object) -> tuple[dict, dict[str, list]]:
    """Executes a notebook of ``notebooks/`` with parameters.

    Args:
        name: the notebook's name.
        until: id of the last cell to run; all by default.

    Returns:
        The namespace, and by cell id what the cell displayed and, last, the value of its last expression.
    """
    space: dict = {"__name__": "__main__"}
    gave: dict[str, list] = {}
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    before = os.getcwd()
    os.chdir(ROOT / "notebooks")
    try:
        for cell in (c for c in cells if c["cell_type"] == "code"):
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            shown: list = []
            with _collecting(shown):
                exec(compile(tree, f"{name}:{cell['id']}", "exec"), space)
                if last is not None:
                    value = eval(compile(ast.Expression(last.value), f"{name}:{cell['id']}", "eval"), space)
                    shown.append(Handle(value))
            gave[cell["id"]] = shown
            if "parameters" in cell["metadata"].get("tags", []):
                space |= parameters
            if cell["id"] == until:
                break
    finally:
        os.chdir(before)
        plt.close("all")
    return space, {key: [handle.shown for handle in handles] for key, handles in gave.items()}


def shown(notebook: dict) -> list:
    """What a reader sees: text and tables of every output, and that there is a picture."""
    found = []
    for output in (output for cell in notebook["cells"] for output in cell.get("outputs", ())):
        data = output.get("data", {"text": output.get("text")})
        found.append({k: "picture" if k.startswith("image/") else "".join(v) for k, v in data.items()})
    return found


def check_committed(name: str, folder: Path, keep: tuple[str, ...] = ()) -> dict:
    """Executes a notebook of ``notebooks/``; it must show what is committed. Returns the values of these names."""
    committed = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    path, kept = folder / f"{name}.ipynb", folder / "kept"
    last = v4.new_code_cell(f"pd.to_pickle({{name: globals()[name] for name in {keep}}}, {str(kept)!r})")
    cells = [*committed["cells"], *([json.loads(json.dumps(last))] if keep else [])]
    path.write_text(json.dumps({**committed, "cells": cells}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_provisioner, "launch_kernel", children.Kernel)
        # Else it writes the whole notebook before and after every cell.
        patch.setattr(
            papermill, "execute_notebook", partial(papermill.execute_notebook, request_save_on_cell_execute=False)
        )
        made = notebooks.run(str(path), {"out": folder / "figures"}, folder / "made" / path.name)
    assert shown(notebooks.stripped(json.loads(made.read_text(encoding="utf-8")))) == shown(committed)
    return pd.read_pickle(kept) if keep else {}
