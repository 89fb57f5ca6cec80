"""A benchmark ready to run: documents, prompts and scores of an lm-eval task, for one model."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache

from lm_eval.tasks import TaskManager
from lm_eval.utils import env

from jot import tasks
from jot.models.base import DiffusionModel
from jot.tasks import text
from jot.tasks.extract import cut
from jot.tasks.functions import quiet

env.from_string = lru_cache(64)(env.from_string)  # lm-eval compiles a task's template anew for every document


class Bench:
    """A split of an lm-eval task with its prompts for one model."""

    def __init__(self, model: DiffusionModel, task: tasks.Task, split: str, data: str | os.PathLike | None) -> None:
        where = {"split": split, "data": None if data is None else os.fspath(data)}
        with quiet("lm_eval"):  # without its notes on custom datasets
            manager = TaskManager(include_path=str(tasks.FOLDER), include_defaults=False, metadata=where)
            self.task = manager.load([task.name])["tasks"][task.name]
        self.docs = {doc["id"]: doc for doc in self.task.eval_docs}
        self.texts = {doc_id: self._prompt(model, task, doc) for doc_id, doc in self.docs.items()}
        ids = text.encode(model, list(self.texts.values()))
        self.prompts = {doc_id: prompt[: task.prompt_tokens] for doc_id, prompt in zip(self.docs, ids, strict=True)}
        self.hashes = {doc_id: text.hashed(prompt) for doc_id, prompt in self.prompts.items()}
        self.prompt_hash = hashlib.sha256("".join(self.hashes.values()).encode()).hexdigest()[:16]
        self.name, self.metric = task.name, task.metric

    def _prompt(self, model: DiffusionModel, task: tasks.Task, doc: dict) -> str:
        return self.task.fewshot_context(
            doc, num_fewshot=0, apply_chat_template=task.chat, gen_prefix=self.task.doc_to_prefix(doc),
            chat_template=lambda chat, add_generation_prompt=True: text.render(model, chat),
        )  # fmt: skip

    def score(self, doc_id: str, answer: str) -> tuple[str | None, float | None]:
        """The extracted answer and the score, by the task's own filters and metric."""
        doc = self.docs[doc_id]
        request = self.task.construct_requests(doc=doc, ctx=self.texts[doc_id], metadata=(self.name, 0, 1))
        request.resps = [cut(answer, request.args[1].get("until") or [])]
        for ensemble in self.task._filters:
            ensemble.apply([request])
        filtered = next(iter(request.filtered_resps.values()))
        results = self.task.process_results(doc, [filtered])
        return (filtered, float(results[self.metric])) if self.metric else (None, None)
