"""How pdctl talks: data to stdout, words to stderr, plain lines when nobody watches.

User text never goes through rich's markup: brackets in paths and logs must survive.
"""

import io
import json as jsonlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pdctl.base.errors import BadAnswerError, PdctlError, UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from pdctl.base.events import Listener

_STYLES = {"ok": "green", "bad": "red", "warn": "yellow", "dim": "dim", "plain": ""}


def _console(*, stderr: bool) -> "Console":
    # rich takes longer to import than `--help` may take in all.
    from rich.console import Console

    # Built at each use: tests and pipes swap the streams under us.
    return Console(
        file=sys.stderr if stderr else sys.stdout,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
    )


def data(text: str) -> None:
    """Print a result to stdout, untouched."""
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise BadAnswerError(
            f"the output cannot be written: {error.strerror}", where="standard output"
        ) from error


def _drop_output() -> None:
    """What is left of it would fail again when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def json(value: object) -> None:
    """Print one JSON document to stdout."""
    data(jsonlib.dumps(value, indent=2, ensure_ascii=False))


def say(text: str, style: str = "plain") -> None:
    """Print words to stderr; `style` is one of ok, bad, warn, dim, plain."""
    from rich.text import Text

    _console(stderr=True).print(Text(text, style=_STYLES[style]))


Writer = Callable[..., None]


def writer() -> Writer:
    """Prints many lines to stdout: `line(text, style="plain", end="\\n")`, in colour on terminals.

    Beside the styles of `say`, a style is one of rich's. The stream is not flushed at each line.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")  # logs hold what not every terminal can show
    if not out.isatty():

        def plain(text: str, style: str = "", end: str = "\n") -> None:
            out.write(text + end)

        return plain
    from rich.text import Text

    console = _console(stderr=False)

    def coloured(text: str, style: str = "", end: str = "\n") -> None:
        console.print(Text(text, style=_STYLES.get(style, style)), end=end)

    return coloured


class JsonLines:
    """Prints values to stdout, one a line. What was not flushed is printed at the end.

    Args:
        live: flush at each line, since someone may wait for it.
    """

    _CHUNK = 1 << 16

    def __init__(self, *, live: bool = False) -> None:
        import orjson

        self._dump = orjson.dumps
        self._options = orjson.OPT_APPEND_NEWLINE
        self._waiting = bytearray()
        self._most = 0 if live else self._CHUNK

    def __call__(self, value: object) -> None:
        """Print one."""
        self._waiting += self._dump(value, option=self._options)
        if len(self._waiting) > self._most:
            self.flush()

    def flush(self) -> None:
        """Print what waits."""
        sys.stdout.flush()
        if (raw := getattr(sys.stdout, "buffer", None)) is not None:
            raw.write(self._waiting)  # JSON is UTF-8, whatever the terminal is
            raw.flush()
        else:
            sys.stdout.write(self._waiting.decode())
        self._waiting.clear()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table to stdout; None becomes a dash."""
    _console(stderr=False).print(grid(columns, rows), soft_wrap=False)


def grid(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> "Table":
    """A table to draw; None becomes a dash."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*[Text("-" if cell is None else str(cell)) for cell in row])
    return made


def show(what: "RenderableType") -> None:
    """Print something that was put together to stdout."""
    _console(stderr=False).print(what, soft_wrap=False)


@contextmanager
def live() -> "Iterator[Callable[[RenderableType], None]]":
    """Draws over what it drew before, on a terminal; elsewhere one below the other."""
    from rich.live import Live

    console = _console(stderr=False)
    if not console.is_terminal:
        yield lambda what: console.print(what, "", soft_wrap=False)
        return
    with Live(console=console, auto_refresh=False, screen=True) as drawing:
        yield lambda what: drawing.update(what, refresh=True)


def mark(state: str) -> str:
    """✓ ! ✗ with ASCII where the terminal cannot show them; never colour alone."""
    fancy = {"ok": "✓", "warn": "!", "bad": "✗", "skip": "·"}
    plain = {"ok": "+", "warn": "!", "bad": "x", "skip": "-"}
    encoding = (getattr(sys.stderr, "encoding", None) or "ascii").lower()
    return (fancy if "utf" in encoding else plain)[state]


def error(problem: PdctlError) -> None:
    """Print an error: what, where, expected, evidence, then the hints."""
    say(f"error: {problem.message}", "bad")
    if problem.where:
        say(f"  where: {problem.where}")
    if problem.expected:
        say(f"  expected: {problem.expected}")
    for line in problem.detail:
        say(f"  {line}")
    if problem.hints:
        say("")
    for hint in problem.hints:
        say(f"hint: {hint}")


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agrees.

    Raises:
        UsageError: when the answer is no, or nobody is there to answer and `--yes` was not given.
    """
    if yes or os.environ.get("PDCTL_YES") == "1":
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "this needs your consent and nobody is at the terminal", hints=["add `--yes`"]
        )
    say(f"{question} [y/N] ")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise UsageError("not confirmed; nothing was changed")


def listener(*, verbose: bool = False) -> "Listener":
    """A listener that prints events to stderr."""
    # What `--help` does not need, it does not load.
    from pdctl.cli.progress import Progress

    return Progress(verbose)
