"""Training of the embedded pair: masked diffusion (eq. 3 of the paper) on the pocket tasks, one GPU, resumable.

``PYTHONPATH=data python -m pocket.train --family llada --seed 0 --out DIR`` writes a checkpoint folder and
``training.json`` (recipe, held-out loss and dev accuracy along the way). A run that is cut off goes
on from its last snapshot. Data never ends: shard i of the stream depends on the seed and i alone.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from jot.models import home
from jot.records.load import digest
from pocket.evaluate import SCORED
from pocket.muon import Muon
from pocket.recipe import Recipe
from pocket.stream import groups, shards

# ---- loss --------------------------------------------------------------------------------------------------

WINDOW = 64  # tokens


def corrupt(
    shard: dict[str, Tensor], pick: Tensor, mask_id: int, everything: float, generator: torch.Generator,
    leading: float = 0.0, tail: float = 1.0, end: int = -1,
):  # fmt: skip
    """A noisy batch: canvas, key mask or None, and the masked tokens as (row, position, target, weight).

    The number k of masked tokens is uniform on 1..n for the n maskable tokens of a row, each weighted 1/k: in
    expectation the loss with a uniform noise level t and weight 1/t (eq. 3 of the paper) a token of the response,
    with far less variance on short ones. A share ``everything`` of the rows has all n masked. The weights also
    average over the rows, so the loss of a batch is their weighted sum.

    A share ``leading`` of the rows looks as decoding from the left sees it: all is hidden from a place drawn evenly on,
    but for some of the ``WINDOW`` tokens there, and these alone are asked for. Of the tokens ``end`` behind the
    first a share ``tail`` is asked for, as they are easy and would be most of the loss; all are hidden as ever.
    """
    target, maskable, length = shard["canvas"][pick].long(), shard["maskable"][pick], shard["length"][pick]
    device, n = target.device, len(pick)
    level = (torch.arange(n, device=device) + torch.rand(1, device=device, generator=generator)) / n
    level = level[torch.randperm(n, device=device, generator=generator)]
    level = torch.where(torch.rand(n, device=device, generator=generator) < everything, 1.0, level)
    count = (level * maskable.sum(1)).ceil().clamp_min(1)
    chance = torch.rand(target.shape, device=device, generator=generator).masked_fill(~maskable, 2.0)
    hidden = asked = maskable & (chance.argsort(1).argsort(1) < count[:, None])
    if leading:
        total = maskable.sum(1, keepdim=True)
        place = (torch.rand(n, 1, device=device, generator=generator) * total).long()
        past = maskable.cumsum(1) - 1 - place
        window = maskable & (past >= 0) & (past < WINDOW)
        first = torch.randperm(n, device=device, generator=generator) < round(leading * n)
        count = torch.where(first, (level * window.sum(1)).ceil().clamp_min(1), count)
        some = window & (chance.masked_fill(~window, 2.0).argsort(1).argsort(1) < count[:, None])
        asked = torch.where(first[:, None], some, hidden)
        hidden = torch.where(first[:, None], some | maskable & (past >= WINDOW), hidden)
    if tail < 1:
        dropped = torch.rand(target.shape, device=device, generator=generator) >= tail
        asked = asked & ~((target == end) & (target.roll(1, 1) == end) & dropped)
    seen = torch.arange(target.shape[1], device=device) < length[:, None]
    row, position = asked.nonzero(as_tuple=True)
    noisy = target.masked_fill(hidden, mask_id)
    return noisy, None if seen.all() else seen, row, position, target[asked], 1 / (asked.sum(1)[row] * n)


def pad(batch, size: int):
    """The batch with exactly ``size`` masked tokens: surplus ones dropped, missing ones added at weight 0."""
    missing = max(0, size - len(batch[2]))
    row, position, target, weight = (F.pad(part[:size], (0, missing)) for part in batch[2:])
    if missing:  # spread over the rows, so that no row collects all the (zero) gradients
        row[-missing:] = torch.arange(missing, device=row.device) % len(batch[0])
    return *batch[:2], row, position, target, weight


def diffusion_loss(model, canvas, key_mask, row, position, target, weight) -> Tensor:
    """Weighted cross-entropy of the masked tokens (eq. 3 of the paper)."""
    at = row * canvas.shape[1] + model.source_row(position)
    hidden = model.hidden(canvas, key_mask).flatten(0, 1).index_select(0, at)
    return (F.cross_entropy(F.linear(hidden, model.head).float(), target, reduction="none") * weight).sum()


class Pass:
    """Forward and backward of one group, adding to the gradients; a CUDA graph where there is CUDA.

    A network this small is bound by its kernel launches; replaying a graph removes them.
    """

    def __init__(self, model, batches, scale: float):
        batch = batches[0]
        self.model, self.scale, self.device = model, scale, batch[0].device.type
        self.masked = batch[1] is not None
        self.size = int(1.1 * max(len(one[2]) for one in batches)) if self.device == "cuda" else None
        if self.size is None:
            return
        self.static = [part if part is None else part.clone() for part in pad(batch, self.size)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.run(self.static)
        torch.cuda.current_stream().wait_stream(side)
        try:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self.run(self.static)
        except RuntimeError as error:
            print(f"no CUDA graph ({error}); going on without", flush=True)
            torch.cuda.synchronize()
            self.size = None

    def run(self, batch) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, cache_enabled=False):
            loss = diffusion_loss(self.model, *batch)
        (loss * self.scale).backward()
        return loss.detach()

    def __call__(self, batch) -> Tensor:
        if self.size is None:
            return self.run(batch)
        if (batch[1] is not None) != self.masked:
            raise RuntimeError("a batch of this group came with a key mask, or without, unlike the captured one")
        for mine, new in zip(self.static, pad(batch, self.size), strict=True):
            if mine is not None:
                mine.copy_(new)
        self.graph.replay()
        return self.loss


# ---- training ----------------------------------------------------------------------------------------------

LOGGED = 200  # steps whose mean loss is printed
OPENING = 400  # steps after which a run with a time limit knows how many it can do


def optimizers(model, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for embedding, head, norms and biases."""
    ends = {id(model.head), id(model.get_input_embeddings().weight)}
    inner = [p for p in model.parameters() if p.ndim == 2 and id(p) not in ends]
    outer = [p for p in model.parameters() if id(p) in ends]
    small = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": outer}, {"params": small, "weight_decay": 0.0}]
    fused = model.device.type == "cuda"
    adam = torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=fused)
    return [adam, Muon(inner, lr=recipe.lr, weight_decay=recipe.weight_decay)]


def rate(recipe: Recipe, step: int) -> float:
    """Learning rate at a step: linear warm-up, then a cosine to one hundredth."""
    progress = step / (recipe.horizon if recipe.horizon and step < OPENING else recipe.steps)
    return recipe.lr * min(1.0, (step + 1) / recipe.warmup) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def save(model, recipe: Recipe, curves: list[dict], out: Path, initial: str | None = None) -> None:
    """The checkpoint folder: bfloat16 weights in the published layout, configuration, tokenizer, training record.

    ``initial`` is the SHA-256 of the initial weights, where they were given.
    """
    out.mkdir(parents=True, exist_ok=True)
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}, out / "model.safetensors")
    (out / "model.safetensors").chmod(0o644)
    config = {k: getattr(model.config, k) for k in type(model.config).__annotations__ if k != "model_type"}
    config.update(model_type=model.config.model_type, architectures=[type(model).__name__], dtype="bfloat16")
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        source = home() / "data" / "models" / recipe.tokenizer / name
        if source.resolve() != (out / name).resolve():
            shutil.copyfile(source, out / name)
    record = {"recipe": asdict(recipe), "parameters": sum(p.numel() for p in model.parameters()), "curves": curves}
    record |= {"initial_sha256": initial} if initial else {}
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n")


def train(
    recipe: Recipe, out: Path, *, device: str = "cuda", workers: int = 13, seconds: float | None = None,
    evaluations: int = 4, dev_limit: int = 128, tasks: tuple[str, ...] = SCORED, snapshot_every: float = 60.0,
) -> None:  # fmt: skip
    """Run (or resume) one training and write its checkpoint to ``out``.

    Args:
        recipe: what is trained. Its ``steps`` may change: see ``seconds``, and a resumed run goes on with its own.
        out: folder for the checkpoint and, while the run lasts, for its snapshot.
        workers: processes that build training data ahead; 0 builds it in this one.
        seconds: sets the number of steps once, at step 400, from the speed seen so far; the record holds it and the
            horizon of the learning rate until then, and a recipe with both repeats the run.
        evaluations: how often held-out loss and dev accuracy are measured, evenly spread, the last at the end.
        dev_limit: documents of each dev file for that.
        tasks: tasks whose accuracy is measured.
        snapshot_every: seconds between snapshots, which are taken only where a shard of data ends.

    Raises:
        SystemExit: the snapshot in ``out`` belongs to another recipe.
    """
    begun = last = time.perf_counter()
    torch.manual_seed(recipe.seed)
    model, initial = recipe.network().to(device), None
    if recipe.start:
        file = Path(recipe.start) / "model.safetensors"
        if not file.is_file():
            raise SystemExit(f"--start {recipe.start} holds no model.safetensors; name a checkpoint's folder")
        model.load_state_dict(load_file(file, device))
        initial = digest(file, file.stat().st_mtime_ns)
    opts = optimizers(model, recipe)
    generator = torch.Generator(device).manual_seed(recipe.seed)
    out.mkdir(parents=True, exist_ok=True)
    snapshot, curves, step = out / "snapshot.pt", [], 0
    if snapshot.is_file():
        state = torch.load(snapshot, map_location=device, weights_only=False)
        unset = {"steps": 0, "horizon": 0}
        if {**state["recipe"], **unset} != {**asdict(recipe), **unset}:
            raise SystemExit(f"{snapshot} belongs to another recipe; remove it or choose another --out")
        recipe.steps, recipe.horizon, seconds = state["recipe"]["steps"], state["recipe"]["horizon"], None
        model.load_state_dict(state["model"])
        for opt, saved in zip(opts, state["opts"], strict=True):
            opt.load_state_dict(saved)
        generator.set_state(state["generator"].cpu())
        curves, step, initial = state["curves"], state["step"], state["initial"]
    if device == "cuda":
        for layer in model.layers:  # one layer at a time: the six share their compiled code
            layer.compile(dynamic=False)

    names, passes = groups(recipe), []
    running, waited = torch.zeros(len(names), device=device), 0.0
    per_shard = recipe.shard * recipe.repeats
    stream = shards(recipe, step // per_shard, math.ceil(recipe.steps / per_shard), workers)
    while step < recipe.steps:
        mark = time.perf_counter()
        parts = next(stream)
        waited += time.perf_counter() - mark
        batches = []  # all of a shard at once: finding the masked tokens waits for the device
        for name, part in zip(names, parts, strict=True):
            on_device = {k: torch.from_numpy(v).to(device) for k, v in part.items()}
            picks = torch.arange(len(part["length"]), device=device).split(getattr(recipe, f"batch_{name}"))
            everything = recipe.choice_all if name in recipe.ALL else 0.0
            picks = picks * recipe.repeats
            noise = (model.mask_id, everything, generator, recipe.leading, recipe.tail, model.eos_id)
            batches.append([corrupt(on_device, pick, *noise) for pick in picks])
        if not passes:
            scales = [recipe.choice_weight if name == "choice" else 1.0 for name in names]
            passes = [Pass(model, some, scale) for some, scale in zip(batches, scales, strict=True)]
        for turn in zip(*batches, strict=True):
            if step >= recipe.steps:
                break
            for opt in opts:
                for group in opt.param_groups:
                    group["lr"] = rate(recipe, step)
                opt.zero_grad(set_to_none=False)  # the graphs add to these very buffers
            for j, (one, batch) in enumerate(zip(passes, turn, strict=True)):
                running[j] += one(batch)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for opt in opts:
                opt.step()
            step += 1
            if step % LOGGED == 0:
                if not running.isfinite().all():
                    raise SystemExit(f"{recipe.family} {recipe.seed} diverged by step {step}; train with a lower --lr")
                losses = " ".join(f"{value:.4f}" for value in (running / LOGGED).tolist())
                running.zero_()
                now = time.perf_counter() - begun
                spent = f"{now:.0f} s, waited {waited:.0f} s"
                print(f"{recipe.family} {recipe.seed} step {step} loss {losses} {spent}", flush=True)
                if step == OPENING // 2:
                    start = now
                elif step == OPENING and seconds:
                    fits = OPENING + 100 * max(0, int((seconds - now) / (now - start) * 2))
                    recipe.horizon, recipe.steps = recipe.steps, min(recipe.steps, fits)
                    print("steps", recipe.steps, flush=True)
            if step in {round(recipe.steps * (i + 1) / evaluations) for i in range(evaluations)}:
                with torch.compiler.set_stance("force_eager"):
                    loss, scores = recipe.measure(model, tasks, dev_limit, device)
                spent = round(time.perf_counter() - begun)
                curves.append({"step": step, "seconds": spent, "loss": loss, "accuracy": scores})
                print(json.dumps(curves[-1]), flush=True)
            settled = step >= OPENING or not seconds  # a snapshot holds the final number of steps
            if settled and time.perf_counter() - last > snapshot_every and step % per_shard == 0:
                last = time.perf_counter()
                state = dict(
                    recipe=asdict(recipe), model=model.state_dict(), opts=[o.state_dict() for o in opts],
                    generator=generator.get_state(), curves=curves, step=step, initial=initial,
                )  # fmt: skip
                torch.save(state, snapshot.with_suffix(".tmp"))
                snapshot.with_suffix(".tmp").replace(snapshot)
    save(model, recipe, curves, out, initial)
    snapshot.unlink(missing_ok=True)


def main(recipe: type[Recipe] = Recipe) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in asdict(recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=13)
    parser.add_argument("--seconds", type=float, help="set the number of steps from the speed, to end after this time")
    parser.add_argument("--evaluations", type=int, default=4)
    parser.add_argument("--dev-limit", type=int, default=128)
    parser.add_argument("--tasks", nargs="*", default=SCORED, help="tasks scored on dev along the way")
    args = vars(parser.parse_args())
    train(recipe(**{name: args.pop(name) for name in asdict(recipe())}), **args)


if __name__ == "__main__":
    main()
