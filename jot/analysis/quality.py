"""What the claims ledger asks for until it reads ``jot.paper.criteria``, where the criterion lives."""

from __future__ import annotations

from jot.analysis.cells import Records
from jot.paper import criteria


def quality_kept(records: Records) -> criteria.Judged:
    """ "quality-kept" of the plan, of the recorded runs."""
    if not any(run.meta["config"]["task"] == criteria.PROSE for run in records.values()):
        return criteria.NOT_SHOWN, "not recorded"
    return criteria.quality_kept(criteria.Evidence())


PHENOMENA = {"quality-kept": quality_kept}
