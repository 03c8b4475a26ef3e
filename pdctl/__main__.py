"""`python -m pdctl` and the console script."""

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from pdctl.cli.app import run

        sys.exit(run())
    except KeyboardInterrupt:  # before there was anybody to tell: what is needed is being loaded
        sys.exit(130)


if __name__ == "__main__":
    main()
