"""The command line, ``python adt.py``.

Its options are the settings of the recipe (``policies/recipe.py``) and of the orders (``app/args.py``), by their
names. Heavy modules are imported when a command runs, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from .app import args
from .errors import INTERRUPTED, AdtError, is_out_of_memory, one_line, substitute_inputs
from .policies.recipe import Loading, Recipe, method_options
from .rules.settings import Lantern, Option, Sampling, Section
from .terminal import patient, say, show_everything
from .version import VERSION


class UsageError(AdtError):
    """The command line itself is wrong: exit code 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 (it failed), 2 (wrong arguments) or 130 (interrupted)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    show_everything()
    with patient():
        return _run(argv)


def _run(argv: list[str]) -> int:
    """The exit code of a command line."""
    try:
        command, options = parse(argv)
        say(command(options))
        return 0
    except KeyboardInterrupt:
        said, code = INTERRUPTED, 130
    except Exception as error:
        if "--debug" in argv:
            traceback.print_exc()
        said, code = f"error: {_sentence(error)}", 2 if isinstance(error, UsageError) else 1
    print(said, file=sys.stderr)
    return code


def _sentence(error: Exception) -> str:
    """What to tell the user about an error, in one line."""
    if isinstance(error, AdtError):
        return one_line(error.with_inputs(spelled))
    if is_out_of_memory(error):
        return "not enough memory for this model and batch; try a smaller --batch-size, or --dtype bfloat16."
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    return (
        f"unexpected {type(error).__name__}: {one_line(str(error))}. This is a bug in ADT-Tree; please report it "
        "with the output of --debug."
    )


# ---- commands: they return what to print, and the help shows their docstrings ----------------------------------------


def _checked(plan: Callable[..., Any], *order: Any) -> Any:
    """What ``plan`` makes of an order. An AdtError that it raises is the command line's fault."""
    try:
        return plan(*order)
    except AdtError as error:
        raise UsageError(error.template) from error


def _section(section: type[Section], options: Mapping[str, Any]) -> Section:
    """What the options say of a section of an order."""
    return _checked(section.of, options)


def _lab(name: str) -> Any:
    """Import a module of the package ``lab`` when its command runs."""
    return import_module(f".lab.{name}", __package__)


def generate(options: dict[str, Any]) -> str:
    """Generate images from text."""
    from .app import generation

    order = args.GenerateArgs(
        _section(args.OutputArgs, options),
        _section(args.InputArgs, options),
        _given(options),
        _section(args.BatchArgs, options),
        _section(args.ImageToImageArgs, options),
        _device(options),
        _section(args.WorkerArgs, options),
    )
    return generation.run(_checked(generation.plan, order))


def benchmark(options: dict[str, Any]) -> str:
    """Compare methods with plain decoding on the same prompts, side by side."""
    order = (
        _section(args.BenchmarkArgs, options),
        _section(args.QualityArgs, options),
        _section(args.WorkerArgs, options),
    )
    return _lab("benchmark").run(*order, _given(options), _device(options))


def inspect(options: dict[str, Any]) -> str:
    """Show what a checkpoint contains, without loading it."""
    from .app import inspect

    checkpoints = inspect.inspect(options["path"])
    text = json.dumps(checkpoints, indent=2) if options["json"] else "\n\n".join(map(inspect.as_text, checkpoints))
    return substitute_inputs(text, spelled)


def download(options: dict[str, Any]) -> str:
    """Download a published model, or list those that there are. An interrupted download is resumed."""
    from .app import download

    wanted = _section(args.DownloadArgs, options)
    if wanted.list and wanted.name is None:
        return download.list_models()
    if wanted.list or wanted.name is None:
        raise UsageError("give the name of a published model, or --list.")
    return download.run(wanted.name, wanted.to)


def doctor(options: dict[str, Any]) -> str:
    """Test how fast a model runs on this machine, and that drafting does not change its images."""
    from .app import doctor

    return substitute_inputs(doctor.run(_given(options), _device(options)), spelled)


def train_drafter(options: dict[str, Any]) -> str:
    """Train an EAGLE drafter for a target. Run the same command again to resume."""
    drafter = _lab("training.drafter")
    order = (
        _section(args.TrainingDataArgs, options),
        _section(args.TrainingArgs, options),
        _section(args.TrainingOutputArgs, options),
    )
    return drafter.run(_checked(drafter.plan, *order, _given(options), _device(options)))


def check_drafter(options: dict[str, Any]) -> str:
    """Find out which tokens a drafter's features were paired with in training, and save that next to the drafter."""
    pairing = _lab("training.pairing")
    order = _section(args.CheckDrafterArgs, options), _given(options), _device(options)
    return pairing.run(_checked(pairing.plan, *order))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """What an order says of the recipe."""
    return {name: options[name] for name in Recipe.names() if options.get(name) is not None}


def _device(options: Mapping[str, Any]) -> str:
    """Where models are to run."""
    return _section(args.DeviceArgs, options).device


# ---- options ---------------------------------------------------------------------------------------------------------

SPELLED = {"guidance": "cfg"}
"""Options that are called otherwise than their setting."""
PUBLISHED = "the model authors' value"
OTHERWISE = dict.fromkeys(("temperature", "top_k", "top_p", "guidance", "suffix"), PUBLISHED)
"""What holds where nothing is given, of settings that have no default of their own here."""
NOISE = "noise", "noise_batch"
"""Settings of sampling that the laboratory does without."""
Table = Mapping[str, Option]


def spelled(name: str) -> str:
    """A setting as the command line calls it."""
    return f"--{SPELLED.get(name, name).replace('_', '-')}"


def _take(options: Table, *names: str) -> Table:
    return {name: options[name] for name in names}


def _words() -> Table:
    return _take(Recipe.options(), "negative")


def _drafter() -> Table:
    return _take(Recipe.options(), "drafter")


def _sampling() -> Table:
    numbers = {name: option for name, option in Sampling.options().items() if name not in NOISE}
    return {**numbers, **_take(Recipe.options(), "suffix")}


def _noise() -> Table:
    return _take(Sampling.options(), *NOISE)


Command = Callable[[dict[str, Any]], str]
Group = tuple[Callable[[], Table], ...]
MODEL: Group = (Loading.options, _drafter, args.DeviceArgs.options)
RELAXED = "relaxed acceptance (LANTERN); changes the image; off unless a delta or a lambda is given"
COMMANDS: dict[Command, dict[str, Group]] = {
    generate: {
        "input": (args.InputArgs.options,),
        "images": (_words, args.BatchArgs.options),
        "image to image; the kept part of a continued image becomes the first tokens of every image": (
            args.ImageToImageArgs.options,
        ),
        "model": MODEL,
        "drafting; does not change the image; jacobi has other defaults": (method_options,),
        RELAXED: (Lantern.options,),
        "sampling": (_sampling, _noise),
        "results": (args.OutputArgs.options,),
        "several GPUs or machines, with Ray, for the prompts of a file; does not change the images": (
            args.WorkerArgs.options,
        ),
    },
    benchmark: {
        "comparison": (args.BenchmarkArgs.options,),
        "model": MODEL,
        RELAXED: (Lantern.options,),
        "sampling": (_sampling,),
        "image quality; each score needs weights in a local path": (args.QualityArgs.options,),
        "several GPUs or machines, with Ray; engines that share CPU cores affect each other's timings": (
            args.WorkerArgs.options,
        ),
    },
    inspect: {"checkpoint": (args.InspectArgs.options,)},
    download: {"model": (args.DownloadArgs.options,)},
    doctor: {"model": MODEL, "sampling": (_sampling,)},
    train_drafter: {
        "training data": (args.TrainingDataArgs.options,),
        "model": (Loading.options, args.DeviceArgs.options),
        "training": (args.TrainingArgs.options,),
        "sampling": (_sampling,),
        "results": (args.TrainingOutputArgs.options,),
    },
    check_drafter: {"test images": (args.CheckDrafterArgs.options,), "model": MODEL, "sampling": (_sampling,)},
}
"""The options of every command, in groups by their titles."""
ONE_OF: dict[Command, tuple[str, ...]] = {
    generate: ("prompt", "prompts", "from_png"),
    train_drafter: ("prompts", "images"),
}
"""Options of which exactly one has to be given."""
REQUIRED, POSITIONAL = "output", ("path", "name")
_PLACES = "PATH", "FILE"
"""What texts stand for that name a file, or something else, such as "bundled". A ``~`` in front is the home folder: a
shell does not replace it in ``--output=~/a.png``, nor does Windows."""


def _add(group: argparse._ActionsContainer, name: str, setting: Option, suited: bool) -> None:
    """Make a setting an option of a parser's group. None stands for what is not given.

    suited: drafter and device may have another default for it.
    """
    default = OTHERWISE.get(name, setting.default)
    or_suited = ", or automatic for drafter and device" if suited and not setting.choices and default else ""
    shown: dict[str, Any] = {"help": substitute_inputs(setting.help.rstrip("."), spelled).replace("%", "%%")}
    if default not in (None, "", ()) and default is not False:
        shown["help"] += f" (default: {default}{or_suited})"
    if setting.kind is bool:
        group.add_argument(spelled(name), dest=name, action="store_true", **shown)
        return
    if setting.choices:
        shown["choices"] = setting.choices
    else:
        shown |= {"type": _reader(setting), "metavar": setting.stands}
    if setting.repeated:
        shown["action"] = "append"
    if name in POSITIONAL:
        shown |= {"nargs": "?"} if default is None else {}
        group.add_argument(name, **shown)
    else:
        group.add_argument(spelled(name), dest=name, required=name == REQUIRED, **shown)


def _reader(setting: Option) -> Callable[[str], Any]:
    """Return the function that reads an option's value."""
    if setting.kind is tuple:
        return _size
    if setting.kind is Path or setting.stands in _PLACES:
        return lambda text: setting.kind(os.path.expanduser(text))
    return setting.kind


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write width and height in pixels, such as 768x512.")
    return int(match[1]), int(match[2])


# ---- parsing ---------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Options can't be abbreviated, and errors are exceptions."""

    def __init__(self, **settings):
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """``--option=--`` says "--", which argparse takes for the end of the options, and drops, before Python 3.13."""
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            value = self._get_value(action, "--")  # type: ignore[attr-defined]
            self._check_value(action, value)  # type: ignore[attr-defined]
            return value
        return super()._get_values(action, arg_strings)  # type: ignore[misc]


def _parser() -> argparse.ArgumentParser:
    """The whole parser."""
    said = "Generate the same images faster with visual autoregressive models: lossless tree speculation (ADT-Tree)."
    parser = _Parser(prog="python adt.py", description=said)
    parser.add_argument("--version", action="version", version=f"ADT-Tree {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command, groups in COMMANDS.items():
        name, said = command.__name__.replace("_", "-"), command.__doc__ or ""
        made = commands.add_parser(name, help=said, description=said)
        made.set_defaults(run=command)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        for title, tables in groups.items():
            _add_group(made.add_argument_group(title), tables, ONE_OF.get(command, ()))
    return parser


def _add_group(group: argparse._ArgumentGroup, tables: Group, one_of: Sequence[str]) -> None:
    settings: dict[str, Option] = {}
    for table in tables:
        settings |= table()
    either = group.add_mutually_exclusive_group(required=True) if settings.keys() & set(one_of) else group
    for name, setting in settings.items():
        _add(either if name in one_of else group, name, setting, suited=method_options in tables)


def parse(argv: Sequence[str]) -> tuple[Command, dict[str, Any]]:
    """The command of a line, and its options; with ``--from-png``, that file's settings where nothing is given."""
    options = vars(_parser().parse_args(argv))
    command, png = options.pop("run"), options.get("from_png")
    if png is not None:
        from .app import png_settings

        given = {name: value for name, value in options.items() if value is not None}
        options |= {**png_settings.read_values(png, given), **given}
    return command, options
