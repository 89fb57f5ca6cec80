"""jot: token-level early stopping for diffusion language models, with its baselines in one loop."""

from jot.decode import Commits, Generated, decode, decode_steps, decode_stream
from jot.errors import UserError
from jot.models import load
from jot.sampler.config import DecodeConfig
from jot.sampler.exits import (
    KLASS,
    CreditDecoding,
    EntropyBudget,
    ExitRule,
    FastDLLM,
    FullDecoding,
    JoT,
    LocalLeap,
    Prophet,
    SchED,
)
from jot.sampler.output import Output, Trace

__version__ = "0.1.0"


def __getattr__(name: str):
    if name == "evaluate":  # lm-eval is imported by those who evaluate, and by nobody else
        from jot.runs.harness import evaluate

        return evaluate
    raise AttributeError(f"module 'jot' has no attribute {name!r}")


__all__ = [
    "Commits", "CreditDecoding", "DecodeConfig", "EntropyBudget", "ExitRule", "FastDLLM", "FullDecoding", "Generated",
    "JoT", "KLASS", "LocalLeap", "Output", "Prophet", "SchED", "Trace", "UserError", "decode", "decode_steps",
    "decode_stream", "evaluate", "load",
]  # fmt: skip
