"""How close does a batch whose slots refill come to the ideal, and how far is it from padding to the slowest row?

    python tests/speed/batch_throughput.py --out data/records/speed/batch_throughput.json
    python tests/speed/batch_throughput.py --only pocket --slots 1 4 16                 # the embedded pair, real rules
    python tests/speed/batch_throughput.py --tiny                                      # a dry run on the CPU

JoT on prompts of different length. Full size: random weights, bfloat16, 256 generated tokens, each sample's commits
replayed from another recorded document (pocket_gsm8k, step counts scaled to the length). Pocket: the embedded models
and the rule itself, in float32.

Costs are those of a full batch, measured in the same loop on canvases of one length (the mean over all steps), a
step and token; a sample's step costs its own tokens, so that nothing is spent on padding.

* **ideal**: every slot always busy: tokens of all samples' steps / slots x the cost of a full batch a token.
* **packed**: the same counts through slots that refill, longest prompt first, at the cost of the rows that live
  (interpolated between the batch sizes measured): what is lost to the last samples of the queue.
* **naive**: batches in the given order, each as long as its slowest sample and as wide as its longest.
"""

from __future__ import annotations

import dataclasses

import common
import numpy as np

import jot

SLOTS = (1, 4, 16, 32)
SHARE = 4  # samples a slot
KINDS = ("llada", "dream", "pocket")
FORMAT = ("model", "slots", "samples", "steps", "slowest", "seconds", "per_second", "ideal_s", "of_ideal", "packed_s",
          "of_packed", "naive_s", "over_naive", "path")  # fmt: skip


# ---- what the counts allow ------------------------------------------------------------------------------------


def packed(steps: list[int], tokens: list[int], slots: int, cost) -> float:
    """ms of a refilling batch: samples enter in order, one step of ``b`` live rows takes ``cost(b)`` a token."""
    queue, live, total = list(zip(steps, tokens, strict=True))[::-1], [], 0.0
    while queue or live:
        while queue and len(live) < slots:
            live.append(queue.pop())
        advance = min(left for left, _ in live)  # until the next sample ends
        total += advance * cost(len(live)) * sum(size for _, size in live) / len(live)
        live = [(left - advance, size) for left, size in live if left > advance]
    return total


def naive(steps: list[int], tokens: list[int], slots: int, cost: float) -> float:
    """ms of batches in the given order, each padded to its slowest and its longest sample."""
    parts = [slice(at, at + slots) for at in range(0, len(steps), slots)]
    return cost * sum(max(steps[part]) * max(tokens[part]) for part in parts)


def curve(known: dict[int, float]):
    """ms a step and token by live rows, between the batch sizes measured."""
    sizes = sorted(known)
    return lambda rows: float(np.interp(rows, sizes, [known[size] for size in sizes]))


# ---- samples --------------------------------------------------------------------------------------------------


def full_size(family: str, device, options):
    """Model, rule, decoding parameters, samples: prompts of different length, a recorded pattern each."""
    model = common.build(family, device, options.tiny)
    prompt_tokens, length = (common.TINY if options.tiny else common.SHAPES)["gsm8k"]
    rule, config = common.method_of("jot", family, length)
    step, recorded = common.recorded(family)
    rng = np.random.default_rng(0)
    count = options.samples or (6 if options.tiny else SHARE * max(options.slots))
    picked = rng.permutation(len(step))[:count]
    lengths = rng.integers(prompt_tokens // 2, prompt_tokens * 3 // 2, count)
    samples = [(i, common.prompt_of(model, int(n), i)) for i, n in enumerate(lengths)]
    made = {i: common.plan(step[d], recorded[d], length, config.block_length, False) for i, d in enumerate(picked)}
    return model, common.Replayed(rule, made, device), dataclasses.asdict(config), samples


def pocket(name: str, device, options):
    """The embedded model on documents of pocket_gsm8k in a fixed order, with the rule itself."""
    from jot.records import take
    from jot.tasks import get
    from jot.tasks.bench import Bench

    model = jot.load(name, device=str(device), dtype="float32")
    bench = Bench(model, get("pocket_gsm8k"), "test", None)
    rule, config = common.method_of("jot", model.family, 128)
    count = options.samples or (6 if options.tiny else 512)
    samples = [(doc, bench.prompts[doc]) for doc in take(list(bench.docs), count)]
    return model, rule, dataclasses.asdict(config), samples


# ---- measurement ----------------------------------------------------------------------------------------------


def run(model, samples, rule, parameters, slots: int):
    """Seconds of a whole stream, and steps by sample key."""
    seconds, out = common.timed(
        model.device, lambda: dict(jot.decode_stream(model, samples, rule, slots=slots, **parameters))
    )
    return seconds, {key: one.steps for key, one in out.items()}


def full_batch(model, samples, rule, parameters, slots: int, steps: dict, repeats: int) -> tuple[float, int]:
    """ms a step of a batch whose rows all have one length and live to the end, and that length in tokens.

    Full size: prompts of the mean length, commits of the sample with the median number of steps. Pocket: copies of the
    document nearest to the mean length.
    """
    length = parameters["length"]
    mean = np.average([len(prompt) for _, prompt in samples], weights=[steps[key] for key, _ in samples])
    names = [f"copy {i}" for i in range(slots)]
    if isinstance(vars(rule).get("plans"), common.torch.Tensor):
        order = sorted((key for key, _ in samples), key=lambda key: (steps[key], str(key)))
        at = int((rule.keys == common.sample_key(0, order[len(order) // 2])).nonzero()[0, 0])
        rule = common.Replayed(rule.rule, dict.fromkeys(names, rule.plans[at].cpu().numpy()), model.device)
        copies = [(name, common.prompt_of(model, round(mean), i)) for i, name in enumerate(names)]
    else:
        key, prompt = min(samples, key=lambda sample: (abs(len(sample[1]) - mean), str(sample[0])))
        # A stream needs distinct keys; greedy decoding and JoT's exits hardly depend on the draws.
        copies = [(name, prompt) for name in (key, *names[1:])]
    run(model, copies, rule, parameters, slots)
    times = [run(model, copies, rule, parameters, slots) for _ in range(repeats)]
    cost = np.median([1e3 * seconds / max(taken.values()) for seconds, taken in times])
    return float(cost), length + len(copies[0][1])


def allowed(row: dict, order: list[int], costs: dict[int, float]) -> dict:
    """What the step counts of a row allow, in seconds and as shares; ``costs``: ms a step and token by slots."""
    steps, tokens, slots, seconds = row["step_counts"], row["tokens"], row["slots"], row["seconds"]["median"]
    cost = curve({1: costs.get(1, costs[slots]), **costs})
    ideal = sum(a * b for a, b in zip(steps, tokens, strict=True)) / slots * costs[slots] / 1e3
    entered = [steps[i] for i in order], [tokens[i] for i in order]
    refilled, padded = packed(*entered, slots, cost) / 1e3, naive(steps, tokens, slots, costs[slots]) / 1e3
    return {"ideal_s": ideal, "of_ideal": ideal / seconds, "packed_s": refilled, "of_packed": refilled / seconds,
            "naive_s": padded, "over_naive": padded / seconds}  # fmt: skip


def measure(label: str, made, options, budget) -> list[dict]:
    """All batch sizes of one model, smallest first; few slots take part of the samples only."""
    model, rule, parameters, samples = made
    rows, costs = [], {}
    known: dict = {}
    for slots in options.slots:
        if not budget.has(f"{label}, {slots} slots"):
            continue
        # One slot would need all the time there is: it gets as many samples of its own kind a slot, at least eight.
        mine = samples if label.startswith("pocket") and slots > 1 else samples[: max(8, SHARE * slots)]
        with common.path_taken(model) as path:
            _, steps = run(model, mine, rule, parameters, slots)  # captures graphs, compiles kernels
        known |= steps
        step_ms, reference = full_batch(model, mine, rule, parameters, slots, known, min(3, options.repeats))
        costs[slots] = step_ms / reference
        times = []
        for repeat in range(options.repeats):
            if repeat and not budget.has(f"{label}, {slots} slots, repetition {repeat + 1}"):
                break
            seconds, steps = run(model, mine, rule, parameters, slots)
            times.append(seconds)
        seconds = common.spread(times)
        given = [steps[key] for key, _ in mine]
        row = {
            "model": label, "slots": slots, "samples": len(mine), "steps": sum(given), "slowest": max(given),
            "step_counts": given, "tokens": [len(prompt) + parameters["length"] for _, prompt in mine],
            "step_ms": step_ms, "reference_tokens": reference, "seconds": seconds, "path": path[0],
            "per_second": len(mine) / seconds["median"],
        }  # fmt: skip
        order = sorted(range(len(mine)), key=lambda i: -len(mine[i][1]))  # as the loop takes them
        row |= allowed(row, order, costs)
        rows.append(row)
    return rows


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], choices=KINDS, help="default: llada and the pocket pair")
    parser.add_argument("--slots", nargs="+", type=int, default=list(SLOTS), help="default: %(default)s")
    parser.add_argument("--samples", type=int, help="samples at most (default: four a slot of the largest batch)")
    options = parser.parse_args()
    options.slots = sorted(min(slots, 4) if options.tiny else slots for slots in dict.fromkeys(options.slots))
    options.slots = list(dict.fromkeys(options.slots))
    device, budget = common.device_of(options), common.Budget(options.seconds)
    found, rows = common.machine(device, options.tiny), []
    print(common.headline(found), flush=True)
    for kind in options.only or ("pocket", "llada"):
        for label in (f"pocket-{family}" for family in common.FAMILIES) if kind == "pocket" else (common.NAMES[kind],):
            if not budget.has(label):
                continue
            made = pocket(label, device, options) if kind == "pocket" else full_size(kind, device, options)
            rows += measure(label, made, options, budget)
            common.write(options, "batch_throughput", found, rows, skipped=budget.skipped)
            del made
    common.show("JoT through refilling slots", rows, FORMAT)
    if budget.skipped:
        print(f"\nnot measured, out of time: {', '.join(budget.skipped)}")


if __name__ == "__main__":
    main()
