"""Presets, names that stand for a method with settings of its own; decoding settings on their way to a record."""

from __future__ import annotations

from dataclasses import asdict

import pytest

import jot
from jot import tasks
from jot.records import Cell
from jot.runs import settings
from jot.runs.grid import Point
from jot.runs.harness import JotLM, evaluate
from tests import tiny

TASKS = sorted(tasks.TASKS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("presets")
    return {family: jot.load(tiny.build(folder / family, family), device="cpu") for family in ("llada", "dream")}


@pytest.mark.parametrize("name", TASKS)
def test_the_public_code_by_name(models, name):
    """Dream: the paper's rule at 90.1. LLaDA: its own exits and blocks, and no end of text on HumanEval."""
    task = tasks.get(name)
    usual, public = (
        {
            family: (
                settings.build_method(method, family, {}),
                settings.build_decode(model, {}, task, method=method),
            )
            for family, model in models.items()
        }
        for method in ("jot", "jot-public")
    )
    assert public["dream"][0] == jot.JoT(tau_max=90.1) and public["dream"][1] == usual["dream"][1]
    rule, config = public["llada"]
    assert rule == jot.JoT(tau_max=30, canvas=True, sample=True, skip_demoted=True)
    apart = {key: value for key, value in asdict(config).items() if asdict(usual["llada"][1])[key] != value}
    ban = {"suppress_tokens": (models["llada"].eos_id,)} if "humaneval" in name else {}
    assert apart == {"schedule": "precomputed", "keep_steps": True, **ban}


def test_settings_change_a_preset(models):
    task, model = tasks.get("humaneval"), models["llada"]
    chosen = settings.parse("jot-public", {"tau_max": "60", "suppress_tokens": "none", "keep_steps": "false"})
    assert settings.build_method("jot-public", "llada", chosen).tau_max == 60
    config = settings.build_decode(model, chosen, task, method="jot-public")
    assert not config.suppress_tokens and not config.keep_steps
    with pytest.raises(jot.UserError, match="use cache=None"):
        settings.build_decode(type(model), {"cache": "dual", "keep_steps": False}, task, method="jot-public")
    with pytest.raises(jot.UserError, match="did you mean 'jot-public'"):
        settings.method_class("jot-publik")


def test_a_preset_is_a_cell_of_its_method(models, tmp_path):
    Point.of("pocket-llada", "pocket_mmlu", "jot-public").check()
    given = dict(split="dev", limit=2, store=tmp_path, slots=2, progress=False)
    named = evaluate(models["llada"], "pocket_mmlu", "jot-public", **given)
    config = named.recorded.meta["config"]
    assert config["method"]["name"] == "jot" and config["method"]["canvas"] and config["decode"]["keep_steps"]
    rule = settings.build_method("jot-public", "llada", {})
    again = evaluate(models["llada"], "pocket_mmlu", rule, schedule="precomputed", keep_steps=True, **given)
    assert (again.cell, again.decoded) == (named.cell, 0)
    assert evaluate(models["llada"], "pocket_mmlu", "jot", **given).cell != named.cell


def test_the_end_of_text_on_its_way_to_a_record(models, tmp_path, monkeypatch):
    """Same answers in fewer steps, recorded with their traces; a setting that is off leaves the cell's name alone."""
    model, task = models["dream"], "pocket_gsm8k"
    given = dict(split="dev", limit=4, store=tmp_path, progress=False, trace=True, length=24)
    usual = evaluate(model, task, "jot", **given)
    tokens = [token for row in usual.frame["generated"] for token in row]
    monkeypatch.setattr(model.config, "eos_token_id", max(set(tokens), key=tokens.count))
    usual = evaluate(model, task, "jot", **given, seed=1)
    assert settings.parse("jot", {"stop_at_eos": "true"}) == {"stop_at_eos": True}
    short = evaluate(model, task, "jot", **given, seed=1, stop_at_eos=True)
    for name in ("answer", "text", "score", "tokens_non_eos"):
        assert list(short.frame[name]) == list(usual.frame[name]), name
    assert (short.frame["steps"] <= usual.frame["steps"]).all() and short.speedup > usual.speedup
    assert JotLM(model, method="jot", stop_at_eos="true")._settings({})["stop_at_eos"] is True
    config = usual.recorded.meta["config"]
    older = {key: value for key, value in config["decode"].items() if key not in ("stop_at_eos", "keep_steps")}
    rule = {key: value for key, value in config["method"].items() if key not in ("canvas", "skip_demoted")}
    assert Cell({**config, "decode": older, "method": rule}).id == usual.cell != short.cell


def test_three_orders_of_a_family(models):
    """The family's own; by confidence over the whole canvas; by confidence in blocks, which is LLaDA's own."""
    over = settings.parse("jot", {"ranking": "confidence", "temperature": "0", "block_length": "none"})
    within = {**over, "block_length": 32}
    task = tasks.get("pocket_gsm8k")
    own, canvas, blocks = (
        {family: settings.build_decode(model, chosen, task, method="jot") for family, model in models.items()}
        for chosen in ({}, over, within)
    )
    for family in models:
        assert [len(order[family].blocks) for order in (canvas, blocks)] == [1, 4]
        assert {(order[family].ranking, order[family].temperature) for order in (canvas, blocks)} == {("confidence", 0)}
        assert not canvas[family].nucleus and not blocks[family].nucleus
    assert own["llada"] == blocks["llada"] and (own["dream"].ranking, len(own["dream"].blocks)) == ("entropy", 1)
    assert settings.parse("jot", {"max_commits": "1"}) == {"max_commits": 1}
    assert settings.build_method("jot", "llada", {"max_commits": 1}) == jot.JoT(tau_max=30, max_commits=1)
