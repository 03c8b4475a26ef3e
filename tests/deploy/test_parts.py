"""Small parts of deploying that need no pair."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.base.command import Command
from pdctl.base.errors import NotFoundError, UsageError
from pdctl.base.exits import ExitCode
from pdctl.base.process import ProcessSpec
from pdctl.config.model import Config
from pdctl.deploy.facts import find_held
from pdctl.deploy.interrupt import Interrupts
from pdctl.deploy.local import read_secrets, require_reachable
from pdctl.deploy.probe import probe
from pdctl.targets.local import LocalHost


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/health"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", None),
        (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", "HTTP 503"),
        (b"hello\r\n", "hello\r\n"),
        (b"", "Remote end closed connection without response"),
    ],
)
def test_probe_says_what_it_saw(answer: bytes, expected: str | None) -> None:
    with answering(answer) as url:
        assert probe(url) == expected


def test_probe_of_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert probe(f"http://127.0.0.1:{port}/health") == "it does not listen yet"


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def held_work(done: list[str], interrupt_after: tuple[str, ...]) -> None:
    with Interrupts() as interrupts:
        with interrupts.held():
            for name in ("start", "record"):
                done.append(name)
                if name in interrupt_after:
                    interrupt()
        done.append("more")


def test_without_an_interrupt_all_is_done() -> None:
    done: list[str] = []
    held_work(done, ())
    assert done == ["start", "record", "more"]


def test_an_interrupt_waits_for_the_end_of_what_must_not_be_cut() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        held_work(done, ("start",))
    assert done == ["start", "record"]


def test_a_second_interrupt_does_not_wait() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        held_twice(done)
    assert done == ["first"]


def held_twice(done: list[str]) -> None:
    with Interrupts() as interrupts, interrupts.held():
        interrupt()
        done.append("first")
        interrupt()
        done.append("never")


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_interrupts_outside_the_main_thread_are_nobodys() -> None:
    ran = []

    def work() -> None:
        with Interrupts() as interrupts, interrupts.held():
            ran.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [True]


def configured(**more: object) -> Config:
    return Config.model_validate(
        {"name": "demo", "model": {"id": "m"}, "target": {"kind": "local"}, **more}
    )


def test_secrets_are_read_and_stay_secret(tmp_path: Path) -> None:
    (tmp_path / "engine").write_text("engine-key\n")
    (tmp_path / "clients").write_text("a\nb\n")
    config = configured(
        engine={"api_key_file": tmp_path / "engine"}, router={"api_keys_file": tmp_path / "clients"}
    )
    secrets = read_secrets(config)
    assert secrets.engine_key is not None
    assert secrets.client_keys is not None
    assert (secrets.engine_key.value, secrets.client_keys.value) == ("engine-key", "a\nb")
    assert "engine-key" not in repr(secrets)


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_a_key_that_cannot_be_read_names_its_key(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NotFoundError, match=r"`engine\.api_key_file`") as caught:
        read_secrets(configured(engine={"api_key_file": file}))
    assert caught.value.where == str(file)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            {"kind": "external", "prefill": ["http://a"], "decode": ["http://b"]},
            "something else runs these engines",
        ),
    ],
)
def test_targets_that_cannot_be_reached_are_refused_with_what_works(
    target: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        require_reachable(configured(target=target), "up")
    assert caught.value.exit_code == ExitCode.USAGE
    assert any("pdctl render" in hint for hint in caught.value.hints)
    require_reachable(configured(), "up")


# --- ports


def test_who_binds_all_addresses_needs_the_port_on_each() -> None:
    host = LocalHost()
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port = listener.getsockname()[1]
        spec = ProcessSpec(
            role="router",
            index=0,
            host="localhost",
            address="127.0.0.1",
            port=port,
            side_channel_port=None,
            command=Command(("true",)),
            log_name="router-0.log",
        )
        assert list(find_held(host, spec)) == []
        (held,) = find_held(host, replace(spec, binds="0.0.0.0"))
        assert (held.process, held.port) == ("router-0", port)
