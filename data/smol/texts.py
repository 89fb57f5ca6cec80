"""Training texts of ``smol-dream``: speeches of the train split, and what the original causal network writes.

Four kinds of rows of ``WIDTH`` tokens: *prose*, windows of the speeches; *continued*, a passage of them that it
continues; *documents* and *dialogues*, which it writes from nothing (a dialogue begins with one of ``OPENINGS``).
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from pocket.prose import split_documents
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from jot.models.base import rope_table, rotate
from jot.sampler.proposals import nucleus

WIDTH = 256  # tokens
PREFIX = 24  # tokens of a passage that is continued
SHORTEST = 12  # tokens of an answer that is kept
SHARES = {"prose": 0.25, "continued": 0.15, "documents": 0.1, "dialogues": 0.5}
OPENINGS = (
    "What is", "What are", "What does", "What would", "How do I", "How can", "How does", "How many", "Why is", "Why do",
    "When did", "Where can", "Who was", "Which", "Is it", "Can you", "Could you", "Do you", "Should I", "Explain",
    "Describe", "Write a", "Write me", "Tell me", "Give me", "List", "Name", "Summarize", "Compare", "Define",
    "Suggest", "Help me", "I want", "I need", "I am", "My", "In what", "Create a", "Make a", "Plan a", "Please",
    "Imagine", "Hi", "The", "A", "If", "Some", "There",
)  # fmt: skip


def causal(model, ids: Tensor, cache: Tensor | None = None, at: int = 0) -> Tensor:
    """Final hidden states ``[batch, n, width]`` of a converted network under the causal mask it was made with.

    Args:
        model: a ``DreamModel``.
        ids: ``[batch, n]``, at the positions from ``at`` on; n is 1 where ``at`` is not 0.
        cache: keys and values ``[layers, 2, batch, heads, length, head_dim]``; read before ``at``, written from there.
    """
    x, n = model.get_input_embeddings()(ids), ids.shape[1]
    table = rope_table(at + n, model.layers[0].head_dim, model.config.rope_theta, ids.device)
    table = [part[at:].to(x.dtype) for part in table]
    for i, layer in enumerate(model.layers):
        parts = layer.parts
        h = parts.norm1(x)
        q, k, v = (p(h).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2) for p in (parts.q, parts.k, parts.v))
        q, k = rotate(q, *table), rotate(k, *table)
        if cache is not None:
            cache[i, 0, :, :, at : at + n], cache[i, 1, :, :, at : at + n] = k, v
        if at:  # the queries of a group as rows of one head, so that keys need not be repeated
            k, v = cache[i, :, :, :, : at + 1]
            seen = F.scaled_dot_product_attention(q.squeeze(2).unflatten(1, (k.shape[1], -1)), k, v).flatten(1)[:, None]
        else:
            k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + parts.out(seen)
        h = parts.norm2(x)
        x = x + parts.down(F.silu(parts.gate(h)) * parts.up(h))
    return model.norm(x)


@torch.no_grad()
def surprise(model, rows: Tensor, start: int = 1, batch: int = 64, half: bool = True) -> Tensor:
    """Mean negative log-likelihood ``[n]``, in nats, of the tokens of ``rows`` ``[n, length]`` from ``start`` on, given
    those before, under the causal network; exp of it is the perplexity. On a card in bfloat16, if ``half``."""
    found = []
    for part in rows.long().split(batch):
        with torch.autocast(part.device.type, torch.bfloat16, enabled=half and part.is_cuda):
            scores = F.linear(causal(model, part)[:, start - 1 : -1], model.head[: model.mask_id]).float()
        found.append(F.cross_entropy(scores.transpose(1, 2), part[:, start:], reduction="none").mean(1))
    return torch.cat(found)


@torch.no_grad()
@sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])  # no plan for every length
def write(
    model, prefix: Tensor, width: int, generator: torch.Generator, bridge: Tensor | None = None, *,
    temperature: float = 1.0, min_p: float = 0.05, top_p: float = 1.0, banned: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Continue prefixes of one length to ``width`` tokens, as the causal network.

    A row ends at its end of text, which then fills it. With a ``bridge`` (tokens between two turns) its first end of
    text ends the user's turn, the bridge follows, and the answer ends the row. No token is drawn that is less than
    ``min_p`` times as likely as the likeliest, nor one outside the nucleus of ``top_p``.

    Returns:
        Rows ``[batch, width]``, the position where the answer begins (the prefix's end without a bridge; ``width`` if
        never), and that of the end of text (``width`` if never), each ``[batch]``.
    """
    batch, at = prefix.shape
    eos, device, mask = model.eos_id, prefix.device, model.mask_id
    shape = (len(model.layers), 2, batch, model.config.num_key_value_heads, width, model.layers[0].head_dim)
    cache = torch.empty(shape, dtype=model.dtype, device=device)
    rows = torch.full((batch, width), eos, dtype=prefix.dtype, device=device)
    rows[:, :at] = prefix
    steps = 0 if bridge is None else len(bridge)
    answering, done = steps + 1, steps + 2  # the phases: 0 asks, then the bridge's tokens
    phase = torch.full((batch,), 0 if steps else answering, device=device)
    first = torch.full((batch,), width if steps else at, device=device)
    end = torch.full((batch,), width, device=device)
    hidden = causal(model, prefix, cache)[:, -1]
    for place in range(at, width):
        scores = F.linear(hidden, model.head[:mask]).float() / temperature
        if banned is not None:
            scores[:, banned] = -torch.inf
        scores.masked_fill_(scores < scores.amax(1, keepdim=True) + torch.tensor(min_p).log().item(), -torch.inf)
        scores = nucleus(scores, top_p) if top_p < 1 else scores
        noise = torch.empty_like(scores).exponential_(generator=generator)
        token = (scores - noise.log_()).argmax(1)
        if steps:
            within = (phase >= 1) & (phase <= steps)
            token = torch.where(within, bridge[(phase - 1).clamp(0, steps - 1)], token)
            first = torch.where((phase == answering) & (first == width), place, first)
        token = token.masked_fill(phase == done, eos)
        stopped = (token == eos) & ((phase == 0) | (phase == answering))
        end = torch.where(stopped & (phase == answering), place, end)
        phase = phase + stopped.long() + ((phase >= 1) & (phase <= steps)).long()
        rows[:, place] = token
        if place + 1 < width:
            hidden = causal(model, token[:, None], cache, place)[:, -1]
    return rows, first, end


def chat(tokenizer, opening: str) -> tuple[list[int], list[int]]:
    """Tokens of a chat up to this opening of the user's turn, and those between the turn's end and the answer."""
    turns = [{"role": "user", "content": "\0"}]
    before, after = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False).split("\0")
    after = tokenizer(after, add_special_tokens=False)["input_ids"]
    return tokenizer(before + opening, add_special_tokens=False)["input_ids"], after[1:]  # the end itself is written


def speech_tokens(tokenizer, split: str) -> list[Tensor]:
    """The speeches of a split as token ids."""
    found = tokenizer(split_documents(split), add_special_tokens=False, verbose=False)["input_ids"]
    return [torch.tensor(ids, dtype=torch.int32) for ids in found]


def windows(speeches: list[Tensor], width: int, generator: torch.Generator | None = None) -> Tensor:
    """Windows ``[n, width]`` of the speeches, side by side, from a random start in each where there is a generator."""
    found = []
    for ids in speeches:
        start = int(torch.randint(width, (), generator=generator)) if generator else 0
        found.append(ids[start : start + (len(ids) - start) // width * width].view(-1, width))
    return torch.cat(found)


def kind(model, tokenizer, name: str, count: int, speeches: list[Tensor], width: int, seed: int) -> dict[str, Tensor]:
    """At most ``count`` rows of a kind: ``canvas`` ``[n, width]``, the ``first`` maskable position, ``end`` of text."""
    device = model.device
    draw, generator = torch.Generator().manual_seed(seed), torch.Generator(device).manual_seed(seed)
    words = tokenizer.convert_tokens_to_ids(tokenizer.all_special_tokens + list(tokenizer.added_tokens_encoder))
    banned = torch.tensor(sorted({*words} - {model.eos_id, model.mask_id}), device=device)
    prefix = min(PREFIX, width // 2)
    if name in ("prose", "continued"):
        size = width if name == "prose" else prefix
        rows = windows(speeches, size, draw)
        rows = rows[torch.randperm(len(rows), generator=draw)[:count]].to(device).long()
        first, end = (torch.full((len(rows),), value, device=device) for value in (1, width))
        if name == "continued":
            rows, _, end = write(model, rows, width, generator, banned=banned)
    elif name == "documents":
        start = tokenizer.convert_tokens_to_ids("<|endoftext|>") if "<|endoftext|>" in tokenizer.get_vocab() else 0
        rows, _, end = write(model, torch.full((count, 1), start, device=device), width + 1, generator, banned=banned)
        rows, end, first = rows[:, 1:], end - 1, torch.ones(count, dtype=torch.long, device=device)
    else:
        starts, (bridge, *_) = zip(*(chat(tokenizer, opening) for opening in OPENINGS), strict=True)
        length = len(starts[int(torch.randint(len(starts), (), generator=draw))])  # a batch has prefixes of one length
        before = torch.tensor([ids for ids in starts if len(ids) == length])
        before = before[torch.randint(len(before), (count,), generator=draw)].to(device)
        rows, first, end = write(model, before, width, generator, torch.tensor(bridge, device=device), banned=banned)
    kept = (torch.minimum(end, torch.tensor(width, device=device)) - first) >= min(SHORTEST, width // 4)
    found = {"canvas": rows.int(), "first": first.int(), "end": end.int()}
    return {key: value[kept] for key, value in found.items()}


def make(
    model, tokenizer, seconds: float, *, batch: int = 4096, width: int = WIDTH, seed: int = 0
) -> dict[str, Tensor]:
    """Rows for about ``seconds`` of writing, in the ``SHARES``, on the model's device; ``kind`` says what they hold.

    The turns go round the kinds, the one furthest behind its share next, and every kind has one at least.
    """
    speeches, begun, turn = speech_tokens(tokenizer, "train"), time.perf_counter(), 0
    found: dict[str, list[dict[str, Tensor]]] = {name: [] for name in SHARES}
    have = dict.fromkeys(SHARES, 0)
    while time.perf_counter() - begun < seconds or not all(have.values()):
        name = min(SHARES, key=lambda name: have[name] / SHARES[name])
        found[name].append(kind(model, tokenizer, name, batch, speeches, width, 1000 * seed + turn))
        have[name], turn = have[name] + len(found[name][-1]["canvas"]), turn + 1
    print(f"texts {have}, {time.perf_counter() - begun:.0f} s", flush=True)
    parts = [part for some in found.values() for part in some]
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
