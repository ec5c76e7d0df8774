"""Entry point of `python -m adt_core` and of the script `adt-tree`; see `adt_core.cli`."""

import sys

from .errors import INTERRUPTED, library_error


def main() -> int:
    """Run the command line, and return the exit code. The imports of the command line can fail, too."""
    try:
        from . import cli

        return cli.main()
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    except Exception as error:
        if not (missing := library_error(error)):
            raise
        print(f"error: {missing}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
