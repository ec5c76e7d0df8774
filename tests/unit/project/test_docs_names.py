"""Tests that the names in README.md, CONTRIBUTING.md and docs/*.md exist.

A text in backquotes must be a file, an option, a command line, a name that the code defines, or a value that the code
contains. A text in italics must be a label of the user interface, a column of a table, or a term.
"""

import ast
import io
import json
import re
from contextlib import redirect_stdout, suppress
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from adt_core import cli
from tests.documents import PAGES, ROOT, blocks, commands, italics, spans

THIS = "tests/unit/project/test_docs_names.py"
SKIPPED = {".git", ".venv", ".cache", "node_modules", "output", "__pycache__"}
FOREIGN = {
    # other programs and libraries
    "ulimit", "tsc", "{%}", ".connect(", "torch.load(", "argparse.Namespace", "hf_hub_download", "save_pretrained",
    "Emu3ForConditionalGeneration.generate", "enable_layerwise_casting", "torch.multinomial",
    "torch.manual_seed(seed)", 'generator=torch.Generator("cpu").manual_seed(seed)', "HMMA.16816.F32.BF16",
    "huggingface_hub", "rms_rope", "apply_rope_split_half_", "int8_linear", "JOB_COMPLETION_INDEX",
    # the authors' scripts
    "generate_examples/generate.py", "random_seed(repeat_idx)", 'precision="fp32"', "--speculative_jacobi",
    "autoregressive/sample/sample_t2i.py", "--precision none", "generation_inference.py", ".to(torch.bfloat16)",
    "evaluation/inference_t2i.py", "torch_dtype=torch.float32", "image_generation.py", ".float()", "parallel_size",
    "github.com/ai-forever/MoVQGAN",
    # files of models, and files that a run writes
    "model-00001-of-...", "models--...", "-7B", "diffusion_pytorch_model.safetensors", "glm_image_ar",
    "glm_image_transformer", "glm_image_text_encoder", "glm_image_vae", "KEY.tokens.npy",
    "000007.png", "Lumina-mGPT-7B-768-Omni", "2-of-8-00000.tar", "report-2-of-8.json",
    # the registry, and examples
    "Repository", "Icon", "Banner", "[tool.comfy]", "REGISTRY_ACCESS_TOKEN", "v0.2.0", "HOST:PORT", "@FILE", "\\udce9",
    "{a\\|b}", "<code 0>", "<code 1>", "masterpiece, film grained, best quality.",
    "PYTHONIOENCODING=utf-8", "%LOCALAPPDATA%\\adt-tree",
    "Ignored, because this node has no such input: 'speed'. Its inputs are model, positive, ...",
}  # fmt: skip
"""Names in backquotes that belong to other projects, or that exist only while a program runs."""
FOREIGN_FIRST = {"dev.py", "pip", "apt", "kill", "ray", "node", "pre-commit", "GET", "POST"}
"""First words of commands of other programs."""
FOREIGN_PATHS = (
    "github.com/", "huggingface.co/", "Alpha-VLLM/", "jadohu/", "sihwanpark/", "deepseek-ai/", "deepseek-community/",
    "BAAI/", "leloy/", "zai-org/",
    "ComfyUI/", "models/", "../../models/", "..\\", ".venv/", "output/", "out/", "coco/", "my_drafter/",
    ".adt-tree-download/",
)  # fmt: skip
"""Beginnings of repositories of models, and of paths outside of this repository."""
TERMS = {
    "value",    "CLIP Text Encode", "Set Latent Noise Mask", "VAE Encode", "VAE Encode (for Inpainting)",
    "Export (API)", "VAE Decode", "Unload Models", "Install via Git URL", "Templates", "Extensions",
    "Live preview method",  # ComfyUI
    "plain round", "captured round", "Control tensors", "draft mode", "cost model", "cost profile", "Jacobi window",
    "Batch-invariant", "default tier", "the noise", "gain", "LANTERN", "For reviewers", "furthest", "G",
    "at the same path", "Draw.", "Read.", "Train.", "Evaluate.", "w / c",
    "ADT-Tree ...", "Janus-Pro-1B (download, 4 GB)", "Acceptance at depth d",
    "c(n)", "w(n)", "w(n) / c(n)",
}  # fmt: skip
"""Terms, labels of ComfyUI's own interface, and words that are only emphasised."""


@cache
def sources() -> dict[str, str]:
    """Return the texts of the Python, JavaScript and JSON files by path, without the templates."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in SKIPPED | {"workflows"}]
    paths = chain(ROOT.glob("*.*"), *(folder.rglob("*.*") for folder in folders))
    suffixes = {".py", ".js", ".mjs", ".json", ".toml", ".yml"}
    chosen = [path for path in paths if path.suffix in suffixes and "node_modules" not in path.parts]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in chosen}


@cache
def files() -> set[str]:
    """Return the paths of all files and folders, also without their first folders: "rules/verify.py"."""
    found = set()
    for folder in ROOT.iterdir():
        if folder.name not in SKIPPED:
            for path in (folder, *folder.rglob("*")):
                parts = path.relative_to(ROOT).parts
                if "node_modules" in parts:
                    continue
                found |= {"/".join(parts[start:]) for start in range(len(parts))}
    return found


@cache
def definitions() -> set[str]:
    """Return the names of modules, classes, functions, parameters, attributes, constants and options."""
    flags = {flag.strip("-").replace("-", "_") for flags in options().values() for flag in flags}
    return {Path(path).stem for path in sources()} | flags | names_of_python()[0]


@cache
def names_of_python() -> tuple[set[str], set[str]]:
    """Return the names that Python files define, and their string constants."""
    defined: set[str] = set()
    strings: set[str] = set()
    for node in chain.from_iterable(ast.walk(ast.parse(text)) for path, text in sources().items() if _is_code(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                defined.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Constant(value=str() as value):
                strings.add(value)
        if isinstance(node, ast.Module | ast.ClassDef):
            assigned = [statement for statement in node.body if isinstance(statement, ast.Assign | ast.AnnAssign)]
            defined |= {name.id for statement in assigned for name in ast.walk(statement) if _is_stored(name)}
    return defined, strings


def _is_code(path: str) -> bool:
    return path.endswith(".py") and not path.startswith("tests/")


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


@cache
def values() -> set[str]:
    """Return all complete strings of the code and of the translations: values, keys, labels."""
    found = set(names_of_python()[1])
    for path, text in sources().items():
        if path.endswith(".json"):
            found |= set(_strings(json.loads(text)))
        elif path != THIS and not _is_code(path):
            found |= {match[1] for match in re.finditer(r"\"([^\"\n]*)\"", text)}
    return found


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from chain(value, *map(_strings, value.values()))
    elif isinstance(value, list):
        yield from chain(*map(_strings, value))


@cache
def options() -> dict[str, set[str]]:
    """Return the flags of each command of adt.py, from its help text."""
    found = {}
    for command in cli.COMMANDS:
        name = command.__name__.replace("_", "-")
        text = io.StringIO()
        with redirect_stdout(text), suppress(SystemExit):
            cli.parse([name, "--help"])
        found[name] = set(re.findall(r"--[\w-]+", text.getvalue()))
    return found


def exists(text: str, local: str) -> bool:
    """Return whether a text in backquotes names something that exists.

    Args:
        local: The code blocks of the page. Names that these blocks define exist too.
    """
    text = " ".join(text.split())
    first, *rest = text.split()
    if text in FOREIGN or first in FOREIGN_FIRST or text.startswith(FOREIGN_PATHS) or commands(text):
        return True
    if first in options() and rest:
        return all(word in options()[first] for word in rest if word.startswith("--"))
    if text.startswith("--"):
        return all(has_option(word) for word in re.findall(r"--[\w-]+", text))
    return text in values() or text.strip("/") in files() or is_pattern(text) or is_defined(text, local)


def has_option(flag: str) -> bool:
    """Return whether adt.py, dev.py or a program of the repository has an option."""
    return any(flag in names for names in options().values()) or flag in values()


def is_pattern(text: str) -> bool:
    """Return whether a path with a placeholder, such as `js/docs/NODE/LANGUAGE.md`, fits a file."""
    pattern = re.sub(r"\\\*|[A-Z]{4,}", "[^/]+", re.escape(text.strip("/")))
    return any(re.fullmatch(pattern, path) for path in files()) if pattern != re.escape(text) else False


def is_defined(text: str, local: str) -> bool:
    """Return whether each part of a dotted name, a call, or an assignment is the name of something."""
    if text.startswith("test_"):
        return any(f"def {text}(" in source for source in sources().values())
    match = re.fullmatch(r"\"?([A-Za-z_][\w.-]*)\"?(?:\(.*\)|(?: ?=|:) ?\S+)?", text)
    if match is None:
        return text in local
    known = definitions() | values() | files()
    return all(part in known or re.search(rf"\b{part}\b", local) for part in match[1].strip(".").split("."))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_names_in_backquotes_exist(page):
    local = "\n".join(block.text for block in blocks(page))
    assert [f"{page.name}:{line}: {text}" for line, text in spans(page) if not exists(text, local)] == []


@cache
def columns() -> set[str]:
    """Return the cells of all tables, in lower case."""
    lines = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return {cell.strip(" *`").lower() for line in lines for cell in line.split("|")}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_labels_in_italics_exist(page):
    """Longer texts in italics are sentences, such as the line below a table."""
    short = [(line, text) for line, text in italics(page) if len(text.split()) <= 4]
    known = values() | definitions() | TERMS
    labels = {value.replace("…", "...") for value in known}
    wrong = [
        f"{page.name}:{line}: {text}" for line, text in short if text not in labels and text.lower() not in columns()
    ]
    assert wrong == []


def test_the_table_of_files_names_files():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Files")[1]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 8
    for package, text in rows:
        folder = ROOT / "adt_core" / package.strip(" `")
        names = re.findall(r"`([\w/*]+)`", text)
        assert [name for name in names if not list(folder.glob(f"{name}.py"))] == [], package


@pytest.mark.parametrize(
    "text, found",
    [
        ("adt_core/rules/verify.py", True),
        ("rules/verifier.py", False),
        ("generate --report", True),
        ("generate --reports", False),
        ("--at-twice", False),
        ("Shape.drafts", True),
        ("NoSuchClass", False),
        ("no_such_method()", False),
    ],
)
def test_names_that_do_not_exist_are_detected(text, found):
    assert exists(text, "") is found
