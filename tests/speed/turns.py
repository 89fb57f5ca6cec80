"""Wall-clock recordings of what 04_wallclock shows: every method on the same documents, in turn, beside full decoding
and the bare forward. ``cpu_pocket.py --record`` writes them, and the notebook itself where it runs live.

A machine that others use slows down for seconds at a time. So methods take turns document by document, every decoding
is repeated, and the median counts. Beside the clock stands the processor time of the process, which waiting for a
core does not lengthen: where the two part, the machine was busy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from jot.decode import decode
from jot.models import load
from jot.paper.timing import FILE
from jot.records import Cell, take
from jot.records.store import Writer, writable
from jot.runs import environment, settings
from jot.runs.parameters import NotebookError
from jot.tasks import get as get_task

COLUMNS = ("model", "task", "method", "doc_id", "prompt_tokens", "rows", "repeat", "steps", "forwards_full",
           "forwards_block", "seconds", "cpu_seconds", "bare_seconds", "bare_cpu_seconds")  # fmt: skip
REPEATS = 2
DISAGREE = 1.2  # repetitions whose processor times are further apart than this factor are joined by one more
LONG = 1.0  # seconds of processor time beyond which a decoding averages over enough steps to be timed once
FORWARDS = 5  # bare forwards whose median counts


class Spent(NamedTuple):
    """Seconds of one call: on the clock, the device's work included, and of this process's threads."""

    clock: float
    cpu: float


def clock(device: torch.device, call: Callable[[], object]) -> tuple[Spent, object]:
    """What a call took, and what it returned."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begun, busy = perf_counter(), process_time()
    result = call()
    wait()
    return Spent(perf_counter() - begun, process_time() - busy), result


def median(spent: Sequence[Spent]) -> Spent:
    """The medians of both kinds of seconds."""
    return Spent(*np.median(np.array(spent, dtype=float).reshape(-1, 2), axis=0).tolist())


def rows_read(step: np.ndarray, blocks: Sequence[tuple[int, int]], scope: str) -> np.ndarray:
    """Rows that each forward was asked for, from the forward after which each position was committed.

    Args:
        step: ``[L]``, from 0.
        blocks: start and end of each block.
        scope: "block" or "canvas", what the rule reads.

    Returns:
        int64 ``[forwards]``.
    """
    step = np.asarray(step)
    forwards = np.arange(step.max() + 1)
    if scope == "canvas":
        return (step[None] >= forwards[:, None]).sum(1)
    last = np.maximum.accumulate([int(step[start:end].max()) for start, end in blocks])
    block = np.searchsorted(last, forwards)  # the first block that is not yet full
    return np.array([int((step[slice(*blocks[b])] >= t).sum()) for t, b in zip(forwards, block, strict=True)])


@torch.inference_mode()
def bare_forward(model, prompt: Sequence[int], length: int, rows: float) -> Spent:
    """One forward of the whole canvas with the head on ``rows`` rows, nothing else; median of a few, nan for nan."""
    if np.isnan(rows):
        return Spent(rows, rows)
    canvas = torch.tensor([[*prompt, *[model.mask_id] * length]], device=model.device)
    position = torch.arange(max(1, round(rows)), device=model.device) + len(prompt)
    row = torch.zeros_like(position)
    model.predict(canvas, None, row, position)
    return median([clock(model.device, lambda: model.predict(canvas, None, row, position))[0] for _ in range(FORWARDS)])


@dataclasses.dataclass
class Way:
    """One method as it is timed: rule, decoding parameters, writer of its records."""

    name: str
    rule: object
    config: object
    writer: object = None

    def decode(self, model, prompt: Sequence[int], doc_id: str, trace: bool = False):
        """One decoding at batch 1."""
        options = dataclasses.asdict(self.config)
        return decode(model, prompt, self.rule, sample_id=doc_id, trace=trace, **options)

    def rows(self, model, prompt: Sequence[int], doc_id: str) -> float:
        """Mean number of rows that a forward is asked for; nan under a cache, where forwards differ in kind."""
        if self.config.cache:
            self.decode(model, prompt, doc_id)
            return float("nan")
        # Without exits the schedule reveals one mask a step, and which one does not matter here.
        step = np.arange(self.config.length)
        if self.name != "full" or self.config.steps != self.config.length:
            step = self.decode(model, prompt, doc_id, trace=True).trace.step
        return float(rows_read(step, self.config.blocks, self.rule.scope).mean())


class Timed(NamedTuple):
    """One method on one document: its output, what every repetition took, mean rows, the bare forward."""

    output: object
    spent: list[Spent]
    rows: float
    bare: Spent


def compare(model, ways: Sequence[Way], prompt: Sequence[int], doc_id: str, turn: int) -> dict:
    """``Timed`` per method name. Methods take turns, and ``turn`` says who begins."""
    rows = {way.name: way.rows(model, prompt, doc_id) for way in ways}  # what runs here warms up too
    spent: dict[str, list[Spent]] = {way.name: [] for way in ways}
    outputs: dict[str, object] = {}
    for repeat in range(REPEATS + 1):
        first = (turn + repeat) % len(ways)
        for way in [*ways[first:], *ways[:first]]:
            cpu = [known.cpu for known in spent[way.name]]
            again = min(cpu) < LONG and (repeat < REPEATS or max(cpu) > DISAGREE * min(cpu)) if cpu else True
            if again:
                taken, outputs[way.name] = clock(model.device, lambda w=way: w.decode(model, prompt, doc_id))
                spent[way.name].append(taken)
    return {
        way.name: Timed(outputs[way.name], spent[way.name], rows[way.name],
                        bare_forward(model, prompt, way.config.length, rows[way.name])) for way in ways
    }  # fmt: skip


def _lines(model: str, task: str, doc_id: str, prompt: Sequence[int], timed: Mapping[str, Timed]) -> pd.DataFrame:
    """The rows of the file for one document."""
    rows = []
    for method, one in timed.items():
        forwards, bare = one.output.forwards, [round(x, 7) for x in one.bare]
        rows += [
            (model, task, method, doc_id, len(prompt), round(one.rows, 2), repeat, one.output.steps, forwards["full"],
             forwards["block"], round(taken.clock, 7), round(taken.cpu, 7), *bare)
            for repeat, taken in enumerate(one.spent)
        ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def record(
    store: str | Path,
    models: Iterable[str],
    tasks: Iterable[str],
    methods: Iterable[str],
    limit: int | None = None,
    *,
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = "float32",
    data: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Time ``methods`` on the first ``limit`` documents of each task into ``store``, batch 1, one thread; returns it.

    ``timings.csv`` there gets a line per decoding, the store's cells a record per sample, with the median of its
    seconds. What is there is not timed again.

    Raises:
        NotebookError: a task whose answers are code that a full-size model wrote.
    """
    store, methods, tasks = writable(store), list(methods), [get_task(name) for name in tasks]
    if refused := [task.name for task in tasks if task.needs_flag]:
        raise NotebookError(f"{refused[0]} runs code that the model writes; time another task")
    path = store / FILE
    if not path.exists():
        path.write_text(",".join(COLUMNS) + "\n")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # only then does processor time stand for the clock of an idle machine
    try:
        for name in models:
            model = load(name, device=device, dtype=dtype)
            for task in tasks:
                _record_task(store, model, Path(str(name)).name, task, methods, limit, seed, data, say)
    finally:
        torch.set_num_threads(threads)
    return store


def _record_task(store: Path, model, name: str, task, methods, limit, seed, data, say) -> None:
    from jot.runs.harness import record_of  # lm-eval, which the other scripts do without
    from jot.tasks.bench import Bench

    split = task.splits[0]
    bench, here = Bench(model, task, split, data), environment.describe(model.device)
    known = pd.read_csv(store / FILE)
    known = known[(known["model"] == name) & (known["task"] == task.name)]
    timed = known.groupby("doc_id")["method"].agg(set).to_dict()
    with ExitStack() as stack:
        ways = []
        for method in methods:
            rule = settings.build_method(method, model.family, {})
            config = settings.build_decode(model, {}, task, seed, method)
            cell = Cell(settings.cell_config(model, task, bench.task.VERSION, split, bench.prompt_hash, rule, config))
            writer = stack.enter_context(Writer(store, cell, bench.hashes, here))
            ways.append(Way(method, rule, config, writer))
        for turn, doc_id in enumerate(take(list(bench.docs), limit)):
            left = [way for way in ways if way.name not in timed.get(doc_id, ())]
            if not left:
                continue
            found = compare(model, left, bench.prompts[doc_id], doc_id, turn)
            for way in left:
                one = found[way.name]
                if way.writer.claim([doc_id], 1):
                    sample = record_of(model, bench, doc_id, one.output, way.config.existing_steps, 1)
                    way.writer.append({**sample, "seconds": round(median(one.spent).clock, 6)})
            lines = _lines(name, task.name, doc_id, bench.prompts[doc_id], found)
            lines.to_csv(store / FILE, mode="a", header=False, index=False)
            say(f"{name} {task.name} {turn + 1}: {doc_id}")
