"""Draws that replay the golden ``rng`` procedure: the reference's calls, shapes and order on a seeded CPU generator."""

from __future__ import annotations

import torch

TOKEN = 0


class ReplayDraws:
    """The random calls of the public loops, one canvas at a time (batch 1)."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def gumbel(self, logits, temperature, step):
        shape = (1, step.masks.shape[1], logits.shape[1])
        noise = torch.rand(shape, dtype=torch.float64, generator=self.generator)[0, step.position]
        return (logits.double().exp() / (-noise.log()) ** temperature).argmax(-1)

    def ranks(self, step):
        return torch.rand((1, step.masks.shape[1]), generator=self.generator)[0, step.position]

    def joins(self, step):
        return torch.rand(len(step.position), generator=self.generator)

    def categorical(self, probs, step, rows):
        if not len(probs):
            return probs.new_zeros(0, dtype=torch.long)
        return torch.multinomial(probs / probs.sum(-1, keepdim=True), 1, True, generator=self.generator)[:, 0]

    def without_replacement(self, weights, step, quota, candidate):
        canvas = torch.full(step.masks.shape[1:], -torch.inf)
        canvas[step.position] = weights
        chosen = torch.zeros_like(canvas, dtype=torch.bool)
        if quota[0] > 0:
            chosen[torch.multinomial(canvas.softmax(-1), int(quota[0]), generator=self.generator)] = True
        return chosen[step.position]
