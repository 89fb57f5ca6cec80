"""The one exception that means "the user can fix this"."""


class UserError(ValueError):
    """A mistake in the input: one sentence that says what is wrong and what to do about it."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a traceback."""
        return [f"jot: error: {self}"]
