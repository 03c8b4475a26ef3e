"""Options that several commands share, so that they are spelt the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[
    Path,
    typer.Option(
        "--file", "-f", envvar="PDCTL_FILE", help="Configuration file.", show_default=True
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, change nothing.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show steps as they start.")]

DEFAULT_FILE = Path("pd.yaml")
