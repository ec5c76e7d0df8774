"""Archive that the Comfy Registry receives, and a scan of it for findings of the registry's checks.

The registry does not publish its rules. The patterns are from its answers to publishers in 2026: registry-backend 192,
207, 215, 217, 223, 229, 236, 242 and 245. One finding of any kind holds a version back until a person has reviewed it.
Findings of the kinds in `BANNED` can ban the pack.
"""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from shutil import copy2
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RULES = {
    "process": r"\bsubprocess\b|\bPopen\b|\bmultiprocessing\b|ProcessPool|\bpty\.|"
    r"os\.(system|popen|startfile|fork|exec[lv]\w*|spawn[lv]\w*|posix_spawn\w*)\b",
    "environment": r"os\.environ|os\.getenv|os\.putenv|os\.unsetenv|\benviron\b(?=\s*[\[.(])",
    "network": r"\.connect\s*\(|\.bind\s*\(|\.send(all)?\s*\(|\b(import|from) (socket|aiohttp|httpx|requests)\b|"
    r"\bsocket\.\w|create_connection|ClientSession|\burlopen\b|\brequests\.\w|http\.client|WebSocket\s*\(|XMLHttpRequest",
    "execution": r"(?<![\w.])(eval|exec|compile|__import__)\s*\(|\bimport_module\b|\bmarshal\b|\brunpy\b|\bctypes\b|"
    r"new Function\s*\(|\bFunction\s*\(",
    "unpickling": r"torch\.(jit\.)?load\s*\(|\bpickle\.\w|\b(import|from) pickle\b|joblib\.load|yaml\.load\s*\(|"
    r"allow_pickle\s*=\s*True",
    "database": r"\bsqlite3\b|\bpsycopg|\bpymongo\b",
    "cryptography": r"^\s*(import|from) (cryptography|Crypto|nacl)\b",
}
SCANNED = {".py", ".js", ".json", ".toml", ".css"}


class Finding(NamedTuple):
    """Match of a rule."""

    rule: str
    file: str
    line: int
    text: str

    @property
    def is_banned(self) -> bool:
        """True if the finding is of a kind that can ban the pack: a process, a pickle, a socket in Python."""
        return self.rule in ("process", "unpickling") or self.rule == "network" and self.file.endswith(".py")


def tracked(*options: str) -> set[str]:
    """Return the files that ``git ls-files`` lists with these options."""
    listed = subprocess.run(["git", "ls-files", "-z", *options], cwd=ROOT, capture_output=True, check=True).stdout
    return set(listed.decode().split("\0")) - {""}


def names() -> set[str]:
    """Return the files that comfy-cli packs for the registry: all tracked files that .comfyignore doesn't exclude."""
    return tracked() - tracked("--cached", "--ignored", "--exclude-from=.comfyignore")


def build(folder: Path) -> Path:
    """Copy the files of the archive to a folder, and return the folder."""
    for name in names():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy2(ROOT / name, folder / name)
    return folder


def scan(folder: Path) -> Iterator[Finding]:
    """Yield the findings in a folder's code and data. As in the registry, comments in code do not count."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in SCANNED:
            text = without_comments(path.name, path.read_text(encoding="utf-8"))
            for rule, pattern in RULES.items():
                for match in re.finditer(pattern, text, re.MULTILINE):
                    line = text.count("\n", 0, match.start()) + 1
                    yield Finding(rule, path.relative_to(folder).as_posix(), line, match[0].strip())


def without_comments(name: str, text: str) -> str:
    """Return a file's text without its comments. The numbers of the lines do not change."""
    if name.endswith((".js", ".css")):
        text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
        return re.sub(r"(?m)(^|(?<=[\s;{}]))//.*$", "", text)
    if not name.endswith(".py"):
        return text
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column] + "\n"
    return "".join(lines)
