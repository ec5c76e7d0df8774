"""Exceptions and error messages that all parts of the package share."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Check = Callable[[], None]
"""Cancellation callback: long operations call it often, and it may raise an exception to stop them."""


INTERRUPTED = "Interrupted. Finished results were kept, and no file is incomplete."
"""Message of the command line after Ctrl-C."""
LONGEST = 1000
"""Maximum length of an error message in characters. It may quote untrusted files."""


_INPUT = re.compile(r"`([a-z_]+)`")


class AdtError(ValueError):
    """Invalid input. The message is one sentence: input, value, expectation and remedy.

    The message template names inputs by their field in backquotes, such as "`top_k` is -1; ...". `str()` returns the
    message with plain field names, which are the names of the nodes' inputs. The command line writes "--top-k" instead.
    """

    __module__ = "adt_core"  # its public import path, which ComfyUI shows with the message

    def __init__(self, template: str):
        super().__init__(one_line(template))

    def __str__(self) -> str:
        return self.with_inputs(str)

    @property
    def template(self) -> str:
        """Message with its inputs in backquotes, for use in the template of another error."""
        return self.args[0]

    def with_inputs(self, rename: Callable[[str], str]) -> str:
        """Return the message with every input renamed.

        Args:
            rename: Returns the name to show for the name of a field.
        """
        return substitute_inputs(self.template, rename)


class PromptTooLongError(AdtError):
    """Prompt with more tokens than the model accepts.

    Attributes:
        tokens: Number of tokens, or None if the prompt has too many characters to count them.
        limit: Number of tokens that the model accepts.
        model: Name of the model.
    """

    __module__ = "adt_core"

    def __init__(self, template: str, tokens: int | None = None, limit: int = 0, model: str = ""):
        super().__init__(template)
        self.tokens = tokens
        self.limit = limit
        self.model = model


def substitute_inputs(template: str, rename: Callable[[str], str]) -> str:
    """Replace the fields in backquotes in a message by the names to show.

    Args:
        template: Message such as "`top_k` is -1; ...".
        rename: Returns the name to show for the name of a field.
    """
    return _INPUT.sub(lambda match: rename(match[1]), template)


def command(arguments: str, path: Path | None = None) -> str:
    """Return a command line of this package that runs in any folder, with the current Python.

    Args:
        arguments: Command and options, quoted where the shell needs it.
        path: Last argument, such as the output folder.
    """
    script = Path(__file__).parents[1] / "adt.py"
    start = _quoted(str(script)) if script.exists() else "-m adt_core"
    last = [] if path is None else [_quoted(path.as_posix())]
    return " ".join([_python(), start, arguments, *last])


def pip_install(packages: str) -> str:
    """Return the command that installs packages for the current Python, such as the one of a portable ComfyUI.

    Args:
        packages: Names of the packages, separated by spaces.
    """
    return f"{_python()} -m pip install {packages}"


def _python() -> str:
    return _quoted(sys.executable) or "python"


def _quoted(path: str) -> str:
    """Return a path, in quotation marks if a shell needs them."""
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
"""Complete messages of oneDNN if memory runs out. Longer messages that begin the same report unsupported operations."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports a lack of memory. Python, torch and drivers use different types and messages."""
    by_kind = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return by_kind or any(text in str(error).lower() for text in _NO_MEMORY) or str(error) in _NO_MEMORY_OF_ONEDNN


@contextmanager
def wrap_library_errors(message: Callable[[str], str]) -> Iterator[None]:
    """Turn errors of a library in the block into an AdtError.

    This includes panics of Rust libraries, which are not an `Exception` and would end ComfyUI's worker. Interrupts and
    lack of memory are not converted.

    Args:
        message: Returns the template of the error for the library's message.
    """
    try:
        yield
    except AdtError:
        raise
    except BaseException as error:
        is_panic = type(error).__module__ == "pyo3_runtime"
        if is_out_of_memory(error) or not (is_panic or isinstance(error, Exception)):
            raise
        raise AdtError(message(one_line(str(error))[:300])) from error


def one_line(text: str) -> str:
    """Return a text without line breaks, at most `LONGEST` characters long, with lone surrogates escaped."""
    return " ".join(text.split())[:LONGEST].encode("utf-8", "backslashreplace").decode()


def shown(value: object, most: int = 40) -> str:
    """Return the representation of a value for an error message.

    Args:
        value: Any value. Python cannot print integers of thousands of digits.
        most: Maximum length in characters; the rest is cut off.
    """
    try:
        return repr(value)[:most]
    except ValueError:
        return "too long to show"
