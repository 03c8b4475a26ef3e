"""Applying install steps on a host: resumable, told line by line, one pdctl at a time."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from pdctl.base import paths
from pdctl.base.command import Command, command
from pdctl.base.errors import BadAnswerError, PdctlError, PermissionDeniedError, TemporaryError
from pdctl.base.events import StepProgress, StepWaiting
from pdctl.deploy.parallel import on_all
from pdctl.deploy.world import World
from pdctl.engine.install import InstallRecipe, InstallStep, pending
from pdctl.plan.model import Install
from pdctl.targets.base import Host, Result

_SHOWN_LINES = 20
_LINE_LENGTH = 100
_LOCK_LIMIT_S = 3600.0
_CHECK_LIMIT_S = 120.0
_WORD_EVERY_S = 15.0
_ALMOST_FULL = 50 * 10**6
_NO_SPACE = re.compile(r"No space left on device|\bENOSPC\b|Disk quota exceeded|File too large")


def require_space(host: Host, recipe: InstallRecipe) -> None:
    """See before the first step that the whole environment fits.

    Raises:
        TemporaryError: it does not; says how much is free and how to put it elsewhere.
    """
    root = recipe.layout.root
    needed = recipe.needed_bytes - _used(host, root)
    free = host.free_bytes(root)
    if free < needed:
        raise TemporaryError(
            f"not enough space for the engine: {_gib(needed)} are needed, {_gib(free)} are free",
            where=f"{host.name}: {root}",
            hints=[
                f"free some space, or set {paths.CACHE_DIR_ENV} to a folder on a larger disk",
            ],
        )


def apply(
    world: World,
    hosts: Sequence[Host],
    step_id: str,
    action: Install,
    *,
    root: PurePosixPath,
    log: Path,
    check: Command | None = None,
) -> str:
    """Apply one step on all hosts where it is not done yet; what was done, in a word.

    Args:
        root: folder that the step builds; with `action.reset` it is removed first.
        check: exits 0 where nothing has to be reset.
        log: gets every line of output.

    Raises:
        TemporaryError: no space left, or a limit passed.
        BadAnswerError: a command failed; carries its last lines.
    """
    with _alone(world, step_id, root):
        did = on_all(hosts, lambda host: _apply(world, host, step_id, action, root, log, check))
    return "" if any(did) else "another run did it meanwhile"


def _apply(
    world: World,
    host: Host,
    step_id: str,
    action: Install,
    root: PurePosixPath,
    log: Path,
    check: Command | None,
) -> bool:
    step = action.step
    is_done = not pending((step,), host.read_file)
    if action.reset:
        if is_done and check is not None and host.run(check, timeout=_CHECK_LIMIT_S).ok:
            return False  # another host's was damaged; engines run from this one
        host.remove_tree(root)
    elif is_done:
        return False
    for file in step.files:
        host.write_file(file.path, file.content, mode=file.mode)
    for each in step.commands:
        _run(world, host, step_id, step, each, root, log)
    host.write_file(step.marker, step.fingerprint.encode())
    return True


def _run(
    world: World,
    host: Host,
    step_id: str,
    step: InstallStep,
    each: Command,
    root: PurePosixPath,
    log: Path,
) -> None:
    def on_line(line: str) -> None:
        _append(log, line)
        world.listen(StepProgress(step_id, f"{step.what}: {line.strip()[:_LINE_LENGTH]}"))

    _append(log, f"$ {each.masked()}")
    result = host.run(each, timeout=step.timeout_s, on_line=on_line)
    if not result.ok:
        raise _failed(host, step, each, result, root, log)


def _append(log: Path, line: str) -> None:
    """Words for later; a full disk is told by the command that meets it, not by its log."""
    with suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with log.open("a", errors="replace") as written:
            written.write(line + "\n")


def _failed(
    host: Host, step: InstallStep, each: Command, result: Result, root: PurePosixPath, log: Path
) -> PdctlError:
    lines = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    detail = lines[-_SHOWN_LINES:]
    free = host.free_bytes(root)
    if free < _ALMOST_FULL or any(_NO_SPACE.search(line) for line in lines):
        return TemporaryError(
            f"no space left while pdctl was to {step.what}",
            where=f"{host.name}: {root}, {_gib(free)} free",
            detail=detail,
            hints=[
                "free some space and run `pdctl up` again; it goes on with this step",
                f"or set {paths.CACHE_DIR_ENV} to a folder on a larger disk",
            ],
        )
    program = shlex.quote(each.masked_argv()[0])
    return BadAnswerError(
        f"could not {step.what}: {program} ended with status {result.exit_status}",
        where=f"{host.name}, whole output in {log}",
        detail=detail,
        hints=[*step.hints, "`pdctl up` goes on with this step"],
    )


@contextmanager
def _alone(world: World, step_id: str, root: PurePosixPath) -> Iterator[None]:
    """Deployments share what is in the cache, so the deployment's own lock is not enough."""
    lock = FileLock(_locks() / f"{root.name}.lock")
    began = world.monotonic()
    while True:
        try:
            lock.acquire(timeout=_WORD_EVERY_S, poll_interval=0.1)
            break
        except Timeout as error:
            waited = world.monotonic() - began
            what = f"another pdctl to finish with `{root.name}`"
            if waited > _LOCK_LIMIT_S:
                raise TemporaryError(f"gave up waiting for {what}", where=str(root)) from error
            world.listen(StepWaiting(step_id, what, waited, _LOCK_LIMIT_S))
    try:
        yield
    finally:
        lock.release()


def _locks() -> Path:
    locks = paths.cache_root() / "locks"
    try:
        locks.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermissionDeniedError(
            f"the cache cannot be used: {error.strerror}",
            where=str(locks),
            hints=[f"set {paths.CACHE_DIR_ENV} to a folder of yours"],
        ) from error
    return locks


def _used(host: Host, root: PurePosixPath) -> int:
    if not host.exists(root):
        return 0
    result = host.run(command("du", "-sk", str(root)), timeout=120.0)
    kib = result.stdout.split()[:1]
    return int(kib[0]) * 1024 if kib and kib[0].isdigit() else 0


def _gib(count: int) -> str:
    return f"{max(count, 0) / 2**30:.1f} GiB"
