"""Worksheets: right arithmetic, full canvases, held-out problems that training never draws, answers found in text."""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pocket import long, stream, train, worksheet
from pocket.evaluate import documents

import jot
from jot.models import home
from jot.tasks import extract, get
from jot.tasks.bench import Bench

EQUATION = re.compile(r"(\d+) ([+*/-]) (\d+) = (\d+)")


@pytest.fixture(scope="module")
def tok():
    return stream.tokenizer(long.MODELS[0])


@given(st.integers(0, 2**31))
def test_every_equation_is_right(seed):
    question, worked, final = worksheet.problem(random.Random(seed))
    assert question.split(" has ")[0] in worksheet.NAMES
    value = re.search(r"\d+", question)[0]
    for equation in worked.removesuffix(".").split(", "):
        a, sign, b, result = EQUATION.fullmatch(equation).groups()
        assert a == value and 0 < int(result) <= worksheet.LIMIT
        exact = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / int(b)}[sign]
        assert exact == int(result)
        value = result
    assert str(final) == value


@given(st.integers(0, 2**31), st.sampled_from(list(long.COUNTS)))
def test_answers_fill_the_canvas_in_order(seed, length):
    doc = worksheet.sample(random.Random(seed), length, len)  # a token a character: fewer, longer lines
    least, most = worksheet.FILL
    assert least * length - 90 < len(doc["answer"]) <= most * length  # the longest line is shorter than that
    assert extract.worksheet(doc["answer"], len(doc["finals"])) == " ".join(doc["finals"])
    assert [int(line.split(":")[0]) for line in doc["question"].splitlines()] == [*range(1, len(doc["finals"]) + 1)]


def test_a_worksheet_draws_none_of_the_skipped():
    tokens, rng = len, random.Random(3)
    seen = {problem for _ in range(300) for problem in long.problems(worksheet.sample(rng, 512, tokens)["question"])}
    again = [long.problems(worksheet.sample(random.Random(3), 512, tokens, seen)["question"]) for _ in range(20)]
    assert not seen & {problem for problems in again for problem in problems}


def test_lines_are_encoded_as_the_whole(tok):
    doc = worksheet.sample(random.Random(5), 2048, len)
    for part in ("question", "answer"):
        whole = tok.backend_tokenizer.encode(doc[part], add_special_tokens=False).ids
        assert long.encoder(tok)(doc[part]) == whole and tok.decode(whole) == doc[part]
    pieces = [tok.decode([i]) for i in long.encoder(tok)("37: 28 + 34 = 62.\n")]  # one token a label, one a digit
    assert "".join(pieces[1:]).replace(" ", "") == "28+34=62.\n" and pieces[0] == "37:"
    assert [piece for piece in pieces if piece.strip().isdigit()] == [*"283462"]


@pytest.mark.parametrize("length", long.COUNTS)
def test_held_out_worksheets(length, tok):
    """Counts of the plan, each problem once, at least half of the canvas, and the prompt that training has."""
    encode, seen = long.encoder(tok), set()
    for split, count in zip(("dev", "test"), long.COUNTS[length], strict=True):
        docs = documents(f"pocket_worksheet_{length}", split)
        assert len(docs) == count
        for doc in docs:
            problems = long.problems(doc["question"])
            assert len(problems) == len(doc["finals"]) == len(set(problems)) and not seen & set(problems)
            seen.update(problems)
    assert seen <= long.held_out()
    assert get(f"pocket_worksheet_{length}").length == length
    prompt = long.chat(tok, encode(docs[0]["question"]))
    ids = tok.apply_chat_template([{"role": "user", "content": docs[0]["question"]}], add_generation_prompt=True)
    assert prompt == list(ids["input_ids"] if hasattr(ids, "keys") else ids)


def test_rows_of_training(tok):
    recipe = long.LongRecipe(batch_short=4, shard=1)
    rows = recipe.rows(0, "short", 4, tok, random.Random(0))
    for row in rows:
        text = tok.decode([row.ids[i] for i in row.maskable])
        first = row.maskable[0]
        question = tok.decode(row.ids[1 : first - 1])
        assert len(row.ids) == recipe.WIDTHS["short"] and row.maskable == [*range(first, len(row.ids))]
        assert not long.held_out() & set(long.problems(question))
        labels = [[line.split(":")[0] for line in part.splitlines()] for part in (question, extract.cut(text))]
        assert labels[0] == labels[1] and int(labels[0][-1]) <= worksheet.LABELS
        assert row.ids[-1] == tok.eos_token_id
    assert (
        recipe.rows(0, "short", 4, tok, random.Random(0)) == rows != recipe.rows(1, "short", 4, tok, random.Random(0))
    )


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_training_run_gives_a_model_that_reads_worksheets(tmp_path, family):
    small = dict(
        steps=2, warmup=1, batch_tiny=0, batch_short=1, batch_half=0, batch_whole=0, batch_double=0, shard=1, repeats=1
    )
    recipe = long.LongRecipe(family=family, hidden=32, layers=1, inner=32, heads=2, **small)
    train.train(recipe, tmp_path, device="cpu", workers=0, evaluations=0)
    model = jot.load(tmp_path, device="cpu")
    bench = Bench(model, get("pocket_worksheet_256"), "dev", None)
    doc_id, doc = next(iter(bench.docs.items()))
    out = jot.decode(model, bench.prompts[doc_id], jot.JoT(1.0), length=32)
    assert len(out.generated) == 32 and bench.score(doc_id, model.tokenizer.decode(out.generated))[1] == 0
    gold = "\n".join(f"{i}: 1 + 1 = {final}." for i, final in enumerate(doc["finals"], 1))
    assert bench.score(doc_id, gold) == (" ".join(doc["finals"]), 1.0)
    half = gold.splitlines()[0]
    assert bench.score(doc_id, half)[1] == pytest.approx(1 / len(doc["finals"]))
    on = replace(recipe, start=str(tmp_path), steps=1)
    train.train(on, tmp_path / "on", device="cpu", workers=0, evaluations=0)
    known = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert json.loads((tmp_path / "on" / "training.json").read_text())["initial_sha256"] == known
    with pytest.raises(SystemExit, match="holds no model.safetensors"):
        train.train(replace(on, start=str(tmp_path / "nowhere")), tmp_path / "on", device="cpu", workers=0)


def test_both_models_have_the_tokenizer():
    one, two = (home() / "data" / "models" / name / "tokenizer.json" for name in long.MODELS)
    assert one.read_bytes() == two.read_bytes()


@given(st.text(alphabet="0123456789:. =\n-Ax", max_size=80), st.integers(1, 5))
def test_answers_out_of_any_text(text, problems):
    found = extract.worksheet(text, problems).split(" ")
    assert len(found) == problems and all(part == "-" or part.isdigit() for part in found)
