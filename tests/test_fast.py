"""The loop with fixed shapes (``JOT_FAST=1``, here without graphs) against the plain one; kernels where they run."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, reject
from hypothesis import settings as hyp_settings
from hypothesis import strategies as st

import jot
from jot.fast import fixed, shortlist
from jot.fast import loop as fast
from jot.models import home
from jot.sampler import kernels
from jot.sampler.config import check_rule
from jot.tasks import read_jsonl
from jot.tasks.text import encode, render
from tests import tiny
from tests.stopping import check_stop

GREEDY = {"temperature": 0.0, "ranking": "confidence"}
DUAL = {"cache": "dual", "block_length": 8}
KLASS_LLADA = jot.KLASS(conf_threshold=0.7, kl_threshold=0.01, inclusive=False)
FILLED = tuple((i, 7) for i in (*range(8), *range(16, 24)))  # the first and the last block
ENDS = {"stop_at_eos": True, "constraints": ((13, 2040), (19, 2040))}  # what else ends these texts is a token in 2048
PUBLIC = {"block_length": 8, "schedule": "precomputed", "keep_steps": True}
CASES = [
    ("llada", jot.JoT(tau_max=30), 3, {"block_length": 8}),
    ("llada", jot.JoT(tau_max=10, combine="after_exit"), 4, {"block_length": 12}),
    ("llada", jot.JoT(tau_max=30, spatial=False), 1, {"block_length": 8, "temperature": 1.0}),
    ("llada", jot.JoT(tau_max=30), 2, {"block_length": 8, "ranking": "margin"}),
    ("llada", jot.JoT(tau_max=30), 2, {"block_length": 8, "ranking": "random"}),
    ("llada", jot.FullDecoding(), 2, {"block_length": 8, "steps": 12}),
    ("llada", jot.FullDecoding(), 2, {"block_length": 12, "ragged": True}),
    ("llada", jot.Prophet(early=1.5, mid=1.0, late=0.5), 2, {"block_length": 8}),
    ("llada", jot.FastDLLM(), 2, {"block_length": 8, "suppress_tokens": (2040,)}),
    ("llada", jot.FastDLLM(gate="raw", threshold=0.5), 3, {"block_length": 8, "temperature": 0.5}),
    ("llada", KLASS_LLADA, 3, {"block_length": 8}),
    ("llada", jot.JoT(tau_max=30), 3, DUAL),
    ("llada", jot.FastDLLM(factor=1.0, threshold=None), 2, DUAL),
    ("llada", KLASS_LLADA, 1, DUAL),
    ("llada", KLASS_LLADA, 3, DUAL),
    ("dream", jot.KLASS(conf_threshold=0.5, kl_threshold=0.5), 3, {**DUAL, **GREEDY}),
    ("llada", jot.JoT(tau_max=30), 3, {"cache": "prefix", "block_length": 8}),
    ("llada", jot.FullDecoding(), 2, {"cache": "prefix", "block_length": 8, "steps": 12}),
    ("llada", jot.JoT(tau_max=30), 2, {"block_length": 8, "guidance": 0.7}),
    ("llada", jot.JoT(tau_max=30), 2, {"block_length": 8, "constraints": tuple((i, 7 + i) for i in (*range(8), 11))}),
    ("llada", jot.JoT(tau_max=30), 2, {"block_length": 8, "stop_early": False}),
    ("llada", jot.JoT(tau_max=30), 2, {"block_length": 8, "head_dtype": "float64"}),
    ("llada", jot.Prophet(early=1.5, mid=1.0, late=0.5, region="generated"), 2, {"block_length": 8}),
    ("llada", jot.Prophet(early=1.5, mid=1.0, late=0.5, region="answer", answer_start=18), 2, {"block_length": 8}),
    ("llada", jot.FastDLLM(), 2, {**DUAL, "extra_in_block": True}),
    ("llada", jot.FastDLLM(), 2, {"block_length": 8, "stop_early": False}),
    ("llada", jot.Prophet(early=1.5, mid=1.0, late=0.5, region="generated"), 2, DUAL),
    ("llada", jot.JoT(tau_max=30, canvas=True), 3, {"block_length": 8, "keep_steps": True}),
    ("llada", jot.JoT(tau_max=30, canvas=True), 2, {"block_length": 8, "schedule": "precomputed", "steps": 12}),
    ("llada", jot.JoT(tau_max=30, canvas=True, sample=True), 3, {**PUBLIC, "temperature": 0.5}),
    ("llada", jot.JoT(tau_max=10, canvas=True, combine="after_exit"), 2, {**PUBLIC, "guidance": 0.7}),
    ("llada", jot.JoT(tau_max=30, canvas=True), 2, {**PUBLIC, "block_length": 10, "ragged": True, "steps": 48}),
    ("llada", jot.JoT(tau_max=30, canvas=True), 2, {**PUBLIC, "constraints": FILLED}),
    ("llada", jot.JoT(tau_max=30), 2, {"block_length": 8, "keep_steps": True, "steps": 48, "constraints": FILLED[:4]}),
    ("dream", jot.JoT(tau_max=90, canvas=True), 3, {"block_length": 8, "keep_steps": True}),
    ("llada", jot.JoT(tau_max=2, max_commits=2), 3, {"block_length": 8}),
    ("llada", jot.JoT(tau_max=2, max_commits=1), 2, {"block_length": 8, "steps": 6}),
    ("llada", jot.JoT(tau_max=2, canvas=True, max_commits=3), 3, PUBLIC),
    ("llada", jot.JoT(tau_max=2, max_commits=2, combine="after_exit"), 3, {**DUAL, "steps": 6}),
    ("dream", jot.JoT(tau_max=2, max_commits=2), 3, {}),
    ("dream", jot.JoT(tau_max=2, max_commits=2, block_start=True), 2, {**DUAL, **GREEDY}),
    ("dream", jot.JoT(tau_max=2, max_commits=1), 2, {"schedule": "dream", "steps": 6}),
    ("llada", jot.JoT(tau_max=30), 2, {"block_length": 8, **ENDS}),
    ("llada", jot.JoT(tau_max=30, canvas=True), 3, {**PUBLIC, **ENDS}),
    ("llada", jot.FastDLLM(), 2, {**DUAL, **ENDS, "extra_in_block": True}),
    ("llada", jot.Prophet(early=1.5, mid=1.0, late=0.5, region="generated"), 2, {"block_length": 8, **ENDS}),
    ("llada", KLASS_LLADA, 3, {"block_length": 8, **ENDS}),
    ("dream", jot.JoT(tau_max=90), 3, ENDS),
    ("dream", jot.FullDecoding(), 2, {**DUAL, **ENDS}),
    ("dream", jot.FullDecoding(), 2, {**DUAL, "stop_early": False}),
    ("dream", jot.FullDecoding(), 2, {**DUAL, "schedule": "dream", "steps": 6}),
    ("dream", jot.JoT(tau_max=90), 3, {}),
    ("dream", jot.JoT(tau_max=30), 3, {"cache": "prefix", "block_length": 8, **GREEDY}),
    ("dream", jot.JoT(tau_max=30), 2, {"schedule": "dream"}),
    ("dream", jot.KLASS(conf_threshold=0.5, kl_threshold=0.5), 2, {"schedule": "single", "head_dtype": "float64"}),
    ("dream", jot.JoT(tau_max=90, sample=True), 2, {"temperature": 1.0, "top_p": 0.9, "ranking": "margin"}),
    ("dream", jot.JoT(tau_max=30), 2, {"temperature": 0.7, "top_k": 5}),
    ("dream", jot.FullDecoding(), 2, {"steps": 16}),
    ("dream", jot.KLASS(first_kl="skip"), 3, {"schedule": "single", "ranking": "confidence"}),
    ("dream", jot.Prophet(early=1.5, mid=1.0, late=0.5), 3, {}),
    ("dream", jot.FastDLLM(), 2, {"block_length": 8, **GREEDY}),
    ("dream", jot.JoT(tau_max=30), 3, {**DUAL, **GREEDY}),
    ("dream", jot.JoT(tau_max=30, block_start=True), 2, {**DUAL, **GREEDY}),
    ("dream", jot.FullDecoding(), 2, DUAL),
    ("dream", jot.FullDecoding(), 2, {"block_length": 8, "stop_early": False, "constraints": FILLED}),
    ("dream", jot.JoT(), 2, {**DUAL, "schedule": "llada", "steps": 12, "constraints": ((8, 7),)}),
    ("llada", jot.EntropyBudget(2.0), 3, {"block_length": 8}),
    ("llada", jot.EntropyBudget(2.0), 2, {**DUAL, "temperature": 0.5}),
    ("dream", jot.EntropyBudget(), 3, {}),
    ("dream", jot.EntropyBudget(2.0), 2, {**DUAL, **GREEDY, **ENDS}),
    ("llada", jot.LocalLeap(0.5, 0.2), 3, {"block_length": 8, "keep_steps": True}),
    ("dream", jot.LocalLeap(0.5, 0.2, 2), 3, {"cache": "prefix", "block_length": 8, **GREEDY}),
    ("dream", jot.LocalLeap(), 1, {"temperature": 1.0}),
    ("llada", jot.CreditDecoding(0.4), 3, {"block_length": 8}),
    ("llada", jot.CreditDecoding(0.4), 2, {"cache": "prefix", "block_length": 8, **ENDS}),
    ("llada", jot.CreditDecoding(0.4), 2, {"block_length": 8, "stop_early": False, "head_dtype": "float64"}),
    ("dream", jot.CreditDecoding(0.4), 3, {"temperature": 1.0, "top_p": 0.9}),
    ("dream", jot.CreditDecoding(0.4, alpha=2.0), 2, {**DUAL, **GREEDY, "extra_in_block": True}),
    ("llada", jot.SchED(2.0, 0.5), 2, {"block_length": 8}),
    ("llada", jot.SchED(2.0, 0.5, "linear", region="generated"), 2, DUAL),
    ("dream", jot.SchED(2.0, 0.5, "exponential"), 3, ENDS),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return {family: jot.load(tiny.build(folder / family, family), device="cpu") for family in ("llada", "dream")}


def prompts(count: int = 5) -> list[tuple[str, list[int]]]:
    generator = torch.Generator().manual_seed(1)
    return [(f"p{i}", torch.randint(0, 2000, (3 + 5 * i,), generator=generator).tolist()) for i in range(count)]


def both(monkeypatch, model, method, slots, parameters, samples):
    results = []
    for mode in ("0", "1"):
        monkeypatch.setenv("JOT_FAST", mode)
        results.append(dict(jot.decode_stream(model, samples, method, slots=slots, trace=True, **parameters)))
    return results


@pytest.mark.parametrize(
    ("family", "method", "slots", "parameters"), CASES, ids=[f"{i}-{c[0]}-{c[1].name}" for i, c in enumerate(CASES)]
)
def test_equals_the_plain_loop(models, monkeypatch, family, method, slots, parameters):
    model, parameters = models[family], {"length": 24, **parameters}
    config = jot.DecodeConfig.of(parameters).resolve(model)
    monkeypatch.setenv("JOT_FAST", "1")
    assert fast.refusal(model, config, method, slots, None) is None
    plain, quick = both(monkeypatch, model, method, slots, parameters, prompts())
    for key, out in plain.items():
        assert quick[key].tokens == out.tokens, key
        assert quick[key].forwards == out.forwards, key
        assert (out.loop, quick[key].loop) == ("plain", "fast")
        one, two = out.trace, quick[key].trace
        assert (one.step.tolist(), one.rule.tolist(), one.masked) == (two.step.tolist(), two.rule.tolist(), two.masked)
        for name in ("margin", "threshold", "mean_margin"):
            np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-4, atol=1e-4, err_msg=name)


some = st.sampled_from


@st.composite
def runs(draw):
    """A family, a rule, slots and settings, as they come."""
    family, length, block = draw(some(["llada", "dream"])), draw(some([4, 6, 12])), draw(some([None, 1, 2, 3, 4]))
    blocks = -(-length // (block or length))
    settings = {"length": length, "block_length": block, "ragged": length % (block or length) > 0}
    settings |= draw(st.fixed_dictionaries({}, optional={
        "steps": st.integers(1, 2 * length // blocks).map(blocks.__mul__), "cache": some(["dual", "prefix"]),
        "temperature": some([0.0, 0.7]), "schedule": some(["llada", "precomputed", "dream", "single"]),
        "ranking": some(["confidence", "margin", "entropy", "random"]),
        **draw(some([{}, {}, {"stop_early": some([False])}, {"keep_steps": some([True])}])),
        "extra_in_block": some([True]), "constraints": st.sets(st.integers(0, length - 1), max_size=length - 1).map(
            lambda offsets: tuple((offset, 7 + offset) for offset in sorted(offsets))),
    }))  # fmt: skip
    rule = draw(some([
        jot.FullDecoding(), jot.JoT(tau_max=10), jot.JoT(combine="after_exit", block_start=True), jot.FastDLLM(0.3),
        jot.Prophet(early=1.5, mid=1.0, late=0.5), jot.KLASS(conf_threshold=0.3, kl_threshold=5.0),
        jot.KLASS(conf_threshold=0.3, kl_threshold=0.5, history=1, inclusive=False, first_kl="skip"),
        jot.JoT(tau_max=5, canvas=True), jot.JoT(tau_max=2, max_commits=2, block_start=True),
        jot.JoT(tau_max=2, max_commits=1, canvas=True), jot.EntropyBudget(2.0), jot.LocalLeap(0.3, 0.1, 2),
        jot.CreditDecoding(0.3, alpha=2.0), jot.SchED(1.5, 0.5, "linear"),
    ]))  # fmt: skip
    return family, rule, draw(st.integers(1, 3)), settings


@given(runs())
@hyp_settings(max_examples=int(os.environ.get("JOT_EXAMPLES", "120")), deadline=None)
def test_any_run_ends_alike_in_both_loops(models, run):
    """Both end, both do the same, and where the rule is not KLASS no mask is left."""
    family, rule, slots, settings = run
    model, samples, results = models[family], prompts(3), []
    try:
        config = jot.DecodeConfig.of(settings).resolve(model)
        check_rule(config, rule)
    except jot.UserError:
        reject()
    for mode in ("0", "1"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JOT_FAST", mode)
            results.append(dict(jot.decode_stream(model, samples, rule, slots=slots, trace=True, **settings)))
    plain, quick = results
    taken = fast.refusal(model, config, rule, slots, None)
    for key, out in plain.items():
        other = quick[key]
        assert (other.tokens, other.forwards, other.trace.masked) == (out.tokens, out.forwards, out.trace.masked), taken
        assert rule.name == "klass" or model.mask_id not in out.tokens
        assert np.unique(out.trace.step[out.trace.rule > 0], return_counts=True)[1].max() <= (rule.max_commits or 99)
        assert out.steps <= 4 * (config.steps + config.length)


@given(runs(), st.integers(0, 11))
@hyp_settings(max_examples=int(os.environ.get("JOT_EXAMPLES", "120")) // 3, deadline=None)
def test_a_text_that_has_ended_stops_any_run(models, run, at):
    """Any token of a run may be the end of text: up to it nothing changes, and no step comes after it."""
    family, rule, _, settings = run
    model, samples = models[family], prompts(3)
    settings = {key: value for key, value in settings.items() if key != "stop_early"}
    for mode in ("0", "1"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JOT_FAST", mode)
            try:
                full = dict(jot.decode_stream(model, samples, rule, trace=True, **settings))
                eos = full["p1"].generated[at % settings["length"]]
                patch.setattr(model.config, "eos_token_id", eos if eos != model.mask_id else 2040)
                short = dict(jot.decode_stream(model, samples, rule, trace=True, stop_at_eos=True, **settings))
            except jot.UserError:
                reject()
            for key, out in full.items():
                check_stop(out, short[key], model.mask_id, model.eos_id)


@pytest.mark.parametrize(
    "rule", [jot.JoT(tau_max=90), jot.KLASS(first_kl="skip"), jot.CreditDecoding(0.5)], ids=lambda rule: rule.name
)
def test_a_nucleus_beyond_the_shortlist_takes_the_step_again(models, monkeypatch, rule):
    """With three tokens at hand most steps have to look at whole rows, and nothing else changes."""
    monkeypatch.setattr(shortlist, "SMALL", 3)
    model = models["dream"]
    parameters = {"length": 16, "temperature": 1.0, "top_p": 0.95}
    parameters |= {"schedule": "single", "ranking": "confidence"} if rule.name == "klass" else {}
    plain, quick = both(monkeypatch, model, rule, 2, parameters, prompts(3))
    assert {k: out.tokens for k, out in quick.items()} == {k: out.tokens for k, out in plain.items()}
    loop = next(loop for key, loop in model.__dict__["_fast_loops"].items() if key[1] == rule and loop.slow)
    assert loop.slow > 0


@pytest.mark.parametrize("case", [c for c in CASES if c[2] > 1 and "cache" not in c[3]][::2], ids=str)
def test_a_batch_that_goes_in_two_changes_nothing(models, monkeypatch, case):
    family, method, slots, parameters = case
    monkeypatch.setattr(fast, "SPARED", -1)
    seen, shape = set(), fast.FastLoop.shape
    monkeypatch.setattr(fast.FastLoop, "shape", lambda self, g, *a, **k: seen.add(len(g)) or shape(self, g, *a, **k))
    plain, quick = both(monkeypatch, models[family], method, slots, {"length": 24, **parameters}, prompts())
    assert {k: (o.tokens, o.forwards) for k, o in quick.items()} == {
        k: (o.tokens, o.forwards) for k, o in plain.items()
    }
    assert max(seen) < slots


def test_a_step_goes_ahead_where_the_end_is_far(models, monkeypatch):
    """Forwards beyond the steps are those that went ahead of a sample's last step: few, and without effect."""
    monkeypatch.setenv("JOT_FAST", "1")
    sent, send, ahead, step = [], fast.FastLoop.send, [], fast.FastLoop.step
    monkeypatch.setattr(fast.FastLoop, "send", lambda self, *a, **k: sent.append(1) or send(self, *a, **k))
    monkeypatch.setattr(fast.FastLoop, "step", lambda self, *a: (step(self, *a), ahead.append(len(self.flight)))[0])
    for family, method, parameters in (("llada", jot.JoT(tau_max=30), {"block_length": 8}), ("dream", jot.JoT(), {})):
        sent.clear(), ahead.clear()
        out = jot.decode(models[family], [5, 6, 7], method, length=32, temperature=0.0, **parameters)
        assert sum(ahead) > 0, family
        assert out.steps <= len(sent) <= out.steps + 1, family
    for method in (jot.Prophet(1.5, 1.0, 0.5), jot.SchED(2.0, 0.5)):  # any step of theirs may be the last
        sent.clear()
        assert jot.decode(models["dream"], [5, 6, 7], method, length=32).steps == len(sent) < 32, method.name


@pytest.mark.parametrize("rule", [jot.KLASS(), jot.CreditDecoding(), jot.SchED()], ids=lambda rule: rule.name)
def test_what_a_rule_remembers_is_part_of_the_state(models, rule):
    """What a capture has run is undone from it, and it counts as memory that is kept."""
    config = jot.DecodeConfig(length=16, block_length=8).resolve(models["llada"])
    step = fixed.FixedStep(models["llada"], config, rule, 2, 32, False)
    held = {id(tensor) for tensor in vars(step.memory).values() if isinstance(tensor, torch.Tensor)}
    assert held and held <= {id(tensor) for tensor in step.state}


def test_rows_that_are_not_there_have_no_divergence():
    empty = kernels.divergence(torch.zeros(0, 9), torch.zeros(0, 9), torch.zeros(0, dtype=torch.long))
    assert [part.shape for part in empty] == [(0,), (0,)]


def test_two_runs_of_a_kind_at_once_do_not_share_state(models, monkeypatch):
    monkeypatch.setenv("JOT_FAST", "1")
    model, samples = models["llada"], prompts(4)
    alone = {k: out.tokens for k, out in jot.decode_stream(model, samples, jot.JoT(), slots=2, length=16)}
    one = jot.decode_stream(model, samples, jot.JoT(), slots=2, length=16)
    two = jot.decode_stream(model, samples, jot.JoT(), slots=2, length=16)
    mixed = [dict(), dict()]
    for a, b in zip(one, two, strict=True):
        mixed[0][a[0]], mixed[1][b[0]] = a[1].tokens, b[1].tokens
    assert mixed == [alone, alone]


REFUSED = [
    ({"alg_temp": 0.5}, jot.JoT(), 1, "weighted"),
    ({"begin_suppress_tokens": (7,)}, jot.JoT(), 1, "demoted"),
    ({"cache": "dual", "block_length": 12, "ragged": True}, jot.JoT(), 1, "unequal"),
    ({"stop_early": False}, jot.Prophet(), 1, "Prophet"),
    ({"stop_early": False}, jot.SchED(), 1, "SchED"),
]


@pytest.mark.parametrize(("parameters", "method", "slots", "word"), REFUSED, ids=[case[3] for case in REFUSED])
def test_what_it_cannot_do_goes_to_the_plain_loop_with_one_line(
    models, monkeypatch, caplog, parameters, method, slots, word
):
    monkeypatch.setenv("JOT_FAST", "1")
    with caplog.at_level("INFO", logger="jot"):
        list(jot.decode_stream(models["llada"], prompts(2), method, slots=slots, length=16, **parameters))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and word in said[0]


def test_unasked_it_stays_silent(models, monkeypatch, caplog):
    for mode in ("0", ""):
        monkeypatch.setenv("JOT_FAST", mode)
        with caplog.at_level("INFO", logger="jot"):
            jot.decode(models["llada"], [1, 2, 3], jot.JoT(), length=8)
    assert not caplog.records


class Counting(jot.sampler.exits.ExitRule):
    """A rule that keeps something in Python, which a graph would freeze."""

    name = "counting"

    def __call__(self, step):
        return step.none(), None


class OfJoT(jot.JoT):
    """A rule with more to it than the fields by which loops are told apart."""


@pytest.mark.parametrize("rule", [Counting(), OfJoT()], ids=["direct", "derived"])
def test_rules_of_others_go_to_the_plain_loop(models, monkeypatch, rule):
    monkeypatch.setenv("JOT_FAST", "1")
    config = jot.DecodeConfig(length=8).resolve(models["llada"])
    assert fast.refusal(models["llada"], config, rule, 1, None) == "a rule of another kind"


def test_what_is_kept_is_no_part_of_the_model(monkeypatch, tmp_path):
    """A copy comes without it, and a model that is deleted is gone at once, with its weights."""
    monkeypatch.setenv("JOT_FAST", "1")
    model = jot.load(tiny.build(tmp_path / "m", "llada"), device="cpu")
    jot.decode(model, [1, 2, 3], jot.JoT(), length=8)
    assert "_fast_loops" in vars(model) and not vars(copy.deepcopy(model)).keys() & set(model.DERIVED)
    alive = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert alive() is None
    finally:
        gc.enable()


def test_what_is_kept_follows_the_weights_and_the_mode(models, monkeypatch, tmp_path):
    monkeypatch.setenv("JOT_FAST", "1")
    model = jot.load(tiny.build(tmp_path / "m", "llada"), device="cpu")
    settings = {"length": 16, "block_length": 8, "cache": "dual"}
    with torch.inference_mode():
        first = jot.decode(model, [1, 2, 3], jot.JoT(), **settings)
    assert jot.decode(model, [1, 2, 3], jot.JoT(), **settings).tokens == first.tokens
    model.to(torch.bfloat16)
    quick = jot.decode(model, [1, 2, 3], jot.JoT(), **settings)
    monkeypatch.setenv("JOT_FAST", "0")
    assert quick.tokens == jot.decode(model, [1, 2, 3], jot.JoT(), **settings).tokens


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_default_device_of_torch_changes_nothing(models, monkeypatch, family):
    """Tensors are made where the model is: with a default device that holds no data, everything ends the same."""
    samples = [("a", [5, 6, 7, 8]), ("b", [9, 10])]
    for method, parameters in ((jot.JoT(tau_max=30), {}), (jot.JoT(), {"schedule": "dream"}),
                               (jot.KLASS(), {"schedule": "precomputed", "temperature": 0.3})):  # fmt: skip
        want = both(monkeypatch, models[family], method, 2, {"length": 16, **parameters}, samples)
        with torch.device("meta"):
            got = both(monkeypatch, models[family], method, 2, {"length": 16, **parameters}, samples)
        for one, two in zip(want, got, strict=True):
            assert {key: out.tokens for key, out in one.items()} == {key: out.tokens for key, out in two.items()}


def test_rows_are_compacted_in_reading_order():
    asked = torch.tensor([[False, True, True], [True, False, True]])
    row, column, live = fixed.compact(asked, 6)
    assert live.tolist() == [True] * 4 + [False] * 2
    assert list(zip(row[live].tolist(), column[live].tolist(), strict=True)) == [(0, 1), (0, 2), (1, 0), (1, 2)]
    assert not row[~live].any() and not column[~live].any()
    assert [fixed.capacity(n) for n in (1, 32, 33, 1024, 1025)] == [32, 32, 64, 1024, 2048]


def test_not_a_number_ends_the_run(models, monkeypatch):
    monkeypatch.setenv("JOT_FAST", "1")
    model = models["llada"]
    monkeypatch.setattr(model, "hidden", lambda ids, *_: torch.full((*ids.shape, 32), float("nan")))
    model.__dict__.pop("_fast_loops", None)
    with pytest.raises(jot.UserError, match="not numbers"):
        jot.decode(model, [1, 2, 3], jot.JoT(), length=8)
    model.__dict__.pop("_fast_loops", None)


def test_pocket_samples(monkeypatch):
    """Real weights: the shipped pair, its defaults, on word problems."""
    docs = read_jsonl(home() / "data" / "tasks" / "pocket_gsm8k" / "dev.jsonl.xz")[:6]
    for name, rule, blocks in (("pocket-llada", jot.JoT(tau_max=30), 32), ("pocket-dream", jot.JoT(tau_max=90), None)):
        model = jot.load(name, device="cpu")
        turns = [[{"role": "user", "content": f"Q: {doc['question']}\nA:"}] for doc in docs]
        samples = list(enumerate(encode(model, [render(model, turn) for turn in turns])))
        plain, quick = both(monkeypatch, model, rule, 4, {"length": 128, "block_length": blocks}, samples)
        assert {k: o.tokens for k, o in quick.items()} == {k: o.tokens for k, o in plain.items()}


TWINS = """
from types import SimpleNamespace
import torch
from jot.fast import shortlist
from jot.sampler import kernels, proposals
from jot.sampler.cache import KVCache, View
from jot.fast.forward import FusedForward
import jot
torch.manual_seed(0)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(DEVICE)
for entries in (7, 300, 9000):
    x, y = torch.randn(5, entries) * 3, torch.randn(8, entries) * 3
    x[0, 3] = x[0, 5] = x[0].max() + 1
    x[2], x[2, 4], x[2, 2] = -torch.inf, 1.0, 0.5
    for mine, twin in zip(kernels.fused_top2(x), kernels._top2(x)):
        torch.testing.assert_close(mine, twin, rtol=1e-6, atol=0)
    x[2], y[:, 1], x[:, 1] = torch.randn(entries), -torch.inf, -torch.inf
    at = torch.tensor([3, -1, 0, 7, 2])
    mine, triton, kernels.triton = kernels.fused_divergence(x, y, at), kernels.triton, None
    torch.testing.assert_close(mine, kernels.divergence(x, y, at), rtol=1e-10, atol=1e-12)
    kernels.triton = triton
for entries, ranking in ((9000, "entropy"), (300, "margin"), (70, "confidence"), (20000, "random")):
    for scale in (0.02, 8.0):  # a flat nucleus that no shortlist holds, and narrow ones
        x = torch.randn(6, entries) * scale
        x[:, entries // 2] = -torch.inf
        x[1, 3] = x[1, 5] = x[1, 60] = x[1].max() + 1
        x[2, : entries // 3], x[3] = x[2].max() + 0.5, -torch.inf
        x[3, 4], x[3, 2], x[3, 6] = 1.0, 0.95, -3.0
        config = jot.DecodeConfig(temperature=0.5, top_p=0.9, ranking=ranking)
        row = dict(keys=torch.randint(-(1 << 62), 1 << 62, (2,)), index=torch.tensor([3, 9]),
                   slot=torch.tensor([0, 0, 0, 1, 1, 1]), position=torch.arange(6) + 4)
        got = SimpleNamespace(logits=x, kept={}, **row)
        want = SimpleNamespace(logits=x, kept={}, **row)
        mine, short = shortlist.fused_small(got, config, proposals.KeyedDraws())
        triton, kernels.triton = kernels.triton, None
        twin, late = shortlist.dream_small(want, config, proposals.KeyedDraws())
        kernels.triton = triton
        for one, other in zip(got.top, kernels._top2(x)):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=0)
        same = ~(short | late)
        assert same[3] and (same[4:].all() if scale > 1 else entries < 99 or short[4:].all()), (entries, scale)
        assert torch.equal(mine.token[same], twin.token[same]), (entries, ranking, scale)
        for one, other in ((mine.rank, twin.rank), (mine.confidence, twin.confidence)):
            torch.testing.assert_close(one[same], other[same], rtol=1e-5, atol=1e-6)
        cut, triton, kernels.triton = kernels.fused_cut(x, 0.9)[:, None], kernels.triton, None
        odd = (proposals.nucleus(x, 0.9).isfinite() != (x >= cut)) & (x != cut)  # of equals only some may be in it
        kernels.triton = triton
        assert x.double().softmax(-1)[odd].sum() < 1e-4, (entries, scale)
for name in ("pocket-llada", "pocket-dream"):
    model = jot.load(name, device=DEVICE, dtype="float32")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    ids, mask = torch.randint(0, 2000, (2, 12)), torch.ones(2, 12, dtype=torch.bool)
    mask[1, 9:] = False
    with torch.inference_mode():
        want = [model.hidden(ids, None), model.hidden(ids, mask)]
        fused = FusedForward(model)
        got = [fused(ids, None), fused(ids, mask)]
        caches, pick, at = (KVCache(3, 12), KVCache(3, 12)), torch.tensor([2, 0]), torch.tensor([[4, 5], [6, 7]])
        for run, cache, into in ((model.hidden, caches[0], want), (fused, caches[1], got)):
            run(ids, None, View(cache, pick, 12))
            into.append(run(ids[:, :2], None, View(cache, pick, 12, at)))
    torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[1][mask], want[1][mask], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[2], want[2], rtol=1e-4, atol=1e-4)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
"""


def test_triton_kernels_against_their_twins():
    """On a card where there is one, else in Triton's interpreter; float32, which both round alike."""
    pytest.importorskip("triton", reason="Triton is not installed (a CPU build of torch comes without it)")
    run = subprocess.run(
        [sys.executable, "-c", TWINS], env={**os.environ, "TRITON_INTERPRET": str(int(not torch.cuda.is_available()))},
        capture_output=True, text=True, cwd=home(),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]


ON_CUDA = [
    ("llada", jot.JoT(), {"block_length": 8}),
    ("dream", jot.JoT(), {}),
    ("llada", jot.JoT(tau_max=30, canvas=True, sample=True), {**PUBLIC, "stop_at_eos": True}),
    ("llada", jot.JoT(tau_max=2, canvas=True, max_commits=2), {**PUBLIC, "temperature": 0.5}),
    ("llada", jot.JoT(tau_max=2, max_commits=2), {**DUAL, "stop_at_eos": True}),
    ("dream", jot.JoT(tau_max=2, max_commits=2), {"stop_at_eos": True}),
    ("dream", jot.JoT(tau_max=2, max_commits=2, block_start=True), {**DUAL, **GREEDY, "stop_at_eos": True}),
    ("dream", jot.EntropyBudget(), {}),
    ("llada", jot.LocalLeap(), {"block_length": 8, "stop_at_eos": True}),
    ("llada", jot.CreditDecoding(), {"block_length": 8}),
    ("dream", jot.CreditDecoding(0.95), {"temperature": 1.0, "top_p": 0.9}),
    ("dream", jot.CreditDecoding(), {**DUAL, **GREEDY}),
    ("dream", jot.SchED(shape="exponential"), {}),
]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(("family", "method", "parameters"), ON_CUDA, ids=str)
def test_graphs_on_cuda_equal_the_plain_loop(monkeypatch, family, method, parameters):
    model = jot.load(f"pocket-{family}", device="cuda", dtype="float32")
    samples = [
        (f"p{i}", render_ids(model, text)) for i, text in enumerate(("two plus three", "a dog", "x = 4; x * 2 ="))
    ]
    plain, quick = both(monkeypatch, model, method, 2, {"length": 32, **parameters}, samples)
    for key, out in plain.items():
        assert (quick[key].tokens, quick[key].forwards) == (out.tokens, out.forwards), key
        assert quick[key].trace.step.tolist() == out.trace.step.tolist() and quick[key].loop == "fast"


def render_ids(model, text: str) -> list[int]:
    return encode(model, [render(model, [{"role": "user", "content": text}])])[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(("family", "method", "parameters"), ON_CUDA, ids=str)
def test_a_step_on_cuda_waits_for_nobody(family, method, parameters):
    """After the graphs are captured, a replay makes no synchronizing call."""
    model = jot.load(f"pocket-{family}", device="cuda", dtype="float32")
    jot.decode(model, [1, 2, 3], method, length=32, **parameters)
    loop = next(reversed(model.__dict__["_fast_loops"].values()))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for graph in loop.graphs.values():
            graph.replay()
        loop.fixed.advance(next(iter(loop.graphs)))
    finally:
        torch.cuda.set_sync_debug_mode("default")


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # what an import of it then says
import torch, jot
from jot.fast import loop as fast
from jot.sampler import kernels
from jot.fast import forward as fused
assert kernels.triton is None and fused.triton is None and not kernels.fusable(torch.zeros(1))
model = jot.load("pocket-llada", device=DEVICE)
config = jot.DecodeConfig(length=8).resolve(model)
assert fast.refusal(model, config, jot.JoT(), 1, None) == ("no Triton" if DEVICE == "cuda" else None)
out = jot.decode(model, [1, 2, 3], jot.JoT(), length=8)
assert out.loop == ("plain" if DEVICE == "cuda" else "fast") and model.mask_id not in out.tokens
"""


def test_without_triton():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run = subprocess.run(
        [sys.executable, "-c", f"DEVICE = {device!r}" + WITHOUT_TRITON], env={**os.environ, "JOT_FAST": "1"},
        capture_output=True, text=True, cwd=home(),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
