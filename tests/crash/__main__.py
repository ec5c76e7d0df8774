"""Command ``python -m tests.crash``: kill commands, print counts, and stop at the first lost result."""

import argparse
import tempfile
from pathlib import Path

from .cases import CASES
from .kills import kill_repeatedly


def main() -> None:
    """Run the crash tests of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="number of kills over all commands (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments (default: 0)")
    parser.add_argument("--command", choices=list(CASES), help="test only this command (default: all)")
    args = parser.parse_args()
    names = [args.command] if args.command else list(CASES)
    for number, name in enumerate(names):
        count = len(range(number, args.kills, len(names)))
        with tempfile.TemporaryDirectory() as folder:
            counts = kill_repeatedly(CASES[name](Path(folder) / name), count, args.seed) if count else {}
        print(f"{name}: " + ", ".join(f"{label} {value}" for label, value in counts.items()), flush=True)
    print("No result was lost, changed or incomplete.")


if __name__ == "__main__":
    main()
