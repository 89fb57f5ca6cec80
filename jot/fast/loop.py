"""The loop on CUDA: each step is one replayed graph, of which the host reads a few numbers.

Where one sample is decoded alone without a cache, the next step starts before these are read (``FastLoop.far``).
It is the default there; ``JOT_FAST=0`` switches it off, and ``JOT_FAST=1`` asks for it on the CPU, without graphs, as
the tests do. What it cannot do runs in the plain loop of ``jot.sampler``, and a line in the log says why.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from jot.errors import UserError
from jot.fast.fixed import BATCHES, FixedStep, Shape, capacity
from jot.fast.forward import FusedForward
from jot.models.base import DiffusionModel
from jot.sampler.config import DecodeConfig
from jot.sampler.exits import METHODS, Filling
from jot.sampler.kernels import triton
from jot.sampler.output import KINDS, Output
from jot.sampler.proposals import KeyedDraws, sample_key

WIDTH = 16  # canvases are as wide as the next multiple
NARROW = 32  # and read up to the next multiple of this that holds the live ones,
OFTEN = 8  # or exactly as far as these, all of one length, where so many samples of a run have that length
KEPT, KEPT_BYTES = 12, 1 << 30  # loops with their graphs that a model keeps, and the memory of their state
GRAPHS = 256  # that a loop keeps
SPARED = 1.5e12  # a batch of unequal canvases goes in two where that spares so many operations (2 ms of an H100)
FAR = 4  # a sample is far from its end with so many times the rows left that the last step committed
LARGE = 1 << 26  # bytes
AMPERE = (8, 0)
UNASKED = "nobody asked for it"


def refusal(model: DiffusionModel, config: DecodeConfig, method, slots: int, draws) -> str | None:
    """Why a run goes through the plain loop, in a few words; None where the fast one takes it."""
    asked = os.environ.get("JOT_FAST", "1" if model.device.type == "cuda" else "0")
    if asked != "1":
        return UNASKED
    if model.device.type == "cuda" and triton is None:
        return "no Triton"
    if model.device.type == "cuda" and torch.cuda.get_device_capability(model.device) < AMPERE:
        return "a card before Ampere"
    for reason, holds in (
        ("ranks demoted at the start", config.begin_suppress_tokens), ("a weighted choice", config.alg_temp),
        ("draws of another kind", draws is not None and type(draws) is not KeyedDraws),
        ("draws that join by share", config.ranking == "origin"),
        ("top-k or a greedy nucleus", config.nucleus and (config.top_k or not config.temperature)),
        ("blocks of unequal length under a cache", config.cache and len({b - a for a, b in config.blocks}) > 1),
        ("steps beyond a block that Prophet or SchED filled", isinstance(method, Filling) and not config.stop_early),
        # Not ``type``: what passes for a rule by its class, as the replayed ones of tests/speed, runs as the rule.
        ("a rule of another kind", method.__class__ not in METHODS.values()),
    ):  # fmt: skip
        if holds:
            return reason
    return None


def state_of(model: DiffusionModel) -> tuple:
    """Where and in what form the weights are, and how they are multiplied."""
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return model.dtype, str(model.device), tf32, *(weight.data_ptr() for weight in model.parameters())


class Pool:
    """Memory that all graphs of a model share (they never run at once), and the stream that they are captured on."""

    def __init__(self, device: torch.device):
        self.handle, self.graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
        self.main = torch.cuda.Stream(device)  # of this device, which torch's own choice need not be
        self.number = torch.zeros(1, device=device)
        with torch.cuda.graph(self.graph, pool=self.handle, stream=self.main):  # keeps the memory alive
            self.number + 1


def stream(
    model: DiffusionModel, config: DecodeConfig, method, slots: int, width: int, trace: bool, prompts: Sequence
) -> Iterator[tuple[int | str, Output]]:
    """Decode ``prompts`` through a loop that the model keeps for runs of the same kind."""
    width = -(-width // WIDTH) * WIDTH
    if model.__dict__.get("_fast_state") != state_of(model):  # moved, cast or loaded anew: nothing kept fits any more
        for kept in model.DERIVED:
            model.__dict__.pop(kept, None)
    loops: OrderedDict = model.__dict__.setdefault("_fast_loops", OrderedDict())
    key = (replace(config, seed=0), method, slots, width, trace)
    loop = loops.pop(key, None)  # ours until the run ends
    if loop is None:
        # It holds no reference to the model that it hangs on, whose memory is free at once where it is deleted.
        loop = FastLoop(weakref.proxy(model), config, method, slots, width, trace)
        model.__dict__["_fast_state"] = state_of(model)  # the first one on a GPU has joined some weights
    try:
        lengths = Counter(len(prompt) for _, prompt in prompts)
        loop.exact = {length for length, often in lengths.items() if often >= OFTEN or len(lengths) == 1}
        yield from loop.run(iter(prompts), config.seed)
    except GeneratorExit:
        _keep(loops, key, loop)
        raise
    else:  # after an error it is left to the garbage collector
        _keep(loops, key, loop)


def _keep(loops: OrderedDict, key: tuple, loop: FastLoop) -> None:
    """Put a loop back for later runs; the ones longest unused make room."""
    loops[key] = loop
    while len(loops) > 1 and (len(loops) > KEPT or sum(loop.size_in_bytes for loop in loops.values()) > KEPT_BYTES):
        loops.popitem(last=False)


@dataclass
class _Sample:
    """The sample in one slot, as the host knows it."""

    key: int | str
    prompt: int  # tokens of the prompt
    asked: int  # rows of its next step, at most
    block: int
    index: int = 0  # step within the block
    done: bool = False
    steps: int = 0
    opened: int = 0  # of these, forwards of the whole canvas
    seconds: float = 0.0
    last: int = 0  # rows that the last step took off ``asked``

    def read(self, counters: list[int]) -> None:
        self.last = self.asked - counters[0]
        self.asked, self.index, self.block, self.done, self.steps, self.opened = counters[:6]


class FastLoop:
    """The host's side of a ``FixedStep``: graphs by shape, slots that refill, and what a step leaves to be read."""

    @torch.inference_mode(False)  # as of the step
    def __init__(self, model: DiffusionModel, config: DecodeConfig, method, slots: int, width: int, trace: bool):
        self.model, self.config, self.device = model, config, model.device
        self.fixed = FixedStep(model, config, method, slots, width, trace)
        self.cuda = self.device.type == "cuda"
        if self.cuda:
            with self.here():
                self.pool = model.__dict__.get("_fast_pool") or Pool(self.device)
                if model.dtype != torch.float64:  # its kernels reckon in float32
                    self.fixed.forward = model.__dict__.get("_fused") or FusedForward(model)
                    model.__dict__["_fused"] = self.fixed.forward
            model.__dict__["_fast_pool"] = self.pool
        self.operations = 2 * sum(weight.numel() for layer in model.layers for weight in layer.parameters())  # a token
        self.graphs: OrderedDict[Shape, torch.cuda.CUDAGraph] = OrderedDict()
        self.exact: set[int] = set()  # lengths of prompts that graphs are captured for
        self.slow = 0  # steps that had to look at whole rows
        self.wary = False  # whether the last one had to
        self.setup = 0.0  # seconds that captures took within the present step
        self.picked: list[int] | None = None
        # Where a step's counters go, with the event that says they are there; two, as two steps may be under way.
        self.mail = deque(
            (torch.zeros_like(self.fixed.counters, device="cpu", pin_memory=self.cuda), torch.cuda.Event())
            if self.cuda
            else (torch.zeros_like(self.fixed.counters), None)
            for _ in range(2)
        )
        self.flight: deque = deque()

    def here(self):
        """The model's card as the current one."""
        return torch.cuda.device(self.device) if self.cuda else contextlib.nullcontext()

    @property
    def size_in_bytes(self) -> int:
        """Of the state; the graphs share their memory with those of other loops."""
        return sum(tensor.nbytes for tensor in self.fixed.state)

    @torch.inference_mode()
    def launch(self, shape: Shape) -> None:
        """One step: a graph, captured when its shape first comes up."""
        if not self.cuda:
            return self.fixed.advance(shape)
        if shape not in self.graphs:
            torch.cuda.synchronize()  # a step that is under way is no part of the capture
            begun = time.perf_counter()
            # Large ones wait in the host's memory, so that a capture needs little more than a step.
            before = [(one, one.cpu() if one.nbytes > LARGE else one.clone()) for one in self.fixed.state]
            self.pool.main.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.pool.main):  # compiles kernels and sets up libraries; its effects are undone
                for _ in range(2):
                    self.fixed.advance(shape)
            torch.cuda.current_stream().wait_stream(self.pool.main)
            for tensor, old in before:  # a cache's buffers may have come into being; a step fills them first
                tensor.copy_(old)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool.handle, stream=self.pool.main):
                self.fixed.advance(shape)
            self.graphs[shape] = graph
            if len(self.graphs) > GRAPHS:
                self.graphs.popitem(last=False)
            torch.cuda.synchronize()
            self.setup += time.perf_counter() - begun
        self.graphs.move_to_end(shape)
        self.graphs[shape].replay()

    def send(self, shape: Shape, exact: bool = False) -> None:
        """Start a step, and the transfer of what it leaves for the host."""
        if exact:
            self.fixed.advance(shape, exact=True)
        else:
            self.launch(shape)
        host, event = self.mail[0]
        self.mail.rotate()
        host.copy_(self.fixed.counters, non_blocking=True)
        if event is not None:
            event.record()
        self.flight.append((host, event))

    def receive(self) -> tuple[list[int], int, int]:
        """What the first step under way has left: each slot's counters, one kind after another, and the two flags."""
        host, event = self.flight.popleft()
        if event is not None:
            event.synchronize()
        *numbers, broken, held = host.tolist()
        return numbers, broken, held

    def fill(self, s: int, key: int | str, prompt: list[int], seed: int) -> _Sample:
        """Start a sample in slot ``s``."""
        fixed, length, width = self.fixed, self.config.length, self.fixed.canvas.shape[1]
        row = prompt + [self.model.mask_id] * length
        for offset, token in self.config.constraints:
            row[len(prompt) + offset] = token
        row += [self.model.eos_id] * (width - len(row))
        fixed.canvas[s] = torch.tensor(row, device="cpu").to(self.device, non_blocking=True)
        fixed.prompt[s], fixed.end[s], fixed.keys[s] = len(prompt), len(prompt) + length, sample_key(seed, key)
        if self.config.guidance > 0:
            fixed.given[s] = fixed.canvas[s] != self.model.mask_id
        block, asked = fixed.first
        fixed.asked[s], fixed.block[s], fixed.done[s], fixed.begun[s] = asked, block, 0, fixed.masks[block]
        for counter in (fixed.index, fixed.steps, fixed.opened):
            counter[s] = 0
        if fixed.traces is not None:
            fixed.traces.clear(s)
        return _Sample(key, len(prompt), asked, block)

    def run(self, queue: Iterator, seed: int) -> Iterator[tuple[int | str, Output]]:
        """Decode every prompt of ``queue``; a slot that finishes takes the next one."""
        free, live = list(range(self.fixed.slots)), {}
        self.fixed.done.fill_(1)
        self.fixed.flags.zero_()
        self.picked, self.wary = None, False
        self.flight.clear()
        for _, event in self.mail:  # of a run that was closed early, perhaps on another stream
            if event is not None:
                torch.cuda.current_stream(self.device).wait_event(event)
        begun = None  # when the present step began: where nothing came between, when the last one ended
        while True:
            with self.here():
                while free and (sample := next(queue, None)) is not None:
                    s = free.pop(0)
                    live[s] = self.fill(s, *sample, seed)
                if not live:
                    return
                begun, self.setup = begun or time.perf_counter(), 0.0
                first = [s for s in live if self.config.cache is None or live[s].index == 0]
                for group, whole in ((first, True), ([s for s in live if s not in first], False)):
                    for part in self.parts([(s, live[s]) for s in group]):
                        numbers = self.step(dict(part), whole, len(live) == 1)
                ended = time.perf_counter()
            seconds, begun = (ended - begun - self.setup) / len(live), ended
            for s, sample in list(live.items()):
                sample.seconds += seconds
                sample.read(numbers[s :: len(self.fixed.done)])
                if sample.done:
                    if self.flight:  # a step that went ahead has found nothing to do, but took its time
                        self.receive()
                        sample.seconds += time.perf_counter() - begun
                    begun = None
                    del live[s]
                    free.append(s)
                    yield sample.key, self.finish(s, sample)

    def columns(self, ends: list[int]) -> int:
        """Columns that are read of canvases with these ends."""
        longest = max(ends)
        if min(ends) == longest and longest - self.config.length in self.exact:
            return longest
        return min(-(-longest // NARROW) * NARROW, self.fixed.canvas.shape[1])

    def parts(self, group: list[tuple[int, _Sample]]) -> list[list[tuple[int, _Sample]]]:
        """The slots that go through one forward together: all, or the longer and the shorter ones apart."""
        if len(group) < 2 or self.config.cache is not None:  # which reads its slots in place
            return [group] if group else []
        order = sorted(group, key=lambda item: -item[1].prompt)
        ends = [sample.prompt + self.config.length for _, sample in order]

        def tokens(first: int, last: int) -> int:
            batch = min(capacity(last - first, BATCHES), self.fixed.slots)
            return batch * self.columns([ends[first], ends[last - 1]])

        size, together = len(order), tokens(0, len(order))
        if (together - sum(ends)) * self.operations <= SPARED:  # no cut can spare more than that
            return [group]
        apart, cut = min((tokens(0, i) + tokens(i, size), i) for i in range(1, size))
        return [order[:cut], order[cut:]] if (together - apart) * self.operations > SPARED else [group]

    def far(self, group: dict[int, _Sample]) -> bool:
        """Whether the next step of a sample will hardly be its last, so that the one after may start."""
        if self.wary or self.config.cache is not None or isinstance(self.fixed.method, Filling):
            return False
        (sample,) = group.values()
        later = sample.block + 1 < len(self.config.blocks) and not self.fixed.method.canvas
        return later or sample.asked > FAR * sample.last > 0

    def step(self, group: dict[int, _Sample], whole: bool, alone: bool) -> list[int]:
        """One step of some of the slots, ``alone`` where one sample is all there is; all counters afterwards."""
        if not self.flight:
            self.send(self.shape(group, whole))
        if alone and self.far(group):
            self.send(self.shape(group, whole, ahead=True))
        numbers, broken, held = self.receive()
        self.wary = bool(held)
        while held:  # nothing has happened; a step that went ahead tried the same again, and may have got further
            if again := not self.flight:
                self.slow += 1
                self.send(self.shape(group, whole), exact=True)
            numbers, broken, held = self.receive()
            held = held and not again
        if broken:
            raise UserError(self.model.not_numbers())
        return numbers

    def shape(self, group: dict[int, _Sample], whole: bool, ahead: bool = False) -> Shape:
        """What a step of these slots needs; ``ahead``: the one after, which may be in a later block."""
        fixed = self.fixed
        batch = min(capacity(len(group), BATCHES), fixed.slots)
        slots = [*group, *[fixed.slots] * (batch - len(group))]
        if self.picked != slots:
            fixed.pick[:batch] = torch.tensor(slots, device="cpu").to(self.device, non_blocking=True)
            self.picked = slots
        ends = [sample.prompt + self.config.length for sample in group.values()]
        columns = self.columns(ends)
        asked = [sample.asked for sample in group.values()]
        if ahead and fixed.method.scope == "block":
            asked = [max(n, *fixed.masks[one.block :]) for n, one in zip(asked, group.values(), strict=True)]
        rows = capacity(sum(asked))
        queries = columns
        if not whole:
            first, last = min(self.config.blocks[sample.block] for sample in group.values())
            queries = (last if self.config.cache == "dual" else self.config.length) - first
        straight = fixed.cache is None or slots == list(range(batch))
        return Shape(batch, rows, columns, queries, min(ends) < columns, whole, straight)

    def finish(self, s: int, sample: _Sample) -> Output:
        end = sample.prompt + self.config.length
        tokens = self.fixed.canvas[s, :end].tolist()
        trace = self.fixed.traces and self.fixed.traces.read(s, sample.prompt, end, sample.steps)
        forwards = dict.fromkeys(KINDS.values(), 0) | {KINDS[self.config.cache]: sample.steps - sample.opened}
        forwards["full"] = sample.opened
        rest = sample.steps, forwards, sample.seconds, trace, "fast"
        return Output.of(self.model, self.config, tokens, sample.prompt, *rest)
