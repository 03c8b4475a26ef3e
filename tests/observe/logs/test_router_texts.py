"""What pdctl's own router writes is known: a new or changed line must be met here."""

import ast
from pathlib import Path

from tests.observe.logs.lines import POSITIVE

ROUTER = Path(__file__).parents[3] / "pdctl" / "router"
SHOWN = ("info", "warning", "error", "exception", "log")
OURS = "pdctl.router: "

TEXTS = {
    "[%s] conv=%s: cache %s (%s, reused=%d, prompt=%s, retained=%s%s)%s": "router.cache.miss",
    "%d handles were not given back: decode keeps them for its TTL": "router.release.late",
    "[%s] handle %s %s (%s)": "router.handle.unknown",
    "[%s] prefill %s failed: %s %s": "router.prefill.failed",
    "[%s] decode %s in mid-answer": "router.decode.interrupted",
    "ALARM %s: %s": "router.alarm.prompt_mismatch",
    "ALARM audit_breach: [%s] %s × %s: %s": "router.alarm.audit",
    "%s %s is down: %s": "router.engine.down",
    "%s %s is up (vLLM %s, block size %s)": "router.engine.up",
    "%s was restarted: %d handles forgotten": "router.engine.restarted",
    "pair %s × %s does not reuse: %s": "router.pair.unproven",
    "pair %s × %s proven: blocks move both ways": "router.pair.proven",
    "reuse is set to %g, by tenant: %s": "router.reuse.switched",
    "handles are offered for %g s from now on, not %g s": "router.ttl.changed",
    "release of %s failed: %s": "router.release.failed",
    "conv=%s: handle expired": "router.handle.expired",
    "the request log %s loses lines: %s": "router.requestlog.broken",
    "the request log %s is not reopened: %s": "router.requestlog.broken",
    "the request log %s grows on: %s": "router.requestlog.broken",
    "this process may open %d files, too few for %d requests: raise `ulimit -n`":
        "router.files.few",
    "pdctl router %s listens on %s": "router.started",
    "Ready: %d prefill, %d decode instances": "router.started",
    "the store %s fails (%s): turns run cold": "router.store.failed",
    "the store %s refuses `%s`: %s": "router.store.refused",
    "the store %s was started anew, restored or failed over: "
    "no handle from before is used any more": "router.store.reset",
    "the store %s is there": "router.store.up",
    "the store %s is back": "router.store.up",
    "the API keys stay as they were: %s": "router.keys.broken",
    # Nobody has to do anything about these.
    "the request log %s goes on; %d lines are lost": None,
    "%d handles to %s forgotten": None,
    "%d API keys read from %s": None,
    "draining: running requests have %g s to finish": None,
    # A line with what follows from it comes with this one.
    "the TTL that was set is not known: %s: %s": None,
    # The client who set it is told.
    "the TTL cannot be written down for the next start: %s": None,
    # Somebody asked for it.
    "%s %s gets nothing new: %s": None,
    "%s %s serves": None,
    "what was said of single engines is lost: %s: %s": None,
    "which engines are drained cannot be kept: %s: %s": None,
    # At the start, to who has asked for traces.
    "traces go to %s": None,
    "no traces: the router speaks OTLP as %s, not %s": None,
    "no traces: OpenTelemetry is not installed; `pip install 'pdctl[otel]'`": None,
    # Blocks keep the deadline they have, and a turn that comes later runs cold.
    "%s did not renew %d turns: %s %s": None,
    "%s does not know what a renewal is; it is not asked again": None,
    # A traceback comes with these.
    "background work failed": None,
    "looking at the engines failed": None,
    "%s failed": None,
}  # fmt: skip


def written() -> set[str]:
    found = set()
    for path in ROUTER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in SHOWN
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "log"
            ):
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                found |= {text for text in texts if isinstance(text, str)}
    return found


def test_every_line_of_the_router_is_known() -> None:
    assert written() == set(TEXTS)


def test_and_has_a_line_that_looks_like_it() -> None:
    for text, id in TEXTS.items():
        if id is None:
            continue
        said = [line.partition(OURS)[2] for line in POSITIVE[id] if OURS in line] + [
            line.partition("disagg_proxy: ")[2] for line in POSITIVE[id]
        ]
        words = [part for part in text.replace("%g", "%s").replace("%d", "%s").split("%s") if part]
        assert any(all(word in line for word in words) for line in said), text
