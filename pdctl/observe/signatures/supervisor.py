"""Lines of pdctl's own supervisor, which stand in the log of the process that it keeps running."""

from pdctl.base.fix import Fix
from pdctl.observe.signatures.model import ANYONE, COUNT, Signature

_SOURCE = "run: pdctl/engine/scripts/supervise.py"
_NAME = r"^(?P<process>[a-z]+-\d{1,6}) "
_ENDED = _NAME + rf"ended with (?P<how>status \d{{1,3}}|signal \d{{1,3}}|SIG\w+) after {COUNT} s; "
_CAUSES = (
    "engine.start.failed",
    "engine.dead",
    "engine.abort.assertion",
    "engine.trim.assertion",
    "gpu.oom",
    "host.oom",
    "engine.arguments.refused",
    "engine.worker.died",
    "process.crashed",
    "host.disk.full",
    "port.in_use",
    "process.traceback",
    "supervisor.no_start",
)

SUPERVISOR: tuple[Signature, ...] = (
    Signature(
        id="supervisor.restarted",
        title="a process ended by itself and is started again",
        literals=("; it is started again in ",),
        pattern=_ENDED + rf"it is started again in (?P<wait>{COUNT}) s$",
        severity="degrade",
        roles=ANYONE,
        versions="pdctl",
        meaning="Nobody asked it to end. Requests that ran there failed; until it has loaded again "
        "others take its part, where there are others. Handles of an engine's blocks are dropped, "
        "so its conversations run cold once. After `SIGKILL` look for the kernel's out-of-memory "
        "killer.",
        fix=Fix("look at the lines before it for why it ended", ("pdctl logs",)),
        source=_SOURCE,
        follows=_CAUSES,
    ),
    Signature(
        id="supervisor.gave_up",
        title="a process ended too often and is not started again",
        literals=(" s did not last, so it is not started again",),
        pattern=_ENDED + rf"(?P<starts>{COUNT}) starts within (?P<within>{COUNT}) s did not last, "
        r"so it is not started again$",
        severity="block",
        roles=ANYONE,
        versions="pdctl",
        meaning="It stays away until somebody starts it: `status` shows that it is gone.",
        fix=Fix("mend why it ends, which stands before it, then start it", ("pdctl up",)),
        source=_SOURCE,
        follows=_CAUSES,
    ),
    Signature(
        id="supervisor.no_start",
        title="a process cannot be started at all",
        literals=(" cannot be started: ",),
        pattern=_NAME + r"cannot be started: (?P<why>[^:]+): (?P<program>.+)$",
        severity="block",
        roles=ANYONE,
        versions="pdctl",
        meaning="The system refuses to run the program: it is not there, or may not be run. An "
        "engine's environment that was removed or damaged looks like this.",
        fix=Fix("see that the program is there; `up` makes again what it made", ("pdctl up",)),
        source=_SOURCE,
    ),
)
