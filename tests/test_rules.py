"""The four further rules against their definitions in numpy, their edges, and memory that no other sample sees."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import jot
from jot.runs import settings
from jot.sampler.proposals import Proposal
from jot.sampler.step import Step

CHECKPOINTS = Path(__file__).parent / "golden" / "checkpoints"
MODELS = {name: jot.load(CHECKPOINTS / f"tiny-{name}", device="cpu") for name in ("llada", "dream")}
RULES = [
    jot.EntropyBudget(2.0), jot.LocalLeap(0.5, 0.2, 2), jot.CreditDecoding(0.5), jot.SchED(6.0, 1.0, "linear"),
    jot.SchED(6.0, 1.0, max_change=None),
]  # fmt: skip
SLOTS, WIDTH, VOCABULARY = 3, 14, 9
seeds = st.integers(0, 2**31)
families = st.sampled_from(sorted(MODELS))
prompts = st.lists(st.integers(0, 299), min_size=1, max_size=12)


def step_of(logits: np.ndarray, masks: np.ndarray, block: np.ndarray, index, **rest) -> Step:
    """A step that reads the masks of ``block`` in every slot; arrays ``[slots, width, ...]``, ``index`` by slot."""
    slot, position = torch.tensor(masks & block).nonzero(as_tuple=True)
    masks, one = torch.tensor(masks), torch.zeros(len(masks), dtype=torch.long)
    rows, index = torch.tensor(logits)[slot, position], torch.tensor(index)
    given = dict(steps=8) | rest
    return Step(
        rows, slot, position, slot > -1, masks, ~masks, index=index, block_index=index, share=one.float(), keys=one,
        prompt=one, end=one + masks.shape[1], homes=torch.arange(len(masks)), whole=True,
        proposal=Proposal(rows.argmax(1), rows[:, 0], rows.softmax(1).amax(1)), **given,
    )  # fmt: skip


def memory_of(rule):
    """What the rule keeps for canvases of ``step_of``."""
    model = MODELS["llada"]
    return rule.remember(model, jot.DecodeConfig(length=WIDTH, block_length=WIDTH).resolve(model), SLOTS, WIDTH)


def canvas_of(step: Step, rows: torch.Tensor) -> np.ndarray:
    """Values of the step's rows where they stand, zeros elsewhere."""
    found = torch.zeros_like(step.masks, dtype=rows.dtype)
    found[step.slot, step.position] = rows
    return found.numpy()


def softmax(logits: np.ndarray) -> np.ndarray:
    mass = np.exp(logits - logits.max(-1, keepdims=True))
    return mass / mass.sum(-1, keepdims=True)


def scene(seed: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray, np.ndarray]:
    """Logits, sharp ones among them, masks and a block; some slots have little left or nothing."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(SLOTS, WIDTH, VOCABULARY)) * rng.choice([1, 4, 9], size=(SLOTS, WIDTH, 1))
    masks = rng.random((SLOTS, WIDTH)) < rng.choice([0.1, 0.5, 1.0], size=(SLOTS, 1))
    block = (np.arange(WIDTH) >= 3) & (np.arange(WIDTH) < 12)
    return rng, logits, masks, np.broadcast_to(block, masks.shape)


# ---- the decisions, from the definitions ---------------------------------------------------------------------


@given(seeds, st.sampled_from([0.0, 0.01, 0.1, 1.0, 3.0, math.inf]))
def test_the_entropy_budget(seed, gamma):
    _, logits, masks, block = scene(seed)
    step = step_of(logits, masks, block, [0] * SLOTS)
    chosen = canvas_of(step, jot.EntropyBudget(gamma)(step)[0])
    p = softmax(logits)
    entropy = -(p * np.log(p)).sum(-1)
    for s in range(SLOTS):
        order, taken = sorted(np.flatnonzero(masks[s] & block[s]), key=lambda i: entropy[s, i]), []
        for i in order:
            together = [entropy[s, j] for j in (*taken, i)]
            if taken and sum(together) - max(together) > gamma:
                break
            taken.append(i)
        assert set(np.flatnonzero(chosen[s])) == set(taken)


@given(seeds, st.sampled_from([(0.9, 0.75), (0.6, 0.3), (0.8, 0.8), (1.0, 0.5), (0.5, 0.0)]), st.integers(0, 5))
def test_local_leap(seed, bars, radius):
    _, logits, masks, block = scene(seed)
    step = step_of(logits, masks, block, [0] * SLOTS)
    chosen = canvas_of(step, jot.LocalLeap(*bars, radius)(step)[0])
    sure = softmax(logits).max(-1)
    for s in range(SLOTS):
        here = np.flatnonzero(masks[s] & block[s])
        anchors = [i for i in here if sure[s, i] >= bars[0]]
        want = {i for i in here if i in anchors or any(abs(i - a) <= radius for a in anchors) and sure[s, i] >= bars[1]}
        if not want and len(here):
            want = {here[sure[s, here].argmax()]}
        assert set(np.flatnonzero(chosen[s])) == want


@given(seeds, st.sampled_from([{}, {"alpha": 0.0}, {"beta": 0.0}, {"beta": 1.0, "alpha": 2.0}, {"gamma": 0.0}]))
def test_credit_decoding_over_several_steps_and_samples(seed, constants):
    """Against a table of the whole vocabulary; a slot begins anew while the others go on, also with a step void."""
    rng, _, masks, block = scene(seed)
    rule, masks, index = jot.CreditDecoding(0.7, **constants), masks.copy(), np.zeros(SLOTS, dtype=int)
    memory = memory_of(rule)
    credit = np.zeros((SLOTS, WIDTH, VOCABULARY))
    for _ in range(12):
        logits = rng.normal(size=(SLOTS, WIDTH, VOCABULARY)) * 2
        if rng.random() < 0.3:  # taken again: the memory must stay as it was
            rule(step_of(rng.normal(size=logits.shape), masks, block, index, memory=memory, void=torch.tensor(True)))
        step = step_of(logits, masks, block, index, memory=memory, void=torch.tensor(False))
        chosen = canvas_of(step, rule(step)[0])
        token = canvas_of(step, step.top.index)
        p, want = softmax(logits), np.zeros_like(masks)
        for s in range(SLOTS):
            here = np.flatnonzero(masks[s] & block[s])
            for i in here:
                credit[s, i] *= rule.beta
                credit[s, i, p[s, i].argmax()] += p[s, i].max() ** rule.gamma
            fused = softmax(logits[s] + rule.alpha * np.log1p(credit[s]))
            want[s, here] = fused[here].max(-1) >= 0.7
            if len(here):
                want[s, here[fused[here].max(-1).argmax()]] = True
            assert (token[s, here] == fused[here].argmax(-1)).all()
        assert (chosen == want).all()
        masks, index = masks & ~want, index + 1
        if rng.random() < 0.3:
            s = rng.integers(SLOTS)
            masks[s], index[s], credit[s] = rng.random(WIDTH) < 0.8, 0, 0.0


@given(seeds, st.sampled_from(["linear", "cosine", "exponential"]), st.integers(0, 7))
def test_sched(seed, shape, index):
    _, logits, masks, _ = scene(seed)
    step = step_of(logits * 0.8, masks, masks, [index, 0, 7])
    chosen = canvas_of(step, jot.SchED(6.0, 0.5, shape, 3.0, max_change=None)(step)[0])
    first, second = np.sort(logits * 0.8, -1)[..., [-1, -2]].transpose(2, 0, 1)
    for s, i in enumerate((index, 0, 7)):
        t = i / 7
        bar = {"linear": 6 - 5.5 * t, "cosine": 0.5 + 5.5 * (1 + math.cos(math.pi * t)) / 2,
               "exponential": 0.5 + 5.5 * math.exp(-3 * t)}[shape]  # fmt: skip
        fires = masks[s].any() and (first - second)[s, masks[s]].mean() >= bar
        assert (chosen[s] == (masks[s] & fires)).all()


@given(seeds, st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_the_guard_of_sched_over_several_steps_and_samples(seed, most):
    """It fills where so few masks have another leader than before; not at a sample's first step, nor by a void one."""
    rng, logits, masks, _ = scene(seed)
    rule, masks, index = jot.SchED(0.0, 0.0, max_change=most), masks.copy(), np.zeros(SLOTS, dtype=int)
    memory, before = memory_of(rule), np.zeros((SLOTS, WIDTH), dtype=int)
    for _ in range(8):
        moved = rng.random((SLOTS, WIDTH, 1)) < rng.choice([0.0, 0.1, 0.5])
        logits = np.where(moved, rng.normal(size=logits.shape), logits)
        if rng.random() < 0.3:  # taken again: the memory must stay as it was
            rule(step_of(rng.normal(size=logits.shape), masks, masks, index, memory=memory, void=torch.tensor(True)))
        step = step_of(logits, masks, masks, index, memory=memory, void=torch.tensor(False))
        chosen, leader = canvas_of(step, rule(step)[0]), logits.argmax(-1)
        for s in range(SLOTS):
            changed = (leader != before)[s, masks[s]]
            fires = index[s] > 0 and changed.size and changed.mean() <= most
            assert (chosen[s] == (masks[s] & bool(fires))).all()
        before, index = np.where(masks, leader, before), index + 1
        masks &= rng.random(masks.shape) < 0.9
        if rng.random() < 0.3:
            s = rng.integers(SLOTS)
            masks[s], index[s] = rng.random(WIDTH) < 0.8, 0


# ---- edges, and what the rules have in common with others ----------------------------------------------------


@given(families, prompts, st.sampled_from([None, 4]))
def test_the_bounds_of_the_entropy_budget(family, prompt, block):
    shared = dict(length=16, block_length=block, trace=True)
    least = jot.decode(MODELS[family], prompt, jot.EntropyBudget(0.0), **shared)
    assert least.steps == 16 and sorted(least.trace.step) == list(range(16))
    assert jot.decode(MODELS[family], prompt, jot.EntropyBudget(math.inf), **shared).steps == 16 // (block or 16)


@given(families, prompts, st.sampled_from([0.2, 0.5, 0.9]), st.sampled_from([None, "prefix", "dual"]))
def test_what_reduces_to_fast_dllm(families, prompt, threshold, cache):
    """Relaxed nowhere, or with credits that weigh nothing, greedy decoding is the block-wise threshold."""
    shared = dict(length=16, block_length=8, cache=cache, temperature=0.0, trace=True)
    fast = jot.decode(MODELS[families], prompt, jot.FastDLLM(threshold), **shared)
    for rule in (jot.LocalLeap(threshold, threshold), jot.CreditDecoding(threshold, alpha=0.0)):
        same = jot.decode(MODELS[families], prompt, rule, **shared)
        assert (same.tokens, same.forwards) == (fast.tokens, fast.forwards)
        assert same.trace.step.tolist() == fast.trace.step.tolist()


@given(families, prompts, st.sampled_from([(0.9, 0.3, 4), (0.4, 0.1, 2)]))
def test_credits_and_leaps_only_ever_add_to_a_first_step(family, prompt, bars):
    """On the same canvas, what the strict threshold commits leaves under the relaxed one and with credits too."""
    shared = dict(length=16, temperature=0.0, trace=True)

    def first(rule):
        return set(np.flatnonzero(jot.decode(MODELS[family], prompt, rule, **shared).trace.step == 0))

    strict = first(jot.FastDLLM(bars[0]))
    assert strict <= first(jot.LocalLeap(*bars)) and strict <= first(jot.CreditDecoding(bars[0]))


@given(st.sampled_from(["linear", "cosine", "exponential"]), st.integers(1, 40), st.floats(0, 9), st.floats(0, 9))
def test_the_bar_of_sched_falls(shape, steps, one, two):
    low, high = sorted((one, two))
    rule = jot.SchED(high, low, shape)
    nothing = np.zeros((1, 1), dtype=bool)
    bars = []
    for index in range(steps + 2):  # a run may outlast the configured steps
        step = step_of(np.zeros((1, 1, 2)), nothing, nothing, [index], steps=steps)
        bars.append(float(rule.bar(step)))
    assert (np.diff(bars) <= 1e-12).all() and low - 1e-9 <= bars[-1] <= bars[0] <= high + 1e-9
    assert steps == 1 or bars[0] == pytest.approx(high)
    assert shape == "exponential" or bars[steps - 1] == pytest.approx(low)


@given(families, prompts, st.sampled_from(["linear", "cosine", "exponential"]), st.sampled_from([1.0, 3.0, 7.5]))
def test_sched_fires_where_the_margins_of_full_decoding_reach_its_bar(family, prompt, shape, high):
    shared = dict(length=16, block_length=None, trace=True)
    full = jot.decode(MODELS[family], prompt, None, **shared)
    t = np.arange(16) / 15
    bar = {"linear": high - (high - 0.1) * t, "cosine": 0.1 + (high - 0.1) * (1 + np.cos(np.pi * t)) / 2,
           "exponential": 0.1 + (high - 0.1) * np.exp(-4 * t)}[shape]  # fmt: skip
    ahead = np.array(full.trace.mean_margin) - bar
    assert np.abs(ahead).min() > 1e-5  # no decision on its edge
    out = jot.decode(MODELS[family], prompt, jot.SchED(high, 0.1, shape, max_change=None), **shared)
    assert out.steps == (int((ahead >= 0).argmax()) + 1 if (ahead >= 0).any() else 16)
    guarded = jot.decode(MODELS[family], prompt, jot.SchED(high, 0.1, shape), **shared)
    assert max(out.steps, 2) <= guarded.steps and (guarded.steps == 16 or ahead[guarded.steps - 1] >= 0)
    assert MODELS[family].mask_id not in out.tokens


# ---- both loops, batches, refilled slots ---------------------------------------------------------------------


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("rule", [*RULES, jot.CreditDecoding(1.0, alpha=3.0, beta=1.0)], ids=lambda rule: rule.name)
@pytest.mark.parametrize(("cache", "temperature"), [(None, 0.0), (None, 0.7), ("dual", 0.0), ("prefix", 0.0)])
def test_a_slot_forgets_its_former_sample(family, rule, cache, temperature, monkeypatch):
    """In both loops a sample ends as alone, whatever was decoded in its slot or beside it; so does a second run."""
    batch = [[9, 8, 7], [5] * 8, [3, 200, 17, 6, 41], [1, 2], [9, 8, 7, 6]]
    shared = dict(length=16, block_length=8, cache=cache, temperature=temperature, trace=True)
    monkeypatch.setenv("JOT_FAST", "0")
    alone = [jot.decode(MODELS[family], prompt, rule, sample_id=i, **shared) for i, prompt in enumerate(batch)]
    for loop, slots in itertools.product("01", (1, 2, 5)):
        monkeypatch.setenv("JOT_FAST", loop)
        outs = dict(jot.decode_stream(MODELS[family], list(enumerate(batch)), rule, slots=slots, **shared))
        for i, want in enumerate(alone):
            assert (outs[i].tokens, outs[i].forwards) == (want.tokens, want.forwards), (loop, slots, i)
            assert outs[i].trace.step.tolist() == want.trace.step.tolist()
            assert outs[i].loop == ("fast" if loop == "1" else "plain")
            assert MODELS[family].mask_id not in outs[i].tokens and outs[i].trace.rule.min() > 0


@given(seeds, st.sampled_from([jot.EntropyBudget(1.0), jot.LocalLeap(0.6, 0.3), jot.CreditDecoding(0.6)]))
def test_rows_that_are_not_there_change_nothing(seed, rule):
    """The loop of fixed shapes leaves places over, which all stand at the first column of its first canvas."""
    rng, logits, masks, block = scene(seed)
    masks[0, 3:5] = True
    one, two = (step_of(logits, masks, block, [0] * SLOTS, memory=memory_of(rule)) for _ in "12")
    want, step, left = rule(one)[0], two, int(rng.integers(1, 40))
    step.logits = torch.cat((step.logits, torch.eye(VOCABULARY)[:1].repeat(left, 1).double() * 20))
    for name in ("slot", "position", "in_block"):
        rows = getattr(step, name)
        setattr(step, name, torch.cat((rows, rows.new_zeros(left))))
    assert rule(step)[0].tolist() == want.tolist() + [False] * left


@given(families, prompts, st.sampled_from(RULES[1:3]), st.sampled_from([None, "dual"]))
def test_greedy_rules_draw_nothing(family, prompt, rule, cache):
    """LocalLeap and CreditDecoding commit their likeliest token at every temperature, also where a block opens."""
    shared = dict(length=16, block_length=4, cache=cache, ranking="confidence")
    cold, hot = (jot.decode(MODELS[family], prompt, rule, temperature=t, **shared) for t in (0.0, 1.0))
    assert hot.tokens == cold.tokens


def test_credits_change_what_is_committed():
    """A token that has led for three steps is committed at the fourth, where another has the larger logit."""
    rule, logits, seen = jot.CreditDecoding(alpha=3.0), np.zeros((1, 2, 3)), []
    mask, memory = np.array([[False, True]]), memory_of(rule)
    for index, leader in enumerate([0, 0, 0, 1]):
        logits[0, 1] = np.eye(3)[leader] * 0.2
        step = step_of(logits, mask, mask, [index], memory=memory)
        rule(step)
        seen.append(int(step.top.index[0]))
    assert seen == [0, 0, 0, 0]


def test_their_defaults():
    """Greedy blocks of 32 where the publication decodes so, the family's way elsewhere."""
    for family, model in MODELS.items():
        for name, greedy in (("localleap", True), ("credit", True), ("eb", False), ("sched", False)):
            config = settings.build_decode(model, {"length": 64}, method=name)
            usual = settings.build_decode(model, {"length": 64}, method="full")
            assert config.cache is None and config.schedule == usual.schedule
            if greedy:
                assert (config.temperature, config.block_length, config.ranking) == (0.0, 32, "confidence")
            else:
                assert config == usual
            assert settings.build_method(name, family, {}).name == name
    assert settings.parse("eb", {"gamma": "inf"}) == {"gamma": math.inf}
    assert settings.build_method("sched", "dream", {"shape": "linear"}) == jot.SchED(shape="linear")
