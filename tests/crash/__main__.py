"""``python -m tests.crash``: kills commands, says what it saw, and fails at the first loss."""

import argparse
import tempfile
from pathlib import Path

from .cases import CASES
from .kills import kill_often


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of all commands together (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the moments (default: 0)")
    parser.add_argument("--command", choices=list(CASES), help="this one alone (default: all)")
    options = parser.parse_args()
    chosen = [options.command] if options.command else list(CASES)
    for number, name in enumerate(chosen):
        count = len(range(number, options.kills, len(chosen)))
        with tempfile.TemporaryDirectory() as folder:
            figures = kill_often(CASES[name](Path(folder) / name), count, options.seed) if count else {}
        print(f"{name}: " + ", ".join(f"{what} {times}" for what, times in figures.items()), flush=True)
    print("Nothing was lost, changed or half-written.")


if __name__ == "__main__":
    main()
