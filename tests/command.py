"""Command lines built from names and values."""


def words(command: str, **options) -> list[str]:
    """Return a command line as a list of words. Options whose value is None are left out.

    ``words("generate", batch_size=2)`` is ``["generate", "--batch-size", "2"]``.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return [command, *(str(word) for name in given for word in (f"--{name.replace('_', '-')}", given[name]))]
