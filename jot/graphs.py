"""What the graphs of one model share, and what makes them invalid."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jot.models.base import DiffusionModel


def state_of(model: DiffusionModel) -> tuple:
    """Where and in what form the weights are."""
    found, left = [model.dtype, str(model.device)], [model]
    while left:  # as ``parameters``, which takes a millisecond on a network of 300 matrices
        module = left.pop()
        left += [child for child in module._modules.values() if child is not None]
        found += [weight.data_ptr() for weight in module._parameters.values() if weight is not None]
    return tuple(found)


@dataclass
class Pool:
    """Memory that all graphs of a model share (they never run at once), and the streams that they are captured on."""

    device: torch.device

    def __post_init__(self):
        self.handle, self.graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
        # Of this device, which torch's own choice need not be; streams may come around again, so two different ones.
        self.main, self.side = torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)
        while self.side == self.main:
            self.side = torch.cuda.Stream(self.device)
        self.number = torch.zeros(1, device=self.device)
        with torch.cuda.graph(self.graph, pool=self.handle, stream=self.main):  # keeps the memory alive
            self.number + 1
