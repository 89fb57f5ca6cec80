"""How each golden ``algorithm`` is written as a call of the loop."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import jot

RANKINGS = {
    "low_confidence": "confidence", "maskgit_plus": "confidence", "topk_margin": "margin",
    "entropy": "entropy", "random": "random", "origin": "origin",
}  # fmt: skip
SCHEDULES = {"S-LLaDA": "llada", "S-dllm": "precomputed", "S-Dream": "dream"}
PUBLIC = dict(temperature=0.0, top_p=None, top_k=None, stop_early=False)


@functools.lru_cache
def model(folder: Path):
    return jot.load(folder, device="cpu")


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
        temperature=temperature, ranking=RANKINGS[p["alg"]], schedule=SCHEDULES[p["schedule"]],
    )  # fmt: skip


RUNS = {
    "llada_generate": llada_generate, "dllm_mdlm": dllm_mdlm, "dream_diffusion_generate": _dream,
    "dllm_dream": _dream, "jot_llada": _jot, "jot_dream": _jot,
}  # fmt: skip
