"""`pdctl tail-logs`: the logs of all processes at once, live, with what they mean."""

from typing import Annotated

import typer

from pdctl.cli import options
from pdctl.cli.logs import Grep, Role


def tail_logs(
    role: Role = None,
    grep: Grep = None,
    flagged: Annotated[
        bool, typer.Option("--flagged", help="Show only lines that say something bad.")
    ] = False,
    file: options.File = options.DEFAULT_FILE,
    name: options.Name = None,
    json: options.Json = False,
) -> None:
    """Follow the logs of all processes of the deployment until Ctrl-C, then sum up.

    What is bad is told once for each cause, with the fix; a line tells the HIT rate of the last
    minute, expired reads, failed loads and waiting requests.

    Exit status 130 after Ctrl-C.
    """
    from pdctl.cli.logs import chosen, watch
    from pdctl.observe.logs.summary import Wanted

    with chosen(None, file, name, role, follow=True) as sources:
        watch(sources, Wanted(role), grep=grep, every=not flagged, json=json)
