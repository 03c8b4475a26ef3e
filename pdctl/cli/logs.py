"""`pdctl logs`: what the logs say about reuse, in plain words."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import NotFoundError, UsageError
from pdctl.base.exits import ExitCode
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pdctl.observe.logs.event import Event
    from pdctl.observe.logs.read import Source
    from pdctl.observe.logs.summary import Summary, Wanted
    from pdctl.observe.signatures.model import Signature
    from pdctl.state.model import DeploymentState

# Here `-f` follows, so the configuration has no short form.
File = Annotated[
    Path, typer.Option("--file", envvar="PDCTL_FILE", help="Configuration file.", show_default=True)
]
Role = Annotated[
    str | None, typer.Option("--role", help="Only lines of prefill, decode or router.")
]
Grep = Annotated[
    str | None,
    typer.Option("--grep", help="Only lines that this regular expression finds, flagged or not."),
]
All = Annotated[bool, typer.Option("--all", help="Show every line, not only what is bad.")]


def logs(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Logs, also compressed; `-` is stdin. Without: those of the deployment.",
        ),
    ] = None,
    role: Role = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only lines from then on: 10m, or 2026-11-29T15:30."),
    ] = None,
    grep: Grep = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on while the logs are written.")
    ] = False,
    every: All = False,
    file: File = options.DEFAULT_FILE,
    name: options.Name = None,
    json: options.Json = False,
) -> None:
    """Find what is known to matter in logs, and say what it means and what to do.

    Reads plain and compressed files, `journalctl -o json`, and what docker, containerd, systemd and
    vLLM put before a line. Every known line is one event; `pdctl explain ID` tells of each.

    Exit status 0: nothing bad. 1: something that blocks or degrades. 130: followed until Ctrl-C.
    """
    from pdctl.observe.logs.summary import Wanted

    wanted = Wanted(role, None if since is None else moment(since))
    keep = predicate(grep, every)
    follow = follow and "-" not in (files or ())
    with chosen(files, file, name, role, since=wanted.since, follow=follow) as sources:
        if follow:
            watch(sources, wanted, grep=grep, every=True, json=json)
            return
        summary = _read(sources, wanted, keep, grep=grep, every=every, json=json)
        finish(summary, sources, json=json)


@contextmanager
def chosen(
    files: list[str] | None,
    file: Path,
    name: str | None,
    role: str | None,
    *,
    since: float | None = None,
    follow: bool = False,
) -> "Iterator[list[Source]]":
    """The logs to read: files that were named, or those of the deployment.

    What is on other machines is brought here, for as long as the context lasts.

    Raises:
        UsageError: the role is none.
        NotFoundError: a file, or any process of the deployment, is missing.
        UnreachableError: they are on other machines, of which none answers.
    """
    from pdctl.base.process import ROLES
    from pdctl.observe.logs.deployed import sources_of
    from pdctl.observe.logs.read import source_of
    from pdctl.render.check import load_checked
    from pdctl.state.store import StateStore

    if role is not None and role not in ROLES:
        raise UsageError(f"`{role}` is not a role", where="--role", expected=", ".join(ROLES))
    if files:
        yield [source_of(each) for each in files]
        return
    try:
        deployment = options.checked_name(name) if name else load_checked(file).config.name
    except NotFoundError as error:
        error.hints = ("name the logs: `pdctl logs FILE…`, `-` for stdin", *error.hints)
        raise
    state = StateStore(deployment).load()
    if state is None or state.target == "local":
        yield sources_of(deployment, state, role)
        return
    with _far(state, role, since=since, follow=follow) as sources:
        yield sources


@contextmanager
def _far(
    state: "DeploymentState", role: str | None, *, since: float | None, follow: bool
) -> "Iterator[list[Source]]":
    from pdctl.deploy import reach
    from pdctl.observe.logs import remote
    from pdctl.observe.logs.deployed import records_of
    from pdctl.observe.logs.follow import BEFORE

    config = reach.config_of(state)
    assert config is not None
    world, records = reach.world_of(config), records_of(state.name, state, role)
    try:
        reach.try_to_connect(world)
        way = (
            remote.followed(world.hosts, records, lambda text: ui.say(text, "warn"), before=BEFORE)
            if follow
            else remote.brought_here(world.hosts, records, since=since)
        )
        with way as sources:
            yield sources
    finally:
        world.close()


def moment(since: str) -> float:
    """`10m` before now, or a date and time; seconds since the epoch.

    Raises:
        UsageError: it is neither.
    """
    import time
    from datetime import datetime

    from pdctl.base.durations import parse_duration

    try:
        return time.time() - parse_duration(since)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(since).timestamp()
    except ValueError:
        raise UsageError(
            f"`{since}` is no time", where="--since", expected="10m, 2h, or 2026-11-29T15:30"
        ) from None


def predicate(grep: str | None, every: bool) -> Callable[[bytes], bool] | None:
    """Which lines without a signature are wanted.

    Raises:
        UsageError: the regular expression is none.
    """
    import re

    if grep is None:
        return (lambda _: True) if every else None
    try:
        pattern = re.compile(grep.encode())
    except re.error as error:
        raise UsageError(f"`{grep}` is no regular expression: {error}", where="--grep") from None
    return lambda line: pattern.search(line) is not None


def _read(
    sources: "list[Source]",
    wanted: "Wanted",
    keep: Callable[[bytes], bool] | None,
    *,
    grep: str | None,
    every: bool,
    json: bool,
) -> "Summary":
    import gc

    from pdctl.observe.logs.read import events
    from pdctl.observe.logs.scan import Scanner
    from pdctl.observe.logs.summary import Summary
    from pdctl.observe.signatures import SIGNATURES

    summary = Summary()
    found = summary.of(events(sources, Scanner(SIGNATURES), keep=keep), wanting(wanted, grep))
    live = any("-" in source.paths for source in sources)
    # Millions of small objects that no cycle holds: looking for cycles among them takes a tenth.
    gc.freeze()
    gc.disable()
    try:
        show(found, every=every, json=json, live=live)
    except KeyboardInterrupt:
        summary.close()
        finish(summary, sources, json=json, interrupted=True)
    finally:
        gc.enable()
        gc.unfreeze()
    return summary


def wanting(wanted: "Wanted", grep: str | None) -> "Callable[[Event], bool]":
    """What is shown and counted, the pattern included."""
    import re

    if grep is None:
        return wanted
    pattern = re.compile(grep)
    return lambda event: (
        wanted(event) and (event.signature is None or pattern.search(event.line) is not None)
    )


def show(
    found: "Iterable[tuple[Event, tuple[Signature, ...]]]", *, every: bool, json: bool, live: bool
) -> None:
    """Print events as they come; `live`: someone may wait for each of them."""
    import sys

    from pdctl.cli.logview import EventView

    write, view = ui.JsonLines(live=live), EventView(every=every)
    try:
        for event, concluded in found:
            if json:
                write(event.as_dict())
                continue
            view.show(event, concluded)
            if live:
                sys.stdout.flush()
    finally:
        write.flush()


def finish(
    summary: "Summary", sources: "list[Source]", *, json: bool, interrupted: bool = False
) -> None:
    """Print the summary, and end with the status that it means."""
    from pdctl.cli.logview import show_summary

    if not interrupted:
        summary.close()
    for source in sources:
        for problem in source.problems:
            ui.say(problem, "warn")
    if json:
        ui.JsonLines(live=True)(summary.as_dict())
    else:
        show_summary(summary, [source.name for source in sources])
    if interrupted:
        raise typer.Exit(int(ExitCode.INTERRUPTED))
    if summary.bad:
        raise typer.Exit(int(ExitCode.BAD_ANSWER))


def watch(
    sources: "list[Source]", wanted: "Wanted", *, grep: str | None, every: bool, json: bool
) -> None:
    """Follow until Ctrl-C, with alerts and a status line, then sum up."""
    import sys
    import time
    from collections import deque

    from pdctl.cli.logview import EventView, LiveView
    from pdctl.observe.logs.follow import Batch, Follower
    from pdctl.observe.logs.scan import Scanner
    from pdctl.observe.logs.summary import Summary
    from pdctl.observe.signatures import SIGNATURES

    summary = Summary()
    live = LiveView(summary)
    view = EventView(every=every)
    write = ui.JsonLines(live=True)
    wants = wanting(wanted, grep)

    def show_batch(batch: Batch) -> None:
        if batch.old:  # it tells which conversations are not new, and is not shown
            deque(summary.of(batch.events, lambda _: False), 0)
            return
        if batch.events or batch.said:
            live.clear()
        for said in batch.said:
            ui.say(said, "warn")
        for event, concluded in summary.of(batch.events, wants):
            if json:
                write(event.as_dict())
            else:
                view.show(event, concluded)
        sys.stdout.flush()
        if not json:
            live.alert()
            live.tick(time.time())

    follower = Follower(sources, Scanner(SIGNATURES), keep=predicate(grep, every))
    try:
        for batch in follower:
            show_batch(batch)
    except KeyboardInterrupt:
        show_batch(follower.rest())
        live.clear()
        summary.close()
        finish(summary, sources, json=json, interrupted=True)
