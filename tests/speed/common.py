"""What the speed scripts share: full-size networks with random weights, clocks, floors, replayed commit patterns.

Nothing here is timed. Every script takes ``--tiny`` (toy networks on the CPU, seconds) and ``--out FILE.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from jot.fast.forward import FusedForward  # noqa: E402
from jot.models import DreamConfig, DreamModel, LLaDAConfig, LLaDAModelLM  # noqa: E402
from jot.runs import environment, settings  # noqa: E402
from jot.sampler.proposals import sample_key  # noqa: E402

FAMILIES = ("llada", "dream")
NAMES = {"llada": "LLaDA-8B", "dream": "Dream-7B"}
# Prompt and generated tokens: the paper's four canvases (the two short ones with the prompt of gsm8k, so that the
# canvas alone differs), and two beyond its longest.
SHAPES = {"gsm8k": (144, 256), "humaneval": (188, 512), "mmlu": (144, 3), "hellaswag": (144, 5),
          "long1024": (200, 1024), "long2048": (200, 2048)}  # fmt: skip
LIKE = {"long1024": "humaneval", "long2048": "humaneval"}  # whose recorded runs and speedups a longer canvas takes
BLOCK = 32
TINY = {"gsm8k": (16, 128), "humaneval": (24, 128), "mmlu": (16, 3), "hellaswag": (16, 5), "long1024": (24, 256),
        "long2048": (24, 256)}  # fmt: skip
TINY_CONFIG = {
    "llada": (LLaDAConfig, LLaDAModelLM, dict(
        d_model=64, n_layers=2, n_heads=4, n_kv_heads=4, mlp_hidden_size=96, vocab_size=512, embedding_size=512,
        mask_token_id=500, eos_token_id=501, pad_token_id=501)),
    "dream": (DreamConfig, DreamModel, dict(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
        vocab_size=512, max_position_embeddings=4096, mask_token_id=500, eos_token_id=501, pad_token_id=501,
        bos_token_id=501)),
}  # fmt: skip


# ---- the command line ---------------------------------------------------------------------------------------


def parser(about: str, seconds: int = 75) -> argparse.ArgumentParser:
    """The options that every script has."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--out", help="JSON file for the rows, as in data/records/speed/")
    made.add_argument("--tiny", action="store_true", help="toy networks on the CPU: a dry run, no measurement")
    made.add_argument("--seconds", type=float, default=seconds, help="begin nothing new after so long (%(default)s)")
    made.add_argument("--repeats", type=int, default=5, help="runs whose median counts (default %(default)s)")
    made.add_argument("--device", help="cuda or cpu (default: CUDA where there is one, with --tiny the CPU)")
    return made


def device_of(options: argparse.Namespace) -> torch.device:
    """The device asked for, or a sentence on what is missing."""
    name = options.device or ("cpu" if options.tiny or not torch.cuda.is_available() else "cuda")
    if name == "cpu" and not options.tiny:
        sys.exit("full-size networks need a CUDA card; --tiny is a dry run on the CPU")
    return torch.device(name)


class Budget:
    """Seconds that a script may still begin something in; what is left out is said."""

    def __init__(self, seconds: float):
        self.end, self.skipped = time.monotonic() + seconds, []

    def has(self, what: str, need: float = 0.0) -> bool:
        """Whether ``what`` may begin; it is noted otherwise."""
        if time.monotonic() + need < self.end:
            return True
        self.skipped.append(what)
        return False


# ---- networks -----------------------------------------------------------------------------------------------


def build(family: str, device: torch.device, tiny: bool = False):
    """A network of the published shape with random weights, made on the device; bfloat16, or float32 where tiny."""
    config, model, small = TINY_CONFIG[family]
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if tiny else torch.bfloat16)
    try:
        with torch.device(device):
            made = model(config(**(small if tiny else {})))
    finally:
        torch.set_default_dtype(kept)
    return made.eval().requires_grad_(False)


def prompt_of(model, tokens: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, model.mask_id - 10, tokens).tolist()


def release(model) -> None:
    """Let go of what the loop keeps on a model between runs, so that it does not count as another's memory."""
    model.__dict__.pop("_fast_loops", None)
    if model.device.type == "cuda":
        torch.cuda.empty_cache()


def method_of(name: str, family: str, length: int, cache: str | None = None, **options):
    """Rule and decoding parameters as ``jot evaluate`` resolves them, without a cache unless asked for one."""
    model = {"llada": LLaDAModelLM, "dream": DreamModel}[family]
    chosen = {"length": length, "cache": cache, **options}
    rule = settings.build_method(name, family, {})
    return rule, settings.build_decode(model, chosen, None, 0, name)


@contextlib.contextmanager
def path_taken(model) -> Iterator[list[str]]:
    """Which loop a first decoding takes: afterwards the list holds "fast", or "plain" with the logged reason."""
    told: list[str] = []
    handler, log = logging.Handler(logging.INFO), logging.getLogger("jot")
    handler.emit = lambda record: told.append(record.getMessage())
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    release(model)
    try:
        yield told
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        reason = next((text.rpartition(": ")[2] for text in told if "plain loop" in text), "")
        fast = bool(model.__dict__.get("_fast_loops"))
        told[:] = [f"plain ({reason})" if reason else "fast" if fast else "plain"]


def reset_peak(device: torch.device) -> int:
    """Forget the highest memory use so far; returns the bytes that are in use."""
    if device.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


# ---- clocks -------------------------------------------------------------------------------------------------


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(device: torch.device, call: Callable[[], object]) -> tuple[float, object]:
    """Seconds of a call between synchronized clocks, and what it returned."""
    sync(device)
    begun = time.perf_counter()
    result = call()
    sync(device)
    return time.perf_counter() - begun, result


def per_call(device: torch.device, call: Callable[[], object], repeats: int = 5, least: float = 0.05) -> list[float]:
    """Milliseconds a call, ``repeats`` times over enough calls for ``least`` seconds; the host may run ahead."""
    call()
    once, _ = timed(device, call)
    times = max(1, min(50, int(least / max(once, 1e-6))))
    return [1e3 * timed(device, lambda: [call() for _ in range(times)])[0] / times for _ in range(repeats)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least, greatest, count."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "n": len(values)}


# ---- floors -------------------------------------------------------------------------------------------------


def peaks(device: torch.device, tiny: bool = False) -> dict[str, float]:
    """What the card gives: TFLOP/s of a large bfloat16 product, TB/s of a large copy (bytes read and written)."""
    size, dtype = (256, torch.float32) if tiny else (8192, torch.bfloat16)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    product = statistics.median(per_call(device, lambda: a @ b))
    source = torch.empty(1 << (16 if tiny else 29), device=device)
    target = torch.empty_like(source)
    copy = statistics.median(per_call(device, lambda: target.copy_(source)))
    return {"tflops": 2e-9 * size**3 / product, "tbs": 2e-9 * source.numel() * source.element_size() / copy}


def work(model, tokens: int, rows: int, batch: int = 1, keys: int | None = None) -> tuple[float, float]:
    """FLOPs of one forward of ``batch`` x ``tokens`` positions with the head on ``rows``, and bytes of weights read.

    ``keys`` are the positions attended to, where these are not the tokens.
    """
    config, llada = model.config, model.family == "llada"
    width = config.d_model if llada else config.hidden_size
    layers = config.n_layers if llada else config.num_hidden_layers
    mlp = config.mlp_hidden_size if llada else config.intermediate_size
    heads = config.n_heads if llada else config.num_attention_heads
    kv_heads = (config.n_kv_heads or heads) if llada else config.num_key_value_heads
    layer = 2 * width * width + 2 * width * width * kv_heads // heads + 3 * width * mlp
    head = model.head.numel()
    attention = 4 * tokens * (keys or tokens) * width * layers * batch
    flops = 2 * layer * layers * tokens * batch + attention + 2 * head * rows
    return float(flops), float((layer * layers + (head if rows else 0)) * model.head.element_size())


def floor(flops: float, read: float, peak: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds that the arithmetic and the weight read take at the measured peaks."""
    return {"flop_ms": 1e-9 * flops / peak["tflops"], "read_ms": 1e-9 * read / peak["tbs"]}


# ---- the bare forward ---------------------------------------------------------------------------------------


def _captured(call: Callable[[], object]) -> Callable[[], object]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


_COMPILED: dict[type, Callable] = {}


@contextlib.contextmanager
def _compiled_layers(model):
    """The model with the forward of its layers compiled: one compilation serves them all."""
    kind = type(model.layers[0])
    plain = kind.forward
    kind.forward = _COMPILED.setdefault(kind, torch.compile(plain, dynamic=False))
    try:
        yield
    finally:
        kind.forward = plain


def _fused(model):
    """The loop's own forward with joint products, where the loop takes it."""
    if os.environ.get("JOT_FAST") == "0" or model.device.type != "cuda":
        return None
    if model.__dict__.get("_fused") is None:  # the loop keeps it under this name; joining twice would double memory
        model.__dict__["_fused"] = FusedForward(model)
    return model.__dict__["_fused"]


@torch.inference_mode()
def bare(model, tokens: int, rows: int, batch: int = 1, repeats: int = 5, compiled: bool = True) -> dict[str, object]:
    """Backbone and head on ``rows`` rows of each canvas, nothing else: ms by way, each a list of repetitions.

    The canvases hold random tokens, and masks in their last third.

    Ways: "eager"; "graph", a CUDA graph of it; "compile", layers through torch.compile; "compile graph", both;
    "fused graph", a graph of the loop's own joint kernels. A way that fails has the reason in place of times.
    """
    device, head = model.device, model.head
    # A card at its power limit runs faster where all rows are equal, so the canvas is one in the middle of a run.
    canvas = torch.tensor([prompt_of(model, tokens, seed) for seed in range(batch)], device=device)
    canvas[:, -(tokens // 3) :] = model.mask_id
    row = torch.arange(batch, device=device).repeat_interleave(rows)
    column = (torch.arange(rows, device=device) + tokens - rows).repeat(batch)

    def forward(hidden=model.hidden):
        return F.linear(hidden(canvas)[row, column], head)

    found: dict[str, object] = {"eager": per_call(device, forward, repeats)}

    def attempt(name: str, make: Callable[[], Callable]) -> None:
        try:
            found[name] = per_call(device, make(), repeats)
        except Exception as error:  # the other ways still count
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"

    if device.type == "cuda":
        attempt("graph", lambda: _captured(forward))
        if fused := _fused(model):
            attempt("fused graph", lambda: _captured(lambda: forward(lambda c: fused(c, None))))
    if compiled and device.type == "cuda":
        with _compiled_layers(model):
            attempt("compile", lambda: forward)
            attempt("compile graph", lambda: _captured(forward))
    return found


def yardstick(found: Mapping[str, object], own: bool = False) -> float:
    """ms of the bare forward: the least of graph and compile (eager where there is neither); ``own``: of all ways."""
    known = {name: statistics.median(times) for name, times in found.items() if isinstance(times, list)}
    usual = [ms for name, ms in known.items() if own or name in ("graph", "compile", "compile graph")]
    return min(usual or known.values())


# ---- replayed commit patterns -------------------------------------------------------------------------------


def recorded(family: str, task: str = "gsm8k") -> tuple[np.ndarray, np.ndarray]:
    """Step and rule (bit 2 = exit) of every commit of the traced JoT runs at the family's default, ``[docs, 128]``."""
    from jot.runs.frames import runs, samples

    traces = ROOT / "data" / "records" / "traces"
    found = runs(traces, split="test", method="jot", setting="", dtype="float32")
    found = found[(found["model"] == f"pocket-{family}") & (found["task"] == f"pocket_{LIKE.get(task, task)}")]
    if found.empty:
        sys.exit(f"data/records/traces lacks the traced JoT run of pocket-{family} on pocket_{task}; check it out")
    frame = samples(found, traces, ["trace_step", "trace_rule"])
    return np.stack(frame["trace_step"].to_list()), np.stack(frame["trace_rule"].to_list())


def nearest(step: np.ndarray, speedup: float) -> int:
    """The document whose step speedup is nearest to ``speedup``; the first of several."""
    made = step.shape[1] / (step.max(1) + 1)
    return int(np.abs(np.log(made / speedup)).argmin())


def plan(step: np.ndarray, rule: np.ndarray, length: int, block: int | None, everything: bool) -> np.ndarray:
    """When each of ``length`` positions exits, in steps of its block, from one recorded canvas ``[128]``.

    In blocks, the recorded blocks follow one another again and again; a whole canvas is stretched, position and step
    alike, so that either way the recorded speedup is kept. ``everything``: scheduled commits exit at their step too
    (for rules whose exits replace the schedule); else they wait for the block's last step, unless the schedule
    takes them before.
    """
    kept, size, factor = step.astype(np.int64), len(step), -(-length // len(step))
    start = 0
    for at in range(0, size, block or size):
        here = slice(at, at + (block or size))
        kept[here], start = step[here] - start, int(step[here].max()) + 1
        if not everything:
            kept[here][(rule[here] & 2) == 0] = kept[here].max()
    if block:
        return np.tile(kept, factor)[:length]
    return (kept[:, None] * factor + np.arange(factor)).ravel()[:length]


class Replayed:
    """An exit rule that runs as it is, for its cost, and then exits what a recorded run did.

    Random weights clear no threshold. The rule's own answer is computed and dropped; positions leave when ``plans``
    say, by sample key, in steps of the block (``clock="block"``) or of the sample. Everything else about the rule is
    the rule's, its class for ``isinstance`` too, so the loop treats it as it treats the rule.
    """

    def __init__(self, rule, plans: Mapping[int | str, np.ndarray], device, clock: str = "block", seed: int = 0):
        keys = {sample_key(seed, name): np.asarray(plan) for name, plan in plans.items()}
        order = sorted(keys)
        self.rule, self.clock, self.last, self.most = rule, clock, None, 0
        self.keys = torch.tensor(order, dtype=torch.long, device=device)
        self.plans = torch.from_numpy(np.stack([keys[key] for key in order]).astype(np.int64)).to(device)

    def __getattr__(self, name):
        return getattr(self.__dict__["rule"], name)

    @property
    def __class__(self):
        return type(self.rule)

    def planned(self, step) -> torch.Tensor:
        """The rows that exit by the plan, bool ``[rows]``; the host waits for nothing."""
        sample = torch.searchsorted(self.keys, step.keys).clamp(max=len(self.keys) - 1)[step.slot]
        offset = (step.position - step.prompt[step.slot]).clamp(0, self.plans.shape[1] - 1)
        now = (step.block_index if self.clock == "block" else step.index)[step.slot]
        rows = step.in_block if self.clock == "block" else step.at(step.masks)
        return rows & (self.plans[sample, offset] <= now)

    def __call__(self, step):
        _, threshold = self.rule(step)
        # For ``rule_cost``: a step with about the mean number of rows. What a graph captures lives in the graph.
        if not (step.logits.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.most = max(self.most, len(step.slot))
            self.last = step if 2 * len(step.slot) >= self.most else self.last
        return self.planned(step), threshold


@torch.inference_mode()
def rule_cost(replayed: Replayed, device: torch.device, repeats: int = 5) -> dict[str, float]:
    """ms of the rule and of the replay alone, eager, on the last step seen outside a graph."""
    step = replayed.last
    if step is None:
        return {}
    rule = statistics.median(per_call(device, lambda: replayed.rule(step), repeats))
    replay = statistics.median(per_call(device, lambda: replayed.planned(step), repeats))
    return {"rule_ms": rule, "replay_ms": replay}


# ---- reports ------------------------------------------------------------------------------------------------


def machine(device: torch.device, tiny: bool = False) -> dict[str, object]:
    """Hardware and versions, and which path the loop was told to take."""
    found = environment.describe(device)
    with contextlib.suppress(ImportError):
        import triton

        found["versions"]["triton"] = triton.__version__
    return {**found, "fast": os.environ.get("JOT_FAST", "default"), "tiny": tiny}


def headline(found: Mapping) -> str:
    """Card, driver and versions in one line."""
    hardware, versions = found["hardware"], found["versions"]
    card = hardware["kind"] if hardware["kind"] != "cpu" else f"{hardware['cpu']}, {hardware['threads']} threads"
    driver = f"; driver {hardware['driver_version']}, CUDA {hardware['cuda']}" if "driver_version" in hardware else ""
    toy = "; TINY NETWORKS, A DRY RUN" if found["tiny"] else ""
    return f"{card}{driver}; torch {versions['torch']}; JOT_FAST={found['fast']}{toy}"


def show(title: str, rows: Iterable[Mapping], columns: Sequence[str]) -> None:
    """A Markdown table; a dict from ``spread`` is shown as its median and range."""

    def text(value) -> str:
        if isinstance(value, Mapping):
            return f"{value['median']:.2f} ({value['low']:.2f} to {value['high']:.2f}, n={value['n']})"
        if isinstance(value, float):
            return "" if value != value else f"{value:.2f}"
        return "" if value is None else str(value)

    rows = list(rows)
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for row in rows:
        print("| " + " | ".join(text(row.get(name)) for name in columns) + " |")
    sys.stdout.flush()


def write(options: argparse.Namespace, script: str, found: Mapping, rows: Sequence[Mapping], **extra) -> None:
    """The rows as JSON, if asked for; written after every part, so that a run that is cut off keeps what it has."""
    if not options.out:
        return
    path = Path(options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"script": script, **found, **extra, "rows": list(rows)}
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=1, default=float) + "\n")
    os.replace(temporary, path)
