"""Taking a line of a log apart: who wrote it, when, and what it says. Pure.

A line comes in layers: a container's or journald's wrapping, colour, the process of an engine,
level and time, the message. Layers are taken off until none is recognised.
"""

import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

LONGEST = 65536
"""Bytes of a line that are looked at; what follows is ignored."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_WORKER = re.compile(r"(?:TP|rank=)(\d+)")
# `(Worker_TP3 pid=12) WARNING 11-29 15:29:23 [pull_worker.py:153] `; older ones have no name.
_VLLM = re.compile(
    r"(?:\((?P<process>[\w .=-]*\bpid=\d+)\) ?)?"
    r"(?:(?P<level>INFO|WARNING|ERROR|DEBUG|CRITICAL) "
    r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? (?P<place>\[[^\]]*\]) ?)?"
)
# `2026-11-29 15:29:10,123 [INFO] disagg_proxy: `, `… [INFO] demo pdctl.router: `
_PYTHON = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?) "
    r"(?:\[(?P<level>[A-Z]+)\] (?:(?P<deployment>[a-z0-9-]+) )?(?P<logger>[\w.]+): "
    r"|NIXL (?P<nixl>[A-Z]+) +(?P<place>\S+:\d+) )"
)
_UVICORN = re.compile(r"(?P<level>INFO|WARNING|ERROR|CRITICAL|DEBUG): {2,}")
# glog of NIXL's C++: `E1129 18:48:17.140506   20230 nixl_agent.cpp:1198] `
_GLOG = re.compile(
    r"(?P<level>[IWEF])(?P<time>\d{4} \d\d:\d\d:\d\d)(?:\.\d+)?\s+\d+ (?P<place>[\w./-]+:\d+)\] "
)
# `libfabric:8:1764430163::efa:cq:efa_cq_handle_error():103<warn> `, and UCX's
# `[1764430163.108246] [vm:27411:0]   sys.c:174  UCX  ERROR   `.
_TRANSPORT = re.compile(
    r"libfabric:\d+:(?P<libfabric>\d{9,11}):\S*?<(?P<said>\w+)> "
    r"|\[(?P<ucx>\d{9,11}(?:\.\d+)?)\] \[[^\]]*\] +\S+:\d+ +UCX +(?P<level>[A-Z]+) +"
)
# CRI, `kubectl logs --timestamps`, docker's `--timestamps`, syslog with ISO dates.
_ISO = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)) "
    r"(?:(?:stdout|stderr) [FP] )?"
)
_SYSLOG = re.compile(
    r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>\S+) (?P<tag>[^\s\[\]:]+)"
    r"(?:\[\d+\])?: "
)
_SYSLOG_TAIL = re.compile(r"(?P<host>\S+) (?P<tag>[^\s\[\]:]+)\[\d+\]: ")
_POD = re.compile(r"\[(?P<tag>pod/[^\]\s]+)\] ")
# `stern`: pod, container, and then what a server's line begins with.
_STERN = re.compile(
    r"(?P<tag>[a-z0-9][a-z0-9.-]*-[a-z0-9]+) [a-z0-9][a-z0-9-]* "
    r"(?=\([\w .=-]*\bpid=\d|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)(?: \d\d-\d\d |: {2})"
    r"|[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d[ T]\d\d:)"
)
_COMPOSE = re.compile(r"(?P<tag>[A-Za-z0-9][\w.-]*) +\| ")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_GLOG_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_TRANSPORT_LEVELS = {"WARN": "WARNING", "FATAL": "CRITICAL", "TRACE": "DEBUG"}
_MICROSECONDS = re.compile(r"[0-9]{1,16}")
_WRAPPINGS = 4
_CACHED = 4096


@dataclass(slots=True)
class Line:
    """One line, taken apart.

    Attributes:
        text: the whole line without colour and wrapping in JSON, as it can be shown.
        message: what was said.
        ts: seconds since the epoch; None when the line has no time of its own.
        level: as Python's logging names it; empty when it says none.
        process: of an engine, `Worker_TP3 pid=12`; empty when it says none.
        tag: name of a container, unit or pod that a wrapping gives.
        head: process and place; lines of one record share it.
        trace: of an exception that came with the line, where it is a record in JSON.
    """

    text: str
    message: str
    ts: float | None = None
    level: str = ""
    process: str = ""
    tag: str = ""
    head: str = ""
    trace: str = ""

    @property
    def worker(self) -> str | None:
        """Number of the tensor-parallel worker."""
        if "TP" not in self.process and "rank" not in self.process:
            return None
        found = _WORKER.search(self.process)
        return found.group(1) if found else None


class Clock:
    """Times of lines as seconds since the epoch.

    vLLM writes neither year nor zone: the year is the last in which the date was not later than
    `now` (and two days), and the zone that of this machine.
    """

    def __init__(self, now: float | None = None) -> None:
        self._now = time.time() if now is None else now
        self._year = time.localtime(self._now).tm_year
        self._known: dict[str, float] = {}

    def read(self, text: str) -> float | None:
        """One of the forms above; None when it is no date."""
        if (known := self._known.get(text)) is not None:
            return known
        if len(self._known) >= _CACHED:
            self._known.clear()
        try:
            found = self._known[text] = self._parse(text)
        except (ValueError, IndexError, OverflowError):
            return None
        return found

    def _parse(self, text: str) -> float:
        if text[:1].isalpha():  # Nov 29 15:29:23
            month, rest = _MONTHS.index(text[:3]) // 3 + 1, text[4:]
            return self._without_year(month, int(rest[:2]), rest[3:])
        if text[2] == "-":  # 11-29 15:29:23
            return self._without_year(int(text[:2]), int(text[3:5]), text[6:])
        if text[4] == " ":  # 1129 15:29:23
            return self._without_year(int(text[:2]), int(text[2:4]), text[5:])
        return datetime.fromisoformat(text.replace(",", ".")).timestamp()

    def _without_year(self, month: int, day: int, clock: str) -> float:
        for year in range(self._year + 1, self._year - 5, -1):
            try:
                found = datetime.fromisoformat(f"{year}-{month:02}-{day:02} {clock}").timestamp()
            except ValueError:
                if (month, day) != (2, 29):
                    raise
                continue
            if found <= self._now + 2 * 86400:
                return found
        raise ValueError("no such day")


def parse(raw: bytes, clock: Clock) -> Line:
    """Take a line apart; bytes that are not UTF-8 are replaced."""
    text = (raw if len(raw) <= LONGEST else raw[:LONGEST]).decode("utf-8", "replace")
    if text[-1:] == "\r":
        text = text.rstrip("\r")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    line = Line(text, text)
    first = text[:1]
    # The two that are nearly all lines, without the detour.
    if first == "(" and not _vllm(line, clock):
        return line
    if first == "2" and (found := _PYTHON.match(text)):
        _python(line, found, clock)
        return line
    for _ in range(_WRAPPINGS):
        if not _unwrap(line, clock):
            break
    return line


def _unwrap(line: Line, clock: Clock) -> bool:
    """Take off one layer; False when there is none, or the innermost was it."""
    message = line.message
    first = message[:1]
    if first == "{":
        return _json(line, clock)
    if first.isdigit():
        return _dated(line, clock)
    if first == "(" or message.startswith(("INFO ", "WARNING ", "ERROR ", "DEBUG ", "CRITICAL ")):
        return _vllm(line, clock)
    if found := _UVICORN.match(message):
        line.level = found["level"]
        line.message = message[found.end() :]
        return False
    return _tagged(line, clock)


def _vllm(line: Line, clock: Clock) -> bool:
    found = _VLLM.match(line.message)
    if found is None or not found.end():
        return False
    process, level, when, place = found.groups()
    if process:
        line.process = process
    if when:
        line.level = level
        line.ts = clock.read(when) or line.ts
    line.head = f"{line.process} {place or ''}"
    line.message = line.message[found.end() :].rstrip("\r")
    # Lines of a worker that are not vLLM's own may have a time of another kind behind its name.
    return when is None


def _dated(line: Line, clock: Clock) -> bool:
    if found := _PYTHON.match(line.message):
        _python(line, found, clock)
        return False
    if found := _ISO.match(line.message):
        line.ts = clock.read(found["time"]) or line.ts
        line.message = line.message[found.end() :]
        if host := _SYSLOG_TAIL.match(line.message):
            line.tag = host["tag"]
            line.message = line.message[host.end() :]
        return True
    return _tagged(line, clock)


def _python(line: Line, found: re.Match[str], clock: Clock) -> None:
    when, level, _, logger, nixl, place = found.groups()
    line.ts = clock.read(when) or line.ts
    line.level = level or nixl
    line.head = logger or place
    line.message = line.message[found.end() :]


def _tagged(line: Line, clock: Clock) -> bool:
    message = line.message
    if found := _GLOG.match(message):
        line.level = _GLOG_LEVELS[found["level"]]
        line.ts = clock.read(found["time"]) or line.ts
        line.message = message[found.end() :]
        return False
    if found := _TRANSPORT.match(message):
        stamp, said, other, level = found.groups()
        level = (said or level).upper()
        line.level = _TRANSPORT_LEVELS.get(level, level)
        line.ts = float(stamp or other)
        line.message = message[found.end() :]
        return False
    if found := _SYSLOG.match(message):
        line.ts = clock.read(found["time"]) or line.ts
    else:
        found = _POD.match(message) or _COMPOSE.match(message) or _STERN.match(message)
    if not found:
        return False
    line.tag = found["tag"]
    line.message = message[found.end() :]
    return True


def _json(line: Line, clock: Clock) -> bool:
    """Docker's json-file, `journalctl -o json`, vLLM's own JSON logging."""
    try:
        record = orjson.loads(line.message)
    except orjson.JSONDecodeError:
        return False
    if "MESSAGE" in record:
        return _journald(line, record)
    if isinstance(record.get("log"), str):
        line.message = line.text = record["log"].rstrip("\n")
        line.ts = clock.read(str(record.get("time"))) or line.ts
    elif isinstance(record.get("message"), str):
        line.message = record["message"]
        line.level = str(record.get("levelname") or record.get("level") or "")
        when = record.get("asctime") or record.get("timestamp") or record.get("time")
        line.ts = clock.read(str(when)) or line.ts
        process = record.get("processName")
        line.process = f"{process} pid={record.get('process')}" if process else line.process
        line.trace = str(record.get("exc_info") or "")
        return False
    else:
        return False
    _uncolour(line)
    return True


def _journald(line: Line, record: dict[str, Any]) -> bool:
    said = record["MESSAGE"]
    if isinstance(said, list):  # bytes that are not text, such as colour
        try:
            said = bytes(said).decode("utf-8", "replace")
        except (TypeError, ValueError):
            return False
    if not isinstance(said, str):  # null where it is too large for JSON
        return False
    line.message = line.text = said[:LONGEST]
    _uncolour(line)
    line.tag = str(
        record.get("UNIT")
        or record.get("_SYSTEMD_UNIT")
        or record.get("CONTAINER_NAME")
        or record.get("SYSLOG_IDENTIFIER")
        or ""
    )
    stamp = str(record.get("__REALTIME_TIMESTAMP") or "")
    line.ts = int(stamp) / 1e6 if _MICROSECONDS.fullmatch(stamp) else line.ts
    # Its PRIORITY is no level: what a service writes to stdout is all of the same.
    return True


def _uncolour(line: Line) -> None:
    if "\x1b" in line.message:
        line.message = line.text = _ANSI.sub("", line.message)
