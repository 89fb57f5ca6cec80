"""Memory of a step at the published vocabulary: one float32 copy of the asked rows, and for KLASS the one before it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROMPT, LENGTH, VOCABULARY = 188, 512, 126_464
COPY = LENGTH * VOCABULARY * 4  # bytes of the float32 logits of every generated row
PROGRAM = f"""
import torch, jot
from jot.models import LLaDAConfig, LLaDAModelLM
def peak():  # of this program alone; what getrusage reports starts from the parent's
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
torch.manual_seed(0)
shape = dict(d_model=16, n_layers=1, n_heads=1, n_kv_heads=1, mlp_hidden_size=16)
net = LLaDAModelLM(LLaDAConfig(vocab_size={VOCABULARY}, embedding_size={VOCABULARY}, **shape)).eval()
prompt = list(range({PROMPT}))
methods = jot.JoT(tau_max=90), jot.KLASS(0.9, 0.001)  # the larger one last: a peak does not fall again
for method in methods:
    jot.decode(net, prompt, method, length=4, temperature=0.0)
before = peak()
for method in methods:
    jot.decode(net, prompt, method, length={LENGTH}, steps=2, temperature=0.0)
    print((peak() - before) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as Linux reports it")
def test_peak_memory_above_the_model():
    # Every large tensor gets pages of its own, so what is freed no longer counts.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    for copies, peak in enumerate(map(int, done.stdout.split()), 1):
        assert 0.9 * copies * COPY < peak < (copies + 0.25) * COPY, f"{peak / COPY:.2f} copies of the logits"
