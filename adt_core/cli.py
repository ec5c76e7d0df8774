"""The command line, ``python -m adt_core``.

Every option stands in a table: those of drafting in the policies' own, all others here. Heavy modules are imported when
a command runs, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from .app.prompts import CAPTIONS
from .errors import INTERRUPTED, AdtError, is_out_of_memory, one_line
from .policies import DEFAULT, POLICIES
from .policies import options as drafting_options
from .rules.settings import Lantern, Option, Sampling
from .terminal import patient, say
from .version import VERSION


class UsageError(AdtError):
    """The command line itself is wrong: exit code 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 (it failed), 2 (wrong arguments) or 130 (interrupted)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with patient():
        return _run(argv)


def _run(argv: list[str]) -> int:
    """The exit code of a command line."""
    try:
        options = parse(argv)
        say(options.run(options))
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
    said = one_line(str(error))
    if isinstance(error, AdtError):
        return said
    if is_out_of_memory(error):
        return "too little memory for this model and batch; try a smaller --batch-size, or --dtype bfloat16."
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    return (
        f"unexpected {type(error).__name__}: {said}. This is a mistake in ADT-Tree; please report it with what --debug "
        "shows."
    )


# ---- commands: they return what to print, and the help shows their docstrings ----------------------------------------


def _checked(plan: Callable[[argparse.Namespace], Any], options: argparse.Namespace) -> Any:
    """What ``plan`` makes of the options. An AdtError that it raises is the command line's fault."""
    try:
        return plan(options)
    except AdtError as error:
        raise UsageError(str(error)) from error


def _laboratory(name: str) -> Any:
    """A module of ``adt_lab``, the package beside this one."""
    return import_module(f"{__package__.removesuffix('adt_core')}adt_lab.{name}")


def generate(options: argparse.Namespace) -> str:
    """Generate pictures from text."""
    from .app import generation

    return generation.run(_checked(generation.plan, options))


def benchmark(options: argparse.Namespace) -> str:
    """Compare methods with plain decoding on the same prompts, side by side."""
    return _laboratory("benchmark").run(options)


def inspect(options: argparse.Namespace) -> str:
    """Say what a checkpoint is, without loading it."""
    from .app import inspect

    found = inspect.inspect(options.path)
    return json.dumps(found, indent=2) if options.json else "\n\n".join(map(inspect.as_text, found))


def train_drafter(options: argparse.Namespace) -> str:
    """Train an EAGLE drafter for a target. Run the same command again to go on with it."""
    drafter = _laboratory("training.drafter")
    return drafter.run(_checked(drafter.plan, options))


def check_drafter(options: argparse.Namespace) -> str:
    """Find out which tokens a drafter's features were paired with in training, and record it beside the drafter."""
    pairing = _laboratory("training.pairing")
    _checked(pairing.choose_drafter, options)
    return pairing.run(options)


# ---- options ---------------------------------------------------------------------------------------------------------


class Flag(NamedTuple):
    """An option of the command line.

    usage: its name and, if any, what stands for its value in the help. kind: what converts the value; or a tuple of the
    choices, or bool for a switch. dest: its name among the parsed options, if not the same. one_of: exactly one of the
    options of its group that say so has to be given.
    """

    usage: str
    help: str
    kind: Callable | tuple[str, ...] = str
    default: object = None
    required: bool = False
    one_of: bool = False
    dest: str | None = None

    @property
    def name(self) -> str:
        """Among the parsed options."""
        return self.dest or self.usage.split()[0].removeprefix("--").replace("-", "_")

    def add_to(self, group: argparse._ActionsContainer) -> None:
        """Make it an option of a parser's group."""
        said = self.help.replace("%", "%%") + ("" if self.default is None else f" (default: {self.default})")
        name, *shown = self.usage.split()
        if self.kind is bool:
            group.add_argument(name, action="store_true", help=said)
            return
        values: dict[str, Any] = {"choices": self.kind} if isinstance(self.kind, tuple) else {"type": self.kind}
        if name.startswith("--"):
            values |= {"dest": self.name, "required": self.required}
        group.add_argument(name, default=self.default, metavar=shown[0] if shown else None, help=said, **values)


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write width and height in pixels, such as 768x512.")
    return int(found[1]), int(found[2])


DTYPES = ("float32", "float64", "bfloat16", "float16")
AUTOCAST = ("auto", "float32", "bfloat16", "float16")
SUBJECT = (
    Flag("--prompt TEXT", "what the picture shows", one_of=True),
    Flag("--prompts FILE", "prompts: text, MS-COCO captions (.json), PartiPrompts (.tsv) or .jsonl", Path, one_of=True),
    Flag("--from-png FILE", "make the image in this PNG again; other options change its settings", Path, one_of=True),
)
NEGATIVE = Flag("--negative TEXT", "what guidance leads away from (default: no text; of Emu3, its published prompt)")
NUMBERS = (
    Flag("--batch-size N", "pictures per prompt", int, 1),
    Flag("--at-once N", "pictures drawn at the same time; more of them are faster (default: one prompt's)", int),
)
CONTINUATION = (
    Flag("--continue-from FILE", "the picture; cropped and resized to the model's size", Path),
    Flag("--keep SHARE", "share of its rows that is kept, from the top (default: 0.5)", float),
    Flag("--keep-left SHARE", "share of the row below them, from the left (default: 0)", float),
)
TARGET = (
    Flag("--model PATH", "folder or weights file of the target", str, "bundled"),
    Flag("--dtype", "of the computation; all keep the image, bfloat16 and float16 if --exact is on", DTYPES, "float32"),
    Flag("--exact", "on: in half precision, too, drafts do not change the image; off is faster", ("on", "off"), "on"),
    Flag("--weights", "store the transformer's matrices in a byte per number (default: as --dtype)", ("int8", "fp8")),
    Flag("--size WxH", "pixels of an image, for models that draw several sizes (default: the model's own)", _size),
)
DRAFTER = Flag(
    "--drafter PATH",
    "folder of a network; jacobi, which needs no files; or PATH+jacobi, both in one tree "
    "(default: bundled for the bundled model; else the published one beside the model; else jacobi)",
)
DEVICE = Flag("--device", "auto takes CUDA where there is any", ("auto", "cpu", "cuda"), "auto")
PUBLISHED = "as the model's authors draw"


def _setting(name: str, option: Option, shown: str = "X", *, default: object = None, otherwise: str = "") -> Flag:
    """The option of the command line for a setting. shown: stands for its value in the help. default: None where it is
    found out later; then ``otherwise`` says what holds."""
    usage = f"--{name.replace('_', '-')}" + ("" if option.choices else f" {shown}")
    said = option.help.rstrip(".") + (f" (default: {otherwise})" if otherwise else "")
    return Flag(usage, said, option.choices or option.kind, default)


def _sampling() -> tuple[Flag, ...]:
    """How tokens are drawn. What is not given is as published for the model."""
    own = Sampling.options()
    how = {"temperature": "T", "top_k": "K", "top_p": "P"}
    return (
        _setting("seed", own["seed"], "N", default=own["seed"].default),
        *(_setting(name, own[name], shown, otherwise=PUBLISHED) for name, shown in how.items()),
        _setting("cfg", own["guidance"], "S", otherwise=PUBLISHED)._replace(dest="guidance"),
        Flag("--suffix TEXT", f"put behind every prompt (default: {PUBLISHED})"),
    )


def _lantern() -> tuple[Flag, ...]:
    """How far acceptance is relaxed: not at all unless a delta or a lambda is given."""
    own = Lantern.options()
    given = {"neighbours": own["neighbours"].default, "max_substitution": own["max_substitution"].default}
    return tuple(_setting(one.name or name, one, default=given.get(name)) for name, one in own.items())


LANTERN, SAMPLING = _lantern(), _sampling()
PICTURE_FILES = (
    Flag("--output FILE.png", "the picture; several become FILE-0001.png, ...", Path, required=True),
    Flag("--tokens FILE.json", "write the codebook indices of each picture, row by row", Path),
    Flag("--trace FILE.json", "write what happened in each round", Path),
    Flag("--report FILE.json", "write the run's figures", Path),
    Flag("--compare", "decode plainly too, with the same seed, and print the speed-up", bool),
)
WORKERS = (
    Flag("--workers N", "engines, each with a GPU of its own, or a share of the CPU cores", int, 1),
    Flag("--ray-address ADDRESS", "HOST:PORT of a running Ray cluster, or auto for this machine's (default: none)"),
)
COMPARISON = (
    Flag("--prompts FILE", "as for generate; bundled are the captions that come with the pack", str, "bundled"),
    Flag("--count N", "prompts to take from it (default: all)", int),
    Flag("--sample-seed N", "which prompts --count takes", int, 0),
    Flag("--caption", "which of the captions of an MS-COCO image", CAPTIONS, CAPTIONS[0]),
    Flag("--methods A,B,...", "methods, +lantern behind a name for relaxed acceptance (default: some of each kind)"),
    Flag("--output DIR", "for results; an interrupted benchmark goes on where it stopped", Path, required=True),
)
QUALITY = (
    Flag("--clip DIR", "CLIP score: a CLIP model in transformers' layout", Path),
    Flag("--hps DIR", "HPSv2: its weights in the same layout", Path),
    Flag("--aesthetic FILE", "aesthetic score: LAION's predictor for the CLIP ViT-L/14 in --clip", Path),
    Flag("--inception FILE", "Inception Score: torch-fidelity's weights of Inception", Path),
    Flag("--real-images DIR", "FID: the folder of pictures that --inception compares with", Path),
)
LESSONS = (
    Flag("--prompts FILE", "as for generate; the target draws them as the options of sampling say", Path, one_of=True),
    Flag("--images DIR", "pictures and captions instead, 1.jpg beside 1.txt, ...", Path, one_of=True),
    Flag("--pictures N", "to train on; prompts are used again if there are fewer (default: one for each)", int),
    Flag("--held-out N", "pictures, of prompts of their own, that acceptance is measured on", int, 32),
    Flag("--draw-batch N", "pictures drawn at once", int, 32),
)
TRAINING = (
    Flag("--start PATH", "begin with this drafter's weights, as with that of the model a target was tuned from"),
    Flag("--steps N", "steps of the whole run, over which the learning rate falls", int),
    Flag("--minutes M", "without the drawing; with --steps, the first to end counts (default: 60 without)", float),
    Flag("--batch N", "pictures per forward", int, 4),
    Flag("--accumulate N", "forwards per step", int, 1),
    Flag("--passes N", "depths to train for: one over the target's features, the others over its own", int, 3),
    Flag("--learning-rate X", "of the matrices, by Muon; vectors get a fifth, by AdamW", float, 0.02),
    Flag("--autocast", "precision of the products; auto takes a half on CUDA", AUTOCAST, "auto"),
    Flag("--features-gb X", "disk space for the target's features, which make a step cheaper", float, 8.0),
)
DRAFTER_FILES = (
    Flag("--output DIR", "folder of the drafter; what --drafter takes", Path, required=True),
    Flag("--every N", "steps between measuring and saving", int, 100),
    Flag("--compare PATH", "measure this drafter too, on the same held-out pictures"),
)
DRAWN = (
    Flag("--prompts FILE", "as for generate (default: the captions that come with the pack)", Path),
    Flag("--count N", "pictures", int, 8),
)
CHECKPOINT = (
    Flag("path PATH", "folder or file of a target or a drafter, or 'bundled'"),
    Flag("--json", "print JSON", bool),
)


def _drafting() -> tuple[Flag, ...]:
    """The options of all policies, read when they are needed: policies may be added. None stands for their defaults."""
    policies = "; ".join(f"{name}: {policy.help}" for name, policy in POLICIES.items())
    flags = [Flag("--method METHOD", f"{policies} (default: {DEFAULT})", tuple(POLICIES))]
    for name, option in drafting_options().items():
        suited = "" if option.choices or not option.default else ", or what suits drafter and device"
        flags.append(_setting(name, option, otherwise=f"{option.default}{suited}"))
    return tuple(flags)


def remade() -> dict[str, Any]:
    """The options that make an image what it is, and their kinds: they are written into its PNG, and ``--from-png``
    reads them there."""
    flags = (SUBJECT[0], NEGATIVE, *TARGET, DRAFTER, *_drafting(), *LANTERN, *SAMPLING)
    return {flag.name: flag.kind for flag in flags} | HIDDEN


# ---- parsing ---------------------------------------------------------------------------------------------------------


RELAXED = "relaxed acceptance (LANTERN); changes the image, off unless a delta or a lambda is given"
COMMANDS: dict[Callable[[argparse.Namespace], str], dict[str, Sequence[Flag] | Callable[[], Sequence[Flag]]]] = {
    generate: {
        "what to draw": SUBJECT,
        "and how": (NEGATIVE, *NUMBERS),
        "continuing a picture; what is kept becomes the first tokens of every image": CONTINUATION,
        "model": (*TARGET, DRAFTER, DEVICE),
        "drafting; none of it changes the image; jacobi has defaults of its own": _drafting,
        RELAXED: LANTERN,
        "sampling": SAMPLING,
        "results": PICTURE_FILES,
        "more than one GPU or machine, on Ray, for the prompts of a file; changes no picture": WORKERS,
    },
    benchmark: {
        "what is compared": COMPARISON,
        "model": (*TARGET, DRAFTER, DEVICE),
        RELAXED: LANTERN,
        "sampling": SAMPLING,
        "image quality; each needs weights from a local path": QUALITY,
        "more than one GPU or machine, on Ray; engines that share CPU cores disturb each other's timings": WORKERS,
    },
    inspect: {"checkpoint": CHECKPOINT},
    train_drafter: {
        "what it learns from": LESSONS,
        "model": (*TARGET, DEVICE),
        "training": TRAINING,
        "sampling": SAMPLING,
        "results": DRAFTER_FILES,
    },
    check_drafter: {"what is drawn": DRAWN, "model": (*TARGET, DRAFTER, DEVICE), "sampling": SAMPLING},
}
"""The options of every command, in groups by their titles."""
HIDDEN = {"image_index": 0, "kept": None, "profile": None}
"""Settings of ``generate`` that only a PNG can have."""


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


def _parser(defaults: Mapping[str, object]) -> argparse.ArgumentParser:
    """The whole parser. defaults: some of ``generate``."""
    said = "Visual autoregressive image models, sooner and with the same image: lossless tree speculation (ADT-Tree)."
    parser = _Parser(prog="python -m adt_core", description=said)
    parser.add_argument("--version", action="version", version=f"ADT-Tree {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command, groups in COMMANDS.items():
        name, said = command.__name__.replace("_", "-"), command.__doc__ or ""
        made = commands.add_parser(name, help=said, description=said)
        made.set_defaults(run=command)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        for title, listed in groups.items():
            flags, group = listed() if callable(listed) else listed, made.add_argument_group(title)
            either = group.add_mutually_exclusive_group(required=True) if any(f.one_of for f in flags) else group
            for flag in flags:
                flag.add_to(either if flag.one_of else group)
    commands.choices["generate"].set_defaults(**defaults)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; with ``--from-png``, that file's settings are their defaults."""
    options = _parser(HIDDEN).parse_args(argv)
    if getattr(options, "from_png", None):
        from .app import saved

        given = vars(_parser(dict.fromkeys(saved.PATHS)).parse_args(argv))
        before = {"exact": "off", "suffix": ""}  # there was no such thing when a PNG does not say
        found = saved.read(options.from_png, remade(), given)
        options = _parser(HIDDEN | before | found).parse_args(argv)
    return options
