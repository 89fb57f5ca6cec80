"""Decoding step by step, and with the names of transformers: the same tokens as ``jot.decode``."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

import jot
from jot.sampler.exits import METHODS, JoT
from jot.sampler.output import EXITED
from jot.sampler.proposals import KeyedDraws

POCKET = {name: jot.load(name, device="cpu") for name in ("pocket-llada", "pocket-dream")}
prompts = st.lists(st.integers(0, 2039), min_size=1, max_size=12)


def drained(steps) -> tuple[list[jot.Commits], jot.Output]:
    """What a decoding yielded, and what it returned."""
    seen = []

    def follow():
        seen.append((yield from steps))

    return list(follow()), seen[0]


@settings(max_examples=6)
@given(
    prompts, st.integers(1, 3), st.sampled_from([0.0, 0.7]), st.sampled_from([None, "prefix", "dual"]),
    st.booleans(), st.booleans(),
)  # fmt: skip
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("family", POCKET)
def test_step_by_step(family, name, prompt, blocks, temperature, cache, stop, written):
    """Tokens, steps and trace are those of ``decode``; the steps' commits are the trace, each position once."""
    model, method = POCKET[family], METHODS[name]()
    cache = None if method.canvas else cache
    how = dict(length=4 * blocks, block_length=4, temperature=temperature, cache=cache, stop_at_eos=stop, seed=3)
    how["constraints"] = {1: 65} if written else ()
    steps, out = drained(jot.decode_steps(model, prompt, method, sample_id="a", **how))
    whole = jot.decode(model, prompt, method, sample_id="a", trace=True, **how)
    assert (out.tokens, out.steps, out.forwards) == (whole.tokens, whole.steps, whole.forwards)
    assert [step.step for step in steps] == list(range(whole.steps))
    at = np.concatenate([step.position for step in steps])
    assert sorted(at) == np.flatnonzero(whole.trace.rule).tolist()
    assert [step.step for step in steps for _ in step.position] == whole.trace.step[at].tolist()
    assert np.concatenate([step.token for step in steps]).tolist() == np.array(whole.generated)[at].tolist()
    for field in ("rule", "margin", "threshold"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(step, field) for step in steps]), getattr(whole.trace, field)[at]
        )


def test_a_step_comes_before_the_next_forward():
    model, calls = POCKET["pocket-llada"], []

    class Counting(JoT):
        def __call__(self, step):
            calls.append(int(step.masks.sum()))
            return super().__call__(step)

    left = 16
    for n, step in enumerate(jot.decode_steps(model, [5, 6], Counting(3.0), length=16, block_length=8)):
        assert len(calls) == n + 1 and calls[-1] == left
        left -= len(step.position)
        assert (step.margin[step.rule & EXITED > 0] >= step.threshold[step.rule & EXITED > 0] - 1e-6).all()
    assert left == 0


@pytest.mark.parametrize(
    ("prompt", "kwargs", "words"),
    [
        ([], {}, "prompt is empty"),
        ([[1, 2]], {}, "not a token id"),
        ([1], {"lenght": 4}, "unknown decoding parameter 'lenght'"),
        ([1], {"method": "jot"}, "must be a rule"),
        ([1], {"sample_id": 0.5}, "sample key"),
        ([1], {"method": JoT(canvas=True), "cache": "dual"}, "no cached block"),
    ],
)
def test_steps_refuse_what_decode_refuses(prompt, kwargs, words):
    with pytest.raises(jot.UserError, match=words):
        next(jot.decode_steps(POCKET["pocket-llada"], prompt, **kwargs))


# --- transformers' names --------------------------------------------------------------------------------------


@settings(max_examples=4)
@given(st.lists(prompts, min_size=1, max_size=3), st.sampled_from([0.0, 0.7]))
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("family", POCKET)
def test_generate_is_decode(family, name, rows, temperature):
    """Left padding and its mask: each row as ``decode`` gives it in that batch, behind the ids as they came."""
    model, width = POCKET[family], max(map(len, rows))
    ids = torch.tensor([[model.eos_id] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    how = dict(temperature=temperature, block_length=4, seed=2)
    made = model.generate(ids, attention_mask=mask, method=name, max_new_tokens=8, **how)
    whole = jot.decode(model, rows, METHODS[name](), length=8, **how)
    assert made.dtype == torch.long and made.shape == (len(rows), width + 8)
    assert torch.equal(made[:, :width], ids)
    assert made[:, width:].tolist() == [out.generated for out in whole]


@pytest.mark.parametrize("family", POCKET)
def test_generate_takes_a_tokenizers_output(family):
    model = POCKET[family]
    batch = model.tokenizer(["Q: 1 + 1?\nA:", "Q: 3?\nA:"], padding=True, padding_side="left", return_tensors="pt")
    batch.pop("token_type_ids", None)
    how = dict(method="jot", tau_max=3.0, max_new_tokens=8, return_dict_in_generate=True, trace=True)
    made = model.generate(**batch, **how)
    rows = [model.tokenizer(text)["input_ids"] for text in ("Q: 1 + 1?\nA:", "Q: 3?\nA:")]
    whole = jot.decode(model, rows, JoT(tau_max=3.0), length=8)
    width = batch["input_ids"].shape[1]
    assert made["sequences"][:, width:].tolist() == [out.generated for out in whole]
    assert [out.steps for out in made.outputs] == [out.steps for out in whole]
    assert all((out.trace.rule > 0).all() for out in made.outputs)


def test_forms_of_the_prompt():
    model = POCKET["pocket-llada"]
    one = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4)
    assert one.tolist() == [jot.decode(model, [5, 6, 7], length=4).tokens]
    for ids in ([5, 6, 7], (5, 6, 7), [[5, 6, 7]], np.array([[5, 6, 7]]), torch.tensor([5, 6, 7])):
        assert torch.equal(model.generate(ids, max_new_tokens=4), one)
    assert torch.equal(model.generate([5, 6, 7], [1, 1, 1], max_new_tokens=4), one)


def test_sampling():
    """``do_sample`` sets the temperature as transformers' users expect it; several sequences differ in their draws."""
    for family, model in POCKET.items():

        def run(model=model, **how):
            return model.generate([5, 6, 7], max_new_tokens=16, **how).tolist()

        assert run(do_sample=False) == run(temperature=0.0)
        warm = {"pocket-llada": {"temperature": 1.0}, "pocket-dream": {}}[family]
        assert run(do_sample=True) == run(**warm)
        several = run(temperature=1.0, num_return_sequences=3)
        assert len({tuple(row) for row in several}) == 3
        whole = jot.decode(model, [[5, 6, 7]] * 3, length=16, temperature=1.0)
        assert several == [out.tokens for out in whole]
    nucleus = dict(temperature=1.0, top_p=0.3, max_new_tokens=8)
    made = POCKET["pocket-dream"].generate([5, 6], **nucleus).tolist()
    assert made == [jot.decode(POCKET["pocket-dream"], [5, 6], temperature=1.0, top_p=0.3, length=8).tokens]
    assert POCKET["pocket-llada"].generate([5, 6], **nucleus, proposal="dream").shape == (1, 10)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"max_new_token": 4}, "did you mean 'max_new_tokens'"),
        ({"length": 4}, "did you mean 'max_new_tokens'"),
        ({"max_length": 4}, "did you mean 'max_new_tokens'"),
        ({"temprature": 1.0}, "did you mean 'temperature'"),
        ({"method": "jott"}, "unknown method 'jott'; did you mean 'jot'"),
        ({"method": "zzz"}, "known are full, jot"),
        ({"method": "jot", "tau_mx": 3}, "did you mean 'tau_max'"),
        ({"streamer": print}, "generate() takes no 'streamer', which has no counterpart here; leave it out"),
        ({"use_cache": True}, "generate() takes no 'use_cache', which has no counterpart here"),
        ({"num_beams": 2}, "generate() takes no 'num_beams', which has no counterpart here"),
        ({"inputs": [[5, 6, 7]]}, "did you mean 'input_ids'"),
        ({"draws": 5}, "draws=5 must be a source of draws"),
        ({"draws": KeyedDraws}, "must be a source of draws"),
        ({"attention_mask": torch.tensor([[0, 1, torch.nan]])}, "0 at padding on the left and 1 elsewhere"),
        ({"attention_mask": torch.tensor([[-1, 1, 1]])}, "0 at padding on the left and 1 elsewhere"),
        ({"attention_mask": torch.tensor([[0, 1, 2]])}, "0 at padding on the left and 1 elsewhere"),
        ({"max_new_tokens": None}, "generate(): max_new_tokens=None must be a whole number"),
        ({"max_new_tokens": 8.0}, "generate(): max_new_tokens=8.0 must be a whole number"),
        ({"method": 3}, "must be a rule"),
        ({"method": "jot", "tau_max": 0.5}, "tau_max=0.5 must be a number, at least 1"),
        ({"max_new_tokens": 0}, "generate(): max_new_tokens=0 must be a whole number, at least 1"),
        ({"do_sample": 1}, "do_sample=1 must be true or false"),
        ({"do_sample": False, "temperature": 1.0}, "leave do_sample out"),
        ({"do_sample": True, "temperature": 0}, "leave do_sample out"),
        ({"top_p": 0.9}, "truncate the proposal 'dream' alone"),
        ({"top_k": 3}, "truncate the proposal 'dream' alone"),
        ({"num_return_sequences": 2}, "repeats one text"),
        ({"num_return_sequences": 0}, "at least 1"),
        ({"return_dict_in_generate": "yes"}, "must be true or false"),
        ({"attention_mask": torch.tensor([[1, 1, 0]])}, "padding_side='left'"),
        ({"attention_mask": torch.tensor([[1, 1]])}, "shape of input_ids"),
        ({"attention_mask": torch.tensor([[0, 0, 0]])}, "prompt is empty"),
        ({"attention_mask": "all"}, "rows of one length"),
        ({"input_ids": [[1, 2], [3]]}, "rows of one length"),
        ({"input_ids": "text"}, "must be token ids, not str"),
        ({"input_ids": None}, "must be token ids, not NoneType"),
        ({"input_ids": torch.zeros(1, 2, 2)}, "shape of input_ids"),
        ({"input_ids": [[1.5, 2]]}, "not a token id"),
        ({"input_ids": []}, "prompt is empty"),
    ],
)
def test_one_sentence(kwargs, words):
    with pytest.raises(jot.UserError) as caught:
        POCKET["pocket-llada"].generate(**{"input_ids": [[5, 6, 7]], **kwargs})
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_arguments_by_position():
    model = POCKET["pocket-llada"]
    with pytest.raises(jot.UserError, match="by position; give what follows by name"):
        model.generate([[5, 6, 7]], None, GenerationConfig())
    with pytest.raises(jot.UserError, match="attention_mask must be numbers"):
        model.generate([[5, 6, 7]], GenerationConfig())
    for kwargs, words in (({"inputs": [[5, 6]]}, "did you mean 'input_ids'"), ({"max_new_tokens": 8}, "not NoneType")):
        with pytest.raises(jot.UserError, match=words):
            model.generate(**kwargs)
    with pytest.raises(jot.UserError, match="draws=5 must be a source of draws"):
        next(jot.decode_steps(model, [5], draws=5))
    mask = torch.tensor([[False, True, True]])
    assert torch.equal(model.generate([[5, 6, 7]], mask, max_new_tokens=4)[:, 3:],
                       model.generate([[6, 7]], max_new_tokens=4)[:, 2:])  # fmt: skip


def test_the_names_of_transformers():
    """What ``generate`` takes under a name that transformers has; the last two differ, and its docstring says so."""
    ours = {*inspect.signature(jot.models.DiffusionModel.generate).parameters, *jot.DecodeConfig().__dict__}
    assert ours & set(GenerationConfig().to_dict()) == {
        "max_new_tokens", "do_sample", "temperature", "top_p", "top_k", "num_return_sequences",
        "return_dict_in_generate", "suppress_tokens", "begin_suppress_tokens", "constraints",
    }  # fmt: skip
