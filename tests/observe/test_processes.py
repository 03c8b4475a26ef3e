"""What a host shows of its processes, side channels and model; each source fails by itself."""

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdctl.base.facts import from_json, to_json
from pdctl.base.process import ProcessRef
from pdctl.base.runfacts import KV_FLAG, ProcessFacts
from pdctl.observe.processes import _levers, read_log, read_process, start_line, starts_in
from pdctl.observe.side_channel import SideAddress, ask_side_channels
from pdctl.observe.store import ask_store
from pdctl.observe.weights import read_weights, weights_command
from pdctl.state.model import ProcessRecord
from pdctl.targets.local import LocalHost

LOGS = Path(__file__).parents[1] / "data" / "logs"


def record(tmp_path: Path, **changes: object) -> ProcessRecord:
    values: dict[str, object] = {
        "name": "decode-0",
        "role": "decode",
        "index": 0,
        "host": "localhost",
        "address": "127.0.0.1",
        "port": 1,
        "side_channel_port": 2,
        "health_path": "/health",
        "argv": (),
        "env": {},
        "cwd": None,
        "log": str(tmp_path / "decode-0.log"),
        **changes,
    }
    return ProcessRecord(**values)  # type: ignore[arg-type]


# --- starts in logs --------------------------------------------------------------------------


def test_a_recorded_start_is_taken_apart() -> None:
    (start,) = starts_in((LOGS / "decode-restarted.log").read_bytes())
    assert start.engine_id == "decode-19762"
    assert start.ts is not None
    assert start.options["kv_role"] == "kv_consumer"
    assert start.options["bidirectional_kv_xfer"] == "true"
    assert start.options["decoder_kv_blocks_ttl"] == "12"
    facts = ProcessFacts("decode-0", "decode", "h", starts=(start,))
    assert facts.bidirectional is True
    assert facts.connector("decoder_kv_blocks_ttl") == "12"
    assert from_json(ProcessFacts, to_json(facts)) == facts


def test_a_line_that_cannot_be_read_says_nothing() -> None:
    assert start_line("non-default args: {'port': 1}", None).options == {}
    broken = "KVTransferConfig(kv_connector_extra_config={'a': object(1)}, kv_role='kv_both')"
    assert start_line(broken, None).options == {"kv_role": "kv_both"}


def test_what_runs_counts_more_than_what_a_log_said() -> None:
    path = f"{KV_FLAG} kv_connector_extra_config.bidirectional_kv_xfer"
    start = start_line("kv_connector_extra_config={'bidirectional_kv_xfer': True}", None)
    off = ProcessFacts("d", "decode", "h", running={path: "false"}, starts=(start,))
    assert off.bidirectional is False
    without = ProcessFacts("d", "decode", "h", running={"--port": "1"}, starts=(start,))
    assert without.bidirectional is None


def test_only_what_was_written_since_the_start_counts(tmp_path: Path) -> None:
    log = tmp_path / "decode-0.log"
    log.write_bytes(b"old line\n" * 3 + b"new line\n" * 2)
    host = LocalHost()
    held = read_log(host, record(tmp_path, log_offset=27), 1000)
    assert (held.data, held.whole) == (b"new line\n" * 2, True)
    short = read_log(host, record(tmp_path, log_offset=27), 12)
    assert (short.data, short.whole) == (b"new line\n", False)
    rotated = read_log(host, record(tmp_path, log_offset=9999), 1000)
    assert rotated.data.startswith(b"old line\n")
    nothing = read_log(host, record(tmp_path, log_offset=45), 1000)
    assert (nothing.data, nothing.whole) == (b"", True)
    missing = read_log(host, record(tmp_path, log=str(tmp_path / "none")), 1000)
    assert (missing.data, missing.error) == (b"", None)


# --- processes -------------------------------------------------------------------------------


def test_a_process_that_was_never_started_and_one_that_is_gone(tmp_path: Path) -> None:
    host = LocalHost()
    assert read_process(host, record(tmp_path), None, []).alive is False
    gone = record(tmp_path, ref=ProcessRef(1, 1, "another boot"))
    facts = read_process(host, gone, None, [])
    assert (facts.alive, facts.pid, facts.running) == (False, 1, {})


def test_levers_are_those_of_processes_that_live(tmp_path: Path) -> None:
    def status(pid: int, **levers: str) -> None:
        text = {"pid": pid, "levers": {name: {"state": s, "why": ""} for name, s in levers.items()}}
        (tmp_path / f"plugin-{pid}.json").write_text(json.dumps(text, indent=1))

    status(1, live_ttl="waiting", streaming_handles="applied")
    status(2, live_ttl="applied", streaming_handles="waiting")
    status(3, live_ttl="not-applicable")
    asked = record(tmp_path, env={"PDCTL_PLUGIN_STATUS_DIR": str(tmp_path)})
    assert _levers(LocalHost(), asked, {1, 2}) == {
        "live_ttl": "applied",
        "streaming_handles": "applied",
    }
    assert _levers(LocalHost(), asked, set()) == {}
    assert _levers(LocalHost(), record(tmp_path), {1}) is None


# --- side channels ---------------------------------------------------------------------------


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], int]]:
    """`serve(greeting)` gives the port of a server that greets so, or says nothing."""
    servers: list[socket.socket] = []

    def make(greeting: bytes) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def answer() -> None:
            kept = []
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                if greeting:
                    connection.sendall(greeting)

        threading.Thread(target=answer, daemon=True).start()
        port: int = server.getsockname()[1]
        return port

    yield make
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def test_a_side_channel_greets_and_nothing_else_passes_for_one(
    serve: Callable[[bytes], int],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    ports = {
        "good": serve(b"\xff" + bytes(8) + b"\x7f"),
        "other": serve(b"SSH-2.0"),
        "silent": serve(b""),
        "closed": closed,
    }
    asked = [SideAddress(name, "127.0.0.1", port) for name, port in ports.items()]
    found = {each.engine: each for each in ask_side_channels(LocalHost("h"), asked)}
    assert found["good"].ok
    assert found["other"].error == (
        "something else than a side channel answers there (its first byte is 0x53)"
    )
    assert found["silent"].error == "it does not answer within 4 s"
    assert found["closed"].error.startswith("nobody listens there")
    assert {each.source for each in found.values()} == {"h"}
    assert list(ask_side_channels(LocalHost(), [])) == []


# --- the store -------------------------------------------------------------------------------


async def test_a_store_answers_or_says_why_not(serve: Callable[[bytes], int]) -> None:
    good = await ask_store(f"redis://127.0.0.1:{serve(b'+PONG' + bytes([13, 10]))}/0", 2)
    assert good.error is None
    locked = await ask_store(
        f"redis://u:pw@127.0.0.1:{serve(b'-WRONGPASS no' + bytes([13, 10]))}", 2
    )
    assert locked.error == "it answers `-WRONGPASS no`"
    assert "pw" not in locked.url
    silent = await ask_store(f"redis://127.0.0.1:{serve(b'')}", 0.2)
    assert silent.error == "no answer within 0.2 s"
    nobody = await ask_store("redis://127.0.0.1:1/0", 2)
    assert nobody.error is not None


# --- weights ---------------------------------------------------------------------------------


def test_files_are_told_by_name_size_and_head(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"a" * 100_000)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "num_attention_heads": 4}')
    (tmp_path / "notes.md").write_text("not compared")
    facts = read_weights(LocalHost("h"), str(tmp_path), None, None)
    assert set(facts.parts) == {"model.safetensors", "config.json"}
    digest = hashlib.sha256(b"a" * 65536).hexdigest()[:16]
    assert facts.parts["model.safetensors"] == f"100000 bytes, {digest}"
    assert facts.config == {"model_type": "qwen3", "num_attention_heads": "4"}
    (tmp_path / "model.safetensors").write_bytes(b"b" + b"a" * 99_999)
    assert read_weights(LocalHost(), str(tmp_path), None, None).parts != facts.parts


def test_a_model_of_the_hub_is_found_by_its_revision(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--org--name"
    for revision in ("abc", "def"):
        (folder / "snapshots" / revision).mkdir(parents=True)
        (folder / "snapshots" / revision / "config.json").write_text(f'"{revision}"')
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("def")
    host, hub = LocalHost(), str(tmp_path)
    assert read_weights(host, "org/name", "abc", hub).path.endswith("/snapshots/abc")
    assert read_weights(host, "org/name", None, hub).path.endswith("/snapshots/def")
    assert read_weights(host, "org/name", "zzz", hub).error == "there is no snapshot of zzz"
    assert "there is no folder" in (read_weights(host, "org/other", None, hub).error or "")
    assert "models--org--name" in " ".join(weights_command("org/name", None, None).argv())
