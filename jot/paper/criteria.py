"""The words for a criterion of the plan, and the one rule that gives them.

A criterion has two halves, "seen" and "not seen", and needs all of its cells: with one missing it is not shown, also
where what is recorded would meet a half. Where both halves are met, neither decides.
"""

from __future__ import annotations

SEEN, NOT_SEEN, UNDECIDED, NOT_SHOWN = "seen", "not seen", "undecided", "not shown"

Judged = tuple[str, str]  # status, detail


def status(complete: bool, seen: bool, unseen: bool) -> str:
    """The word for a criterion, from whether all of its cells are recorded and which of its halves is met."""
    if not complete:
        return NOT_SHOWN
    if bool(seen) == bool(unseen):
        return UNDECIDED
    return SEEN if seen else NOT_SEEN


def judged(complete: bool, seen: bool, unseen: bool, detail: str) -> Judged:
    """``status`` and its numbers, with a word where the two halves contradict each other."""
    return status(complete, seen, unseen), detail + ("; both criteria are met" if complete and seen and unseen else "")
