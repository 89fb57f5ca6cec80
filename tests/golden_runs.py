"""How each golden ``algorithm`` is written as a call of the loop."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path

import torch

import jot
from jot.sampler.step import Step

RANKINGS = {
    "low_confidence": "confidence", "maskgit_plus": "confidence", "topk_margin": "margin",
    "entropy": "entropy", "random": "random", "origin": "origin",
}  # fmt: skip
# References that rank by a float64 softmax of float32 logits are run with ``head_dtype="float64"``: near probability 1
# a float32 softmax ties where theirs does not.
SCHEDULES = {"S-LLaDA": "llada", "S-dllm": "precomputed", "S-Dream": "dream"}
PUBLIC = dict(temperature=0.0, top_p=None, top_k=None, stop_early=False)


@functools.lru_cache
def model(folder: Path):
    return jot.load(folder, device=os.environ.get("JOT_DEVICE", "cpu"))


def make_step(logits, position=None, key=0):
    """A step of one slot at its first forward, for tests of rules on given logits."""
    position = torch.arange(len(logits)) if position is None else position
    row, one = torch.zeros_like(position), torch.zeros(1, dtype=torch.long)
    seen = torch.ones(1, int(position.max()) + 1 if len(position) else 1, dtype=torch.bool)
    return Step(
        logits, row, position, row > -1, seen, ~seen, index=one, block_index=one, share=one.float(),
        keys=torch.tensor([key]), prompt=one, end=one + seen.shape[1], homes=one, whole=True, steps=1,
    )  # fmt: skip


def llada_generate(p):
    suppress = (p["eos_id"],) if p["logits_eos_inf"] else ()
    demote = (p["eos_id"], p["eot_id"]) if p["confidence_eos_eot_inf"] else ()
    return None, dict(
        PUBLIC, length=p["gen_length"], steps=p["steps"], block_length=p["block_length"],
        temperature=p["temperature"], guidance=p["cfg_scale"], ranking=RANKINGS[p["remasking"]],
        schedule="llada", suppress_tokens=suppress, begin_suppress_tokens=demote,
    )  # fmt: skip


def dllm_mdlm(p):
    return None, dict(
        PUBLIC, length=p["max_new_tokens"], steps=p["steps"], block_length=p["block_size"], ragged=True,
        temperature=p["temperature"], guidance=p["cfg_scale"], ranking=RANKINGS[p["remasking"]],
        schedule=SCHEDULES[p["schedule"]], suppress_tokens=p.get("suppress_tokens") or (),
        begin_suppress_tokens=p.get("begin_suppress_tokens") or (),
    )  # fmt: skip


def _dream(p):
    return None, dict(
        PUBLIC, length=p["max_new_tokens"], steps=p["steps"], temperature=p["temperature"], top_p=p["top_p"],
        top_k=p["top_k"], ranking=RANKINGS[p["alg"]], alg_temp=p["alg_temp"], eps=p.get("eps", 1e-3),
        guidance=p.get("cfg_scale", 0.0), schedule=SCHEDULES[p["schedule"]],
    )  # fmt: skip


def _jot(p):
    temperature = p["temperature"] if isinstance(p["temperature"], float) else 0.7  # "any"
    tau_max = math.inf if p["tau_max"] == 1e300 and not p["spatial"] else p["tau_max"]
    kernel = dict(tau_min=p["tau_min"], gamma=p["gamma"], window=p["D"]) if p["spatial"] else {}
    method = jot.JoT(tau_max=tau_max, spatial=p["spatial"], combine=p["combine"], **kernel)
    return method, dict(
        PUBLIC, stop_early=True, length=p["gen_length"], steps=p["steps"], block_length=p["block_length"],
        head_dtype="float64", temperature=temperature, ranking=RANKINGS[p["alg"]], schedule=SCHEDULES[p["schedule"]],
    )  # fmt: skip


def _released(p, **own):
    """The rule of the public code titled Just on Time, which exits nowhere where its thresholds leave no room."""
    top, low = p["max_threshold"], p["min_threshold"]
    off = top is None or top <= low
    kernel = {} if off else dict(tau_min=low, gamma=p["geo_decay"], window=p["max_distance"])
    return jot.JoT(tau_max=math.inf if off else top, **kernel, **own)


def jot_released_llada(p):
    _, decoding = dllm_mdlm({"cfg_scale": 0.0, "schedule": "S-dllm", **p})
    method = _released(p, canvas=True, sample=True, skip_demoted=True)
    return method, {**decoding, "stop_early": True, "keep_steps": True}


def jot_released_dream(p):
    _, decoding = _dream({"alg_temp": None, "schedule": "S-dllm", **p})
    return _released(p), {**decoding, "stop_early": True}


def prophet_llada(p):
    bars = p["thresholds"]
    method = jot.Prophet(
        bars["early"], bars["mid"], bars["late"], region="answer", answer_start=p["answer_start_offset_in_generation"]
    )
    return method, dict(
        PUBLIC, stop_early=True, length=p["gen_length"], steps=p["steps"], block_length=p["block_length"],
        ranking="confidence", schedule="llada", constraints=p["constraints"] or (),
    )  # fmt: skip


def _klass(p, inclusive, **decoding):
    method = None
    if p["alg"] == "klass":
        method = jot.KLASS(
            p["conf_threshold"], p["kl_threshold"], p["kl_history_length"], inclusive=inclusive,
            strategy=p["unmask_strategy"],
        )  # fmt: skip
    return method, dict(PUBLIC, stop_early=True, steps=p["steps"], **decoding)


def klass_llada(p):
    ranking = "margin" if p["alg"] == "topk_margin" else "confidence"
    shape = dict(length=p["gen_length"], block_length=p["block_length"])
    return _klass(p, False, ranking=ranking, schedule="llada", head_dtype="float64", **shape)


def klass_dream(p):
    return _klass(p, True, length=p["max_new_tokens"], ranking="confidence", schedule="single")


def fastdllm_llada(p):
    method = None
    if p.get("threshold") is not None or p.get("factor") is not None:
        method = jot.FastDLLM(threshold=p["threshold"], factor=p.get("factor"))
    june = p["nfe_rule"] == "june-2025"
    return method, dict(
        PUBLIC, stop_early=True, length=p.get("gen_length") or p["max_new_tokens"], steps=p["steps"],
        block_length=p.get("block_length") or p["block_size"], ranking="confidence", ragged=not june,
        schedule="llada" if june else "precomputed", head_dtype="float64" if june else "float32",
        cache=None if p["cache"] == "none" else p["cache"], extra_in_block=june,
    )  # fmt: skip


def fastdllm_dream(p):
    gated = p["alg"] == "confidence_threshold"
    return jot.FastDLLM(threshold=p["threshold"]) if gated else None, dict(
        PUBLIC, stop_early=True, length=p["max_new_tokens"], steps=p["steps"], eps=p.get("eps", 1e-3),
        block_length=p.get("block_length") or p["block_size"], ranking="confidence" if gated else "entropy",
        schedule="dream", cache=p["cache"], extra_in_block=True,
    )  # fmt: skip


RUNS = {
    "llada_generate": llada_generate, "dllm_mdlm": dllm_mdlm, "dream_diffusion_generate": _dream,
    "dllm_dream": _dream, "jot_llada": _jot, "jot_dream": _jot, "prophet_llada": prophet_llada,
    "klass_llada": klass_llada, "klass_dream": klass_dream, "fastdllm_llada": fastdllm_llada,
    "fastdllm_dream": fastdllm_dream, "jot_released_llada": jot_released_llada,
    "jot_released_dream": jot_released_dream,
}  # fmt: skip

# The deliberate differences: what is not matched, and why.
SKIPPED = {
    "reference_bug": "the reference writes over decided positions",
    "fastdllm_dream_canvas_budget": "another rule than Fast-dLLM's; refused by name",
    "fastdllm_dream_canvas_budget_dllm": "another rule than Fast-dLLM's; refused by name",
}
