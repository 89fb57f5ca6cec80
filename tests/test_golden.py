"""Parity with the original decoders, case by case. ``JOT_GOLDEN=<folder>`` runs any folder of the same layout."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_runs import RUNS, SKIPPED, make_step, model
from replay import ReplayDraws

import jot
from jot.sampler import schedules
from jot.sampler.cache import KVCache, View
from jot.sampler.config import DecodeConfig
from jot.sampler.kernels import top2
from jot.sampler.output import EXITED, SCHEDULED
from jot.sampler.proposals import dream, llada

SHIPPED = Path(__file__).parent / "golden"
ROOT = Path(os.environ.get("JOT_GOLDEN") or SHIPPED)


def read(path: Path):
    """A JSON file of the set; the shipped copies are compressed."""
    small = path.with_name(path.name + ".gz")
    return json.loads(gzip.decompress(small.read_bytes()) if small.is_file() else path.read_bytes())


CASES = read(ROOT / "index.json")["cases"]


def cases(kind, *, cached=None):
    return [
        pytest.param(case, id=case["id"])
        for case in CASES
        if case["kind"] == kind
        and not SKIPPED.keys() & {case["algorithm"], case["exactness"]}
        and (cached is None or cached == ("-cache-" in case["id"]))
    ]


def test_only_the_deliberate_differences_are_skipped():
    skipped = [case["id"] for case in CASES if SKIPPED.keys() & {case["algorithm"], case["exactness"]}]
    print("not matched on purpose:", *skipped)
    assert skipped == [
        case["id"] for case in CASES if case["exactness"] == "reference_bug" or "canvas_budget" in case["algorithm"]
    ]
    assert {case["algorithm"] for case in CASES if case["kind"] == "trace"} <= RUNS.keys() | SKIPPED.keys()


def strip(record):
    """Prompt rows without their left pads, and how many pads each had."""
    rows, mask = record["prompt"], record.get("attention_mask")
    pads = [0] * len(rows) if mask is None else [row.count(0) for row in mask]
    return [row[n:] for row, n in zip(rows, pads, strict=True)], pads


def commits(output, prompt: int, row: int = 0) -> list[list[list[int]]]:
    """Golden-style commits of one sample: a list of [row, position, token] per forward."""
    steps = [[] for _ in range(output.steps)]
    for at, step in enumerate(output.trace.step):
        if step >= 0:
            steps[step].append([row, prompt + at, output.tokens[prompt + at]])
    return steps


def check_trace(case):
    record = read(ROOT / case["file"])
    expect = record.get("expect_lowest_index_ties") or record["expect"]
    net = model(ROOT / case["checkpoint"])
    method, kwargs = RUNS[case["algorithm"]](record["params"])
    prompts, pads = strip(record)
    replayed = case["exactness"] == "rng"
    if replayed and net.device.type != "cpu":
        pytest.skip("the reference drew on the CPU, and its draws are replayed there")
    draws = ReplayDraws(record["rng"]["seed"]) if replayed else None
    outputs = jot.decode(net, prompts, method, trace=True, draws=draws, **kwargs)

    # MDLM's reference moves the pads to the right itself; its canvas rows start with the prompt.
    left = [0] * len(pads) if case["algorithm"] == "dllm_mdlm" else pads
    for row, (output, pad, prompt) in enumerate(zip(outputs, left, prompts, strict=True)):
        assert output.tokens == expect["tokens"][row][pad : pad + len(output.tokens)]
        assert output.steps == expect["nfe"]
        if "forwards" in expect and len(prompts) == 1:
            kinds = [kind for kind, *_ in expect["forwards"]]
            assert output.forwards == {kind: kinds.count(kind) for kind in ("full", "suffix", "block")}
        ours = commits(output, len(prompt), row)
        theirs = [sorted([r, p - pad, t] for r, p, t in step if r == row) for step in expect["commits"]]
        assert ours == theirs
    if "exits" in expect:
        trace, start = outputs[0].trace, len(prompts[0])

        def by(bit):
            hit = trace.rule & bit > 0
            return [
                sorted((start + np.flatnonzero(hit & (trace.step == n))).tolist()) for n in range(len(expect["exits"]))
            ]

        assert by(EXITED) == [sorted(step) for step in expect["exits"]]
        if "scheduled" in expect:
            # The reference ranks in float64. Where float32 confidences tie at 1, ours takes the lowest index; such
            # a position exits anyway (the commits above are equal), so only how many were chosen is comparable.
            assert [len(step) for step in by(SCHEDULED)] == [len(step) for step in expect["scheduled"]]


@pytest.mark.parametrize("case", cases("trace"))
def test_trace(case, monkeypatch):
    monkeypatch.setenv("JOT_FAST", "0")
    check_trace(case)


@pytest.mark.parametrize("case", [c for c in cases("trace") if c.values[0]["exactness"] != "rng"])
def test_trace_in_the_loop_of_fixed_shapes(case, monkeypatch):
    monkeypatch.setenv("JOT_FAST", "1")
    check_trace(case)


def test_jot_at_the_default_precision():
    """The default float32 logits give the float64 reference's tokens and steps on every shipped case."""
    shipped = read(SHIPPED / "index.json")["cases"]
    for case in (c for c in shipped if c["algorithm"] in ("jot_llada", "jot_dream")):
        record = read(SHIPPED / case["file"])
        method, kwargs = RUNS[case["algorithm"]](record["params"])
        kwargs["head_dtype"] = "float32"
        output = jot.decode(model(SHIPPED / case["checkpoint"]), record["prompt"][0], method, **kwargs)
        assert (output.tokens, output.steps) == (record["expect"]["tokens"][0], record["expect"]["nfe"]), case["id"]


@pytest.mark.parametrize("case", [c for c in cases("trace") if "detail" in c.values[0]["expect"]])
def test_jot_thresholds(case):
    """The threshold recorded at each commit is ln tau_i of the reference, and the margin is the ln of its ratio."""
    record = read(ROOT / case["file"])
    method, kwargs = RUNS[case["algorithm"]](record["params"])
    output = jot.decode(model(ROOT / case["checkpoint"]), record["prompt"][0], method, trace=True, **kwargs)
    start = len(record["prompt"][0])
    for n, detail in enumerate(record["expect"]["detail"]):
        for position, tau, ratio in zip(detail["masked"], detail["tau"], detail["ratio"], strict=True):
            if output.trace.step[position - start] == n and method.tau_max != np.inf:
                assert output.trace.threshold[position - start] == pytest.approx(np.log(tau), abs=1e-5)
                if ratio < 1e8:  # above, the reference's epsilon shows
                    assert output.trace.margin[position - start] == pytest.approx(np.log(ratio), abs=2e-3)


@pytest.fixture(autouse=True)
def on_the_cpu():
    yield
    torch.set_default_device("cpu")


@pytest.mark.parametrize("case", cases("forward", cached=True))
def test_forward_with_a_cache(case):
    """A full forward fills the cache; then the block ("dual") or the rest ("prefix") runs on changed ids."""
    data = np.load(ROOT / case["file"])
    net = model(ROOT / case["checkpoint"])
    torch.set_default_device(net.device)
    ids, pick = torch.tensor(data["input_ids"]), torch.zeros(1, dtype=torch.long)
    length, (start, end) = ids.shape[1], data["block"].tolist()

    def logits(cache, ids, positions=None):
        view = View(cache, pick, length, positions)
        return torch.nn.functional.linear(
            net.hidden(ids if positions is None else ids[:, positions[0]], None, view), net.head
        )

    for mode, stop in (("dual", end), ("prefix", length)):
        cache, positions = KVCache(1, length), torch.arange(start, stop)[None]
        close = dict(rtol=1e-4, atol=1e-4)
        full = logits(cache, ids)
        torch.testing.assert_close(full, torch.tensor(data["full_logits"]), **close)
        # The oracle: with the canvas unchanged, the partial forward gives the full forward's rows.
        torch.testing.assert_close(logits(cache, ids, positions), full[:, start:stop], **close)
        for step in ("step1", "step2"):
            out = logits(cache, torch.tensor(data[f"{step}_ids"]), positions)
            torch.testing.assert_close(out, torch.tensor(data[f"{mode}_{step}_logits"]), **close)


@pytest.mark.parametrize("case", cases("forward", cached=False))
def test_forward(case):
    data = np.load(ROOT / case["file"])
    net = model(ROOT / case["checkpoint"])
    torch.set_default_device(net.device)
    ids = torch.tensor(data["input_ids"])
    real = torch.tensor(data["attention_mask"]).bool() if "attention_mask" in data.files else torch.ones_like(ids) > 0
    logits = net(ids, real if "attention_mask" in data.files else None).logits
    torch.testing.assert_close(logits[real], torch.tensor(data["logits"])[real], rtol=1e-4, atol=1e-4)


def test_units_schedules():
    units = read(ROOT / next(c["file"] for c in CASES if c["algorithm"] == "schedules"))
    for row in units["S-LLaDA_S-dllm"]:
        assert schedules.llada(row["masks"], row["steps"]).tolist() == row["S-LLaDA"], row
        assert schedules.precomputed(row["masks"], row["steps"]).tolist() == row["S-dllm"], row
    for row in units["S-Dream"]:
        left, counts = row["masks"], []
        for share in schedules.dream(row["masks"], row["steps"], row.get("eps", 1e-3)):
            counts.append(int((torch.tensor(left) * torch.tensor(share)).long()))
            left -= counts[-1]
        assert counts == row["k"], row


def test_units_dream_confidence():
    """Temperature, nucleus, top-k and the three rankings against the reference's ``sample_tokens``."""
    data = np.load(ROOT / next(c["file"] for c in CASES if c["algorithm"] == "dream_sample_tokens"))
    names = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"}
    settings = json.loads(str(data["params"]))
    assert len(settings) >= 18
    for i, params in enumerate(settings):
        config = DecodeConfig(
            ranking=names[params["alg"]], temperature=params["temperature"], top_p=params["top_p"],
            top_k=params["top_k"], proposal="dream",
        )  # fmt: skip
        token, rank, _ = dream(make_step(torch.tensor(data[f"c{i}_logits"])), config, ReplayDraws(0))
        np.testing.assert_allclose(rank.numpy(), data[f"c{i}_conf"], rtol=1e-5, atol=1e-6)
        if f"c{i}_x0" in data.files:
            assert token.tolist() == data[f"c{i}_x0"].tolist()


def test_units_fastdllm_selection():
    """Which positions Fast-dLLM commits: the port's cases all, the original's by threshold."""
    data = np.load(ROOT / next(c["file"] for c in CASES if c["algorithm"] == "fastdllm_selection"))
    for i, params in enumerate(json.loads(str(data["params"]))):
        masks = torch.tensor(data[f"c{i}_mask"])
        slot, position = masks.nonzero(as_tuple=True)
        logits = torch.tensor(data[f"c{i}_logits"])[masks]
        step = make_step(logits, position)
        step.slot, step.masks = slot, masks
        step.index = torch.zeros(len(masks), dtype=torch.long)
        step.proposal = llada(step, DecodeConfig(temperature=0.0, ranking="confidence"), None)
        if params["threshold"] is None and params["factor"] is None:
            quota = torch.full((len(masks),), params["k"])
            chosen = schedules.highest(step.proposal.rank, slot, quota, step.in_block)
        else:
            chosen, _ = jot.FastDLLM(params["threshold"], params["factor"])(step)
        ours = torch.zeros_like(masks)
        ours[slot[chosen], position[chosen]] = True
        for name in ("nv", "dllm"):
            if f"c{i}_{name}" in data.files:
                assert torch.equal(ours, torch.tensor(data[f"c{i}_{name}"])), (i, name, params)


def test_units_gate():
    gate = read(ROOT / next(c["file"] for c in CASES if c["algorithm"] == "jot_gate"))
    for row in gate["spatial"]:
        rule = jot.JoT(row["tau_max"], row["tau_min"], row["gamma"], row["D"])
        resolved = torch.ones(1, row["n"], dtype=torch.bool)
        resolved[0, row["masked"]] = False
        np.testing.assert_allclose(rule.phi(resolved)[0, row["masked"]], row["phi"], rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(rule.tau(resolved)[0, row["masked"]], row["tau"], rtol=1e-9)
    for row in gate["ratio"]:
        logits = torch.tensor([row["logits"]], dtype=torch.float32)
        top = top2(logits)
        assert top.index.tolist() == [row["argmax"]]
        if row["ratio"] < 1e11:  # above, the reference saturates on its epsilon
            assert float(top.gap.exp()) == pytest.approx(row["ratio"], rel=1e-4)
