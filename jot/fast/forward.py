"""The same two networks with fewer, larger kernels: joint QKV and gate-up products, fused norms, rotation and gate.

For CUDA with Triton. The checkpoint layout stays: a module's weights become views of the joint ones.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jot.models.base import DiffusionModel, Parts, rope_table
from jot.sampler.kernels import triton

if TYPE_CHECKING:
    from jot.sampler.cache import View

if triton is not None:
    import triton.language as tl


def _join(parts: list[nn.Linear], name: str) -> Tensor | None:
    """One tensor of several layers' weights (or biases), of which theirs become views."""
    tensors = [getattr(part, name) for part in parts]
    if tensors[0] is None:
        return None
    joint = torch.cat([tensor.data for tensor in tensors])
    for part, piece in zip(parts, joint.split([len(tensor) for tensor in tensors]), strict=True):
        getattr(part, name).data = piece
    return joint


def _joint(parts: Parts) -> SimpleNamespace:
    """The weights of a block, those of one product as one tensor; ``qkv_bias`` may be None."""
    projections = [parts.q, parts.k, parts.v]
    return SimpleNamespace(
        norm1=parts.norm1.weight, qkv=_join(projections, "weight"), qkv_bias=_join(projections, "bias"),
        out=parts.out.weight, norm2=parts.norm2.weight, gate_up=_join([parts.gate, parts.up], "weight"),
        down=parts.down.weight,
    )  # fmt: skip


class FusedForward:
    """Hidden states of a whole canvas; equal to ``model.hidden`` up to the rounding of sums in matrix products.

    Args:
        model: on CUDA, eval mode; it keeps working as before.
    """

    def __init__(self, model: DiffusionModel):
        config, first = model.config, model.layers[0]
        self.precise = model.wide_rope
        self.heads, self.head_dim = config.num_attention_heads, first.head_dim
        self.kv_heads = first.kv_width // first.head_dim
        self.eps, self.theta = config.rms_norm_eps, config.rope_theta
        self.embedding, self.final = model.get_input_embeddings().weight, model.norm.weight
        self.layers = [_joint(block.parts) for block in model.layers]
        self.tables: dict[int, tuple[Tensor, Tensor]] = {}

    def table(self, length: int, device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angles, float32 ``[length, head_dim / 2]``, rounded as the family rounds them."""
        if length not in self.tables:
            half = self.head_dim // 2
            tables = rope_table(length, self.head_dim, self.theta, device)
            kept = torch.float32 if self.precise else dtype
            self.tables[length] = tuple(t[:, :half].to(kept).float().contiguous() for t in tables)
        return self.tables[length]

    def __call__(self, canvas: Tensor, key_mask: Tensor | None, view: View | None = None) -> Tensor:
        """``[batch, length]`` ids to ``[batch, length, width]`` hidden states; arguments as ``model.hidden``.

        ``view`` stores keys after the rotation, which the position alone determines, so none is rotated twice.
        """
        batch, length = canvas.shape
        x = F.embedding(canvas, self.embedding).flatten(0, 1)
        placed = None if view is None or view.positions is None else view.positions
        cos, sin = self.table(length if placed is None else view.length, x.device, x.dtype)
        mask = None if key_mask is None else key_mask[:, None, None, :]
        delta = None
        for i, layer in enumerate(self.layers):
            x, n = add_norm(x, delta, layer.norm1, self.eps)
            qkv = F.linear(n, layer.qkv, layer.qkv_bias).view(batch, length, -1, self.head_dim)
            q, k = rotate(qkv, self.heads, self.kv_heads, cos, sin, self.precise, placed)
            v = qkv[:, :, self.heads + self.kv_heads :].transpose(1, 2)
            if view is not None:
                k, v = view.update(i, k, v)
            out = self._attend(q, k, v, mask)
            delta = F.linear(out.transpose(1, 2).reshape(batch * length, -1), layer.out)
            x, n = add_norm(x, delta, layer.norm2, self.eps)
            delta = F.linear(gate(F.linear(n, layer.gate_up)), layer.down)
        return add_norm(x, delta, self.final, self.eps)[1].view(batch, length, -1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        groups = self.heads // self.kv_heads
        if groups > 1 and (mask is not None or q.dtype == torch.float32):  # those backends know no grouped queries
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
            groups = 1
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=groups > 1)


# ---- kernels -----------------------------------------------------------------------------------------------


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``x + delta`` (``x`` where delta is None) and its root-mean-square norm times ``weight``; ``[rows, width]``."""
    rows, width = x.shape
    total = x if delta is None else torch.empty_like(x)
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        x, x if delta is None else delta, weight, total, out, width, eps, ADD=delta is not None, BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip
    return total, out


def rotate(
    qkv: Tensor, heads: int, kv_heads: int, cos: Tensor, sin: Tensor, precise: bool, placed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Rotary embedding of the queries and keys in ``qkv`` ``[batch, length, heads + 2 kv_heads, dim]``.

    ``placed`` ``[batch, length]`` says where each token stands; None counts 0, 1, ... in every row.

    Returns ``[batch, heads, length, dim]`` and ``[batch, kv_heads, length, dim]``. ``precise`` rounds once, at the
    end; else after every operation, as arithmetic in the tensor's dtype does.
    """
    batch, length, all_heads, dim = qkv.shape
    # Laid out as qkv is: attention answers in the layout of its queries, so its output needs no copy.
    q = qkv.new_empty(batch, length, heads, dim)
    k = qkv.new_empty(batch, length, kv_heads, dim)
    together = min(16, triton.next_power_of_2(heads + kv_heads))
    _rotate[(batch * length, triton.cdiv(heads + kv_heads, together))](
        qkv, q, k, cos, sin, qkv if placed is None else placed.contiguous(), length, all_heads, heads, kv_heads,
        dim // 2, PLACED=placed is not None, ROUND=not precise, HEADS=together,
        BLOCK=triton.next_power_of_2(dim // 2), num_warps=4,
    )  # fmt: skip
    return q.transpose(1, 2), k.transpose(1, 2)


def gate(both: Tensor) -> Tensor:
    """``silu(first half) * second half`` of ``[rows, 2 width]``."""
    rows, width = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, width)
    _gate[(rows, triton.cdiv(width, 1024))](both, out, width, BLOCK=1024, num_warps=4)
    return out


if triton is not None:

    @triton.jit
    def _add_norm(x, delta, weight, total, out, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * width
        lane = tl.arange(0, BLOCK)
        inside = lane < width
        value = tl.load(x + row + lane, mask=inside, other=0.0)
        dtype = value.dtype
        if ADD:
            added = tl.load(delta + row + lane, mask=inside, other=0.0)
            value = (value.to(tl.float32) + added.to(tl.float32)).to(dtype)
            tl.store(total + row + lane, value, mask=inside)
        wide = value.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
        normed = (wide * scale).to(dtype).to(tl.float32)  # rounded before the weight, as the public code does
        tl.store(out + row + lane, normed * tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32), mask=inside)

    @triton.jit
    def _rotate(
        qkv, q, k, cos, sin, placed, length, all_heads, heads, kv_heads, half,
        PLACED: tl.constexpr, ROUND: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        token = tl.program_id(0)
        row = token % length
        if PLACED:
            row = tl.load(placed + token)
        head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
        lane = tl.arange(0, BLOCK)[None, :]
        inside = (lane < half) & (head < heads + kv_heads)
        source = qkv + (token.to(tl.int64) * all_heads + head) * (2 * half)
        low = tl.load(source + lane, mask=inside, other=0.0)
        high = tl.load(source + half + lane, mask=inside, other=0.0)
        dtype = low.dtype
        c = tl.load(cos + row * half + lane, mask=lane < half, other=0.0)
        s = tl.load(sin + row * half + lane, mask=lane < half, other=0.0)
        low, high = low.to(tl.float32), high.to(tl.float32)
        a, b, d, e = low * c, high * s, high * c, low * s
        if ROUND:
            a, b = a.to(dtype).to(tl.float32), b.to(dtype).to(tl.float32)
            d, e = d.to(dtype).to(tl.float32), e.to(dtype).to(tl.float32)
        query = head < heads
        to_q = q + (token.to(tl.int64) * heads + head) * (2 * half)
        to_k = k + (token.to(tl.int64) * kv_heads + head - heads) * (2 * half)
        target = tl.where(query, to_q, to_k)
        tl.store(target + lane, (a - b).to(dtype), mask=inside)
        tl.store(target + half + lane, (d + e).to(dtype), mask=inside)

    @triton.jit
    def _gate(both, out, width, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = lane < width
        first = tl.load(both + row * 2 * width + lane, mask=inside, other=0.0)
        second = tl.load(both + row * 2 * width + width + lane, mask=inside, other=0.0)
        wide = first.to(tl.float32)
        silu = (wide / (1.0 + tl.exp(-wide))).to(first.dtype).to(tl.float32)
        tl.store(out + row * width + lane, (silu * second.to(tl.float32)).to(first.dtype), mask=inside)
