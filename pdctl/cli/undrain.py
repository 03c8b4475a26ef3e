"""`pdctl undrain`: requests go to an engine again."""

from pdctl.cli import options
from pdctl.cli.drain import Engine, change


def undrain(
    engine: Engine,
    file: options.File = options.DEFAULT_FILE,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    lock_wait: options.LockWait = 0.0,
) -> None:
    """Send requests to an engine again, on all routers."""
    change(
        engine, file, why="", yes=True, dry_run=dry_run, json=json, wait=False, lock_wait=lock_wait
    )
