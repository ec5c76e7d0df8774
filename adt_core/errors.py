"""Exceptions and error messages that all parts of the package share."""

from __future__ import annotations

import re
import reprlib
import sys
import traceback
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .messages import ERRORS, Message, Part, message

Check = Callable[[], None]
"""Cancellation callback: long operations call it often, and it may raise an exception to stop them."""
INTERRUPTED = "Interrupted. Finished results were kept, and no file is incomplete."
"""Message of the command line after Ctrl-C."""
LONGEST = 1000
"""Maximum length of an error message in characters. The limit is needed because messages may quote untrusted files."""
_INPUT = re.compile(r"`([a-z_]+)`")
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)
"""Characters that are escaped. Joiners stay, because emoji and many scripts need them."""


class AdtError(ValueError):
    """Invalid input. The text is one sentence: the name of the input, its value, what is valid, and what to do.

    The key of an error is stable, so programs and tests can compare it. In its message, the names of settings are in
    backquotes: "`top_k` is -1; ...". `str()` returns "top_k is -1; ...", because the inputs of the nodes have the names
    of the settings. The command line shows "--top-k is -1; ...".

    Args:
        key: Key of the sentence in `errors.json`. Code of other packages may pass a sentence instead.
        **parameters: Values for the names in braces. An error or a message can be a value; its final period is left
            out.
    """

    __module__ = "adt_core"  # ComfyUI shows this import path with the message

    def __init__(self, key: str, /, **parameters: object):
        text = key
        if key in ERRORS:
            text = message(key, **{name: getattr(value, "message", value) for name, value in parameters.items()})
        super().__init__((text if isinstance(text, Message) else Message([Part(text)])).map(one_line))

    def __str__(self) -> str:
        return self.with_inputs(str)

    @property
    def message(self) -> Message:
        """Message with the names of settings in backquotes. It can be a value for another error."""
        return self.args[0]

    @property
    def key(self) -> str:
        """Key of the sentence, or "" for a sentence of another package."""
        return self.message.parts[0].key or ""

    @property
    def parameters(self) -> dict[str, str | int]:
        """Values for the names in braces."""
        return self.message.parts[0].parameters

    def with_inputs(self, rename: Callable[[str], str]) -> str:
        """Return the message with other names for the settings; see :func:`substitute_inputs`."""
        return substitute_inputs(self.message, rename)

    def renamed(self, **names: str) -> AdtError:
        """Return the error with other names for some settings, such as the ids of a node's inputs."""
        text = self.message.map(lambda text: substitute_inputs(text, lambda name: names.get(name, name)))
        for part in text.parts:
            if part.parameters.get("input") in names:
                part.parameters["input"] = names[str(part.parameters["input"])]
        return type(self)(text)


@contextmanager
def renaming(**names: str) -> Iterator[None]:
    """Give settings other names in the errors of the block; see `AdtError.renamed`."""
    try:
        yield
    except AdtError as error:
        raise error.renamed(**names) from error


class PromptTooLongError(AdtError):
    """Prompt with more tokens than the model accepts.

    Attributes:
        tokens: Number of tokens of the prompt. It is None if the prompt has so many characters that its tokens were not
            counted.
        limit: Number of tokens that the model accepts.
        model: Name of the model.
    """

    __module__ = "adt_core"

    tokens = property(lambda self: self.parameters.get("tokens"))
    limit = property(lambda self: self.parameters.get("limit"))
    model = property(lambda self: self.parameters.get("model"))


class UnknownFormatError(AdtError):
    """File of this pack whose format number is not `version.FORMAT`."""

    __module__ = "adt_core"


def substitute_inputs(template: str, rename: Callable[[str], str]) -> str:
    """Replace the names in backquotes in a message.

    Args:
        template: Message such as "`top_k` is -1; ...".
        rename: Function from the name of a setting to the name to show, such as "--top-k".
    """
    return _INPUT.sub(lambda match: rename(match[1]), template)


def command(arguments: str, path: Path | None = None) -> str:
    """Return the text of a command line that runs a command of this package with the current Python, from any folder.

    Args:
        arguments: Command and options. The caller has already added the quotation marks that a shell needs.
        path: Last argument, such as the output folder; None for no further argument.
    """
    script = Path(__file__).parents[1] / "adt.py"
    start = _quoted(str(script)) if script.exists() else "-m adt_core"
    last = [] if path is None else [_quoted(path.as_posix())]
    return " ".join([_python(), start, arguments, *last])


def pip_install(packages: str) -> str:
    """Return the command that installs packages for the current Python, such as the Python of a portable ComfyUI."""
    return f"{_python()} -m pip install {packages}"


_PACKAGES = {"PIL": "pillow", "bs4": "beautifulsoup4", "yaml": "pyyaml"}
"""Names under which pip knows libraries that are imported by another name."""


def failed_library(error: BaseException | None) -> str:
    """Return the name of the library that is missing or cannot be loaded, or "" if the error has another reason.

    Libraries that import others may raise any exception with the first error as its cause. A torchvision that was built
    for another version of PyTorch raises RuntimeError.
    """
    if error is None:
        return ""
    if cause := failed_library(error.__cause__):
        return cause
    if re.search(r"\btorchvision\b", str(error), re.IGNORECASE):
        return "torchvision"
    if not isinstance(error, ImportError):
        return ""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = error.name or (frames[-1].f_globals.get("__name__", "") if frames else "")
    library = module.split(".")[0]
    return "" if library in (__name__.split(".")[0], "__main__") else library


def library_error(error: BaseException) -> AdtError | None:
    """Return an error with the pip command for a library that is missing or cannot be loaded; None for other errors.

    Args:
        error: Any exception.
    """
    library = failed_library(error)
    if not library:
        return None
    package = _PACKAGES.get(library, library)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == library:
        return AdtError("library.missing", library=library, command=pip_install(package))
    if library == "torchvision":  # the version of torch is named so that pip does not replace torch
        with suppress(PackageNotFoundError):
            package += f" torch=={version('torch').partition('+')[0]}"
    while error.__cause__ is not None:
        error = error.__cause__
    reason = one_line(str(error))[:200]
    return AdtError("library.broken", library=library, reason=reason, command=pip_install(f"--upgrade {package}"))


@contextmanager
def naming_missing_libraries(others: Container[str] = ()) -> Iterator[None]:
    """Convert the error of an import in the block to an AdtError if a library is missing or cannot be loaded.

    Args:
        others: Names of modules that pip cannot install. Their errors are not converted.
    """
    try:
        yield
    except Exception as error:
        if failed_library(error) in others or not (missing := library_error(error)):
            raise
        raise missing from error


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
"""Complete messages of oneDNN for a lack of memory. Longer messages with the same beginning report other problems."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports a lack of memory. Python, torch and GPU drivers report it in different ways."""
    by_kind = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return by_kind or any(text in str(error).lower() for text in _NO_MEMORY) or str(error) in _NO_MEMORY_OF_ONEDNN


@contextmanager
def wrap_library_errors(key: str, **parameters: object) -> Iterator[None]:
    """Convert the errors that a library raises in the block to AdtError.

    Panics of Rust libraries are converted too: they are not an `Exception`, and would end ComfyUI's worker thread.
    Interrupts and out-of-memory errors are not converted.

    Args:
        key: Key of the AdtError. Its parameter `reason` is the library's message.
    """
    try:
        yield
    except AdtError:
        raise
    except BaseException as error:
        is_panic = type(error).__module__ == "pyo3_runtime"
        if is_out_of_memory(error) or not (is_panic or isinstance(error, Exception)):
            raise
        raise library_error(error) or AdtError(key, reason=one_line(str(error))[:300], **parameters) from error


def one_line(text: str, most: int = LONGEST) -> str:
    """Return a text in one line that is safe to show in a terminal, a log, a message or an image.

    Control characters are escaped, see :func:`escape_controls`. A terminal would obey them: they can hide text, change
    the title of the window, or write to the clipboard.

    Args:
        most: Maximum length in characters; the rest is cut off.
    """
    start = text.lstrip()[: 2 * most]  # cut first, because the text may have many MiB
    return escape_controls(" ".join(start.split()))[:most]


def escape_controls(text: str) -> str:
    """Return a text with escape sequences for control characters, marks of writing direction and lone surrogates.

    Line breaks and tabs stay. The escape sequences are valid in JSON, so JSON remains valid. UTF-8 can't encode lone
    surrogates. Marks of writing direction can show a name such as "gpj.exe" backwards.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shown(value: object, most: int = 40) -> str:
    """Return the representation of a value for an error message, or its first `most` characters.

    If Python can't represent it, such as an integer with more than 4,300 digits, the text is "too long to show".
    """
    try:
        return escape_controls(_bounded_repr(value, most)[:most])
    except (ValueError, RecursionError):
        return "too long to show"


def _bounded_repr(value: object, most: int) -> str:
    """Return `repr(value)` or its beginning. Containers and texts may have any size, and lists any nesting."""
    if isinstance(value, str | bytes):
        return repr(value[:most])
    if type(value) in (list, tuple, dict, set, frozenset):
        return _Shortened(most).repr(value)
    return repr(value)


class _Shortened(reprlib.Repr):
    """Representation of a container by its first `most` entries."""

    def __init__(self, most: int):
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = most
        self.maxstring = self.maxother = self.maxlong = 10 * most
