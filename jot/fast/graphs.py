"""What the graphs of one model share, and what makes them invalid."""

from __future__ import annotations

import torch

from jot.models.base import DiffusionModel


def state_of(model: DiffusionModel) -> tuple:
    """Where and in what form the weights are, and how they are multiplied."""
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return model.dtype, str(model.device), tf32, *(weight.data_ptr() for weight in model.parameters())


class Pool:
    """Memory that all graphs of a model share (they never run at once), and the stream that they are captured on."""

    def __init__(self, device: torch.device):
        self.handle, self.graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
        self.main = torch.cuda.Stream(device)  # of this device, which torch's own choice need not be
        self.number = torch.zeros(1, device=device)
        with torch.cuda.graph(self.graph, pool=self.handle, stream=self.main):  # keeps the memory alive
            self.number + 1
