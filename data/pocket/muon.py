"""Muon (Jordan et al. 2024) with all matrices of one shape orthogonalized in one batched product.

``torch.optim.Muon`` launches every matrix on its own; at a width of 256 those launches take longer than the
forward and backward passes together.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor


def orthogonalize(x: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices of ``x`` ``[n, rows, columns]`` by quintic Newton-Schulz iteration, bfloat16."""
    tall = x.shape[1] > x.shape[2]
    x = (x.mT if tall else x).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized, scaled to the size of an AdamW update, with decoupled weight decay."""

    def __init__(self, params, lr: float, weight_decay: float = 0.0, momentum: float = 0.95):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            shapes = defaultdict(list)
            for p in group["params"]:
                shapes[p.shape].append(p)
            for shape, params in shapes.items():
                grad = torch.stack([p.grad for p in params]).float()
                state = self.state[params[0]]
                buffer = state.setdefault("momentum", torch.zeros_like(grad))
                buffer.lerp_(grad, 1 - group["momentum"])
                update = orthogonalize(grad.lerp(buffer, group["momentum"])).float()
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                scale = -group["lr"] * 0.2 * max(shape) ** 0.5
                torch._foreach_add_(params, list(update.unbind()), alpha=scale)
