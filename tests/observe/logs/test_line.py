"""Lines come wrapped in what engine, container, journal and terminal put around them."""

import json
import time
from datetime import UTC, datetime

import pytest

from pdctl.observe.logs.line import LONGEST, Clock, parse
from tests.observe.logs.helpers import CLOCK, NOW, events, ids

DECLINED = "Declining expired remote read for chatcmpl-1-8187488a from engine decode-15484."
VLLM = f"(Worker_TP3 pid=12209) WARNING 11-29 15:29:23 [pull_worker.py:153] {DECLINED}"
LOCAL = time.mktime((2026, 11, 29, 15, 29, 23, 0, 0, -1))
ZULU = datetime(2026, 11, 29, 15, 29, 23, tzinfo=UTC).timestamp()
JOURNAL = {
    "MESSAGE": VLLM,
    "__REALTIME_TIMESTAMP": str(int(ZULU * 1e6)),
    "_SYSTEMD_UNIT": "pdctl-prefill.service",
    "PRIORITY": "4",
}

WRAPPED = {
    "vllm": (VLLM, LOCAL, ""),
    "vllm, no process": (VLLM.partition(") ")[2], LOCAL, ""),
    "colour": (
        f"\x1b[0;36m(Worker_TP3 pid=12209)\x1b[0;0m \x1b[33mWARNING\x1b[0m 11-29 15:29:23 "
        f"[pull_worker.py:153] {DECLINED}",
        LOCAL,
        "",
    ),
    "CRI": (f"2026-11-29T15:29:23.5Z stderr F {VLLM}", LOCAL, ""),
    "CRI, nothing of vLLM's": (f"2026-11-29T15:29:23Z stderr F {DECLINED}", ZULU, ""),
    "kubectl --timestamps --prefix": (
        f"[pod/decode-0/vllm] 2026-11-29T15:29:23+00:00 {DECLINED}", ZULU, "pod/decode-0/vllm",
    ),
    "docker json-file": (
        json.dumps({"log": VLLM + "\n", "stream": "stderr", "time": "2026-11-29T15:29:23Z"}),
        LOCAL, "",
    ),
    "stern": (f"ms-decode-6458459f69-qxv6j vllm {VLLM}", LOCAL, "ms-decode-6458459f69-qxv6j"),
    "stern, nested processes": (
        f"decode-0 vllm (APIServer pid=1) {VLLM}", LOCAL, "decode-0",
    ),
    "docker compose": (f"prefill-1  | {VLLM}", LOCAL, "prefill-1"),
    "journald": (json.dumps(JOURNAL), LOCAL, "pdctl-prefill.service"),
    "journald, bytes": (
        json.dumps(JOURNAL | {"MESSAGE": list(f"\x1b[33m{VLLM}\x1b[0m".encode())}),
        LOCAL, "pdctl-prefill.service",
    ),
    "journald, short": (f"Nov 29 15:29:23 h1 prefill[1]: {DECLINED}", LOCAL, "prefill"),
    "journald, short-iso": (
        f"2026-11-29T15:29:23+0000 h1 prefill[1]: {DECLINED}", ZULU, "prefill",
    ),
    "vLLM's JSON": (
        json.dumps({
            "asctime": "2026-11-29 15:29:23,000", "levelname": "WARNING", "name": "vllm",
            "processName": "Worker_TP3", "process": 12209, "message": DECLINED,
        }),
        LOCAL, "",
    ),
    "Windows line end": (VLLM + "\r", LOCAL, ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRAPPED)
def test_the_message_and_its_time_are_found_in_every_wrapping(kind: str) -> None:
    raw, ts, tag = WRAPPED[kind]
    line = parse(raw.encode(), CLOCK)
    assert (line.message, line.ts, line.tag) == (DECLINED, ts, tag)
    (event,) = events(raw + "\n")
    assert (event.id, event.ts) == ("kv.read.declined", ts)
    assert event.fields["request"] == "chatcmpl-1-8187488a"


def test_a_wrapping_that_names_a_role_tells_it() -> None:
    text = f"prefill-1  | {DECLINED}\ndecode-0  | {DECLINED}\n"
    assert [event.role for event in events(text, role="router")] == ["prefill", "decode"]


def test_workers_of_tensor_parallel_engines_have_numbers() -> None:
    for process in ("Worker_TP3 pid=1", "VllmWorker rank=3 pid=1", "Worker_DP0_TP3 pid=1"):
        (event,) = events(f"({process}) WARNING 11-29 15:29:23 [a.py:1] {DECLINED}\n")
        assert event.fields["worker"] == "3"
    assert "worker" not in events(f"(Worker pid=1) {DECLINED}\n")[0].fields


def test_a_date_without_a_year_is_of_the_last_year_it_can_be() -> None:
    new_year = Clock(time.mktime((2027, 1, 3, 0, 0, 0, 0, 0, -1)))
    assert new_year.read("11-29 15:29:23") == LOCAL
    assert new_year.read("01-02 15:29:23") == time.mktime((2027, 1, 2, 15, 29, 23, 0, 0, -1))
    assert new_year.read("02-29 00:00:00") == time.mktime((2024, 2, 29, 0, 0, 0, 0, 0, -1))
    for nonsense in ("13-40 15:29:23", "99-99 99:99:99", "", "x", "Foo 12 11:11:11"):
        assert new_year.read(nonsense) is None


def test_bytes_that_are_no_text_do_no_harm() -> None:
    text = b"\xff\xfe\x00 rubbish \xc3\x28\n" + VLLM.encode() + b" \xff\xff\n\xe2\x82"
    assert ids(text) == ["kv.read.declined"]


@pytest.mark.parametrize("raw", [
    b"", b"{", b"{}", b'{"MESSAGE": null}', b'{"MESSAGE": [300]}', b'{"MESSAGE": 3}',
    b'{"message": 3}', b'{"log": {}}', b"[", b"(", b"2026-", b"(a pid=1)", b"Nov", b"2026-13-45 ",
    b'{"MESSAGE":"x","PRIORITY":"nine"}', b"[1, 2]",
])  # fmt: skip
def test_nothing_breaks_it(raw: bytes) -> None:
    assert parse(raw, CLOCK).text is not None


def test_of_a_line_of_a_megabyte_the_beginning_is_read() -> None:
    long = VLLM.encode() + b" " + b"x" * (3 << 20)
    (event,) = events(long + b"\n" + VLLM.encode() + b"\n")[:1]
    assert len(event.line) < 5000
    assert parse(long, CLOCK).message[:9] == "Declining"
    assert len(parse(long, CLOCK).text) == LONGEST
    assert ids(long + b"\n" + VLLM.encode() + b"\n") == ["kv.read.declined"] * 2


def test_uvicorns_lines_take_the_time_of_the_line_above() -> None:
    text = VLLM + '\nINFO:     1.2.3.4:5 - "POST /v1/x HTTP/1.1" 500 Internal Server Error\n'
    assert [event.ts for event in events(text)] == [LOCAL, LOCAL]
    assert NOW > LOCAL


@pytest.mark.parametrize("said", [
    "the router 2026 went away", "Failed to (re)start", "decode vllm is what it says",
    "a message about INFO 11-29 15:29:23 [x.py:1] that somebody quotes",
])  # fmt: skip
def test_words_are_no_pod(said: str) -> None:
    assert parse(said.encode(), CLOCK).tag == ""


@pytest.mark.parametrize(("raw", "level", "message"), [
    ("libfabric:493076:1764430163::efa:cq:efa_cq_handle_error():103<warn> err: 113, message: x",
     "WARNING", "err: 113, message: x"),
    ("(Worker_TP3 pid=12) libfabric:8:1764430163::efa:core:f():9<info> FI_HMEM cannot be",
     "INFO", "FI_HMEM cannot be"),
    ("[1764430163.108246] [vm:27411:0]             sys.c:174  UCX  ERROR   failed to get it",
     "ERROR", "failed to get it"),
    ("[1764430163.108246] [vm:27411:0]     ucp_context.c:1050 UCX  WARN  transports 'a' x",
     "WARNING", "transports 'a' x"),
])  # fmt: skip
def test_transports_date_their_lines_by_the_epoch(raw: str, level: str, message: str) -> None:
    line = parse(raw.encode(), CLOCK)
    assert (int(line.ts or 0), line.level, line.message) == (1764430163, level, message)


def test_what_libfabric_only_mentions_is_no_fault() -> None:
    said = "libfabric:8:1764430163::efa:core:f():9<{}> FI_HMEM cannot be supported because x\n"
    assert ids(said.format("info")) == []
    assert ids(said.format("warn")) == ["efa.peer_memory.missing"]
