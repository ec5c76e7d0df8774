"""The one exception that is meant for the user's eyes."""


class AdtError(ValueError):
    """A wrong input, said in one sentence: which input, what was expected, what to do."""
