"""Options that several commands share, so that they are spelt the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

from pdctl.base.errors import UsageError

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
LockWait = Annotated[
    float,
    typer.Option("--lock-wait", min=0, help="Seconds to wait for another pdctl to end."),
]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Name of the deployment; no configuration file is read then."),
]


def checked_name(name: str) -> str:
    """The name of a deployment, which is also that of a folder.

    Raises:
        UsageError: it could not be one.
    """
    import re

    if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", name) is None:
        raise UsageError(
            f"`{name}` is not a name of a deployment",
            where="--name",
            expected="lower-case letters, digits and dashes",
        )
    return name
