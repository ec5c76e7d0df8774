"""Command lines built from names and values."""


def words(command: str, **options) -> list[str]:
    """Return the words of a command line, without options that are None.

    ``words("generate", batch_size=2)`` is ``["generate", "--batch-size", "2"]``.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return [command, *(str(word) for name in given for word in (f"--{name.replace('_', '-')}", given[name]))]
