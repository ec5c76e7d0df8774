"""What every part of the package may raise or call."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Check = Callable[[], None]
"""Called often while something long goes on; may raise to cancel it."""


INTERRUPTED = "Interrupted. Finished results were kept, and no file is incomplete."
"""What the command line says after Ctrl-C."""
LONGEST = 1000
"""Characters of what an error says: it may quote a stranger's file."""


_INPUT = re.compile(r"`([a-z_]+)`")
"""How a sentence names an input: by the name of its field, in backquotes."""


class AdtError(ValueError):
    """A wrong input, said in one sentence: which input, what was expected, what to do.

    The sentence names inputs by their fields, in backquotes. As a text it has the bare names, which are those of the
    nodes' inputs.
    """

    __module__ = "builtins"  # ComfyUI shows users an exception's module, unless it is this one

    def __init__(self, sentence: str):
        super().__init__(one_line(sentence))

    def __str__(self) -> str:
        return self.naming(str)

    @property
    def marked(self) -> str:
        """The sentence with its inputs in backquotes, for another sentence that takes it in."""
        return self.args[0]

    def naming(self, written: Callable[[str], str]) -> str:
        """The sentence with its inputs as a surface writes them. written: of the name of a field."""
        return in_words(self.marked, written)

    def __reduce__(self) -> tuple:
        return _again, self.args  # by which other processes can be told of it, in spite of the module


def in_words(sentence: str, written: Callable[[str], str]) -> str:
    """A sentence in which inputs stand in backquotes, with each as it is ``written`` where it is read."""
    return _INPUT.sub(lambda match: written(match[1]), sentence)


class TooLong(AdtError):
    """A text with more tokens than there is room for."""

    __module__ = "builtins"
    __qualname__ = "AdtError"  # which ComfyUI shows users, too


def _again(sentence: str) -> AdtError:
    return AdtError(sentence)


def command(arguments: str, path: Path | None = None) -> str:
    """Return a command line of this package that runs in any folder, with the Python that runs now.

    Args:
        arguments: Command and options, quoted where the shell needs it.
        path: Last argument, such as the folder to write to.
    """
    script = Path(__file__).parents[1] / "adt.py"
    start = _quoted(str(script)) if script.exists() else "-m adt_core"
    last = [] if path is None else [_quoted(path.as_posix())]
    return " ".join([_python(), start, arguments, *last])


def pip_install(packages: str) -> str:
    """The command that installs packages for the Python that runs: a portable ComfyUI's is not the one on the path."""
    return f"{_python()} -m pip install {packages}"


def _python() -> str:
    return _quoted(sys.executable) or "python"


def _quoted(path: str) -> str:
    """Return a path as a shell takes it."""
    return f'"{path}"' if " " in path else path


_NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "unable to allocate",
    "status_alloc_failed",
)
_NO_MEMORY_OF_ONEDNN = "could not create a primitive", "could not create a memory", "could not create a memory object"
"""What torch's products on a CPU say of it, word for word: longer sentences say that something is not supported."""


def is_out_of_memory(error: BaseException) -> bool:
    """Does an error say that there is too little memory? Python, torch and drivers each say so in their own words."""
    by_kind = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return by_kind or any(said in str(error).lower() for said in _NO_MEMORY) or str(error) in _NO_MEMORY_OF_ONEDNN


@contextmanager
def told_by_library(sentence: Callable[[str], str]) -> Iterator[None]:
    """An AdtError, ``sentence`` of the reason, where a library fails in the block.

    Rust's panics are no Exception, and would end ComfyUI's worker. Interrupts, which are none either, go on.
    """
    try:
        yield
    except AdtError:
        raise
    except BaseException as error:
        is_panic = type(error).__module__ == "pyo3_runtime"
        if is_out_of_memory(error) or not (is_panic or isinstance(error, Exception)):
            raise
        raise AdtError(sentence(one_line(str(error))[:300])) from error


def one_line(text: str) -> str:
    """A text without line breaks, cut if it is long, that every log can print: half of a surrogate pair is spelled."""
    return " ".join(text.split())[:LONGEST].encode("utf-8", "backslashreplace").decode()


def shown(value: object, most: int = 40) -> str:
    """A wrong value for a sentence, cut to ``most`` characters. Python prints no number of thousands of digits."""
    try:
        return repr(value)[:most]
    except ValueError:
        return "too long to show"
