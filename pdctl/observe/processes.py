"""What a host shows of the processes that were started on it: arguments, variables, logs, plugin.

Every source can fail by itself; what it would have said is then missing, and nothing else.
"""

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from pdctl.base.command import Command, Secret, command
from pdctl.base.errors import PdctlError
from pdctl.base.process import Kept, ProcessSpec, RoleName, RunningProcess
from pdctl.base.redact import redacted
from pdctl.base.runfacts import ProcessFacts, StartLine
from pdctl.observe.logs.line import Clock, parse
from pdctl.plan.differences import by_option
from pdctl.plugin.live_ttl import parse as parse_ttl
from pdctl.render.model import NEW_AT_EVERY_START
from pdctl.state.model import ProcessRecord
from pdctl.targets import hostlog
from pdctl.targets.base import Host

_LIMIT_S = 20.0
_ARGUMENTS = b"non-default args:"
_MOST_STARTS = 20


@dataclass(frozen=True)
class HeldLog:
    """The end of a process's log.

    Attributes:
        data: since the process was started, or the last of it.
        whole: nothing since the start is missing.
        starts: what all of the end that was read says of starts, older ones too.
    """

    name: str
    role: RoleName
    data: bytes
    whole: bool = True
    starts: tuple[StartLine, ...] = ()
    error: str | None = None


def read_process(
    host: Host,
    record: ProcessRecord,
    spec: ProcessSpec | None,
    running: Sequence[RunningProcess],
) -> ProcessFacts:
    """One process.

    Args:
        spec: as the configuration renders it now; None where it has it no more.
        running: what runs on the host with the deployment's mark.
    """
    facts = ProcessFacts(
        name=record.name,
        role=record.role,
        host=record.host,
        pid=record.ref.pid if record.ref else None,
        started_at=record.started_at,
        engine_id=record.engine_id,
        wanted=_shown(by_option(spec.command.masked_argv())) if spec else {},
        wanted_env=_not_secret(spec) if spec else {},
    )
    if record.ref is None:
        return replace(facts, alive=False)
    kept = host.kept(record.ref)
    its = kept.ref if kept else None
    facts = _as_kept(facts, kept)
    found = next((each for each in running if its and each.ref.pid == its.pid), None)
    if its is None or found is None:
        return replace(facts, alive=its is not None)
    return replace(
        facts,
        alive=True,
        running=_shown(by_option(found.argv)),
        env=_environment(host, its.pid, facts.wanted_env.keys() | record.env.keys(), record),
        ttl_file=_ttl(host, record),
        levers=_levers(host, record, {each.ref.pid for each in running}),
    )


def _as_kept(facts: ProcessFacts, kept: Kept | None) -> ProcessFacts:
    """The facts of what was started again since: another pid, and another engine id."""
    if kept is None:
        return facts
    facts = replace(facts, pid=kept.ref.pid if kept.ref else facts.pid, restarts=kept.restarts)
    new = kept.engine_id
    wanted = {
        option: value.replace(NEW_AT_EVERY_START, new or NEW_AT_EVERY_START)
        for option, value in facts.wanted.items()
        if new or NEW_AT_EVERY_START not in value  # vLLM makes one by itself
    }
    return replace(facts, engine_id=new or facts.engine_id, wanted=wanted)


def _shown(options: Mapping[str, str]) -> dict[str, str]:
    return {name: redacted(value) for name, value in options.items()}


def _not_secret(spec: ProcessSpec) -> dict[str, str]:
    env = spec.command.env
    return {name: redacted(part) for name, part in env.items() if not isinstance(part, Secret)}


def _environment(
    host: Host, pid: int, names: Iterable[str], record: ProcessRecord
) -> dict[str, str]:
    """Variables that pdctl sets, as the process has them; none that is a secret."""
    said = _ask(host, command("cat", f"/proc/{pid}/environ"))
    pairs = (item.partition("=") for item in (said or "").split("\0"))
    wanted = {name for name in names if record.env.get(name) != "***"}
    return {name: redacted(value) for name, _, value in pairs if name in wanted}


def _ttl(host: Host, record: ProcessRecord) -> float | None:
    file = record.env.get("PDCTL_TTL_FILE")
    if file is None:
        return None
    try:
        content = host.read_file(PurePosixPath(file), limit=4096)
        return None if content is None else parse_ttl(content)
    except (PdctlError, ValueError):
        return None  # the plugin takes no notice of such a file either


def _levers(host: Host, record: ProcessRecord, pids: set[int]) -> dict[str, str] | None:
    """States by lever, the best of all processes that live: each has only some of them."""
    folder = record.env.get("PDCTL_PLUGIN_STATUS_DIR")
    if folder is None:
        return None
    said = _ask(host, command("sh", "-c", 'cat "$1"/plugin-*.json', "sh", folder))
    levers: dict[str, str] = {}
    for status in _documents(said or ""):
        if status.get("pid") not in pids:
            continue
        for name, lever in (status.get("levers") or {}).items():
            state = str(lever.get("state"))
            if levers.get(name) not in ("applied", "not-needed"):
                levers[name] = state
    return levers


def _documents(text: str) -> Iterable[dict[str, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            return
        if isinstance(value, dict):
            yield value


def _ask(host: Host, what: Command) -> str | None:
    try:
        result = host.run(what, timeout=_LIMIT_S)
    except PdctlError:
        return None
    return result.stdout if result.ok else None


# --- logs ------------------------------------------------------------------------------------


def read_log(host: Host, record: ProcessRecord, limit: int) -> HeldLog:
    """The end of its log, at most `limit` bytes; never raises for one that cannot be read."""
    try:
        size = hostlog.size(host, record.log)
        data = hostlog.tail(host, record.log, limit=limit, since=record.started_at) or b""
        size = size or len(data)
    except PdctlError as error:
        return HeldLog(record.name, record.role, b"", whole=False, error=error.message)
    since = size - record.log_offset if size >= record.log_offset else size
    ours = data[-since:] if 0 < since < len(data) else data if since else b""
    whole = since <= len(data)
    if not whole:
        ours = ours[ours.find(b"\n") + 1 :]
    return HeldLog(record.name, record.role, ours, whole, tuple(starts_in(data)))


def starts_in(data: bytes) -> list[StartLine]:
    """vLLM's lines of its arguments, in order; the last ones when there are many."""
    clock = Clock()
    found = []
    at = data.find(_ARGUMENTS)
    while at >= 0:
        begin = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        line = parse(data[begin:end], clock)
        found.append(start_line(line.message, line.ts))
        at = data.find(_ARGUMENTS, end)
    return found[-_MOST_STARTS:]


_TEXT = re.compile(r"""\b(?P<key>engine_id|kv_role|kv_buffer_device|kv_load_failure_policy)=
    (?P<quote>['"])(?P<value>[^'"]*)(?P=quote)""", re.VERBOSE)  # fmt: skip
_EXTRA = re.compile(r"kv_connector_extra_config=(?P<dict>\{[^{}]*\})")


def start_line(message: str, ts: float | None) -> StartLine:
    """One such line, as far as it speaks of the connector."""
    options = {match["key"]: match["value"] for match in _TEXT.finditer(message)}
    if extra := _EXTRA.search(message):
        with suppress(ValueError, SyntaxError, AttributeError):  # nothing is known then
            options |= {
                key: json.dumps(value) if not isinstance(value, str) else value
                for key, value in ast.literal_eval(extra["dict"]).items()
            }
    return StartLine(ts, options.pop("engine_id", None), options)
