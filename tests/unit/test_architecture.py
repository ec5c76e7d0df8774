"""The code keeps to its plan: imports point down, and files, classes and functions are small enough to read at once.

All of it is read from the source; nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = (
    ("errors", "files", "messages", "runtime", "untrusted", "version"),
    ("rules",),
    ("models",),
    ("policies",),
    ("drafters",),
    ("engine",),
    ("app",),
    ("lab",),
    ("cli", "terminal", "__main__", "__init__"),
)
"""Modules and packages of ``adt_core``, from the lowest floor up. Each may import its own floor and those below it."""
STRANGERS = {
    "nodes",
    "comfy",
    "comfy_api",
    "folder_paths",
    "server",
    "model_making",
    "benchmarks",
    "tests",
}
"""Packages that ``adt_core`` never imports."""
FILE, CLASS, FUNCTION = 600, 250, 40
"""Lines at most, docstrings included."""


@cache
def modules(*folders: str) -> dict[str, ast.Module]:
    """The Python files of folders of this repository, parsed, by path."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


CORE = modules("adt_core")

SHIPPED = CORE | modules("nodes")


def dotted(path: str) -> str:
    """adt_core/rules/tree.py -> adt_core.rules.tree; adt_core/rules/__init__.py -> adt_core.rules"""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


NAMES = {dotted(path) for path in CORE}


def imports(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that a file imports, those within functions too."""
    package = dotted(path).split(".") if path.endswith("__init__.py") else dotted(path).split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{module}.{alias.name}" if module else alias.name
                yield node.lineno, whole if whole in NAMES else module


def floor(module: str) -> int:
    """The floor of a module of ``adt_core``, counted from the lowest."""
    part = (module.split(".") + ["__init__"])[1]
    found = [number for number, floor in enumerate(FLOORS) if part in floor]
    assert found, f"{module} stands on no floor of tests/unit/test_architecture.py"
    return found[0]


def test_imports_point_down():
    wrong = [
        f"{path}:{line} imports {module}, which is above it"
        for path, tree in CORE.items()
        for line, module in imports(path, tree)
        if module.split(".")[0] == "adt_core" and floor(module) > floor(dotted(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {dotted(path): {m for _, m in imports(path, tree) if m in NAMES} for path, tree in CORE.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_the_core_knows_neither_the_nodes_nor_comfyui():
    wrong = [
        f"{path}:{line} imports {module}"
        for path, tree in CORE.items()
        for line, module in imports(path, tree)
        if module.split(".")[0] in STRANGERS or not module
    ]
    assert not wrong, "\n".join(wrong)


def test_every_file_class_and_function_can_be_read_at_once():
    wrong = []
    for path, tree in (SHIPPED | modules("benchmarks", "model_making", "tests")).items():
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        wrong += [f"{path} has {lines} lines, at most {FILE}"] * (lines > FILE)
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            length = node.end_lineno - node.lineno + 1
            most = CLASS if isinstance(node, ast.ClassDef) else FUNCTION
            wrong += [f"{path}:{node.lineno} {node.name} has {length} lines, at most {most}"] * (length > most)
    assert not wrong, "\n".join(wrong)


def names(node: ast.AST) -> set[str]:
    """All names and attributes that stand in an expression."""
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def test_nobody_asks_which_drafter_it_has():
    """A drafter says what it can do; only ``adt_core/drafters`` knows its classes apart."""
    drafters = {
        node.name
        for path, tree in CORE.items()
        if path.startswith("adt_core/drafters/")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    wrong = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in (SHIPPED | modules("benchmarks")).items()
        if not path.startswith("adt_core/drafters/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and names(node.func) & {"isinstance", "issubclass"}
        if any(names(argument) & drafters for argument in node.args[1:])
    ]
    assert not wrong, "\n".join(wrong)


def _is_method(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "method"


def _is_text(node: ast.AST) -> bool:
    """A string, a collection of strings, or the name of a constant."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_is_text, node.elts))
    return isinstance(getattr(node, "value", None), str) or (isinstance(node, ast.Name) and node.id.isupper())


def test_nobody_asks_which_method_it_runs():
    """A policy says what it needs; only ``adt_core/policies`` knows methods apart. Looking one up is fine."""
    wrong = []
    for path, tree in (SHIPPED | modules("benchmarks")).items():
        for node in ast.walk(tree):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            table = {"METHODS", "POLICIES"} & {name for side in sides for name in names(side)}
            compared = any(map(_is_method, sides)) and any(map(_is_text, sides)) and not table
            called = isinstance(node, ast.Attribute) and node.attr.endswith(("with", "fix")) and _is_method(node.value)
            if (compared or called) and not path.startswith("adt_core/policies/"):
                wrong.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


OPENERS = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
"""Functions and methods that open a file which nobody has looked at."""
MAY_OPEN = {
    "adt_core/files.py": "it looks at what it has opened",
    "adt_core/app/hub.py": "regular files in its own folder, which are checked by their hash",
    "adt_core/app/images.py": "it says which formats it wants",
    "adt_core/app/distributed.py": "the empty device",
    "nodes/schema.py": "pages of the pack itself",
}
OTHERS = {"os", "self", "self._window"}
"""What has an ``open`` that needs no such care."""


def test_files_and_pictures_are_opened_in_one_place():
    """Elsewhere a pipe would be waited for, and Pillow would start other programs for some pictures."""
    wrong = []
    for path, tree in SHIPPED.items():
        for node in ast.walk(tree):
            of, dot, name = ast.unparse(node.func).rpartition(".") if isinstance(node, ast.Call) else ("", "", "")
            is_our_reader = not dot and name != "open"
            if name in OPENERS and not is_our_reader and of not in OTHERS and path not in MAY_OPEN:
                wrong.append(f"{path}:{node.lineno} {ast.unparse(node.func)}")
    assert not wrong, "\n".join(wrong)


def test_private_names_of_torch_are_in_one_file():
    """Any version of torch may take them away, so what takes their place stands beside them."""
    private = re.compile(r"torch(\.\w+)*\._[a-z]|torch\.ops\.")
    wrong = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in SHIPPED.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and private.match(ast.unparse(node))
    ]
    assert wrong and all(line.startswith("adt_core/models/kernels.py:") for line in wrong), "\n".join(wrong)


def test_tests_import_public_names_only():
    ours = ("adt_core", "nodes", "benchmarks", "model_making")
    wrong = [
        f"{path}:{node.lineno} imports {name} from {node.module}"
        for path, tree in modules("tests", "benchmarks", "model_making").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in ours
        for name in [*node.module.split("."), *(alias.name for alias in node.names)]
        if name.startswith("_") and not name.startswith("__")
    ]
    assert not wrong, "\n".join(wrong)


def opens_a_text_file(call: ast.Call) -> bool:
    """Whether this is a call of ``open``, ``read_text`` or ``write_text`` for text, without an encoding."""
    method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if method else getattr(call.func, "id", "")
    if any(keyword.arg in ("encoding", None) for keyword in call.keywords):
        return False
    if name in ("read_text", "write_text"):
        return method and len(call.args) == (name == "write_text")
    if name != "open" or (method and ast.unparse(call.func.value) in ("Image", "tarfile", "zipfile", "os")):
        return False
    named = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    mode = next(iter(named or call.args[0 if method else 1 :]), None)
    if mode is None:
        return not method  # of a method without a mode it is not known whether it opens files
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rwax+t")


def test_text_files_are_opened_with_an_encoding():
    """Without one, a system whose encoding is ASCII or a Windows code page can't read what others can."""
    wrong = [
        f"{path}:{node.lineno}: {ast.unparse(node)[:80]}"
        for path, tree in (SHIPPED | modules("benchmarks", "model_making", "tests")).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and opens_a_text_file(node)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "call, found",
    [
        ("path.read_text()", True),
        ("path.write_text('a')", True),
        ("path.open('w')", True),
        ("open(path, 'a')", True),
        ("open(path, mode='r')", True),
        ("open(path)", True),
        ("dialog.open()", False),
        ("path.read_text('utf-8')", False),
        ("path.open('wb')", False),
        ("open(path, 'w', encoding='utf-8')", False),
        ("Image.open('a.png')", False),
    ],
)
def test_a_text_file_without_an_encoding_would_be_found(call, found):
    assert opens_a_text_file(ast.parse(call, mode="eval").body) is found
