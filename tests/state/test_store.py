import json
import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.base.errors import PermissionDeniedError, TemporaryError
from pdctl.base.exits import ExitCode
from pdctl.state.store import DamagedStateError, NewerStateError, StateError, StateStore
from tests.state.samples import PREFILL, STATE


def test_what_is_saved_is_loaded_and_private(state_root: Path) -> None:
    store = StateStore("demo")
    assert store.load() is None
    store.save(STATE)
    assert StateStore("demo").load() == STATE
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    assert os.listdir(store.directory) == ["state.json"]


def test_a_folder_that_others_can_enter_is_closed(state_root: Path) -> None:
    (state_root / "demo").mkdir(parents=True, mode=0o755)
    StateStore("demo").save(STATE)
    assert stat.S_IMODE((state_root / "demo").stat().st_mode) == 0o700


def test_removing_twice_is_fine() -> None:
    store = StateStore("demo")
    store.save(STATE)
    store.remove()
    store.remove()
    assert store.load() is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is not JSON"),
        (b'{"name": "demo", "proc', "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it is not a JSON object"),
        (b"{}", "name: Field required"),
        (b'{"schema_version": "many"}', "name: Field required"),
    ],
)
def test_a_damaged_file_is_named_and_left_alone(content: bytes, reason: str) -> None:
    store = StateStore("demo")
    store.directory.mkdir(parents=True)
    store.path.write_bytes(content)
    with pytest.raises(DamagedStateError) as caught:
        store.load()
    error = caught.value
    assert error.exit_code == ExitCode.BAD_ANSWER
    assert error.message.startswith(f"the state file of `demo` is damaged: {reason}")
    assert error.where == str(store.path)
    assert any("pdctl down --name demo --forget-damaged-state" in hint for hint in error.hints)
    assert store.path.read_bytes() == content


def test_the_state_of_another_deployment_is_damage() -> None:
    StateStore("demo").save(replace(STATE, name="other"))
    with pytest.raises(DamagedStateError, match="it is the state of `other`"):
        StateStore("demo").load()


def test_a_field_of_the_wrong_kind_says_where() -> None:
    store = StateStore("demo")
    store.save(STATE)
    value = json.loads(store.path.read_text())
    value["processes"]["prefill-0"]["ref"]["pid"] = "many"
    store.path.write_text(json.dumps(value))
    with pytest.raises(DamagedStateError, match=r"processes\.prefill-0\.ref\.pid"):
        store.load()


def test_a_newer_file_says_so() -> None:
    store = StateStore("demo")
    store.save(replace(STATE, schema_version=99, pdctl_version="9.0"))
    with pytest.raises(NewerStateError, match=r"newer pdctl \(9\.0, state version 99\)"):
        store.load()


def test_moving_aside_never_overwrites() -> None:
    store = StateStore("demo")
    kept = []
    for content in ("one", "two"):
        store.directory.mkdir(parents=True, exist_ok=True)
        store.path.write_text(content)
        kept.append(store.move_aside())
    assert [path.read_text() for path in kept] == ["one", "two"]
    assert all(path.name.startswith("state.json.damaged-") for path in kept)
    assert store.load() is None


@contextmanager
def small_files() -> Iterator[None]:
    """As on a full disk: no file may grow beyond 100 bytes.

    For a few lines only: what pytest itself writes may go to a file as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_keeps_what_was_saved() -> None:
    store = StateStore("demo")
    store.save(STATE)
    full = pytest.raises(TemporaryError, match="no space left to save the state")
    with full, small_files():
        store.save(replace(STATE, phase="stopping"))
    assert store.load() == STATE
    assert os.listdir(store.directory) == ["state.json"]


def test_no_permission_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/state")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(PermissionDeniedError, match="no permission for `/some/state`") as caught:
        StateStore("demo").save(STATE)
    assert caught.value.hints == ("set PDCTL_STATE_DIR to a folder of yours",)


def test_a_state_folder_that_is_a_file_is_said(state_root: Path) -> None:
    state_root.write_text("in the way")
    assert StateStore("demo").load() is None
    with pytest.raises(StateError, match="the state cannot be kept"):
        StateStore("demo").save(STATE)


def test_state_values_change_by_copies() -> None:
    decode = replace(PREFILL, name="decode-0", ref=None)
    both = STATE.with_process(decode)
    assert sorted(both.processes) == ["decode-0", "prefill-0"]
    assert both.refs() == (PREFILL.ref,)
    assert both.without_process("decode-0") == STATE
    assert PREFILL.url == "http://127.0.0.1:8100"
    assert replace(PREFILL, address="::1").url == "http://[::1]:8100"
