"""The one exception that means "the user can fix this", and the command lines that end in it."""

import argparse


class UserError(ValueError):
    """A mistake in the input: one sentence that says what is wrong and what to do about it."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a traceback."""
        return [f"jot: error: {self}"]


class Parser(argparse.ArgumentParser):
    """A command line whose complaints are one sentence, a ``UserError``."""

    def error(self, message: str):
        raise UserError(f"{message}; see `{self.prog} --help`")
