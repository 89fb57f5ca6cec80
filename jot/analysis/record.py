"""``jot record``: decode the cells behind the notebooks into a store, resumably, and pack a store for keeping."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

import torch

from jot.analysis.cells import split_of
from jot.analysis.sources import Wanted, main_cells
from jot.errors import UserError
from jot.settings import model_class

MODELS = ("pocket-dream", "pocket-llada")
TASKS = ("pocket_mmlu", "pocket_hellaswag", "pocket_humaneval", "pocket_gsm8k")  # the long ones last


def cells(models: Sequence[str], tasks: Sequence[str], roles: Sequence[str]) -> Iterator[tuple[Wanted, dict]]:
    """Every cell of the main table and its settings, the positive control of the analysis plan among them."""
    for cell in main_cells(models, tasks, ("full", "jot", "calibrated")):
        if cell.split in roles:
            yield cell, cell.params
    if "dev" in roles and "pocket_gsm8k" in tasks:
        for model in models:
            yield Wanted(model, "pocket_gsm8k", "jot", 3, "dev"), {"tau_max": 3, "spatial": False}


def limits(words: Sequence[str]) -> dict[str, int | None]:
    """``TASK=N`` words as a mapping; a bare number is for every other task.

    Raises:
        UserError: a word that is neither.
    """
    found: dict[str, int | None] = {}
    for word in words:
        task, _, number = word.rpartition("=")
        if not number.isdigit():
            raise UserError(f"--limit {word!r} must be a number of samples, or TASK=NUMBER")
        found[task] = int(number)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Decode what a store lacks, model by model; with ``--pack`` write the store to Parquet instead."""
    parser = argparse.ArgumentParser(prog="jot record", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", default="results/records", help="folder of the records (default %(default)s)")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--split", choices=("dev", "test", "both"), default="both")
    parser.add_argument("--limit", nargs="+", default=[], metavar="[TASK=]N", help="samples a cell (default all)")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--threads", type=int, help="CPU threads of this process")
    parser.add_argument("--device")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--pack", metavar="DIR", help="pack the store into this folder and decode nothing")
    options = parser.parse_args(arguments)
    if options.pack:
        from jot.packed import pack

        print(f"packed into {pack(options.store, options.pack, traces=options.trace)}")
        return 0
    from jot.harness import evaluate
    from jot.models import load

    most = limits(options.limit)
    if unknown := sorted(most.keys() - {"", *options.tasks}):
        raise UserError(f"--limit names the task {unknown[0]!r}, which is not among {', '.join(options.tasks)}")
    if options.threads is not None and options.threads < 1:
        raise UserError(f"--threads {options.threads} must be at least 1")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    for name in options.models:
        model_class(name)
    roles = ("dev", "test") if options.split == "both" else (options.split,)
    for name in options.models:
        model = load(name, device=options.device, dtype="float32")
        for cell, params in cells([name], options.tasks, roles):
            begun = time.perf_counter()
            summary = evaluate(
                model, cell.task, cell.method, split=split_of(cell.task, cell.split), store=options.store,
                limit=most.get(cell.task, most.get("")), slots=options.slots, trace=options.trace, progress=False,
                **params,
            )  # fmt: skip
            print(
                f"{summary.cell}: n {summary.n}, score {summary.score:.3f}, speedup {summary.speedup:.2f}, "
                f"{summary.decoded} decoded in {time.perf_counter() - begun:.0f} s",
                flush=True,
            )
    return 0
