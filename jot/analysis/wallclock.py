"""The plan's wall-clock criterion, for the ledger; it lies in ``jot.paper.criteria``."""

from __future__ import annotations

from jot.paper import criteria


def below(records: object = None) -> tuple[str, str]:
    """Status and detail of "wallclock-below" from the recorded timings; ``records`` plays no part."""
    try:
        return criteria.wallclock_below(criteria.Evidence())
    except criteria.NotRecorded:
        return criteria.NOT_SHOWN, "not recorded"


PHENOMENA = {"wallclock-below": below}
