"""The block-wise caches: exact plumbing, batches of unequal prompts, every rule under every cache."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import jot
from jot.sampler.cache import KVCache, View
from jot.sampler.kernels import divergence
from tests.stopping import check_stop

CHECKPOINTS = Path(__file__).parent / "golden" / "checkpoints"
MODELS = {name: jot.load(CHECKPOINTS / f"tiny-{name}", device="cpu") for name in ("llada", "dream")}
RULES = [
    jot.FullDecoding(), jot.JoT(tau_max=3.0), jot.JoT(tau_max=3.0, combine="after_exit"),
    jot.JoT(tau_max=3.0, block_start=True), jot.Prophet(4.0, 3.0, 2.0), jot.Prophet(4.0, 3.0, 2.0, region="generated"),
    jot.Prophet(4.0, 3.0, 2.0, region="answer", answer_start=3), jot.KLASS(0.6, 0.1), jot.FastDLLM(0.8),
    jot.KLASS(0.6, 0.1, inclusive=False, first_kl="skip"), jot.FastDLLM(threshold=None, factor=1.0),
    jot.FastDLLM(gate="raw"), jot.JoT(tau_max=2.0, block_start=True, max_commits=2),
    jot.EntropyBudget(2.0), jot.LocalLeap(0.5, 0.2, 2), jot.CreditDecoding(0.5), jot.SchED(6.0, 1.0),
    jot.SchED(6.0, 1.0, "exponential", region="generated"), jot.SchED(6.0, 1.0, max_change=None),
]  # fmt: skip
families = st.sampled_from(sorted(MODELS))


def clean(family, rule):
    """Settings under which a rule may leave no mask: KLASS on Dream falls back to one token a step."""
    return {"schedule": "single"} if isinstance(rule, jot.KLASS) and family == "dream" else {}


@settings(max_examples=25, deadline=None)
@given(families, st.integers(0, 2**31), st.integers(3, 12), st.integers(8, 20), st.data())
def test_an_unchanged_canvas_gives_the_full_forward_again(family, seed, prompt, length, data):
    """Right after the full forward, a partial one returns its rows; two slots with different prompts and blocks."""
    net, generator = MODELS[family], torch.Generator().manual_seed(seed)
    prompts = [prompt, data.draw(st.integers(1, 12))]
    width = max(prompts) + length
    canvas = torch.randint(0, 299, (2, width), generator=generator)
    inside = torch.arange(width) < torch.tensor(prompts)[:, None] + length
    cache, pick = KVCache(3, width), torch.tensor([2, 0])
    whole = net.hidden(canvas, inside, View(cache, pick, width))
    starts = [p + data.draw(st.integers(0, length - 2)) for p in prompts]
    stops = [min(s + data.draw(st.integers(1, 8)), p + length) for s, p in zip(starts, prompts, strict=True)]
    size = max(stop - start for start, stop in zip(starts, stops, strict=True))
    positions = torch.tensor(starts)[:, None] + torch.arange(size)
    positions = torch.where(positions < torch.tensor(stops)[:, None], positions, width)
    before = [layer.clone() for layer in cache.keys]
    part = net.hidden(canvas.gather(1, positions.clamp(max=width - 1)), inside, View(cache, pick, width, positions))
    for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        torch.testing.assert_close(part[row, : stop - start], whole[row, start:stop], rtol=1e-4, atol=1e-5)
    for now, then in zip(cache.keys, before, strict=True):
        torch.testing.assert_close(now[:, :, :width], then[:, :, :width], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("cache", [None, "prefix", "dual"])
@pytest.mark.parametrize("rule", RULES, ids=[f"{i}-{rule.name}" for i, rule in enumerate(RULES)])
def test_every_rule_under_every_cache(family, cache, rule):
    """No mask is left, the prompt stays, forwards are counted by kind, and a batch gives each sample its solo run."""
    net = MODELS[family]
    batch = [[9, 8, 7], [5] * 8, [3, 200, 17, 6, 41]]
    shared = dict(length=16, block_length=8, cache=cache, temperature=0.0, trace=True, **clean(family, rule))
    solo = [jot.decode(net, prompt, rule, sample_id=i, **shared) for i, prompt in enumerate(batch)]
    for slots in (2, 3):
        outs = dict(jot.decode_stream(net, list(enumerate(batch)), rule, slots=slots, **shared))
        for i, (prompt, alone) in enumerate(zip(batch, solo, strict=True)):
            assert outs[i].tokens == alone.tokens and outs[i].forwards == alone.forwards
            assert alone.tokens[: len(prompt)] == prompt and net.mask_id not in alone.tokens
            assert alone.steps == sum(alone.forwards.values()) <= 16
            kind = {None: "full", "prefix": "suffix", "dual": "block"}[cache]
            assert all(n == 0 for k, n in alone.forwards.items() if k not in ("full", kind))
            if cache:
                assert alone.forwards["full"] <= 2


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("cache", [None, "prefix", "dual"])
@pytest.mark.parametrize("rule", RULES, ids=[f"{i}-{rule.name}" for i, rule in enumerate(RULES)])
def test_every_rule_ends_at_the_end_of_text(family, cache, rule, monkeypatch):
    """In both loops and in batches whose slots free up early, the text up to its end is that of the whole run."""
    net, batch = MODELS[family], list(enumerate([[9, 8, 7], [5] * 8, [3, 200, 17, 6, 41], [1, 2]]))
    shared = dict(length=24, block_length=8, cache=cache, temperature=0.0, trace=True, **clean(family, rule))
    monkeypatch.setenv("JOT_FAST", "0")
    full = dict(jot.decode_stream(net, batch, rule, slots=4, **shared))
    monkeypatch.setattr(net.config, "eos_token_id", full[0].generated[9])
    saved = 0
    for loop, slots in itertools.product("01", (1, 3)):
        monkeypatch.setenv("JOT_FAST", loop)
        short = dict(jot.decode_stream(net, batch, rule, slots=slots, stop_at_eos=True, **shared))
        for key, out in full.items():
            check_stop(out, short[key], net.mask_id, net.eos_id)
            saved += out.steps - short[key].steps
    assert saved > 0 or rule.name in ("prophet", "sched")


@pytest.mark.parametrize(("family", "cache"), list(itertools.product(MODELS, [None, "prefix", "dual"])))
@pytest.mark.parametrize("rule", [jot.FullDecoding(), jot.JoT(tau_max=1e9), jot.FastDLLM(2.0)], ids=lambda r: r.name)
@pytest.mark.parametrize("steps", [2, 4, 16])
@pytest.mark.parametrize("schedule", ["llada", "precomputed"])
def test_no_mask_is_left_with_few_steps(family, cache, rule, steps, schedule):
    """The forward that opens a block on Dream commits one token, whatever the schedule had planned."""
    shared = dict(length=16, block_length=8, cache=cache, temperature=0.0, steps=steps, schedule=schedule)
    out = jot.decode(MODELS[family], [1, 2, 3], rule, **shared)
    assert MODELS[family].mask_id not in out.tokens
    fixed = jot.decode(MODELS[family], [1, 2, 3], rule, constraints={0: 50, 8: 51}, **shared)
    assert MODELS[family].mask_id not in fixed.tokens and fixed.generated[0] == 50 and fixed.generated[8] == 51


def test_june_2025_runs_one_forward_within_every_block():
    shared = dict(length=8, block_length=8, cache="dual", temperature=0.0, extra_in_block=True)
    for steps in (1, 8):
        out = jot.decode(MODELS["llada"], [1, 2, 3], jot.FastDLLM(0.0), steps=steps, **shared)
        assert out.forwards == {"full": 1, "suffix": 0, "block": 1}


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_dream_never_reads_the_row_left_of_its_block(cache, monkeypatch):
    """The first row of a shifted slice predicts nothing: no asked row may stand at or before the slice's first."""
    monkeypatch.setenv("JOT_FAST", "0")  # in the loop of graphs idle rows stand at 0
    net, seen = MODELS["dream"], []
    plain = type(net).predict

    def predict(self, canvas, key_mask, slot, position, head_dtype, view, hidden):
        if view.positions is not None:
            seen.append(int((position - view.positions[slot, 0]).min()))
        return plain(self, canvas, key_mask, slot, position, head_dtype, view, hidden)

    monkeypatch.setattr(type(net), "predict", predict)
    jot.decode(net, [[1, 2, 3], [4] * 7], jot.JoT(tau_max=5.0), length=16, block_length=4, cache=cache, temperature=0.0)
    assert seen and min(seen) >= 1


@pytest.mark.parametrize(("family", "cache"), list(itertools.product(MODELS, ["prefix", "dual"])))
def test_bounds_of_fastdllm(family, cache):
    """A bar above 1 commits one token a forward; a bar of 0 takes one forward a block, or two on Dream."""
    shared = dict(length=16, block_length=8, cache=cache, temperature=0.0)
    assert jot.decode(MODELS[family], [1, 2, 3], jot.FastDLLM(1.5), **shared).steps == 16
    least = jot.decode(MODELS[family], [1, 2, 3], jot.FastDLLM(0.0), **shared)
    assert least.steps == (2 if family == "llada" else 4) and least.forwards["full"] == 2


@pytest.mark.parametrize("family", MODELS)
def test_full_decoding_and_infinite_threshold_agree_under_a_cache(family):
    for cache, temperature in itertools.product(("prefix", "dual"), (0.0, 0.5)):
        shared = dict(length=16, block_length=8, cache=cache, temperature=temperature)
        full = jot.decode(MODELS[family], [7, 7, 2], None, **shared)
        assert jot.decode(MODELS[family], [7, 7, 2], jot.JoT(tau_max=float("inf")), **shared).tokens == full.tokens


def test_klass_divergence_is_the_float64_one():
    generator = torch.Generator().manual_seed(0)
    now, before = (torch.randn(40, 500, generator=generator) * 4 for _ in range(2))
    p, q = now.double().softmax(-1), before.double().softmax(-1)
    exact = (p * ((p + 1e-12).log() - (q + 1e-12).log())).sum(-1)
    at = torch.arange(40)
    torch.testing.assert_close(divergence(now, before, at)[0], exact)
    torch.testing.assert_close(divergence(now, before.flip(0), at.flip(0))[0], exact)
    nothing, _ = divergence(now, before, at.fill_(-1))
    assert 20 < nothing.min() and nothing.max() < 28  # compared with nothing, as the reference starts


def test_klass_needs_three_forwards_before_anything_is_ready():
    """With a history of two and the official first divergence, nothing can be stable earlier."""
    shared = dict(length=16, schedule="single", temperature=0.0, trace=True)
    out = jot.decode(MODELS["dream"], [1, 2, 3], jot.KLASS(0.0, 20.0), **shared)
    assert min(out.trace.step[out.trace.rule & 2 > 0]) == 2
    assert jot.decode(MODELS["dream"], [1, 2, 3], jot.KLASS(0.0, 20.0, first_kl="skip"), **shared).steps == 1


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (dict(cache="dual", guidance=1.0), "guidance"), (dict(cache="both"), "cache"),
        (dict(constraints={99: 1}), "constraints"), (dict(constraints={0: 99999}), "constraints"),
        (dict(constraints={0: 310}), "constraints"), (dict(constraints=((3, 7), (3, 9))), "more than once"),
        (dict(constraints={i: 1 for i in range(16)}), "whole canvas"),
        (dict(suppress_tokens=(-1,)), "suppress_tokens"), (dict(schedule="single", steps=8), "single"),
        (dict(stop_at_eos="no"), "true or false"), (dict(stop_at_eos=True, stop_early=False), "give one"),
        (dict(stop_at_eos=True, constraints={0: 5, 1: 300}), "end the text at offset 1"),
    ],
)  # fmt: skip
def test_refusals(kwargs, words):
    with pytest.raises(jot.UserError, match=words):
        jot.decode(MODELS["llada"], [1, 2], length=16, **kwargs)


@pytest.mark.parametrize(
    ("rule", "kwargs", "words"),
    [
        (jot.Prophet, dict(region="suffix"), "region"), (jot.Prophet, dict(early=-1), "early"),
        (jot.KLASS, dict(history=0), "history"), (jot.KLASS, dict(conf_threshold=2), "conf_threshold"),
        (jot.KLASS, dict(first_kl="no"), "first_kl"), (jot.FastDLLM, dict(threshold=None), "threshold"),
        (jot.FastDLLM, dict(gate="sharp"), "gate"), (jot.FastDLLM, dict(threshold="x"), "must be a number"),
        (jot.EntropyBudget, dict(gamma=-1), "gamma"), (jot.EntropyBudget, dict(gamma=float("nan")), "must be a number"),
        (jot.LocalLeap, dict(relaxed=0.95), "must not exceed"), (jot.LocalLeap, dict(radius=-1), "radius"),
        (jot.LocalLeap, dict(threshold=2), "at most 1"), (jot.LocalLeap, dict(relaxed=-0.1), "at least 0"),
        (jot.CreditDecoding, dict(threshold=1.01), "at most 1"),
        (jot.LocalLeap, dict(threshold=None), "must be a number"), (jot.CreditDecoding, dict(beta=1.5), "at most 1"),
        (jot.CreditDecoding, dict(alpha=-0.1), "alpha"), (jot.CreditDecoding, dict(gamma="x"), "must be a number"),
        (jot.SchED, dict(low=9.0), "must not exceed"), (jot.SchED, dict(shape="step"), "shape"),
        (jot.SchED, dict(high=float("inf")), "high"), (jot.SchED, dict(region="suffix"), "sched: region"),
        (jot.SchED, dict(rate=-1), "rate"), (jot.SchED, dict(max_change=1.5), "max_change"),
        (jot.SchED, dict(answer_start=-1), "whole number"),
    ],
)  # fmt: skip
def test_bad_rules(rule, kwargs, words):
    with pytest.raises(jot.UserError, match=words):
        rule(**kwargs)
