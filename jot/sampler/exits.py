"""Exit rules: which masked positions are final at this step. Siblings with one signature.

A rule is called with the ``Step`` and returns, per row, whether the position is final and the logit
margin it had to clear (None where the rule has none).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from jot.errors import MOST, UserError, check_settings, setting
from jot.sampler.kernels import divergence, entropies
from jot.sampler.previous import Credits, Leaders, Memory, Previous
from jot.sampler.schedules import count, highest, ranks
from jot.sampler.step import Step

if TYPE_CHECKING:
    from jot.models.base import DiffusionModel
    from jot.sampler.config import DecodeConfig

REGIONS = ("masked", "generated", "answer")


class ExitRule:
    """What the loop asks of a rule beside the call.

    Attributes:
        name: the rule's name on the command line.
        combine: how exits meet the schedule. "or": the schedule chooses among all masks, the commits are the
            union; "after_exit": it chooses among the masks that did not exit; "instead": it rests where
            something exited.
        scope: rows that the rule reads, the masks of the current "block" or of the whole "canvas".
        takes: the token that an exit commits, the "argmax" (``step.top.index``, in which a rule may put another) or the
            "proposal" (which may be a draw).
        greedy: scheduled commits take the argmax too.
        endless: a block goes on beyond its schedule until it is full, for rules that may commit less.
        max_commits: commits of one step at most, exits and schedule together, the largest margins; None: no limit.
        canvas: exits may also leave blocks to come, which then begin with fewer masks.
        skip_demoted: the margin (``Step.margin``) leaves ``begin_suppress_tokens`` out.
        block_start: under a cache, exits from the full forward that opens a block (see ``jot.sampler.cache``).
    """

    name: ClassVar[str]
    combine: ClassVar[str] = "or"
    scope: ClassVar[str] = "block"
    takes: ClassVar[str] = "argmax"
    greedy: ClassVar[bool] = False
    endless: ClassVar[bool] = False
    max_commits: ClassVar[int | None] = None
    canvas: ClassVar[bool] = False
    skip_demoted: ClassVar[bool] = False
    block_start: ClassVar[bool] = False

    def __post_init__(self):
        check_settings(self, f"{self.name}: ")

    def __call__(self, step: Step) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError

    def extra_rows(self, masks: Tensor, prompt: Tensor, end: Tensor) -> Tensor | None:
        """Rows to read beside the masks, bool ``[slots, length]``; ``prompt`` and ``end`` bound the generated part."""
        return None

    def remember(self, model: DiffusionModel, config: DecodeConfig, samples: int, width: int) -> Memory | None:
        """What the rule keeps between the steps of a run of so many batch rows of ``width`` columns, for
        ``Step.memory``."""
        return None


@dataclass(frozen=True)
class FullDecoding(ExitRule):
    """No exits: the transfer schedule alone reveals the masks."""

    name: ClassVar[str] = "full"

    def __call__(self, step: Step) -> tuple[Tensor, Tensor | None]:
        return step.none(), None


@functools.cache  # graphs go on reading what it holds
@torch.inference_mode(False)
def _kernel(gamma: float, window: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The weights of ``JoT.phi``, float64 ``[2 window + 1]``, and their sum."""
    one_side = gamma ** torch.arange(1, window + 1, dtype=torch.float64, device=device)
    kernel = torch.cat((one_side.flip(0), one_side.new_zeros(1), one_side))
    return kernel, kernel.sum()


@dataclass(frozen=True)
class JoT(ExitRule):
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
        block_start: under a cache on Dream, exit from the full forward that opens a block too.
        sample: exits commit the proposal, a draw at a temperature above 0, in place of the argmax. Not in the
            paper: it lets sampled text be compared under one policy.
        canvas: exit anywhere on the canvas, not in the current block alone, as the public code titled Just on Time
            does on LLaDA (with ``DecodeConfig.keep_steps``).
        skip_demoted: read the margin without ``begin_suppress_tokens``, as that code does.
        max_commits: commit at most so many tokens a step, of exits and schedule together those of the largest margins,
            ties to the lowest position. A block then goes on beyond its schedule until it is full. Not in the paper.
    """

    tau_max: float = setting(90.0, 1)
    tau_min: float = setting(1.0, 1)
    gamma: float = setting(0.5, 0, 1, open=True)
    window: int = setting(8, 1, MOST)
    spatial: bool = True
    combine: str = setting("or", names=("or", "after_exit"))
    block_start: bool = False
    sample: bool = False
    canvas: bool = False
    skip_demoted: bool = False
    max_commits: int | None = setting(None, 1, MOST)
    name: ClassVar[str] = "jot"

    @property
    def takes(self) -> str:
        return "proposal" if self.sample else "argmax"

    @property
    def scope(self) -> str:
        return "canvas" if self.canvas else "block"

    @property
    def endless(self) -> bool:
        return self.max_commits is not None

    def __post_init__(self):
        super().__post_init__()
        if self.spatial and self.tau_min > self.tau_max:
            raise UserError(f"jot: tau_min={self.tau_min:g} must not exceed tau_max={self.tau_max:g}")

    def phi(self, resolved: Tensor) -> Tensor:
        """Spatial softening (eq. 4 and 5) of a bool canvas ``[slots, length]``, float64 in [0, 1]."""
        kernel, total = _kernel(self.gamma, self.window, resolved.device)
        weight = F.conv1d(resolved.double()[:, None], kernel[None, None], padding=self.window)[:, 0]
        return (weight / total).clamp(max=1.0)

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
        return (step.at(step.masks) if self.canvas else step.in_block) & (step.margin >= threshold), threshold


class Filling(ExitRule):
    """Rules that fill the whole canvas with the argmax once the mean top-2 logit gap of a region reaches their bar.

    Under a cache only the full forward of a block sees the whole canvas, so only there can they fire. They have the
    settings ``region`` and ``answer_start``.
    """

    scope: ClassVar[str] = "canvas"
    block_start: ClassVar[bool] = True
    ANSWER_LENGTH: ClassVar[int] = 5  # fixed in Prophet's official code

    def bar(self, step: Step) -> Tensor:
        """What the mean gap must reach now, in nats, float ``[slots]``."""
        raise NotImplementedError

    def settled(self, step: Step, inside: Tensor) -> Tensor | bool:
        """What else must hold, bool ``[slots]`` or for all alike; ``inside``: rows of the region, bool ``[rows]``."""
        return True

    def region_of(self, masks: Tensor, prompt: Tensor, end: Tensor) -> Tensor:
        """The canvas positions whose gaps are averaged, bool ``[slots, length]``."""
        if self.region == "masked":
            return masks
        column = torch.arange(masks.shape[1], device=masks.device)
        if self.region == "generated":
            return (column >= prompt[:, None]) & (column < end[:, None])
        if self.answer_start is None:
            return torch.zeros_like(masks)
        first = prompt[:, None] + self.answer_start
        return (column >= first) & (column < torch.minimum(first + self.ANSWER_LENGTH, end[:, None]))

    def extra_rows(self, masks: Tensor, prompt: Tensor, end: Tensor) -> Tensor | None:
        return None if self.region == "masked" else self.region_of(masks, prompt, end)

    def __call__(self, step: Step) -> tuple[Tensor, Tensor | None]:
        inside = step.at(self.region_of(step.masks, step.prompt, step.end))
        slots, gap = len(step.masks), step.top.gap.double()
        total = torch.zeros(slots, dtype=torch.float64, device=inside.device)
        total.index_add_(0, step.slot, torch.where(inside, gap, 0.0))
        mean = total / count(step.slot, inside, slots)  # nan where the region is empty: never fires
        fires = (mean >= self.bar(step)) & self.settled(step, inside) & step.whole
        return fires[step.slot] & step.at(step.masks), None


@dataclass(frozen=True)
class Prophet(Filling):
    """Prophet (Li et al. 2025): fill the whole canvas once the mean top-2 logit gap of a region is large enough.

    It fills with the argmax at every temperature. The bar falls with the share p of the configured steps that this one
    completes: ``early`` while p < 0.33, ``mid`` while p < 0.67, then ``late``, all in nats.

    Attributes:
        region: "masked", the generated positions still masked; "generated", all of them; "answer", the five from
            ``answer_start`` on, masked or not: the official rule, which fires at no other region.
        answer_start: offset of the answer within the generated part; None never fires with region="answer".
    """

    early: float = setting(7.5, 0)
    mid: float = setting(5.0, 0)
    late: float = setting(2.5, 0)
    region: str = setting("masked", names=REGIONS)
    answer_start: int | None = setting(None, 0, MOST)
    name: ClassVar[str] = "prophet"

    def bar(self, step: Step) -> Tensor:
        share = (step.index + 1) / step.steps
        return torch.where(share < 0.33, self.early, torch.where(share < 0.67, self.mid, self.late))


@dataclass(frozen=True)
class SchED(Filling):
    """SchED (Mohamed et al. 2025): Prophet's sibling whose bar falls smoothly from ``high`` to ``low``.

    The bar is a function of t, the share of the configured steps that are over: from 0 at the first to 1 at the last.
    It fills with the argmax at every temperature and reads un-tempered logits, before that step's scheduled commits.
    The defaults, t, the guard ``max_change`` and the region "masked" are those of the public code, "all" there; two
    guards that rest at its defaults, least progress and patience, are left out. Ours: the other regions, and that under
    a cache a mask is compared with the last step that read it.

    Attributes:
        high, low: the bar at t = 0 and the value that it falls to, in nats.
        max_change: share of the region's masks whose likeliest token may have changed since the step before; the first
            step, with none before it, never fills. None: no guard.
        shape: "linear" or "cosine", which reach ``low`` at t = 1, or "exponential", low + (high - low) exp(-rate t).
        rate: decay of the exponential.
        region, answer_start: as in ``Prophet``.
    """

    high: float = setting(7.5, 0, 1e6)
    low: float = setting(2.5, 0, 1e6)
    shape: str = setting("cosine", names=("linear", "cosine", "exponential"))
    rate: float = setting(4.0, 0, 1e6)
    region: str = setting("masked", names=REGIONS)
    answer_start: int | None = setting(None, 0, MOST)
    max_change: float | None = setting(0.0, 0, 1)
    name: ClassVar[str] = "sched"

    def __post_init__(self):
        super().__post_init__()
        if self.low > self.high:
            raise UserError(f"sched: low={self.low:g} must not exceed high={self.high:g}")

    def bar(self, step: Step) -> Tensor:
        last = step.steps - 1
        t = (step.index.double() / last).clamp(max=1.0) if last else torch.ones_like(step.index, dtype=torch.float64)
        if self.shape == "linear":
            left = 1 - t
        else:
            left = (-self.rate * t).exp() if self.shape == "exponential" else (1 + (math.pi * t).cos()) / 2
        return self.low + (self.high - self.low) * left

    def remember(self, model, config, samples, width) -> Memory | None:
        return None if self.max_change is None else Leaders(samples, width, model.device)

    def settled(self, step: Step, inside: Tensor) -> Tensor | bool:
        if self.max_change is None:
            return True
        asked = inside & step.at(step.masks)
        changed, slots = asked & step.memory.changed(step), len(step.masks)
        ratio = count(step.slot, changed, slots) / count(step.slot, asked, slots).clamp(min=1)
        return (ratio <= self.max_change) & (step.index > 0)


@dataclass(frozen=True)
class KLASS(ExitRule):
    """KLASS (Kim et al. 2025): commit what is confident and whose distribution stopped moving between steps.

    A position is ready when its probability clears ``conf_threshold`` and its last ``history`` divergences
    KL(now || step before) are all below ``kl_threshold``. Where something is ready the schedule rests, else it
    reveals its share (for Dream: one token, ``schedule="single"``). With fewer steps than tokens, a step that commits
    less than the schedule's share leaves masks at the end of the block, as in the public loops. Under a cache a block
    sees its own rows only, so each block starts with nothing to compare.

    The defaults are the paper's for Dream; for LLaDA it used 0.7, 0.01 and ``inclusive=False``. ``jot evaluate`` and
    ``jot.evaluate`` pick them by family, ``jot.decode`` takes the rule as it is given.

    Attributes:
        inclusive: ``>=`` on the confidence, as the official Dream code; False is LLaDA's ``>``, which also waits
            for ``history`` steps within each block.
        first_kl: what a position without a step before it counts as: "inf", compared with nothing (official), or
            "skip", stable.
        strategy: commit "all" that are ready, or only the one of "max_conf" or "min_kl".
    """

    conf_threshold: float = setting(0.9, 0, 1)
    kl_threshold: float = setting(0.001, 0)
    history: int = setting(2, 1, 1 << 10)  # each costs as much memory as the canvas
    inclusive: bool = True
    first_kl: str = setting("inf", names=("inf", "skip"))
    strategy: str = setting("all", names=("all", "max_conf", "min_kl"))
    name: ClassVar[str] = "klass"
    combine: ClassVar[str] = "instead"
    scope: ClassVar[str] = "canvas"
    greedy: ClassVar[bool] = True

    def remember(self, model, config, samples, width) -> Memory:
        dtype = torch.float64 if config.head_dtype == "float64" else torch.float32
        room = samples * config.length, model.head.shape[0]
        return Previous(samples, width, self.history, model.device, room, dtype)

    def __call__(self, step: Step) -> tuple[Tensor, Tensor | None]:
        before, at, past = step.memory.recall(step)
        fresh, sure = divergence(step.logits, before, at)  # and the probability of the leader
        if self.first_kl == "skip":
            fresh = fresh.masked_fill(at < 0, 0.0)
        past = torch.cat((past[:, 1:], fresh[:, None]), dim=1)
        step.memory.keep(step, past)
        ready = (sure >= self.conf_threshold) if self.inclusive else (sure > self.conf_threshold)
        ready &= step.in_block & (past < self.kl_threshold).all(-1)
        if not self.inclusive:
            ready &= (step.block_index >= self.history - 1)[step.slot]
        if self.strategy != "all":
            score = sure if self.strategy == "max_conf" else -past[:, -1]
            ready = highest(score, step.slot, torch.ones_like(step.index), ready)
        return ready, None


def _or_best(step: Step, confidence: Tensor, ready: Tensor) -> Tensor:
    """The masks of the block that are ``ready``, and always the most confident one."""
    return highest(confidence, step.slot, torch.ones_like(step.index), step.in_block) | (step.in_block & ready)


@dataclass(frozen=True)
class FastDLLM(ExitRule):
    """Fast-dLLM (Wu et al. 2025): commit every proposal above a probability, and always the most probable one.

    Attributes:
        threshold: probability that a proposal must reach.
        factor: in place of the threshold, take the longest prefix of the proposals sorted by probability in which
            rank r has at least 1 - factor / (r + 1).
        gate: "proposal" reads the probability after temperature and top-p, as published; "raw" before.
    """

    threshold: float | None = 0.9
    factor: float | None = None
    gate: str = setting("proposal", names=("proposal", "raw"))
    name: ClassVar[str] = "fastdllm"
    combine: ClassVar[str] = "instead"
    takes: ClassVar[str] = "proposal"
    endless: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.threshold is None and self.factor is None:
            raise UserError("fastdllm: give a threshold or a factor; without either it is full decoding")

    def __call__(self, step: Step) -> tuple[Tensor, Tensor | None]:
        confidence = step.proposal.confidence
        if self.gate == "raw":
            confidence = (step.top.first - step.top.normalizer).exp()
        if self.factor is None:
            return _or_best(step, confidence, confidence >= self.threshold), None
        rank = ranks(confidence, step.slot, step.in_block, len(step.masks))
        short = step.in_block & (confidence < 1 - self.factor / (rank + 2)) & (rank > 0)
        first = torch.full((len(step.masks),), len(rank) + 1, device=rank.device)
        first = first.scatter_reduce(0, step.slot, torch.where(short, rank, len(rank) + 1), "amin")
        return step.in_block & (rank < first[step.slot]), None


@dataclass(frozen=True)
class LocalLeap(ExitRule):
    """LocalLeap (Kong et al. 2025): a confident position lets its neighbours commit at a lower confidence.

    Masks of the block at ``threshold`` are anchors and commit; so does every mask within ``radius`` positions of an
    anchor that reaches ``relaxed``; where nothing does, the single most confident one. Confidence is the probability
    of the likeliest token, which is what is committed, from un-tempered logits: the publication decodes greedily. An
    anchor is masked itself; tokens that are there already are none (as in the public code).

    Attributes:
        threshold: probability of an anchor.
        relaxed: probability that suffices near an anchor.
        radius: how far from an anchor that is, in positions.
    """

    threshold: float = setting(0.9, 0, 1)
    relaxed: float = setting(0.75, 0, 1)
    radius: int = setting(4, 0, MOST)
    name: ClassVar[str] = "localleap"
    combine: ClassVar[str] = "instead"
    greedy: ClassVar[bool] = True
    endless: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.relaxed > self.threshold:
            raise UserError(f"localleap: relaxed={self.relaxed:g} must not exceed threshold={self.threshold:g}")

    def __call__(self, step: Step) -> tuple[Tensor, Tensor | None]:
        sure, width = step.top.peak, step.masks.shape[1]
        anchor = step.in_block & (sure >= self.threshold)
        # Anchors left of each column; an added number, as idle rows share a place.
        place, counted = step.slot * width + step.position, torch.zeros_like(step.masks, dtype=torch.long)
        counted = counted.flatten().index_add_(0, place, anchor.long()).view_as(counted)
        before = F.pad(counted.cumsum(1), (1, 0))
        first, last = (step.position - self.radius).clamp(min=0), (step.position + self.radius).clamp(max=width - 1)
        near = before[step.slot, last + 1] > before[step.slot, first]
        return _or_best(step, sure, anchor | (near & (sure >= self.relaxed))), None


@dataclass(frozen=True)
class EntropyBudget(ExitRule):
    """EB-Sampler (Ben-Hamu et al. 2025): commit the masks of least entropy, as many as a budget of entropy allows.

    Sorted by entropy, a mask of the block is committed while the sum less the largest of the entropies up to and with
    its own, that is the sum of those before it, is at most ``gamma`` nats; the first always is. Entropies are of
    un-tempered logits; what is committed is the proposal, a draw at a temperature above 0. Of the paper's error
    proxies for the order (entropy, confidence, margin) the entropy. The default of ``gamma`` is that of public
    reimplementations, which also sort the whole canvas: a budget for each block, where there are blocks, is ours.

    Attributes:
        gamma: the budget in nats; 0 commits one mask a step, infinity the whole block.
    """

    gamma: float = setting(0.1, 0)
    name: ClassVar[str] = "eb"
    combine: ClassVar[str] = "instead"
    takes: ClassVar[str] = "proposal"
    endless: ClassVar[bool] = True

    def __call__(self, step: Step) -> tuple[Tensor, Tensor | None]:
        slots, width = step.masks.shape
        entropy = torch.where(step.in_block, entropies(step.logits), 0.0)
        rank = ranks(-entropy, step.slot, step.in_block, slots).clamp(max=width)  # idle rows may outnumber the columns
        place = step.slot * (width + 1) + rank
        table = entropy.new_zeros(slots * (width + 1)).index_add_(0, place, entropy).view(slots, width + 1)
        before = F.pad(table.cumsum(1), (1, 0))
        return step.in_block & (before[step.slot, rank] <= self.gamma), None


@dataclass(frozen=True)
class CreditDecoding(ExitRule):
    """CreditDecoding (Wang et al. 2025): tokens that have led before need less probability now.

    Every step multiplies the credits of a position by ``beta`` and adds p ** ``gamma`` to that of its likeliest token,
    of probability p; ``alpha`` ln(1 + credit) is added to the logits. Then, as in Fast-dLLM, the block commits the
    likeliest token of every position where it reaches ``threshold``, and always the most probable one. It reads
    un-tempered logits: the publication decodes greedily. Credits start anew with every block and are kept for the
    masks of the current block alone. The constants are those of the authors' engine, dInfer, as a port of it has them;
    that a block begins without credits and that a probability equal to the threshold passes is ours.

    Kept exactly as the tokens that ever led at a position, not as a row of the vocabulary: 16 bytes a sample, column
    and position of the longest block (``Credits``).

    Attributes:
        threshold: probability, credits included, that the likeliest token must reach.
        alpha: weight of the credits; 0 is Fast-dLLM's threshold, decoded greedily.
        gamma: exponent of the probability that is credited.
        beta: what is left of a credit after a step.
    """

    threshold: float = setting(0.9, 0, 1)
    alpha: float = setting(0.7, 0, 1e3)
    gamma: float = setting(0.2, 0, 1e3)
    beta: float = setting(0.8, 0, 1)
    name: ClassVar[str] = "credit"
    combine: ClassVar[str] = "instead"
    greedy: ClassVar[bool] = True
    endless: ClassVar[bool] = True

    def remember(self, model, config, samples, width) -> Memory:
        return Credits(samples, width, max(end - start for start, end in config.blocks), model.device)

    def __call__(self, step: Step) -> tuple[Tensor, Tensor | None]:
        top = step.top
        token, credit = step.memory.add(step, top.index, top.peak.double() ** self.gamma, self.beta)
        # Of exp(logit - first) nothing but the credited tokens changes, and the likeliest is among them.
        mass = (step.logits.gather(1, token).double() - top.first[:, None].double()).exp()
        gain = (1 + credit) ** self.alpha
        score = mass * gain
        best = score.amax(1)
        step.top = top._replace(index=torch.where(score == best[:, None], token, step.logits.shape[1] - 1).amin(1))
        sure = best / (top.total.double() + (mass * (gain - 1)).sum(1))
        return _or_best(step, sure, sure >= self.threshold), None


def rule_of(method) -> ExitRule:
    """The rule of a run: full decoding for None; refuses what is no rule."""
    if method is not None and not isinstance(method, ExitRule):
        raise UserError(f"method={method!r} must be a rule, such as jot.JoT()")
    return FullDecoding() if method is None else method


METHODS = {rule.name: rule for rule in (
    FullDecoding, JoT, Prophet, KLASS, FastDLLM, EntropyBudget, LocalLeap, CreditDecoding, SchED,
)}  # fmt: skip
