"""A router process: it listens, serves until it is told to stop, and lets requests finish."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pdctl import __version__
from pdctl.base.errors import TemporaryError
from pdctl.router.front import Runner
from pdctl.router.keys import KeyFile
from pdctl.router.server import LAST_WORDS_S, Router
from pdctl.router.settings import RouterSettings
from pdctl.router.tracing import tracing_of

log = logging.getLogger("pdctl.router")

_OTHER_FILES = 100
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_GC = (10_000, 20, 100)


class _NoTraceback(logging.Filter):
    """What is no HTTP is the client's fault: it gets one line, and no traceback of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten such a record."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg = f"{record.getMessage()}: {type(error).__name__}"
            record.args, record.exc_info = (), None
        return True


_http_log = logging.getLogger("pdctl.router.http")
_http_log.addFilter(_NoTraceback())


@asynccontextmanager
async def serving(router: Router) -> AsyncIterator[str]:
    """Serve until the block ends. Yields the URL; with port 0, a free port is chosen."""
    line = int(router.settings.limits.header_kib * 1024)
    runner = Runner(
        router.app(),
        access_log=None,
        logger=_http_log,
        # Without it a handler that waits on a silent engine never hears that its client left.
        handler_cancellation=True,
        # Also for who connects and says nothing, or half of a request's head.
        keepalive_timeout=router.settings.limits.idle,
        max_line_size=line,
        max_field_size=line,
        # By then what runs has had its time.
        shutdown_timeout=LAST_WORDS_S,
    )
    await runner.setup()
    site = web.TCPSite(runner, router.settings.host, router.settings.port)
    try:
        try:
            await site.start()
        except OSError as error:
            unknown = isinstance(error, socket.gaierror)
            # asyncio's own words for a bind name the address once more.
            said = error.strerror if unknown else os.strerror(error.errno or 0)
            raise TemporaryError(
                f"the router cannot listen: {said}",
                where=f"{router.settings.host}:{router.settings.port}",
                hints=["choose another port with `--port`, or another address with `--host`"],
            ) from error
        host, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        try:
            await router.finish()
        finally:
            await runner.cleanup()


async def run(
    settings: RouterSettings, *, key: str | None = None, key_file: KeyFile | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests finish."""
    allow_many_files(settings.limits.concurrent_requests)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    tracing = tracing_of(os.environ, settings.deployment)
    router = Router(settings, key=key, key_file=key_file, tracing=tracing)
    # Of a terminal, a hang-up means that it is gone; what has none is told to reopen its files.
    loop.add_signal_handler(signal.SIGHUP, stop.set if os.isatty(0) else router.log.reopen)
    async with serving(router) as url:
        log.info("pdctl router %s listens on %s", __version__, url)
        await stop.wait()
        log.info("draining: running requests have %g s to finish", settings.limits.drain)
    if tracing is not None:
        await asyncio.to_thread(tracing.close)


def serve(
    settings: RouterSettings, *, key: str | None = None, key_file: KeyFile | None = None
) -> None:
    """`run` on a loop of its own: uvloop's where there is one, since it costs a third less."""
    # What is loaded now stays; and requests leave few cycles behind, so that looking for them
    # seldom saves a twentieth of the work and costs no memory to speak of.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC)
    before = {name: signal.getsignal(name) for name in _SIGNALS}
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(run(settings, key=key, key_file=key_file))
    finally:
        # uvloop leaves its own behind, which do nothing once it is closed.
        for name, handler in before.items():
            signal.signal(name, handler)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes the loop that the router runs on; None for the usual one."""
    try:
        import uvloop
    except ImportError:  # no build for this platform
        return None
    return uvloop.new_event_loop


def allow_many_files(requests: int) -> None:
    """Raise the soft limit: a request needs two sockets, and many shells allow 1024 files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system's own limit may be lower than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < allowed < 2 * requests + _OTHER_FILES:
        log.warning(
            "this process may open %d files, too few for %d requests: raise `ulimit -n`",
            allowed,
            requests,
        )
