"""``jot paper``: the notebooks from the records, then a part of the records decoded again on this machine.

``jot figures`` rewrites what is committed: the notebooks' outputs and the figures, from the records alone.
"""

from __future__ import annotations

import operator
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd

from jot import stats
from jot.errors import Parser, UserError
from jot.models import home
from jot.paper import criteria, show
from jot.records import Recorded, load_store
from jot.runs import live, notebooks
from jot.runs.frames import folder as records_folder
from jot.runs.frames import runs
from jot.tasks import TASKS

SECONDS = 360
TOKENS = 256  # that each run is decoded again for in the first round; twice as many in each further one
MOST = 200  # documents per run at most
SMALL = 1e-3  # nats: a decision this close may fall either way on another machine
METHODS = ["full", "jot", "prophet", "klass", "fastdllm"]


class Agreement(NamedTuple):
    """One cell decoded again: documents, how many agree, and the margin at which each other one parted."""

    n: int
    scores: int
    tokens: int
    margins: list[float]

    def told(self, what: str = "tokens") -> str:
        return f"{self.scores}/{self.n} scores equal, {self.tokens}/{self.n} {what} equal"

    @property
    def explained(self) -> bool:
        """Whether every difference began where a decision may fall either way."""
        return all(margin < SMALL for margin in self.margins)

    def close(self) -> str:
        """How many differences began so, if there are any."""
        few = sum(margin < SMALL for margin in self.margins)
        return f"; {few} of {len(self.margins)} differences began at a margin under {SMALL:g}" if self.margins else ""

    def parted(self, before: str) -> str:
        """The margins at which documents parted, if any did."""
        return before + ", ".join(f"{margin:.1e}" for margin in self.margins) if self.margins else ""


def total(parts: Iterable[Agreement]) -> Agreement:
    """The agreement of several cells together."""
    return Agreement(*map(partial(reduce, operator.add), zip(Agreement(0, 0, 0, []), *parts, strict=True)))


# --- decoding again -----------------------------------------------------------------------------------------


def redecode(
    known: Mapping[str, Recorded], counts: Mapping[str, int], store: Path, seconds: float, device: str | None = None
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Decode the first documents of recorded cells again, with traces, short answers first.

    Args:
        known: the records, by cell.
        counts: documents of each cell; what ``store`` holds of them already is not decoded once more.
        seconds: no cell is begun after so long.

    Yields:
        Each cell and its samples.

    Raises:
        UserError: the weights, prompts or code at hand make another cell of the same parameters.
    """
    from jot.models import load
    from jot.runs.harness import evaluate

    begun, models = time.perf_counter(), {}
    for cell in sorted(counts, key=lambda cell: TASKS[known[cell].meta["config"]["task"]].length):
        if time.perf_counter() - begun >= seconds:
            return
        config = known[cell].meta["config"]
        if (name := (config["model"], config["dtype"])) not in models:
            models[name] = load(name[0], dtype=name[1], device=device)
        settings = {**config["decode"], **config["method"]}
        how = {"split": config["split"], "limit": counts[cell], "store": store, "seed": config["seed"], "trace": True}
        summary = evaluate(models[name], config["task"], settings.pop("name"), **how, **settings,
                           progress=sys.stderr.isatty())  # fmt: skip
        if summary.cell != cell:
            raise UserError(
                f"the weights or prompts of {config['model']} / {config['task']} are not those of the records "
                f"({summary.cell} instead of {cell}); check out data/ anew"
            )
        yield cell, summary.frame


def chosen() -> pd.DataFrame:
    """The recorded runs of Table 1 that are decoded again: every method at its default, as far as it is recorded."""
    found = runs(dtype="float32", seed=0, split="test", method=METHODS, setting="")
    found = found.query("model in @criteria.MODELS and task in @criteria.TASKS")
    order = {name: i for i, name in enumerate([*criteria.MODELS, *criteria.TASKS, *METHODS])}
    return found.sort_values(["model", "task", "method"], key=lambda names: names.map(order)).set_index("cell")


def doubling(known: Mapping[str, Recorded]) -> Iterator[dict[str, int]]:
    """Rounds of documents to decode, each run for as many tokens as the others: more documents of short answers."""
    lengths = {cell: TASKS[recorded.meta["config"]["task"]].length for cell, recorded in known.items()}
    counts, tokens = dict.fromkeys(known, 0), TOKENS
    while counts != (more := {cell: min(MOST, known[cell].n, -(-tokens // lengths[cell])) for cell in known}):
        yield {cell: n for cell, n in more.items() if n > counts[cell]}
        counts, tokens = more, 2 * tokens


# --- comparing ----------------------------------------------------------------------------------------------


def parting_margin(recorded: Mapping, live: Mapping) -> float:
    """Margin of the earliest decision on which two decodings differ, in nats; nan without traces.

    The decision is a top-2 choice or an exit test, so the margin is the smaller of the logit gap and its
    distance to the threshold, in whichever run committed the position first.
    """
    tokens = [np.asarray(r["generated"]) for r in (recorded, live)]
    traced = [r for r in (recorded, live) if r.get("trace_step") is not None]
    steps, margins, thresholds = (
        [np.asarray(r[f"trace_{name}"], dtype=float) for r in traced] for name in ("step", "margin", "threshold")
    )
    differ = tokens[0] != tokens[1]
    if len(traced) == 2:
        differ = differ | (steps[0] != steps[1])
    if not traced or not differ.any():
        return float("nan")
    first = min(step[differ].min() for step in steps)
    found = []
    for step, margin, threshold in zip(steps, margins, thresholds, strict=True):
        at = differ & (step == first)
        found += [*np.abs(margin[at]), *np.abs(margin[at] - threshold[at])]
    return float(np.nanmin(found))


def agreement(recorded: pd.DataFrame, live: pd.DataFrame) -> Agreement:
    """Compare the documents decoded here with their records."""
    before, after = (frame.set_index("doc_id").to_dict("index") for frame in (recorded, live))
    pairs = [(before[doc_id], row) for doc_id, row in after.items() if doc_id in before]
    scored = np.array([(one["score"], two["score"]) for one, two in pairs], float).reshape(-1, 2).T
    scores = int(np.isclose(*scored, equal_nan=True).sum())  # a recorded share of problems is in float32
    apart = [pair for pair in pairs if list(pair[0]["generated"]) != list(pair[1]["generated"])]
    return Agreement(len(pairs), scores, len(pairs) - len(apart), [parting_margin(*pair) for pair in apart])


def measured(frame: pd.DataFrame) -> dict[str, object]:
    """n, score in percent with Wilson's interval, step speedup with its bootstrap interval, of one run's samples."""
    right, n = frame["score"].sum(), len(frame)
    low, high = stats.wilson(right, n)
    run = frame.sort_values("doc_id", kind="stable")
    speed = stats.ratio_bootstrap(run["configured_steps"], run["steps"])
    score = show.interval(100 * right / n, 100 * low, 100 * high, gap=" ")
    return {"n": n, "Score, %": score, "Speedup, ×": show.interval(*speed, digits=2, gap=" ")}


def compared(found: pd.DataFrame, known: Mapping[str, Recorded], here: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Table 1 as recorded, and how the part decoded here agrees; then as decoded here, on what its methods share."""
    recorded, live, every = [], [], []
    for cell, run in found.iterrows():
        name = {"model": run["model"], "task": run["task"], "Method": show.LABELS[run["method"]]}
        row = name | measured(known[cell].frame) | {"Decoded again here": "not: out of time"}
        recorded.append(row)
        if cell in here:
            every.append(agreement(known[cell].frame, here[cell]))
            row["Decoded again here"] = every[-1].told() + every[-1].parted("; parted at margins ")
            beside = found.index[(found["model"] == run["model"]) & (found["task"] == run["task"])]
            shared = set.intersection(*(set(here[other]["doc_id"]) for other in beside if other in here))
            live.append(name | measured(here[cell][here[cell]["doc_id"].isin(shared)]))
    how = f"Score: {show.WILSON}; speedup: {show.BOOT}."
    yield repr(show.table(pd.DataFrame(recorded), f"Table 1 as recorded. {how}"))
    yield f"In all: {total(every).told()}{total(every).close()}"
    if live:
        told = f"Table 1 as decoded on this machine. {show.scope(pd.DataFrame(live))}. {how}"
        yield repr(show.table(pd.DataFrame(live), told))


def reproduce(seconds: float, folder: Path, say=print) -> None:
    """Decode a part of the main table again and print it beside the records, all under ``folder``."""
    found, store, here, begun = chosen(), folder / "live", {}, time.perf_counter()
    known = load_store(records_folder(), found.index)
    shutil.rmtree(store, ignore_errors=True)  # a proof is decoded now, not read from an earlier run
    say(f"\nDecoding a part of {len(found)} recorded runs again, for about {seconds:g} s:")
    for counts in doubling(known):
        here |= redecode(known, counts, store, seconds - (time.perf_counter() - begun))
        if (took := time.perf_counter() - begun) >= seconds:
            break
        say(f"  [{took:4.0f} s] up to {max(counts.values())} documents of a run")
    told = "\n\n".join(compared(found, known, here))
    say(f"\n{told}")
    (folder / "reproduction.txt").write_text(told + "\n", encoding="utf-8")


# --- commands -----------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """``jot paper``. Returns the exit code; mistakes are raised as UserError."""
    parser = Parser(prog="jot paper", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for decoding again (default %(default)s)")
    options = parser.parse_args(arguments)
    if not options.seconds >= 0:
        raise UserError(f"--seconds {options.seconds:g} must be at least 0; 0 only runs the notebooks")
    folder = home() / "results" / "paper"
    notebooks.names()
    live.store(SimpleNamespace(source="recorded", store=None))
    folder.mkdir(parents=True, exist_ok=True)
    print("Executing the notebooks from the recorded runs:", flush=True)
    for name, path, took in notebooks.execute_all(source="recorded", out_dir=folder):
        print(f"  {name}: {took:.0f} s, {path.relative_to(home())}", flush=True)
    if options.seconds:
        reproduce(options.seconds, folder, lambda text: print(text, flush=True))
    return 0


def figures(arguments: Sequence[str] | None = None) -> int:
    """``jot figures``: rewrite the outputs in ``notebooks/`` and what is in ``figures/`` from the records."""
    parser = Parser(prog="jot figures", description="Rewrite notebooks/ and figures/.")
    parser.add_argument("notebooks", nargs="*", help="names of notebooks (default: all)")
    for name in parser.parse_args(arguments).notebooks or notebooks.names():
        begun = time.perf_counter()
        notebooks.refresh(name, home() / "figures")
        print(f"  {name}: {time.perf_counter() - begun:.0f} s", flush=True)
    return 0
