"""What does one step of the loop cost on a network of the published size?

Random weights, batch 1, bfloat16, one CUDA card: ``python tests/speed/full_size_step.py [llada|dream] ...``.
Prints milliseconds a step of full decoding and of JoT beside the bare eager forward with the head on 32 rows
(median of 12), at the paper's GSM8K and HumanEval shapes. Random weights clear hardly any threshold, so JoT
runs nearly every step here: its cost shows, not its speedup.
"""

from __future__ import annotations

import argparse
import time

import torch

import jot
from jot.models import DreamConfig, DreamModel, LLaDAConfig, LLaDAModelLM

SHAPES = ((144, 256), (188, 512))  # prompt and generated tokens
BUILD = {"llada": (LLaDAModelLM, LLaDAConfig), "dream": (DreamModel, DreamConfig)}
DECODING = {"llada": dict(block_length=32, temperature=0.0), "dream": dict(temperature=0.1, top_p=0.9)}


def clock(run, *args, **kwargs) -> tuple[float, object]:
    """Seconds of a call between synchronized clocks, and what it returned."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    result = run(*args, **kwargs)
    torch.cuda.synchronize()
    return time.perf_counter() - begun, result


@torch.inference_mode()
def measure(family: str) -> None:
    """Print the table of one family; its network is freed at the end."""
    model_class, config_class = BUILD[family]
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = model_class(config_class()).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(0)
    for prompt_tokens, length in SHAPES:
        prompt = torch.randint(0, 100_000, (prompt_tokens,), generator=generator).tolist()
        jot.decode(model, prompt, jot.JoT(), length=32, **{**DECODING[family], "block_length": None})  # warm-up
        canvas = torch.tensor([prompt + [model.mask_id] * length], device="cuda")
        row = torch.zeros(32, dtype=torch.long, device="cuda")
        position = torch.arange(prompt_tokens, prompt_tokens + 32, device="cuda")
        bare = sorted(clock(model.predict, canvas, None, row, position)[0] for _ in range(12))[6]
        for method in (jot.FullDecoding(), jot.JoT(tau_max=90)):
            seconds, out = clock(jot.decode, model, prompt, method, length=length, **DECODING[family])
            print(
                f"{family:<6} P={prompt_tokens} L={length} {method.name:<5} {out.steps:>3} steps "
                f"{1e3 * seconds / out.steps:6.2f} ms/step  bare forward {1e3 * bare:6.2f} ms  "
                f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB  {torch.cuda.get_device_name()}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", default=sorted(BUILD), choices=sorted(BUILD))
    for family in parser.parse_args().families:
        measure(family)


if __name__ == "__main__":
    main()
