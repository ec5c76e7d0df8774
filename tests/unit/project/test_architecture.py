"""Tests of the code's structure.

Modules may import only modules of their layer and lower layers. Sizes are limited. Some constructs may be used in one
place only.

The tests parse the source and import nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LAYERS = (
    (
        *("cache_folder", "environment", "errors", "files", "memory_limit", "messages", "runtime"),
        *("untrusted", "untrusted_tar", "version"),
    ),
    ("settings", "trace"),
    ("rules",),
    ("kernels", "models"),
    ("policies",),
    ("recipe",),
    ("drafters",),
    ("engine",),
    ("run",),
    ("app",),
    ("lab",),
    ("api", "cli", "terminal", "__main__", "__init__"),
)
"""Modules and packages of ``adt_core`` from the lowest layer to the highest. A module may import its layer and lower
ones."""
FORBIDDEN = {"nodes", "comfy", "comfy_api", "folder_paths", "server", "model_making", "benchmarks", "tests"}
"""Packages that ``adt_core`` must not import."""
FACES = ("app", "lab", "models", "run")
"""Packages of ``adt_core`` that export public names on first use, as their docstrings list them."""
FOR_NODES = {"lab.paper", "lab.presets", "lab.training", "models.glm_pixels", "models.streamed", "run.race"}
"""Modules inside packages that ``nodes`` may import. Their packages' docstrings name them."""
MAX_IMPORTED_BY_NODES = 22
MAX_FILE_LINES = 600
MAX_CLASS_LINES = 250
MAX_FUNCTION_LINES = 40


@cache
def modules(*folders: str) -> dict[str, ast.Module]:
    """Return the syntax trees of all Python files in these folders. Keys are paths relative to the repository."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


CORE = modules("adt_core")

SHIPPED = CORE | modules("nodes")


def dotted(path: str) -> str:
    """Return the module name of a path, for example adt_core.rules for adt_core/rules/__init__.py."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


IMPORTING = SHIPPED | modules("benchmarks")
NAMES = {dotted(path) for path in IMPORTING} - {"nodes"}  # an import of `nodes` means ComfyUI's module of this name


def imports(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, full name) for every module that a file imports, including imports inside functions."""
    package = dotted(path).split(".") if path.endswith("__init__.py") else dotted(path).split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{module}.{alias.name}" if module else alias.name
                yield node.lineno, full if full in NAMES else module


def places(trees: dict[str, ast.Module], is_found: Callable[[ast.AST], bool]) -> str:
    """Return a line for each place of the code for which the function returns True."""
    return "\n".join(
        f"{path}:{node.lineno} {ast.unparse(node)[:80]}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if is_found(node)
    )


def layer(module: str) -> int:
    """Return the index of the layer of a module of ``adt_core``; 0 is the lowest."""
    part = (module.split(".") + ["__init__"])[1]
    found = [number for number, parts in enumerate(LAYERS) if part in parts]
    assert found, f"{module} is in no layer; add it to LAYERS in tests/unit/project/test_architecture.py"
    return found[0]


def test_imports_point_down():
    wrong = [
        f"{path}:{line} imports {module}, which is in a higher layer"
        for path, tree in CORE.items()
        for line, module in imports(path, tree)
        if module.split(".")[0] == "adt_core" and layer(module) > layer(dotted(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_nodes_import_few_modules_of_the_core():
    """Nodes know the packages of the core, and not what is in them."""
    found = {
        module.removeprefix("adt_core").removeprefix(".")
        for path, tree in modules("nodes").items()
        for _, module in imports(path, tree)
        if module.split(".")[0] == "adt_core"
    }
    assert {module for module in found if "." in module} <= FOR_NODES
    assert len(found) <= MAX_IMPORTED_BY_NODES, sorted(found)


def documented(module: ast.Module) -> set[str]:
    return set(re.findall(r"`(\w+)`", ast.get_docstring(module) or ""))


@pytest.mark.parametrize("package", FACES)
def test_packages_document_the_names_that_they_export(package):
    """An exported name must not be the name of a module, which would replace it once it is imported."""
    face = CORE[f"adt_core/{package}/__init__.py"]
    imported = CORE[f"adt_core/{package}/api.py"].body
    public = {alias.name for node in imported if isinstance(node, ast.ImportFrom) for alias in node.names}
    listed = next(node.value for node in face.body if isinstance(node, ast.Assign))
    assert isinstance(listed, ast.List) and {ast.literal_eval(name) for name in listed.elts} == public
    assert documented(face) >= public
    assert not {path.stem for path in (ROOT / "adt_core" / package).glob("*")} & public
    assert {name for name in FOR_NODES if name.startswith(package)} <= {
        f"{package}.{name}" for name in documented(face)
    }


def test_imports_have_no_cycles():
    """An import inside a function counts, too, because it would only hide a cycle."""
    graph = {dotted(path): {m for _, m in imports(path, tree) if m in NAMES} for path, tree in IMPORTING.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_the_core_imports_neither_nodes_nor_comfyui():
    wrong = [
        f"{path}:{line} imports {module}"
        for path, tree in CORE.items()
        for line, module in imports(path, tree)
        if module.split(".")[0] in FORBIDDEN or not module
    ]
    assert not wrong, "\n".join(wrong)


def test_sizes_of_files_classes_and_functions():
    wrong = []
    for path, tree in (SHIPPED | modules("benchmarks", "model_making", "tests")).items():
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        wrong += [f"{path} has {lines} lines, at most {MAX_FILE_LINES}"] * (lines > MAX_FILE_LINES)
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            is_class = isinstance(node, ast.ClassDef)
            length = node.end_lineno - node.lineno + 1 if is_class else code_lines(node)
            most = MAX_CLASS_LINES if is_class else MAX_FUNCTION_LINES
            wrong += [f"{path}:{node.lineno} {node.name} has {length} lines, at most {most}"] * (length > most)
    assert not wrong, "\n".join(wrong)


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function that contain code, without its docstring and comments."""
    lines = {part.lineno for part in ast.walk(function) if hasattr(part, "lineno")}
    lines |= {part.end_lineno for part in ast.walk(function) if hasattr(part, "lineno")}
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= set(range(first.lineno, first.end_lineno + 1))
    return len(lines)


def test_docstrings_and_comments_do_not_count_as_lines_of_a_function():
    docstring = '    """Return x.\n\n    Args:\n        x: A number.\n    """\n'
    source = f"def f(\n    x,\n):\n{docstring}    # why\n\n    return (\n        x\n    )\n"
    assert code_lines(ast.parse(source).body[0]) == 5


def names(node: ast.AST) -> set[str]:
    """Return all names and attributes in an expression."""
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def test_drafter_classes_are_checked_only_in_drafters():
    """Code elsewhere must use attributes of a drafter instead of its class."""
    drafters = {
        node.name
        for path, tree in CORE.items()
        if path.startswith("adt_core/drafters/")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def checks_a_drafter(node: ast.AST) -> bool:
        is_check = isinstance(node, ast.Call) and names(node.func) & {"isinstance", "issubclass"}
        return bool(is_check) and any(names(argument) & drafters for argument in node.args[1:])

    others = SHIPPED | modules("benchmarks")
    assert not places(
        {path: tree for path, tree in others.items() if not path.startswith("adt_core/drafters/")}, checks_a_drafter
    )


def _is_method(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "method"


def _is_text(node: ast.AST) -> bool:
    """Return whether an expression is a string, a collection of strings, or the name of a constant."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_is_text, node.elts))
    return isinstance(getattr(node, "value", None), str) or (isinstance(node, ast.Name) and node.id.isupper())


def test_method_names_are_compared_only_in_policies():
    """Code elsewhere must use attributes of a policy. Looking a name up in a table is allowed."""

    def compares_a_method(node: ast.AST) -> bool:
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        table = {"METHODS", "POLICIES"} & {name for side in sides for name in names(side)}
        compared = any(map(_is_method, sides)) and any(map(_is_text, sides)) and not table
        called = isinstance(node, ast.Attribute) and node.attr.endswith(("with", "fix")) and _is_method(node.value)
        return compared or called

    others = SHIPPED | modules("benchmarks")
    assert not places(
        {path: tree for path, tree in others.items() if not path.startswith("adt_core/policies/")}, compares_a_method
    )


MAY_DECODE = {
    "adt_core/run/runner.py": "the loop of every command, node and program",
    "adt_core/run/race.py": "measures methods in turns",
    "adt_core/app/diagnostics.py": "counts the operations of a round",
    "adt_core/lab/training/estimate.py": "times the first rounds",
    "adt_core/run/custom_generate.py": "decodes prompts that transformers has encoded",
}


def drives_a_decoding(node: ast.AST) -> bool:
    """Return whether an expression or a loop runs the rounds of a decoding."""
    if isinstance(node, ast.For):
        return ast.unparse(node.iter) == "decoding"
    if not isinstance(node, ast.Call):
        return False
    owner, _, method = ast.unparse(node.func).rpartition(".")
    is_run = method == "finished" and not node.args or method == "run" and "ecoding" in owner
    return is_run or ast.unparse(node) == "iter(decoding)"


def test_images_are_decoded_by_one_loop():
    found = {path for path, tree in SHIPPED.items() if any(map(drives_a_decoding, ast.walk(tree)))}
    assert {path for path in found if not path.startswith("adt_core/engine/")} == set(MAY_DECODE)


OPENERS = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
"""Functions and methods that open a file without checking its type."""
MAY_OPEN = {
    "adt_core/files.py": "checks the type of opened files",
    "adt_core/app/download.py": "regular files with names of its own, with verified hashes",
    "adt_core/run/images.py": "restricts the image formats",
    "adt_core/app/distributed.py": "the null device",
    "adt_core/messages.py": "the table of errors",
    "nodes/schema.py": "pages of the pack",
}
OTHERS = {"os", "self", "self._window"}  # objects whose ``open`` method doesn't open a file


def test_files_and_images_are_opened_in_one_place():
    """Other code must not open files directly.

    A pipe would block it, and Pillow would start other programs for some image formats.
    """

    def opens(node: ast.AST) -> bool:
        of, dot, name = ast.unparse(node.func).rpartition(".") if isinstance(node, ast.Call) else ("", "", "")
        is_our_reader = not dot and name != "open"
        return name in OPENERS and not is_our_reader and of not in OTHERS

    assert not places({path: tree for path, tree in SHIPPED.items() if path not in MAY_OPEN}, opens)


FOREIGN_ATTRIBUTES = {
    *("bar.bar_format", "bar.n", "weight.grad", "decoder._modules", "config._attn_implementation"),
    *("output.ui", "plug.tooltip", "plug.optional", "plug.min"),
    "weakref.finalize(self, decoder.free_pool).atexit",
}
"""Attributes of objects of other libraries that are set here."""
SET_BY_NAME = {"self", "selected", "layer", "parent"}  # objects on which `setattr` sets declared attributes or modules


def undeclared_state(tree: ast.Module, declared: set[str]) -> list[str]:
    """Return the places where state is attached to an object whose class does not declare it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr not in declared:
            found += [f"{node.lineno}: {ast.unparse(node)}"] * (ast.unparse(node) not in FOREIGN_ATTRIBUTES)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            found += [f"{node.lineno}: {ast.unparse(node)}"] * (ast.unparse(node.args[0]) not in SET_BY_NAME)
    return found


def declared_attributes(tree: ast.Module) -> set[str]:
    """Return the attributes that the classes of a module declare: in their bodies, or by an assignment to `self`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {name for statement in node.body for name in _stored(statement)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return found


def _stored(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)}


def test_state_is_declared_where_it_is_stored():
    declared = set().union(*map(declared_attributes, SHIPPED.values()))
    found = {path: undeclared_state(tree, declared) for path, tree in SHIPPED.items()}
    assert {path: places for path, places in found.items() if places} == {}


@pytest.mark.parametrize(
    "source, number",
    [
        ("def f(x): x.cached = 1", 1),
        ("def f(x): x.__dict__.setdefault('cached', 1)", 1),
        ("def f(x): setattr(x, 'cached', 1)", 1),
        ("class A:\n    cached: int = 0\ndef f(x: A): x.cached = 1", 0),
    ],
)
def test_undeclared_state_is_detected(source, number):
    tree = ast.parse(source)
    assert len(undeclared_state(tree, declared_attributes(tree))) == number


def test_private_names_of_torch_are_in_one_file():
    """A new version of torch may remove private names. The same file contains replacements for removed names."""
    private = re.compile(r"torch(\.\w+)*\._[a-z]|torch\.ops\.")
    found = places(SHIPPED, lambda node: isinstance(node, ast.Attribute) and private.match(ast.unparse(node)))
    assert found and all(line.startswith("adt_core/models/torch_private.py:") for line in found.splitlines()), found


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
    """Return whether this call of ``open``, ``read_text`` or ``write_text`` opens text without an encoding."""
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
        return not method  # the method may open something else, such as a dialog
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rwax+t")


def test_text_files_are_opened_with_an_encoding():
    """The default encoding may be ASCII or a Windows code page. These lack characters that our files contain."""
    sources = SHIPPED | modules("benchmarks", "model_making", "tests")
    assert not places(sources, lambda node: isinstance(node, ast.Call) and opens_a_text_file(node))


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
def test_text_files_without_an_encoding_are_detected(call, found):
    assert opens_a_text_file(ast.parse(call, mode="eval").body) is found


def assigns_unrelated_values(statement: ast.Assign) -> bool:
    """Return whether a statement assigns a tuple of several values, as in ``a, b = x, y``.

    Swaps and constants in upper case are allowed.
    """
    if not isinstance(statement.value, ast.Tuple):
        return False
    values = statement.value.elts
    for target in statement.targets:
        names = target.elts if isinstance(target, ast.Tuple) else []
        if len(names) != len(values) or any(isinstance(part, ast.Starred) for part in [*names, *values]):
            continue
        swap = {ast.unparse(name) for name in names} == {ast.unparse(value) for value in values}
        constants = all(isinstance(name, ast.Name) and name.id.isupper() for name in names)
        if not swap and not constants:
            return True
    return False


def test_one_statement_per_line():
    sources = SHIPPED | modules("benchmarks", "model_making", "docs/assets")
    sources["dev.py"] = ast.parse((ROOT / "dev.py").read_text(encoding="utf-8"))
    assert not places(sources, lambda node: isinstance(node, ast.Assign) and assigns_unrelated_values(node))


@pytest.mark.parametrize(
    "statement, found",
    [
        ("a, b = x, y", True),
        ("self.a, self.b = x, 0", True),
        ("c = a, b = x, y", True),
        ("a, B = 1, 2", True),
        ("a, b = b, a", False),
        ("a, b = f()", False),
        ("a, *b = x, y", False),
        ("a = x, y", False),
        ("A, B = 1, 2", False),
    ],
)
def test_assignments_of_unrelated_values_are_detected(statement, found):
    assert assigns_unrelated_values(ast.parse(statement).body[0]) is found
