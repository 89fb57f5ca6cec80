"""Exit rules: which masked positions are final at this step. Siblings with one signature.

A rule is called with the ``Step`` and returns, per row, whether the position is final and the logit
margin it had to clear (nan where the rule has none). ``combine`` says how exits meet the schedule:
"or" (the schedule chooses among all masks, the commits are the union) or "after_exit" (it chooses
among the masks that did not exit).
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from jot.errors import UserError
from jot.step import Step


def number(method: str, name: str, value, low: float = -math.inf, high: float = math.inf) -> None:
    """Refuse anything that is no finite number (or +inf where ``high`` is) in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise UserError(f"{method}: {name}={value!r} is not a number")
    if not low <= value <= high:
        bounds = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise UserError(f"{method}: {name}={value:g} must be {bounds}")


@dataclass(frozen=True)
class FullDecoding:
    """No exits: the transfer schedule alone reveals the masks."""

    name: ClassVar[str] = "full"
    combine: ClassVar[str] = "or"

    def __call__(self, step: Step) -> tuple[Tensor, Tensor | None]:
        return step.none(), None


@dataclass(frozen=True)
class JoT:
    """Just on Time (eq. 3 to 7, algorithm 1): a position exits when its top-2 logit margin clears ln tau_i.

    tau_i falls from ``tau_max`` to ``tau_min`` as the ``window`` positions on either side are resolved,
    weighted ``gamma ** distance``. The exit takes the argmax. The margin is read from un-tempered
    logits, so the exit set does not depend on the sampling temperature.

    Attributes:
        tau_max, tau_min: thresholds on p1/p2; ``tau_max=inf`` switches the exits off.
        gamma: decay of the kernel per position, in (0, 1).
        window: radius D of the kernel in positions.
        spatial: False holds tau_i at ``tau_max`` everywhere.
        combine: "or" as in the paper's implementation note, "after_exit" as in its algorithm 1.
    """

    tau_max: float = 90.0
    tau_min: float = 1.0
    gamma: float = 0.5
    window: int = 8
    spatial: bool = True
    combine: str = "or"
    name: ClassVar[str] = "jot"

    def __post_init__(self):
        number("jot", "tau_max", self.tau_max, low=1)
        number("jot", "tau_min", self.tau_min, low=1)
        number("jot", "gamma", self.gamma)
        if self.spatial and self.tau_min > self.tau_max:
            raise UserError(f"jot: tau_min={self.tau_min:g} must not exceed tau_max={self.tau_max:g}")
        if not 0 < self.gamma < 1:
            raise UserError(f"jot: gamma={self.gamma:g} must lie strictly between 0 and 1")
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1:
            raise UserError(f"jot: window={self.window!r} must be a whole number of positions, at least 1")
        if self.combine not in ("or", "after_exit"):
            raise UserError(f"jot: combine={self.combine!r} must be 'or' or 'after_exit'")

    def phi(self, resolved: Tensor) -> Tensor:
        """Spatial softening (eq. 4 and 5) of a bool canvas ``[slots, length]``, float64 in [0, 1]."""
        one_side = self.gamma ** torch.arange(1, self.window + 1, dtype=torch.float64, device=resolved.device)
        kernel = torch.cat((one_side.flip(0), one_side.new_zeros(1), one_side))
        weight = F.conv1d(resolved.double()[:, None], kernel[None, None], padding=self.window)[:, 0]
        return (weight / kernel.sum()).clamp(max=1.0)

    def tau(self, resolved: Tensor) -> Tensor:
        """Threshold on p1/p2 (eq. 6) at every position of a bool canvas ``[slots, length]``, float64."""
        if not self.spatial:
            return torch.full(resolved.shape, float(self.tau_max), dtype=torch.float64, device=resolved.device)
        # Rounding in the convolution must not push tau below its floor, nor leave 1 + 1e-16 there.
        tau = self.tau_max - (self.tau_max - self.tau_min) * self.phi(resolved)
        return torch.where(tau < self.tau_min * (1 + 1e-12), self.tau_min, tau)

    def __call__(self, step: Step) -> tuple[Tensor, Tensor | None]:
        if math.isinf(self.tau_max):
            return step.none(), None
        threshold = step.at(self.tau(step.resolved)).log()
        return step.in_block & (step.top.gap >= threshold), threshold


METHODS = {rule.name: rule for rule in (FullDecoding, JoT)}
