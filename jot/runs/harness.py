"""Evaluation through lm-eval: `evaluate`, which records every sample, and the lm-eval model "jot".

Importing this module registers the model: `import jot.runs.harness`, then `lm_eval.simple_evaluate(model="jot")`.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import logging
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import lm_eval.config.evaluate_config
import lm_eval.models  # noqa: F401  first: a model registered before it would hide all others
import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm.auto import tqdm

from jot import __version__, tasks
from jot.decode import decode_stream
from jot.errors import COUNT, Kind, UserError, destination
from jot.models import load, resolve_device
from jot.models.base import DiffusionModel
from jot.records import TRACE, Cell, Recorded, take, to_frame
from jot.records.store import Writer, writable
from jot.runs import distributed, environment, settings
from jot.sampler.config import check_prompt
from jot.sampler.exits import rule_of
from jot.sampler.output import Output
from jot.tasks.bench import Bench
from jot.tasks.extract import cut
from jot.tasks.text import answer_ids, encode, render, to_text, untemplated

# A task has the last, users the others.
LENGTHS = ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_gen_toks")
IGNORED = {"until", "stop", "do_sample", "max_length", "prompt_tokens", *LENGTHS}  # not decoding knobs
SAMPLING = {"temperature": 0, "top_p": 1, "top_k": 0}  # nor these beside ``do_sample: false``; what changes nothing
LIKELIHOOD = "a masked diffusion model is evaluated by generation: use a generate_until task"
LOG = logging.getLogger("jot")
ROUNDS = 8  # of the batch, claimed at once at least: a batch runs dry at the end of what was claimed
SHARE = 4  # or one part in so many of what is left: large claims first, small ones when others need some too


# ---------------------------------------------------------------- the lm-eval model


@register_model("jot")
class JotLM(LM):
    """lm-eval model: decodes `generate_until` requests; log-likelihood tasks are not for diffusion models.

    Args:
        model: name, folder or hub id, or a model from `jot.load`; `pretrained` is another name for it.
        batch_size: rows of the batch; "auto" is 16.
        trust_remote_code: taken for the sake of lm-eval's users; no code of a checkpoint is ever run.
        parameters: settings of the method and of the decoding loop; `--gen_kwargs` of a run override them,
            and unlike model arguments they are part of lm-eval's response cache key.
    """

    def __init__(
        self, model="pocket-llada", *, pretrained=None, method: str = "jot", batch_size=16, max_batch_size=None,
        device=None, dtype=None, revision=None, seed: int = 0, trust_remote_code=None, **parameters,
    ) -> None:  # fmt: skip
        super().__init__()
        settings.parse(method, {k: v for k, v in parameters.items() if k not in IGNORED})
        Kind(int, 0, 1 << 63).check("--model_args seed", seed)
        if pretrained == "":
            raise UserError("--model_args pretrained= is empty; name a model, a folder or a hub id")
        automatic = re.fullmatch("auto(:[0-9.]+)?", str(batch_size))
        self.slots = 16 if automatic else COUNT.read("--batch_size", batch_size)
        if device == "cuda:0" and not torch.cuda.is_available():
            device = None  # lm-eval's command line asks for cuda:0 unless told otherwise
        self._rank, self._world_size = distributed.rank(), distributed.world()
        if self._world_size > 1:
            device = distributed.device("cuda" if str(device).startswith("cuda") else device)
            if not dist.is_initialized():
                dist.init_process_group("gloo")
                # Its threads must end before the interpreter does, which would abort the process.
                atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
        device, model, dtype = resolve_device(device), pretrained or model, None if dtype == "auto" else dtype
        if not isinstance(model, DiffusionModel):
            model = load(model, revision=revision, device=device, dtype=dtype)
        self.model, self.method, self.seed, self.parameters = model, method, seed, parameters
        self._device = model.device

    @property
    def tokenizer_name(self) -> str:
        return str(self.model.name).replace("/", "__")

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(tensor.reshape(-1), device="cpu") for _ in range(self.world_size)]
        dist.all_gather(parts, tensor.reshape(-1).cpu())
        return torch.cat(parts)

    def gather_object(self, obj, dst: int = 0):
        parts = [None] * self.world_size if self.rank == dst else None
        dist.gather_object(obj, parts, dst=dst)
        return parts

    def barrier(self) -> None:
        dist.barrier()

    def set_cache_hook(self, cache_hook) -> None:
        """lm-eval's response cache has no model arguments in its keys: it is kept for one configuration."""
        super().set_cache_hook(cache_hook)
        own = [__version__, self.model.fingerprint, str(self.model.dtype), self.method, self.seed, self.parameters]
        own, kept = json.dumps(own, sort_keys=True, default=str), cache_hook.dbdict
        if kept is not None and kept.setdefault("jot", own if not len(kept) else None) != own:
            name = kept.filename
            raise UserError(f"the cache {name} holds answers of another configuration; use another --use_cache")

    def chat_template(self, chat_template: bool | str = False) -> str:
        if chat_template and (told := untemplated(self.model)):
            raise UserError(f"{told}; leave --apply_chat_template out")
        return self.model.tokenizer.chat_template or ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return render(self.model, chat_history)

    def _settings(self, options: Mapping) -> dict[str, object]:
        skipped = SAMPLING if options.get("do_sample") is False else ()
        for name in skipped:
            Kind(float, optional=True).check(f"--gen_kwargs {name}", options.get(name))
        given = {**self.parameters, **{k: v for k, v in options.items() if k not in skipped}}
        method = str(given.pop("method", self.method))
        lengths = [COUNT.read(name, given[name]) for name in LENGTHS if given.get(name) is not None]
        given = {k: v for k, v in given.items() if k not in IGNORED}
        if lengths:
            given.setdefault("length", lengths[0])
        return {"method": method, **settings.parse(method, given)}

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            group = {**self._settings(request.args[1]), "prompt_tokens": request.args[1].get("prompt_tokens")}
            groups.setdefault(json.dumps(group, sort_keys=True), []).append(i)
        greedy = [request.args[1] for request in requests if request.args[1].get("do_sample") is False]
        unread = {name for own in greedy for name, off in SAMPLING.items() if own.get(name, off) not in (off, None)}
        if unread and self.rank == 0:
            LOG.warning("jot: %s not read beside do_sample=false; pass do_sample=true", ", ".join(sorted(unread)))
        texts: list[str] = [""] * len(requests)
        with tqdm(total=len(requests), disable=disable_tqdm or self.rank > 0, desc="decoding") as bar:
            for members in groups.values():
                for i, text in self._decode([requests[i] for i in members], members):
                    stops = (requests[i].args[1].get(name) or [] for name in ("until", "stop"))
                    texts[i] = cut(text, [s for stop in stops for s in ([stop] if isinstance(stop, str) else stop)])
                    self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                    bar.update()
        return texts

    def _decode(self, requests: list[Instance], keys: list[int]) -> Iterator[tuple[int, str]]:
        options = requests[0].args[1]
        chosen = self._settings(options)
        rule, config = settings.resolve(self.model, chosen.pop("method"), chosen, seed=self.seed)
        prompts = encode(self.model, [request.args[0] for request in requests])
        # Draws are keyed by the document, so a sample is the same whatever is decoded beside it. Tasks may share a
        # document or only its name; `repeats` of a task bring the very same request again.
        waiting: dict[tuple, list[int]] = {}
        repeats: Counter[int] = Counter()
        for request, key, ids in zip(requests, keys, prompts, strict=True):
            doc = f"{(request.doc or {}).get('id', f'{request.task_name}/{request.doc_id}')}"
            doc += f"#{request.idx}" if request.idx else ""
            doc += f"~{repeat}" if (repeat := repeats[id(request)]) else ""
            repeats[id(request)] += 1
            waiting.setdefault((doc, *ids[: options.get("prompt_tokens")]), []).append(key)
        samples = [(doc, ids) for doc, *ids in waiting]
        for doc, out in decode_stream(self.model, samples, rule, slots=self.slots, **dataclasses.asdict(config)):
            text = to_text(self.model, answer_ids(self.model, out.generated))
            yield from ((key, text) for key in waiting[doc, *out.tokens[: -config.length]])

    def loglikelihood(self, requests):
        raise UserError(LIKELIHOOD)

    loglikelihood_rolling = loglikelihood


def _output_types(asked: str | Mapping, index: Mapping) -> Iterator[tuple[object, str]]:
    """Name and output type of the tasks behind the name or YAML of a task, group or tag; no data are read."""
    given = {} if isinstance(asked, str) else dict(asked)
    name = asked if isinstance(asked, str) else given.get("group", given.get("task"))
    entry = index.get(name) if isinstance(name, str) else None
    config = {**((entry and entry.cfg) or {}), **given}
    members = entry.tags if entry and entry.kind.name == "TAG" else config.get("task")
    if isinstance(members, (list, set)):
        for member in members:
            yield from _output_types(member, index)
    else:
        yield name, config.get("output_type", "generate_until")


class _Config(lm_eval.config.evaluate_config.EvaluatorConfig):
    """lm-eval's configuration, which refuses what cannot run before the model is loaded."""

    @classmethod
    def from_cli(cls, namespace):
        try:
            return super().from_cli(namespace)
        except (TypeError, AttributeError) as error:  # of a --config file
            raise UserError(f"lm-eval: {error}") from error

    def process_tasks(self, metadata=None):
        for name in ("batch_size", "max_batch_size", "device"):
            if name in self.model_args:
                raise UserError(f"{name} is no model argument; give it as --{name}")
        Kind(float, 0, open=True, optional=True).check("--limit", self.limit)
        if path := self.output_path:
            destination("--output_path", os.path.dirname(path) or "." if path.endswith(".json") else path)
        manager = super().process_tasks(metadata)
        for name, kind in (found for asked in self.tasks for found in _output_types(asked, manager.task_index)):
            if self.model == "jot" and kind != "generate_until":
                raise UserError(f"task {name} is of the type {kind}; {LIKELIHOOD}")
        return manager


def command(arguments: list[str]) -> None:
    """``jot lm-eval``: lm-eval's own command line, with the model and the tasks of this package."""
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    sys.argv = ["jot lm-eval", *arguments]
    lm_eval.config.evaluate_config.EvaluatorConfig = _Config  # looked up there by the command line
    parser = HarnessCLI()
    try:
        options = parser.parse_args()
        if "include_path" in options:
            if options.include_path and not os.path.isdir(options.include_path):
                raise UserError(f"--include_path {options.include_path} is no folder; name that of the tasks")
            options.include_path = [*filter(None, [options.include_path]), str(tasks.FOLDER)]
        if "model" in options and not options.config:
            options.model = options.model or "jot"
        parser.execute(options)
    except (UserError, BrokenPipeError):
        raise
    except (ValueError, OSError, ImportError) as error:  # what lm-eval says of a mistake
        raise UserError(f"lm-eval: {error}") from error


# ---------------------------------------------------------------- evaluate


@dataclasses.dataclass(frozen=True)
class Summary:
    """What `evaluate` returns.

    Attributes:
        cell: the cell's id.
        recorded: configuration and samples of this run's documents, as `records.load_store` would give them.
        decoded: how many samples were decoded now; the others had been.
    """

    cell: str
    recorded: Recorded
    decoded: int

    @property
    def frame(self) -> pd.DataFrame:
        return self.recorded.frame

    @property
    def n(self) -> int:
        return len(self.frame)

    @property
    def score(self) -> float:
        """Mean score in [0, 1]; NaN for a task without one."""
        return float(self.frame["score"].mean())

    @property
    def speedup(self) -> float:
        """Configured over actual steps, a ratio of sums."""
        return float(self.frame["configured_steps"].sum() / self.frame["steps"].sum())


def _numbers(values: Sequence | np.ndarray) -> list:
    values = np.asarray(values)
    if values.dtype.kind != "f":
        return values.tolist()
    return [float(f"{x:.6g}") if math.isfinite(x) else None for x in values.tolist()]


def record_of(model: DiffusionModel, bench: Bench, doc_id: str, out: Output, steps: int, slots: int) -> dict:
    ids = answer_ids(model, out.generated)
    text = to_text(model, ids)
    answer, score = bench.score(doc_id, text)
    record = {
        "doc_id": doc_id, "prompt_hash": bench.hashes[doc_id], "prompt_tokens": len(bench.prompts[doc_id]),
        "text": text, "answer": answer, "score": score, "configured_steps": steps, "steps": out.steps,
        **{f"forwards_{kind}": out.forwards[kind] for kind in ("full", "suffix", "block")},
        "seconds": round(out.seconds, 6), "slots": slots, "tokens_non_eos": len(ids), "empty": not text.strip(),
        "generated": list(out.generated),
    }  # fmt: skip
    if out.loop != "plain":
        record["loop"] = out.loop
    if out.trace is not None:
        record["trace"] = {name: _numbers(getattr(out.trace, name)) for name in TRACE}
    return record


def evaluate(
    model: str | DiffusionModel,
    task: str,
    method: str | object = "jot",
    *,
    split: str | None = None,
    limit: int | None = None,
    store: str | os.PathLike = "results/records",
    seed: int = 0,
    slots: int = 16,
    data: str | os.PathLike | None = None,
    trace: bool = False,
    progress: bool = True,
    allow_code_execution: bool = False,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    **parameters,
) -> Summary:
    """Decodes and scores a task, sample by sample into `store`; what is recorded there is not decoded again.

    Args:
        model: from `jot.load`, or a name, folder or hub id.
        task: one of `jot.tasks.TASKS`.
        method: an exit rule, or its name; then `parameters` may hold its settings.
        split: defaults to the task's first.
        limit: only the first so many documents of a fixed permutation (stratified by subject).
        store: folder of the records; several processes may share it.
        seed: of the random draws.
        slots: rows of the batch.
        data: local folder of the benchmark's files.
        trace: record how each canvas was filled.
        allow_code_execution: consent to run code that a full-size model writes, in the sandbox.
        parameters: settings of the decoding loop (and of a method given by name).

    Raises:
        UserError: anything that the caller can put right, before the weights are read where possible.
    """
    bench_task = tasks.get(task)
    split, _ = tasks.split_file(bench_task, split, data)
    if bench_task.needs_flag and not allow_code_execution:
        raise UserError(f"{task} runs code that the model writes; consent with --allow-code-execution")
    take([], limit)
    COUNT.check("slots", slots)
    name = method if isinstance(method, str) else rule_of(method).name
    chosen = settings.parse(method, parameters)
    if not isinstance(method, str) and (twice := chosen.keys() & {f.name for f in dataclasses.fields(method)}):
        raise UserError(f"{sorted(twice)[0]} is a setting of the rule that was given; set it there")
    loaded = isinstance(model, DiffusionModel)
    known = type(model) if loaded else settings.model_class(model)
    if known is not None:
        settings.resolve(known, method, chosen, bench_task, seed)
    folder = writable(store)
    model = model if loaded else load(model, revision=revision, device=device, dtype=dtype)
    rule, config = settings.resolve(model, method, chosen, bench_task, seed)
    if model.dtype == torch.float32:
        torch.backends.cuda.matmul.allow_tf32 = False  # a CPU must be able to match

    if bench_task.chat and distributed.first() and (told := untemplated(model)):
        LOG.warning("jot: %s", told)
    bench = Bench(model, bench_task, split, data)
    subjects = [doc[bench_task.subject] for doc in bench.docs.values()] if bench_task.subject else None
    wanted = take(list(bench.docs), limit, subjects)
    check_prompt(model, config, max((bench.prompts[doc_id] for doc_id in wanted), key=len))
    cell = Cell(settings.cell_config(model, bench_task, bench.task.VERSION, split, bench.prompt_hash, rule, config))
    decoded = 0
    with Writer(folder, cell, bench.hashes, environment.describe(model.device)) as writer:
        missing = [doc_id for doc_id in wanted if doc_id not in writer.done]
        if trace and any("trace" not in writer.done[doc_id] for doc_id in wanted if doc_id in writer.done):
            raise UserError(f"{cell.id} was recorded without traces in {folder}; use another store")
        with tqdm(
            total=len(wanted), initial=len(wanted) - len(missing), desc=f"{task} {name}", unit="sample",
            disable=not progress or not missing or not distributed.first(),
        ) as bar:  # fmt: skip
            own = set(distributed.share(wanted))
            while missing:
                near = [doc_id for doc_id in missing if doc_id in own]
                claimed = writer.claim(near, max(slots * ROUNDS, len(near) // SHARE))
                claimed = claimed or writer.claim(missing, max(slots * ROUNDS, len(missing) // SHARE))
                if not claimed:
                    bar.set_postfix_str("waiting for another process")
                    time.sleep(0.2)
                samples = [(doc_id, bench.prompts[doc_id]) for doc_id in claimed]
                stream = decode_stream(model, samples, rule, slots=slots, trace=trace, **dataclasses.asdict(config))
                try:
                    for doc_id, out in stream:
                        writer.append(record_of(model, bench, doc_id, out, config.existing_steps, slots))
                        decoded += 1
                        bar.update()
                except (torch.OutOfMemoryError, MemoryError) as error:
                    raise UserError(
                        f"out of memory on {model.device} with {slots} samples at a time: the {len(writer.done)} "
                        "finished samples are kept; run again with fewer slots"
                    ) from error
                missing = [doc_id for doc_id in missing if doc_id not in writer.done]
                bar.n = len(wanted) - len(missing)
        frame = to_frame([writer.done[doc_id] for doc_id in wanted])
    return Summary(cell.id, Recorded(writer.meta, lambda: frame), decoded)
