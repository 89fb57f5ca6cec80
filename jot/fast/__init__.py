"""The same steps with fixed shapes, replayed as graphs on CUDA; of the package only ``jot.decode`` knows of it."""

from jot.fast.loop import UNASKED, refusal, stream

__all__ = ["UNASKED", "refusal", "stream"]
