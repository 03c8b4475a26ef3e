"""`python -m pdctl` and the console script."""

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from pdctl.cli.app import run

    sys.exit(run())


if __name__ == "__main__":
    main()
