"""The Typer app: commands, and the one place where errors become words and exit codes."""

import io
import os
import sys
from collections.abc import Sequence

import typer

from pdctl.base.errors import BugError, PdctlError
from pdctl.base.exits import ExitCode
from pdctl.cli import ui
from pdctl.cli.accept import accept
from pdctl.cli.analyze import analyze
from pdctl.cli.audit import audit
from pdctl.cli.bench import bench
from pdctl.cli.doctor import doctor
from pdctl.cli.down import down
from pdctl.cli.drain import drain
from pdctl.cli.explain import explain
from pdctl.cli.init import init
from pdctl.cli.logs import logs
from pdctl.cli.orphans import orphans
from pdctl.cli.plan import plan
from pdctl.cli.render import render
from pdctl.cli.report import report
from pdctl.cli.restart import restart
from pdctl.cli.reuse import reuse
from pdctl.cli.router import router
from pdctl.cli.schema import schema
from pdctl.cli.set_ttl import set_ttl
from pdctl.cli.size import size
from pdctl.cli.status import status
from pdctl.cli.tail_logs import tail_logs
from pdctl.cli.top import top
from pdctl.cli.undrain import undrain
from pdctl.cli.up import up
from pdctl.cli.verify import verify
from pdctl.cli.version import version

app = typer.Typer(
    name="pdctl",
    help="From one YAML file to a vLLM prefill/decode pair that provably reuses KV across turns.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(init)
app.command()(render)
app.command()(plan)
app.command()(up)
app.command()(status)
app.command()(top)
app.command()(down)
app.command()(orphans)
app.command()(audit)
app.command()(restart)
app.command()(drain)
app.command()(undrain)
app.command()(logs)
app.command("tail-logs")(tail_logs)
app.command()(doctor)
app.command()(explain)
app.command()(analyze)
app.command()(bench)
app.command()(report)
app.command()(accept)
app.command()(reuse)
app.command()(set_ttl)
app.command()(router)
app.command()(schema)
app.command()(size)
app.command()(verify)
app.command()(version)


@app.callback()
def _main() -> None:
    """Keep `pdctl COMMAND` the form, however many commands there are."""


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line; the return value is the exit code.

    `standalone_mode` stays on so that typer words its own usage errors; it ends in SystemExit.
    """
    _ready_streams()
    try:
        app(list(args) if args is not None else None)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # click would call it 1, a bad answer
            return int(ExitCode.BROKEN_PIPE)
        return stop.code if isinstance(stop.code, int) else int(ExitCode.OK)
    except PdctlError as problem:
        _tell(problem, sys.argv[1:] if args is None else list(args))
        return int(problem.exit_code)
    except KeyboardInterrupt:
        ui.say("interrupted", "warn")
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output left, as `head` does; that is not an error of ours.
        sys.stderr.close()
        return int(ExitCode.BROKEN_PIPE)
    except Exception as error:
        _tell(_bug(error), sys.argv[1:] if args is None else list(args))
        return int(ExitCode.BUG)
    return int(ExitCode.OK)


def _ready_streams() -> None:
    """Closed streams swallow what is written, and no terminal's letters end a command."""
    if sys.stdout is None:  # `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream is sys.stdout else "backslashreplace")


def _bug(error: Exception) -> BugError:
    """What nobody foresaw, with all that whoever mends it must know."""
    import traceback

    return BugError(
        f"this is a bug in pdctl: {type(error).__name__}: {error}",
        detail="".join(traceback.format_exception(error)).splitlines(),
        hints=["report it with these lines and the output of `pdctl version`"],
    )


def _tell(problem: PdctlError, args: list[str]) -> None:
    if "--json" in args:
        ui.json(problem.as_dict())
    ui.error(problem)
