"""The pocket tokenizer: size, special ids, round trip, template, and what training feeds the models."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pocket import tokenizer as pocket
from pocket.paths import MODELS

PLAIN = pocket.load()


@pytest.fixture(scope="module")
def wrapped():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(MODELS / "pocket-dream")


def test_size_and_special_ids(wrapped):
    assert len(wrapped) == PLAIN.get_vocab_size() == 2048
    assert [wrapped.convert_tokens_to_ids(token) for token in pocket.SPECIALS] == list(range(2040, 2048))
    assert (wrapped.eos_token_id, wrapped.pad_token_id, wrapped.mask_token_id, wrapped.bos_token_id) == (
        2040,
        2040,
        2041,
        2044,
    )
    assert (pocket.EOS, pocket.MASK, pocket.USER, pocket.ASSISTANT) == (2040, 2041, 2042, 2043)


def test_both_models_have_the_same_files():
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (MODELS / "pocket-llada" / name).read_bytes() == (MODELS / "pocket-dream" / name).read_bytes()


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_round_trip(text):
    ids = PLAIN.encode(text, add_special_tokens=False).ids
    assert PLAIN.decode(ids, skip_special_tokens=False) == text


@given(st.integers(0, 10**12))
def test_digits_stand_alone(number):
    tokens = PLAIN.encode(str(number)).tokens
    assert tokens == list(str(number))


def test_letters_are_single_tokens():
    for letter in "ABCD":
        assert len(PLAIN.encode(f" {letter}").ids) == 1


def test_chat_template(wrapped):
    messages = [{"role": "user", "content": "Q: 1 + 1?\nA:"}]
    for flag in (False, True):
        text = wrapped.apply_chat_template(messages, tokenize=False, add_generation_prompt=flag)
        assert text == "<|user|>Q: 1 + 1?\nA:<|assistant|>"
    ids = wrapped(text, add_special_tokens=False)["input_ids"]
    assert ids == [pocket.USER, *PLAIN.encode(messages[0]["content"]).ids, pocket.ASSISTANT]
    messages.append({"role": "assistant", "content": " 2"})
    assert wrapped.apply_chat_template(messages, tokenize=False).endswith("<|assistant|> 2<|endoftext|>")


@pytest.mark.parametrize("task", pocket.TASKS)
def test_encoding(task, wrapped):
    rng = random.Random(1)
    docs = [pocket.generator(task).sample(rng) for _ in range(300)]
    encoded = pocket.encode_batch(task, docs, PLAIN)
    assert encoded[:20] == [pocket.encode_document(task, doc, wrapped) for doc in docs[:20]]
    assert sum(pair is None for pair in encoded) <= 0.08 * len(docs)
    for doc, pair in zip(docs, encoded, strict=True):
        if pair is None:
            continue
        prompt, response = pair
        assert len(response) == pocket.LENGTHS[task] and len(prompt) <= pocket.PROMPT_LIMITS[task]
        if task == "pocket_prose":
            assert doc["text"].startswith(PLAIN.decode(prompt + response))
        else:
            assert prompt[0] == pocket.USER and prompt[-1] == pocket.ASSISTANT and response[-1] == pocket.EOS
            assert PLAIN.decode(prompt) == pocket.prompt_text(task, doc)
            assert PLAIN.decode(response) == pocket.response_text(task, doc)


def test_too_long_is_none():
    doc = {"subject": "x", "question": "long " * 200, "choices": list("abcd"), "answer": 0}
    assert pocket.encode_document("pocket_mmlu", doc, PLAIN) is None
    assert pocket.encode_document("pocket_prose", {"text": "Too short."}, PLAIN) is None


def test_build_writes_equal_files(tmp_path):
    pocket.build([tmp_path / "a", tmp_path / "b"], characters=60_000)
    pocket.build([tmp_path / "c"], characters=60_000)
    files = [(tmp_path / name / "tokenizer.json").read_bytes() for name in "abc"]
    assert files[0] == files[1] == files[2]
    assert len(json.loads(files[0])["model"]["vocab"]) == 2040
    config = Path(tmp_path / "a" / "tokenizer_config.json").read_bytes()
    assert config == (MODELS / "pocket-llada" / "tokenizer_config.json").read_bytes()
