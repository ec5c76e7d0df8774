"""Command line, `python adt.py`.

The options of the command line are settings that other modules declare: `recipe.py` declares the settings that
determine an image, and `app/args.py` declares all other options of the commands. This module imports modules that need
torch only when a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from .app import args, config_file
from .errors import INTERRUPTED, AdtError, is_out_of_memory, library_error, one_line, substitute_inputs
from .recipe import Loading, Placement, Recipe, method_options
from .run.extensions import add_installed
from .runtime import get_runtime
from .settings import Lantern, Option, Sampling, Section
from .terminal import escape_unencodable, print_result, tolerant_stderr
from .version import VERSION


class UsageError(AdtError):
    """Invalid arguments. The exit code is 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments (default: `sys.argv[1:]`).

    Returns:
        Exit code: 0, 1 (failure), 2 (invalid arguments) or 130 (interrupted).
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    escape_unencodable()
    runtime = get_runtime()
    before = runtime.notify
    runtime.notify = _tell
    try:
        with tolerant_stderr():
            return _run(argv)
    finally:
        runtime.notify = before


def _run(argv: list[str]) -> int:
    try:
        add_installed()
        command, options = parse(argv)
        print_result(command(options))
        return 0
    except KeyboardInterrupt:
        message = INTERRUPTED
        code = 130
    except Exception as error:
        if "--debug" in argv:
            traceback.print_exc()
        message = f"error: {_message(error)}"
        code = 2 if isinstance(error, UsageError) else 1
    print(message, file=sys.stderr)
    return code


def _tell(text: str) -> None:
    """Print a line above the progress bar."""
    from tqdm import tqdm

    tqdm.write(one_line(text), file=sys.stderr)


def _message(error: Exception) -> str:
    """Return the message of an error in one line."""
    if isinstance(error, AdtError):
        return one_line(error.with_inputs(option_flag))
    if is_out_of_memory(error):
        # The engine has already tried one image at a time, so a smaller batch can't help.
        return "not enough memory for this model; try --weights int8 or int4, or a smaller tree with --drafts."
    if isinstance(error, OSError) and error.filename:
        return one_line(f"{error.filename}: {error.strerror}.")
    if missing := library_error(error):
        return str(missing)
    return (
        f"unexpected {type(error).__name__}: {one_line(str(error))}. This is a bug in ADT-Tree; please report it "
        "with the output of --debug."
    )


# ---- commands: each function returns the text to print; its docstring is shown by --help -----------------------------


def _checked(plan: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that checks the command's arguments, and turn its AdtError into a UsageError."""
    try:
        return plan(*arguments)
    except AdtError as error:
        raise UsageError(error.message) from error


def _section(section: type[Section], options: Mapping[str, Any]) -> Section:
    return _checked(section.of, options)


def demo(options: dict[str, Any]) -> str:
    """Generate output/demo.png with the bundled model, and explain the speed-up."""
    from .app import demo

    return demo.run(_placement(options))


def generate(options: dict[str, Any]) -> str:
    """Generate images from text."""
    from .app import generate as command
    from .app.object_store import mirror

    arguments = args.GenerateArgs(
        files=_section(args.OutputArgs, options),
        inputs=_section(args.InputArgs, options),
        given=_given(options),
        batch=_section(args.BatchArgs, options),
        image_to_image=_section(args.ImageToImageArgs, options),
        placement=_placement(options),
        parallel=_section(args.WorkerArgs, options),
    )
    shard = _checked(lambda: arguments.inputs.stride)
    with mirror(shard) as store:
        local = _checked(store.of_generate, arguments)
        return store.with_urls(command.run(_checked(command.plan, local), store.push))


def benchmark(options: dict[str, Any]) -> str:
    """Compare methods with no drafting on the same prompts, side by side."""
    from .lab import benchmark, paper

    comparison = _section(args.BenchmarkArgs, options)
    quality_args = _section(args.QualityArgs, options)
    parallel = _section(args.WorkerArgs, options)
    run = paper.run if comparison.paper else benchmark.run
    return run(comparison, quality_args, parallel, _given(options), _placement(options))


def merge(options: dict[str, Any]) -> str:
    """Join the output of the shards of a list, without a model. Missing images are not generated."""
    from .app.object_store import mirror
    from .lab import merge

    with mirror() as store:
        return store.with_urls(merge.run(store.local(_section(args.MergeArgs, options)).paths))


def inspect(options: dict[str, Any]) -> str:
    """Show the content of a checkpoint, without loading it."""
    from .app import inspect

    checkpoints = inspect.inspect(options["path"])
    text = json.dumps(checkpoints, indent=2) if options["json"] else "\n\n".join(map(inspect.as_text, checkpoints))
    return substitute_inputs(text, option_flag)


def download(options: dict[str, Any]) -> str:
    """Download a published model, or list all published models. An interrupted download is resumed."""
    from .app import download

    arguments = _section(args.DownloadArgs, options)
    if arguments.list and arguments.name is None:
        return download.list_models()
    if arguments.list or arguments.name is None:
        raise UsageError("download.no_name")
    return download.run(arguments.name, arguments.to)


def doctor(options: dict[str, Any]) -> str:
    """Test how fast a model runs on this machine, and that drafting does not change its images."""
    from .app import doctor

    if options["kernels"]:
        doctor.allow_kernels()
    return substitute_inputs(doctor.run(_given(options), _placement(options)), option_flag)


def train_drafter(options: dict[str, Any]) -> str:
    """Train an EAGLE drafter for a target. Run the same command again to resume."""
    from .lab.training import drafter

    sections = (args.TrainingDataArgs, args.TrainingArgs, args.TrainingOutputArgs)
    arguments = [_section(section, options) for section in sections]
    return drafter.run(_checked(drafter.plan, *arguments, _given(options), _placement(options)))


def check_drafter(options: dict[str, Any]) -> str:
    """Find out how features and tokens were paired when a drafter was trained, and save the result next to it."""
    from .lab.training import pairing

    arguments = _section(args.CheckDrafterArgs, options)
    return pairing.run(_checked(pairing.plan, arguments, _given(options), _placement(options)))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the user has set and that are settings of a :class:`Recipe`."""
    return {name: options[name] for name in Recipe.names() if options.get(name) is not None}


def _placement(options: Mapping[str, Any]) -> Placement:
    return _section(Placement, options)


# ---- options ---------------------------------------------------------------------------------------------------------

PUBLISHED = "the model authors' value"
MODEL_DEFAULTS = dict.fromkeys(("temperature", "top_k", "top_p", "guidance_scale", "suffix"), PUBLISHED)
"""Text that `--help` shows as the default of a setting, if the default depends on the model."""
NOISE = "noise", "noise_batch"
"""Sampling settings that are options of `generate`, but not of other commands."""
OptionTable = Mapping[str, Option]
"""Declarations of options, by name of the setting."""


def option_flag(name: str) -> str:
    """Return the command-line option of a setting."""
    return f"--{name.replace('_', '-')}"


def _of_recipe(*names: str) -> OptionTable:
    return {name: Recipe.options()[name] for name in names}


def _sampling() -> OptionTable:
    without_noise = {name: option for name, option in Sampling.options().items() if name not in NOISE}
    return {**without_noise, **_of_recipe("suffix")}


Command = Callable[[dict[str, Any]], str]
Group = tuple[Callable[[], OptionTable], ...]
"""Functions that return the options of one group in `--help`."""
MODEL: Group = (Loading.options, partial(_of_recipe, "drafter"), Placement.options)
RELAXED = "relaxed acceptance (LANTERN); changes the image; off unless a delta or a lambda is given"
COMMANDS: dict[Command, dict[str, Group]] = {
    generate: {
        "input": (args.InputArgs.options,),
        "images": (partial(_of_recipe, "negative_prompt", "image_index"), args.BatchArgs.options),
        "image to image; the kept part of a continued image becomes the first tokens of every image": (
            args.ImageToImageArgs.options,
        ),
        "model": MODEL,
        "drafting; does not change the image; jacobi has other defaults": (method_options,),
        RELAXED: (Lantern.options,),
        "sampling": (_sampling, partial(_of_recipe, *NOISE)),
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
        "several GPUs or machines, with Ray; workers that share CPU cores affect each other's timings": (
            args.WorkerArgs.options,
        ),
    },
    merge: {"results": (args.MergeArgs.options,)},
    inspect: {"checkpoint": (args.InspectArgs.options,)},
    demo: {"model": (Placement.options,)},
    download: {"model": (args.DownloadArgs.options,)},
    doctor: {"model": MODEL, "sampling": (_sampling,), "Triton kernels": (args.DoctorArgs.options,)},
    train_drafter: {
        "training data": (args.TrainingDataArgs.options,),
        "model": (Loading.options, Placement.options),
        "training": (args.TrainingArgs.options,),
        "sampling": (_sampling,),
        "results": (args.TrainingOutputArgs.options,),
    },
    check_drafter: {"test images": (args.CheckDrafterArgs.options,), "model": MODEL, "sampling": (_sampling,)},
}
"""Options of every command. The keys of the inner dictionaries are the titles of the groups in `--help`."""
ONE_OF: dict[Command, tuple[str, ...]] = {
    generate: ("prompt", "prompts", "from_png"),
    train_drafter: ("prompts", "images"),
}
"""Options of a command that exclude each other. Exactly one of them must be given."""
REQUIRED = "output"
"""Option that must be given in every command that has it."""
POSITIONAL = ("path", "name", "paths")
"""Options that are given without a name, by their position."""
_PATH_METAVARS = "PATH", "FILE"
"""Placeholders of options whose value may be a path.

In these values, this module replaces a leading `~` by the home folder. The shell of Windows never does this, and other
shells do not do it in `--output=~/a.png`.
"""


def _add(group: argparse._ActionsContainer, name: str, setting: Option, has_drafter_defaults: bool) -> None:
    """Add an option for a setting to a group of options. If the user does not give the option, its value is None.

    Args:
        setting: Declaration of the setting: type, bounds and help text.
        has_drafter_defaults: Whether the default may depend on the drafter and the device.
    """
    default = MODEL_DEFAULTS.get(name, setting.default)
    is_automatic = has_drafter_defaults and default and not setting.choices
    options: dict[str, Any] = {"help": substitute_inputs(setting.help.rstrip("."), option_flag).replace("%", "%%")}
    if default not in (None, "", ()) and default is not False:
        options["help"] += f" (default: {default}{', or automatic for drafter and device' if is_automatic else ''})"
    if setting.kind is bool:
        group.add_argument(option_flag(name), dest=name, action="store_true", **options)
        return
    if setting.choices:
        options["choices"] = setting.choices
    else:
        options |= {"type": _parser_of(setting), "metavar": setting.metavar}
    if setting.repeated and name not in POSITIONAL:
        options["action"] = "append"
    if name in POSITIONAL:
        options |= {"nargs": "+"} if setting.repeated else {"nargs": "?"} if default is None else {}
        group.add_argument(name, **options)
    else:
        group.add_argument(option_flag(name), dest=name, required=name == REQUIRED, **options)


def _parser_of(setting: Option) -> Callable[[str], Any]:
    """Return the function that converts the text of an option's value."""
    if setting.kind is tuple:
        return _parse_size
    if setting.kind is Path or setting.metavar in _PATH_METAVARS:
        return lambda text: setting.kind(os.path.expanduser(text))
    return setting.kind


def _parse_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write width and height in pixels, such as 768x512.")
    return int(match[1]), int(match[2])


# ---- parsing ---------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Argument parser that does not accept abbreviated options, and raises UsageError instead of exiting."""

    def __init__(self, **settings):
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Return "--" as the value of `--option=--`. Before Python 3.13, argparse drops this value."""
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            value = self._get_value(action, "--")  # type: ignore[attr-defined]
            self._check_value(action, value)  # type: ignore[attr-defined]
            return value
        return super()._get_values(action, arg_strings)  # type: ignore[misc]


def _build_parser() -> argparse.ArgumentParser:
    text = "Generate the same images faster with visual autoregressive models: lossless tree speculation (ADT-Tree)."
    is_script = Path(sys.argv[0]).stem == "adt-tree"
    parser = _Parser(prog="adt-tree" if is_script else "python adt.py", description=text)
    parser.add_argument("--version", action="version", version=f"ADT-Tree {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command, groups in COMMANDS.items():
        text = command.__doc__ or ""
        subparser = commands.add_parser(command_name(command), help=text, description=text)
        subparser.set_defaults(run=command)
        subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        subparser.add_argument("--config", metavar="FILE", help="JSON or TOML file with options; others override it")
        for title, tables in groups.items():
            _add_group(subparser.add_argument_group(title), tables, ONE_OF.get(command, ()))
    return parser


def _add_group(group: argparse._ArgumentGroup, tables: Group, one_of: Sequence[str]) -> None:
    settings: dict[str, Option] = {}
    for table in tables:
        settings |= table()
    either = group.add_mutually_exclusive_group(required=True) if settings.keys() & set(one_of) else group
    for name, setting in settings.items():
        _add(either if name in one_of else group, name, setting, has_drafter_defaults=method_options in tables)


def _with_config(argv: Sequence[str]) -> list[str]:
    """Return the command line with the options of the file of `--config` after the command."""
    reader = _Parser(add_help=False)
    reader.add_argument("--config", type=lambda text: Path(os.path.expanduser(text)))
    config = reader.parse_known_args(argv)[0].config
    groups = next((groups for command, groups in COMMANDS.items() if argv and command_name(command) == argv[0]), None)
    if config is None or groups is None:
        return list(argv)
    options = {name: option for tables in groups.values() for table in tables for name, option in table().items()}
    return [argv[0], *_checked(config_file.command_line, config, options, argv[0]), *argv[1:]]


def command_name(command: Command) -> str:
    """Return the name of a command on the command line."""
    return command.__name__.replace("_", "-")


def parse(argv: Sequence[str]) -> tuple[Command, dict[str, Any]]:
    """Parse a command line.

    With `--config`, the options of a file come before those on the command line. With `--from-png`, settings from the
    PNG are used for all options that are not on the command line.

    Returns:
        The function of the command, and the values of its options by name.

    Raises:
        AdtError: If the arguments are invalid.
    """
    options = vars(_build_parser().parse_args(_with_config(argv)))
    command = options.pop("run")
    options.pop("config")
    png = options.get("from_png")
    if png is not None:
        from .run import png_settings

        given = {name: value for name, value in options.items() if value is not None}
        options |= {**png_settings.read_values(png, given), **given}
    return command, options
