"""What does a denoising step cost on a network of the published size, beside a bare forward?

    python tests/speed/step_cost.py --only llada gsm8k --out data/records/speed/step_cost-llada-gsm8k.json
    python tests/speed/step_cost.py --tiny                                             # a dry run on the CPU

Random weights, bfloat16, batch 1, prompt and generated tokens of ``common.SHAPES``. ``--only`` takes families, tasks
(for their shape) and methods; one family and one shape of the paper fit into the default ``--seconds``; a longer
canvas takes

    python tests/speed/step_cost.py --only llada long2048 full jot --repeats 3 --seconds 280 --out ...

* **step**: seconds of a whole decoding over its steps, set-up included. Random weights clear no threshold, so early
  exits follow a recorded run (the traced document whose speedup is nearest to the paper's for that method, model and
  task, of humaneval for longer canvases; on three and five tokens all that is left exits at the whole number of steps
  nearest to the paper's); the rule itself still runs. Full decoding and Prophet reveal four tokens a step, eight on the
  longer canvases and one on the short ones, which keeps the rows a step and shortens the run; Prophet fires where the
  paper's speedup says.
* **bare**: backbone and head on the mean number of asked rows, the least of a CUDA graph and torch.compile.
* **own bare**: a CUDA graph of the loop's own joint kernels, where they are the faster: what the loop adds to it shows.
* **floor**: arithmetic and weight read at the card's measured peaks.
* **plain**: an eager loop as the public ones are: LLaDA with logits of the whole canvas and a float64 softmax every
  step, Dream with shifted logits of the whole canvas, then temperature, nucleus, a draw and entropy on the masked rows.
"""

from __future__ import annotations

import dataclasses
import math

import common
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from turns import rows_read

import jot

METHODS = ("full", "jot", "klass", "fastdllm", "prophet")
FORMAT = ("model", "task", "method", "steps", "speedup", "rows", "step_ms", "bare_ms", "over_bare", "own_bare_ms",
          "over_own", "flop_ms", "read_ms", "kept", "rule_ms", "replay_ms", "extra_gib", "path")  # fmt: skip


# ---- plain loops, written from the published descriptions -----------------------------------------------------


@torch.inference_mode()
def plain_llada(model, prompt: list[int], length: int, block: int, steps: int) -> int:
    """LLaDA's loop: logits of every row, softmax in float64, the most confident masks of the block; returns steps."""
    canvas = torch.tensor([prompt + [model.mask_id] * length], device=model.device)
    blocks, done = length // block, 0
    for b in range(blocks):
        end = len(prompt) + (b + 1) * block
        reveal = block // (steps // blocks)
        for _ in range(steps // blocks):
            masked = canvas == model.mask_id
            logits = model(canvas).logits
            token = logits.argmax(-1)
            probability = F.softmax(logits.to(torch.float64), dim=-1).gather(-1, token[..., None])[..., 0]
            probability[:, end:] = -torch.inf
            confidence = torch.where(masked, probability, -torch.inf)
            token = torch.where(masked, token, canvas)
            chosen = torch.zeros_like(masked)
            for row in range(len(canvas)):
                chosen[row, confidence[row].topk(reveal).indices] = True
            canvas[chosen] = token[chosen]
            done += 1
    return done


@torch.inference_mode()
def plain_dream(model, prompt: list[int], length: int, steps: int, temperature=0.1, top_p=0.9) -> int:
    """Dream's loop with entropy: shifted logits of every row, tempered nucleus draws of the masks; returns steps."""
    canvas = torch.tensor([prompt + [model.mask_id] * length], device=model.device)
    for _ in range(steps):
        masked = canvas == model.mask_id
        logits = model(canvas).logits
        logits = torch.cat((logits[:, :1], logits[:, :-1]), dim=1)[masked] / temperature
        value, order = logits.sort(descending=True)
        drop = value.softmax(-1).cumsum(-1) > top_p
        drop[:, 1:], drop[:, 0] = drop[:, :-1].clone(), False
        drop = torch.zeros_like(drop).scatter(-1, order, drop)
        logits = logits.masked_fill(drop, torch.finfo(logits.dtype).min)
        probs = logits.softmax(-1)
        try:
            token = torch.distributions.Categorical(probs=probs).sample()
        except ValueError:  # as the public code has it: one row that fails the check makes them all greedy
            token = probs.argmax(-1)
        score = (probs * (probs + 1e-10).log()).sum(-1)
        place = masked[0].nonzero()[:, 0][score.topk(length // steps).indices]
        proposal = canvas.clone()
        proposal[masked] = token
        canvas[0, place] = proposal[0, place]
    return steps


# ---- one row of the table -------------------------------------------------------------------------------------


def paper_speedup(family: str, task: str, method: str) -> float:
    """The step speedup that the paper prints; of humaneval for a longer canvas."""
    table = pd.read_csv(common.ROOT / "data" / "paper" / "main_results.csv").query("metric == 'speedup'")
    key = (common.NAMES[family], method, common.LIKE.get(task, task))
    return float(table.set_index(["model", "method", "task"])["value"][key])


def pace(length: int) -> int:
    """Tokens a step of full decoding and Prophet, so that a run is short."""
    return 1 if length < common.BLOCK else 4 if length < 1024 else 8


def prepared(name: str, family: str, task: str, length: int, device):
    """The method as it is timed: replayed where exits end a run early. Rule, decoding parameters."""
    if name == "full":
        return common.method_of(name, family, length, steps=length // pace(length))
    wanted, short = paper_speedup(family, task, name), length < common.BLOCK
    if name == "prophet":
        rule, config = common.method_of(name, family, length, steps=length // pace(length))
        fires = (round if short else math.ceil)(config.steps / wanted) - 1
        return common.Replayed(rule, {0: np.full(length, max(0, fires))}, device, clock="sample"), config
    rule, config = common.method_of(name, family, length)
    if short:  # the schedule reveals one a step until all that is left exits
        return common.Replayed(rule, {0: np.full(length, max(0, round(length / wanted) - 1))}, device), config
    block = config.block_length
    step, recorded_rule = common.recorded("llada" if block else "dream", task)
    at = common.nearest(step, wanted)
    made = common.plan(step[at], recorded_rule[at], length, block, everything=rule.combine == "instead")
    return common.Replayed(rule, {0: made}, device), config


def rows_of(model, rule, config, prompt) -> float:
    """Mean number of rows that a step is asked for: from a traced run, or known where the schedule alone reveals."""
    step = np.arange(config.length) // (config.length // config.steps)
    if rule.name == "prophet":
        step = np.minimum(step, int(rule.plans[0, 0]))
    elif rule.name != "full":
        step = jot.decode(model, prompt, rule, trace=True, **dataclasses.asdict(config)).trace.step
    return float(rows_read(step, config.blocks, rule.scope).mean())


def measure(model, family: str, task: str, name: str, prompt, length, peak, bares: dict, options, budget) -> dict:
    """One method at one shape."""
    device, tokens = model.device, len(prompt) + length
    rule, config = prepared(name, family, task, length, device)
    parameters = dataclasses.asdict(config)
    with common.path_taken(model) as path:
        held = common.reset_peak(device)
        jot.decode(model, prompt, rule, **parameters)  # captures graphs, compiles kernels
    extra = float("nan")
    if device.type == "cuda":  # above the weights and what a forward needs
        extra = (torch.cuda.max_memory_allocated() - held - bares["activations"]) / 2**30
    rows = rows_of(model, rule, config, prompt)
    runs = []
    for repeat in range(options.repeats):
        if repeat and not budget.has(f"{family} {task} {name}, repetition {repeat + 1}"):
            break
        seconds, out = common.timed(device, lambda: jot.decode(model, prompt, rule, **parameters))
        runs.append(1e3 * seconds / out.steps)
    asked = max(1, round(rows))
    if asked not in bares and budget.has(f"bare forward with {asked} rows"):
        bares[asked] = common.bare(model, tokens, asked, repeats=options.repeats, compiled=not options.no_compile)
    ways = bares.get(asked)
    yard = common.yardstick(ways) if ways else float("nan")
    own = common.yardstick(ways, own=True) if ways else float("nan")
    step = common.spread(runs)
    row = {
        "model": common.NAMES[family], "task": task, "prompt": len(prompt), "length": length, "method": name,
        "steps": out.steps, "speedup": config.steps / out.steps, "rows": rows, "step_ms": step, "step_runs": runs,
        "bare_ms": yard, "over_bare": step["median"] / yard, "own_bare_ms": own, "over_own": step["median"] / own,
        "bare_rows": asked, "bare_ways": ways, "extra_gib": extra, "path": path[0],
        **common.floor(*common.work(model, tokens, asked), peak),
    }  # fmt: skip
    return row | (common.rule_cost(rule, device) if isinstance(vars(rule).get("plans"), torch.Tensor) else {})


def measure_plain(model, family: str, prompt, length: int, options) -> list[float]:
    """ms a step of the plain loop, 32 steps over the canvas so that the rows fall as in a whole run."""
    device, steps = model.device, min(length, max(32, length // common.BLOCK))

    def run() -> int:
        if family == "llada":
            return plain_llada(model, prompt, length, min(common.BLOCK, length), steps)
        return plain_dream(model, prompt, length, steps)

    repeats = min(3, options.repeats)
    run()
    return [1e3 * seconds / done for seconds, done in (common.timed(device, run) for _ in range(repeats))]


def activations(model, tokens: int, rows: int) -> int:
    """Bytes that an eager forward with the head on ``rows`` rows needs at its height, beside the weights."""
    if model.device.type != "cuda":
        return 0
    held = common.reset_peak(model.device)
    canvas = torch.full((1, tokens), model.mask_id, device=model.device)
    with torch.inference_mode():
        F.linear(model.hidden(canvas)[0, -rows:], model.head)
    return torch.cuda.max_memory_allocated() - held


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0])
    known = (*common.FAMILIES, *common.SHAPES, *METHODS)
    parser.add_argument("--only", nargs="+", default=[], choices=known, help="families, tasks, methods")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out of the bare forwards")
    parser.add_argument("--no-plain", action="store_true", help="leave the plain loop out")
    options = parser.parse_args()
    device, budget = common.device_of(options), common.Budget(options.seconds)

    def chosen(names):
        return [name for name in names if name in options.only] or list(names)

    found, rows, plain = common.machine(device, options.tiny), [], []
    peak = common.peaks(device, options.tiny)
    print(f"{common.headline(found)}; {peak['tflops']:.0f} TFLOP/s, {peak['tbs']:.2f} TB/s measured", flush=True)
    for family in chosen(common.FAMILIES):
        if not budget.has(family):
            continue
        model = common.build(family, device, options.tiny)
        for task in chosen(common.SHAPES):
            tokens, length = (common.TINY if options.tiny else common.SHAPES)[task]
            prompt, bares = common.prompt_of(model, tokens), {}
            bares["activations"] = activations(model, tokens + length, length // 2)
            for name in chosen(METHODS):
                if budget.has(f"{family} {task} {name}"):
                    rows.append(measure(model, family, task, name, prompt, length, peak, bares, options, budget))
                    common.write(options, "step_cost", found, rows, peaks=peak, plain=plain, skipped=budget.skipped)
            if not options.no_plain and budget.has(f"{family} {task} plain loop"):
                times = measure_plain(model, family, prompt, length, options)
                plain.append({"model": common.NAMES[family], "task": task, "step_ms": common.spread(times)})
        del model
    full = {(row["model"], row["task"]): row["step_ms"]["median"] for row in rows if row["method"] == "full"}
    for row in rows:  # share of the step speedup that is left on the clock
        row["kept"] = full.get((row["model"], row["task"]), float("nan")) / row["step_ms"]["median"]
    common.write(options, "step_cost", found, rows, peaks=peak, plain=plain, skipped=budget.skipped)
    common.show("ms a denoising step, batch 1", rows, FORMAT)
    common.show("plain eager loop, ms a step", plain, ("model", "task", "step_ms"))
    bares = {(r["model"], r["task"], r["bare_rows"]): r["bare_ways"] for r in rows if r["bare_ways"]}
    lines = [
        {"model": m, "task": t, "rows": n, "way": way, "ms": common.spread(x) if isinstance(x, list) else x}
        for (m, t, n), ways in bares.items()
        for way, x in ways.items()
    ]
    common.show("bare forwards", lines, ("model", "task", "rows", "way", "ms"))
    if budget.skipped:
        print(f"\nnot measured, out of time: {', '.join(budget.skipped)}")


if __name__ == "__main__":
    main()
