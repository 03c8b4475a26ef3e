"""D's retention time from a control file."""

import importlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.plugin import _guard, live_ttl
from pdctl.plugin._guard import Guard, Outcome
from tests.plugin import engine_shapes
from tests.plugin.conftest import InstallEngine

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler"


@pytest.fixture
def control(tmp_path: Path) -> Path:
    return tmp_path / "ttl.json"


def _apply(control: Path) -> Outcome:
    guard = Guard(report=lambda outcomes: None)
    guard.apply("x", live_ttl.lever, {"PDCTL_TTL_FILE": str(control)})
    importlib.import_module(MODULE)
    return guard.outcomes["x"]


def _scheduler(**extra_config: int) -> Any:
    return importlib.import_module(MODULE).NixlPullConnectorScheduler(extra_config)


def test_follows_the_file(install_engine: InstallEngine, control: Path) -> None:
    install_engine(engine_shapes.VLLM_032)
    assert _apply(control).state == "applied"
    scheduler = _scheduler(decoder_kv_blocks_ttl=480)
    seen = [scheduler.decoder_kv_blocks_ttl]
    for content in ('{"decoder_ttl": 300}', "60", "12.5\n", '{"decoder_ttl": 0}'):
        control.write_text(content)
        seen.append(scheduler.decoder_kv_blocks_ttl)
    control.unlink()
    seen.append(scheduler.decoder_kv_blocks_ttl)
    assert seen == [480, 300.0, 60.0, 12.5, 0.0, 480]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        b"{}",
        b'{"decoder_ttl": null}',
        b"garbage",
        b'{"decoder_ttl": 300',
        b"-1",
        b'{"decoder_ttl": -0.5}',
        b"NaN",
        b"Infinity",
        b"1e999",
        b"true",
        b'{"decoder_ttl": "300"}',
        b'{"decoder_ttl": [300]}',
        b"[300]",
        b"9" * 4000,
        b"\xff\xfe300",
        b"[" * 4096,
        b'{"decoder_ttl": 300}' + b" " * 5000 + b"x",
    ],
)
def test_what_makes_no_sense_means_the_configured_value(
    install_engine: InstallEngine, control: Path, content: bytes
) -> None:
    install_engine(engine_shapes.VLLM_032)
    _apply(control)
    scheduler = _scheduler(decoder_kv_blocks_ttl=77)
    control.write_bytes(b"300")
    assert scheduler.decoder_kv_blocks_ttl == 300
    control.write_bytes(content)
    expected = 300 if content.endswith(b" x") else 77
    assert scheduler.decoder_kv_blocks_ttl == expected


@given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_parse_gives_a_usable_number_or_refuses(content: bytes) -> None:
    try:
        seconds = live_ttl.parse(content)
    except (ValueError, OverflowError, RecursionError):
        return
    assert seconds is None or 0 <= seconds < float("inf")


def test_the_configured_value_stays_where_it_was(
    install_engine: InstallEngine, control: Path
) -> None:
    install_engine(engine_shapes.VLLM_032)
    _apply(control)
    control.write_text("30")
    scheduler = _scheduler()
    assert vars(scheduler)["decoder_kv_blocks_ttl"] == 480
    assert scheduler.greeting == "released after a TTL of 30 seconds"
    del vars(scheduler)["decoder_kv_blocks_ttl"]
    assert not hasattr(scheduler, "decoder_kv_blocks_ttl")


def test_read_only_when_it_changed(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bytes] = []
    parse = live_ttl.parse

    def counted(content: bytes) -> float | None:
        reads.append(content)
        return parse(content)

    monkeypatch.setattr(live_ttl, "parse", counted)
    file = live_ttl.ControlFile(str(control))
    control.write_text("30")
    assert [file.seconds() for _ in range(3)] == [30, 30, 30]
    os.utime(control, ns=(1, 1))
    assert file.seconds() == 30
    control.write_text("bad")
    assert [file.seconds() for _ in range(3)] == [None, None, None]
    assert reads == [b"30", b"30", b"bad"]


def test_changes_are_logged_once(control: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="vllm.pdctl")
    file = live_ttl.ControlFile(str(control))
    for content in (None, "30", "30 ", "-1", '{"decoder_ttl": 900}'):
        if content is not None:
            control.write_text(content)
        file.seconds()
        file.seconds()
    kept = "pdctl plugin: live_ttl: turns that finish from now on are kept for"
    assert caplog.messages == [
        f"{kept} 30 s",
        f"pdctl plugin: live_ttl: {control}: decoder_ttl cannot be -1; the configured value holds",
        f"{kept} the configured time",
        f"{kept} 900 s",
    ]


def test_a_pipe_does_not_stop_the_scheduler(control: Path) -> None:
    os.mkfifo(control)
    assert live_ttl.ControlFile(str(control)).seconds() is None
    assert live_ttl.ControlFile(str(control.parent)).seconds() is None
    assert live_ttl.ControlFile("nul\0byte").seconds() is None


def test_applied_once(install_engine: InstallEngine, control: Path) -> None:
    install_engine(engine_shapes.VLLM_032)
    first = _apply(control)
    owner = importlib.import_module(MODULE).NixlBaseConnectorScheduler
    patched = owner.decoder_kv_blocks_ttl
    assert _apply(control) == first
    assert owner.decoder_kv_blocks_ttl is patched


def test_off_without_a_file() -> None:
    with pytest.raises(_guard.Off, match="PDCTL_TTL_FILE is not set"):
        live_ttl.lever({})


def test_not_applicable_before_the_engine_had_it(
    install_engine: InstallEngine, control: Path
) -> None:
    install_engine(engine_shapes.VLLM_OLDER_SCHEDULER)
    assert _apply(control) == Outcome(
        "not-applicable", "NixlBaseConnectorScheduler does not set decoder_kv_blocks_ttl"
    )


def test_not_applicable_where_it_is_no_attribute_of_the_instance(
    install_engine: InstallEngine, control: Path
) -> None:
    path = f"{MODULE.replace('.', '/')}.py"
    source = engine_shapes.VLLM_032[path].replace(
        "class NixlBaseConnectorScheduler:",
        "class NixlBaseConnectorScheduler:\n    decoder_kv_blocks_ttl = 480",
    )
    install_engine({path: source})
    assert _apply(control).state == "not-applicable"
    assert _scheduler(decoder_kv_blocks_ttl=5).decoder_kv_blocks_ttl == 5


def test_not_applicable_where_the_class_is_gone(
    install_engine: InstallEngine, control: Path
) -> None:
    install_engine(engine_shapes.VLLM_CHANGED)
    assert _apply(control) == Outcome(
        "not-applicable", f"{MODULE} has no NixlBaseConnectorScheduler"
    )
