"""The command line, ``python -m adt_core``: ``generate`` makes pictures, ``benchmark`` compares methods, ``inspect`` says what a checkpoint is,
``train-drafter`` trains a drafter."""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from .app.prompts import CAPTIONS
from .errors import AdtError
from .policies.shape import INITS, METHODS, PROPOSALS, WRAPS, Drafting
from .version import VERSION

DTYPES = ("float32", "float64", "bfloat16", "float16")
WEIGHTS = ("int8", "fp8")
SAMPLING = ("seed", "temperature", "top_k", "top_p", "guidance")
DRAFTING = tuple(field.name for field in fields(Drafting))
LANTERN = ("lantern_k", "lantern_delta", "lantern_lambda", "max_substitution")
QUALITY = ("clip", "hps", "aesthetic", "inception", "real_images")
REMADE = (
    "prompt",
    "negative",
    "model",
    "drafter",
    "dtype",
    "weights",
    "size",
    "image_index",
    "kept",
    *SAMPLING,
    *DRAFTING,
    *LANTERN,
)
"""The options that make an image what it is: written into its PNG, and read from there by ``--from-png``."""

CONSTANTS = {
    "beta": "accepted share of a tree's depth from which the next one is deeper and narrower",
    "depth_step": "levels that the depth moves by",
    "width_step": "children that the width moves by",
    "expand_above": "a draft less likely than this gets no children; 0 is off",
    "keep_above": "a draft less likely than this is not checked; 0 is off",
}


class UsageError(AdtError):
    """The command line itself is wrong: exit code 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 (it failed), 2 (wrong arguments) or 130 (interrupted)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        options = parse(argv)
        return options.run(options)
    except KeyboardInterrupt:
        return _failed("Interrupted. What had been finished is kept, and nothing is half-written.", 130)
    except Exception as error:
        if "--debug" in argv:
            traceback.print_exc()
        return _failed(f"error: {_sentence(error)}", 2 if isinstance(error, UsageError) else 1)


def _failed(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code


def _sentence(error: Exception) -> str:
    """What to tell the user about an error, in one line."""
    said = " ".join(str(error).split())
    if isinstance(error, AdtError):
        return said
    if isinstance(error, MemoryError) or "out of memory" in said or "can't allocate memory" in said:
        return "too little memory for this model and batch; try a smaller --batch-size, or --dtype bfloat16."
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    return f"unexpected {type(error).__name__}: {said} (--debug shows where)"


# ---- arguments -----------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Options can't be abbreviated, and errors are exceptions."""

    def __init__(self, **settings):
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> None:
        raise UsageError(message)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; with ``--from-png``, that file's settings are their defaults."""
    parser, generating = _parsers()
    options = parser.parse_args(argv)
    if options.run is generate and options.from_png:
        from .app.images import read_settings

        saved = read_settings(Path(options.from_png))
        _check_noise(options.from_png, saved.get("noise_version"))
        generating.set_defaults(**{name: saved[name] for name in REMADE if name in saved})
        options = parser.parse_args(argv)
    return options


def _check_noise(path: str, version: object) -> None:
    from .rules.sampling import NOISE_VERSION

    if version != NOISE_VERSION:
        raise AdtError(
            f"{path} was drawn with noise version {version}, and this ADT-Tree draws {NOISE_VERSION}; it can't be made again."
        )


def _parsers() -> tuple[_Parser, _Parser]:
    """The whole parser, and that of ``generate``."""
    parser = _Parser(
        prog="python -m adt_core",
        description="Visual autoregressive image models, several times faster, the same image.",
    )
    parser.add_argument("--version", action="version", version=f"ADT-Tree {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    make = commands.add_parser(
        "generate", parents=[common], help="generate pictures", description="Generate pictures from text."
    )
    _add_generate(make)
    make.set_defaults(run=generate, image_index=0, kept=None)
    race = commands.add_parser(
        "benchmark",
        parents=[common],
        help="compare methods on the same prompts",
        description="Compare methods on the same prompts, side by side.",
    )
    _add_benchmark(race)
    race.set_defaults(run=benchmark)
    look = commands.add_parser(
        "inspect",
        parents=[common],
        help="say what a checkpoint is",
        description="Say what a checkpoint is, without loading it.",
    )
    look.add_argument("path", metavar="PATH", help="folder or file of a target or a drafter, or 'bundled'")
    look.add_argument("--json", action="store_true", help="print JSON")
    look.set_defaults(run=inspect)
    teach = commands.add_parser(
        "train-drafter",
        parents=[common],
        help="train a drafter for a target",
        description="Train an EAGLE drafter for a target. Run the same command again to go on with it.",
    )
    _add_train(teach)
    teach.set_defaults(run=train_drafter)
    test = commands.add_parser(
        "check-drafter",
        parents=[common],
        help="find out how a drafter was trained, and record it",
        description="Find out which tokens a drafter's features were paired with in training, and record it beside the drafter.",
    )
    _add_check(test)
    test.set_defaults(run=check_drafter)
    return parser, make


def _add_generate(parser: _Parser) -> None:
    default = {field.name: field.default for field in fields(Drafting)}
    what = parser.add_argument_group("what to draw").add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", metavar="TEXT", help="what the picture shows")
    what.add_argument(
        "--prompts",
        metavar="FILE",
        help="a file of prompts: text, MS-COCO captions (.json), PartiPrompts (.tsv) or .jsonl",
    )
    what.add_argument(
        "--from-png", metavar="FILE", help="make the image in this PNG again; other options change its settings"
    )

    add = parser.add_argument_group("and how many").add_argument
    add(
        "--negative",
        metavar="TEXT",
        help="what guidance leads away from (default: the model's row without text; of Emu3, its published negative prompt)",
    )
    add("--batch-size", type=int, metavar="N", default=1, help="pictures per prompt (default: %(default)s)")
    add(
        "--at-once",
        type=int,
        metavar="N",
        help="pictures in the making at the same time, where --prompts has many; more of them share the model's time better (default: those of one prompt)",
    )
    add = parser.add_argument_group(
        "continuing a picture; what is kept becomes the first tokens of every image"
    ).add_argument
    add("--continue-from", metavar="FILE", type=Path, help="the picture; cropped and resized to the model's size")
    add("--keep", type=float, metavar="SHARE", help="of its rows, from the top (default: 0.5)")
    add("--keep-left", type=float, metavar="SHARE", help="of the row below them, from the left (default: 0)")
    _add_model(parser)
    add = parser.add_argument_group("drafting; none of it changes the image").add_argument
    for name, settings, text in (
        ("method", {"type": _method}, f"{', '.join(METHODS)}"),
        ("proposal", {"choices": PROPOSALS}, "how drafts are chosen"),
        ("depth", {}, "depth of the tree, or of ADT-Tree's first; the length of jacobi's window"),
        ("width", {}, "children per node, or ADT-Tree's first; candidates per slot of jacobi's window"),
        ("nodes", {}, "drafts that are checked per round at most"),
        ("init", {"choices": INITS}, "which neighbour a tree of ADT-Tree starts from"),
        ("wrap", {"choices": WRAPS}, "where it starts from in a new row"),
        *(
            (name, {}, CONSTANTS.get(name, "a bound of ADT-Tree's shapes"))
            for name in DRAFTING[DRAFTING.index("wrap") + 1 :]
        ),
    ):
        if not settings:
            settings = {"type": type(default[name]), "metavar": "X"}
        add(f"--{name.replace('_', '-')}", **settings, help=f"{text} (default: {default[name]}; jacobi has its own)")

    _add_lantern(parser)
    _add_sampling(parser)
    add = parser.add_argument_group("results").add_argument
    add("--output", metavar="FILE.png", type=Path, required=True, help="the picture; several become FILE-0001.png, ...")
    add("--tokens", metavar="FILE.json", type=Path, help="write the codebook indices of each picture, row by row")
    add("--trace", metavar="FILE.json", type=Path, help="write what happened in each round")
    add("--report", metavar="FILE.json", type=Path, help="write the run's figures")
    add("--compare", action="store_true", help="decode plainly too, with the same seed, and print the speed-up")
    _add_workers(parser, "where the prompts of a file are drawn; neither option changes a picture")


def _add_benchmark(parser: _Parser) -> None:
    add = parser.add_argument_group("what is compared").add_argument
    add(
        "--prompts",
        metavar="FILE",
        default="bundled",
        help="a file of prompts: text, MS-COCO captions (.json), PartiPrompts (.tsv) or .jsonl (default: the captions that come with the pack)",
    )
    add("--count", type=int, metavar="N", help="prompts to take from it (default: all)")
    add("--sample-seed", type=int, metavar="N", default=0, help="which ones (default: %(default)s)")
    add(
        "--caption",
        choices=CAPTIONS,
        default=CAPTIONS[0],
        help="of the captions of an MS-COCO image (default: %(default)s)",
    )
    add(
        "--methods",
        metavar="A,B,...",
        help="what is set against plain decoding, +lantern behind a name for relaxed acceptance (default: some of each kind)",
    )
    add(
        "--output",
        metavar="DIR",
        type=Path,
        required=True,
        help="folder of the results; an interrupted benchmark goes on where it stopped",
    )
    _add_model(parser)
    _add_lantern(parser)
    _add_sampling(parser)
    add = parser.add_argument_group("image quality; each needs weights from a local path").add_argument
    add("--clip", metavar="DIR", type=Path, help="CLIP score: a CLIP model in transformers' layout")
    add("--hps", metavar="DIR", type=Path, help="HPSv2: its weights in the same layout")
    add(
        "--aesthetic",
        metavar="FILE",
        type=Path,
        help="aesthetic score: LAION's predictor for the CLIP ViT-L/14 in --clip",
    )
    add("--inception", metavar="FILE", type=Path, help="Inception Score: torch-fidelity's weights of Inception")
    add("--real-images", metavar="DIR", type=Path, help="FID: the folder of pictures that --inception compares with")
    _add_workers(
        parser,
        "where prompts are measured; timings of engines that share a machine's CPU cores disturb each other, ratios on one GPU each hardly",
    )


def _add_train(parser: _Parser) -> None:
    group = parser.add_argument_group("what it learns from")
    what = group.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--prompts",
        metavar="FILE",
        help='prompts, a file as for generate: the target draws them with the settings under "sampling"',
    )
    what.add_argument(
        "--images", metavar="DIR", type=Path, help="pictures and captions instead, 1.jpg beside 1.txt, ..."
    )
    add = group.add_argument
    add(
        "--pictures",
        type=int,
        metavar="N",
        help="pictures to train on; prompts are drawn again if there are fewer (default: one for each)",
    )
    add(
        "--held-out",
        type=int,
        metavar="N",
        default=32,
        help="pictures, of prompts of their own, that acceptance is measured on (default: %(default)s)",
    )
    add("--draw-batch", type=int, metavar="N", default=32, help="pictures drawn at once (default: %(default)s)")
    _add_model(parser, drafter=False)
    add = parser.add_argument_group("training").add_argument
    add("--steps", type=int, metavar="N", help="steps of the whole run, over which the learning rate falls")
    add(
        "--minutes",
        type=float,
        metavar="M",
        help="or minutes of training, without the drawing; the first to end counts (default: 60 if there are no --steps)",
    )
    add("--batch", type=int, metavar="N", default=4, help="pictures per forward (default: %(default)s)")
    add("--accumulate", type=int, metavar="N", default=1, help="forwards per step (default: %(default)s)")
    add(
        "--passes",
        type=int,
        metavar="N",
        default=3,
        help="depths that it is trained for: one over the target's features, the others over its own (default: %(default)s)",
    )
    add(
        "--learning-rate",
        type=float,
        metavar="X",
        default=0.02,
        help="of the matrices, by Muon; vectors get a fifth, by AdamW (default: %(default)s)",
    )
    add(
        "--autocast",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="precision of the products; auto takes a half on CUDA (default: %(default)s)",
    )
    add(
        "--features-gb",
        type=float,
        metavar="X",
        default=8.0,
        help="disk space for the target's features, which make a step cheaper (default: %(default)s)",
    )
    _add_sampling(parser)
    add = parser.add_argument_group("results").add_argument
    add("--output", metavar="DIR", type=Path, required=True, help="folder of the drafter; what --drafter takes")
    add("--every", type=int, metavar="N", default=100, help="steps between measuring and saving (default: %(default)s)")
    add("--compare", metavar="PATH", help="measure this drafter too, on the same held-out pictures")


def _add_check(parser: _Parser) -> None:
    add = parser.add_argument_group("what is drawn").add_argument
    add(
        "--prompts",
        metavar="FILE",
        help="prompts, a file as for generate (default: the captions that come with the pack)",
    )
    add("--count", type=int, metavar="N", default=8, help="pictures (default: %(default)s)")
    _add_model(parser)
    _add_sampling(parser)


def _add_model(parser: _Parser, drafter: bool = True) -> None:
    add = parser.add_argument_group("model").add_argument
    add(
        "--model",
        metavar="PATH",
        default="bundled",
        help="folder or weights file of the target model (default: %(default)s)",
    )
    if drafter:
        add(
            "--drafter",
            metavar="PATH",
            help="folder of the drafter; jacobi, which needs none; or PATH+jacobi, both in one tree (default: bundled for the bundled model, else jacobi)",
        )
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto takes CUDA where there is any (default: %(default)s)",
    )
    add(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="of the computation; float32 and float64 keep the image (default: %(default)s)",
    )
    add("--weights", choices=WEIGHTS, help="store the transformer's matrices in a byte each (default: as --dtype)")
    add(
        "--size",
        metavar="WxH",
        type=_size,
        help="pixels of an image, for models that draw several sizes (default: the model's own)",
    )


def _add_workers(parser: _Parser, text: str) -> None:
    add = parser.add_argument_group(f"more than one GPU or machine, on Ray: {text}").add_argument
    add(
        "--workers",
        type=int,
        metavar="N",
        default=1,
        help="engines, each with a GPU of its own, or a share of the CPU cores (default: %(default)s)",
    )
    add(
        "--ray-address",
        metavar="ADDRESS",
        help="of a running Ray cluster, HOST:PORT, or auto for this machine's (default: engines on this machine)",
    )


def _add_lantern(parser: _Parser) -> None:
    add = parser.add_argument_group(
        "relaxed acceptance (LANTERN); changes the image, off unless a delta or a lambda is given"
    ).add_argument
    add("--lantern-k", type=int, metavar="K", default=100, help="codebook neighbours looked at (default: %(default)s)")
    add("--lantern-delta", type=float, metavar="D", help="LANTERN: probability that may be moved per token; 0 is exact")
    add(
        "--lantern-lambda",
        type=float,
        metavar="L",
        help="LANTERN++: a draft's own probability times this is its limit; 1 is exact",
    )
    add(
        "--max-substitution",
        type=float,
        metavar="S",
        default=1.0,
        help="share of tokens that may differ from the exact sample (default: %(default)s)",
    )


def _add_sampling(parser: _Parser) -> None:
    add = parser.add_argument_group("sampling").add_argument
    add("--seed", type=int, metavar="N", default=0, help="0 to 2**64 - 1 (default: %(default)s)")
    add(
        "--temperature", type=float, metavar="T", default=1.0, help="0 takes the likeliest token (default: %(default)s)"
    )
    add(
        "--top-k",
        type=int,
        metavar="K",
        default=0,
        help="draw from the K likeliest tokens only; 0 is off (default: %(default)s)",
    )
    add(
        "--top-p",
        type=float,
        metavar="P",
        default=1.0,
        help="draw from the likeliest tokens of mass P; 1 is off (default: %(default)s)",
    )
    add(
        "--cfg", type=float, metavar="S", dest="guidance", default=3.0, help="guidance; 1 is off (default: %(default)s)"
    )


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write width and height in pixels, such as 768x512.")
    return int(found[1]), int(found[2])


def _method(name: str) -> str:
    if name not in METHODS:
        raise argparse.ArgumentTypeError(f"{name!r} is unknown; choose one of {', '.join(METHODS)}.")
    return name


# ---- commands ------------------------------------------------------------


def generate(options: argparse.Namespace) -> int:
    """Make the pictures and files that ``options`` ask for, and print one line about the run."""
    from .app import generation

    try:
        plan = generation.plan(options)
    except AdtError as error:
        raise UsageError(str(error)) from error
    print(generation.run(plan))
    return 0


def benchmark(options: argparse.Namespace) -> int:
    """Run the benchmark that ``options`` ask for, and print its table."""
    from .app import benchmark as bench

    print(bench.run(options))
    return 0


def inspect(options: argparse.Namespace) -> int:
    """Print what the checkpoint at ``options.path`` is."""
    import json

    from .app import inspect as inspection

    found = inspection.inspect(options.path)
    print(json.dumps(found, indent=2) if options.json else "\n\n".join(map(inspection.as_text, found)))
    return 0


def train_drafter(options: argparse.Namespace) -> int:
    """Train the drafter that ``options`` ask for, and print its held-out acceptance."""
    from .drafter_training import drafter

    try:
        plan = drafter.plan(options, {name: getattr(options, name) for name in SAMPLING})
    except AdtError as error:
        raise UsageError(str(error)) from error
    print(drafter.run(plan))
    return 0


def check_drafter(options: argparse.Namespace) -> int:
    """Measure how the drafter at ``options.drafter`` was trained, and print what was found."""
    from .app.generation import default_drafter
    from .drafter_training import pairing
    from .drafters.load import has_window

    options.drafter = options.drafter or default_drafter(options.model)
    if has_window(options.drafter):
        raise UsageError(f"--drafter: {options.drafter!r} is no network; give the folder of one.")
    print(pairing.run(options, {name: getattr(options, name) for name in SAMPLING}))
    return 0
