"""Reading a host: the real one, and hosts that do not answer as they should."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.base.command import Command
from pdctl.base.errors import UnreachableError
from pdctl.base.hostfacts import HostWant, WantedPath
from pdctl.observe.host import read_host, wants_of
from pdctl.observe.host.read import look_command, look_script
from pdctl.render.check import load_checked
from pdctl.render.deployment import render
from pdctl.render.model import Chosen
from pdctl.render.place import place_of
from pdctl.targets.base import OutputSink, Result
from pdctl.targets.local import LocalHost
from tests.observe.host import samples

EXAMPLES = Path(__file__).parents[3] / "examples"


class FakeHost(LocalHost):
    """A host whose one command is answered by the test."""

    def __init__(self, answer: Callable[[], Result]) -> None:
        super().__init__("fake")
        self.answer = answer
        self.commands: list[Command] = []

    def run(
        self,
        command: Command,
        *,
        timeout: float,
        on_line: OutputSink | None = None,
        stdin: bytes | None = None,
    ) -> Result:
        self.commands.append(command)
        result = self.answer()
        for line in result.stdout.splitlines():
            if on_line is not None:
                on_line(line)
        return result


def _refuse() -> Result:
    raise UnreachableError("no route to host", where="fake")


def _bug() -> Result:
    raise KeyError("x")


def test_this_machine(tmp_path: Path) -> None:
    want = HostWant(
        paths=(WantedPath("state", f"{tmp_path}/new", 1),), engine_python=sys.executable
    )
    facts = read_host(LocalHost("here"), want)
    assert facts.error is None
    assert facts.want == want
    assert facts.problems == {}
    assert facts.system is not None
    assert facts.system.kernel
    assert facts.disks is not None
    assert facts.disks[0].at == str(tmp_path)
    assert facts.clock is not None
    assert facts.clock.offset is not None
    assert facts.clock.error_bar is not None
    assert abs(facts.clock.offset) <= facts.clock.error_bar + 0.05  # the same clock
    assert facts.nixl is not None
    assert facts.nixl.python
    assert facts.nixl.backends[0].ok is False  # this Python has no NIXL
    assert "nixl" in facts.nixl.backends[0].error


def test_one_command_to_a_host() -> None:
    printed = json.dumps({"schema_version": 1, "parts": samples.recorded()})
    host = FakeHost(lambda: Result(0, "banner\n" + printed + "\n", "", 1.5))
    facts = read_host(host, HostWant())
    assert len(host.commands) == 1
    assert (facts.error, facts.seconds) == (None, 1.5)
    assert facts.clock is not None
    assert facts.clock.offset is None  # no first line, no offset


def test_the_offset_is_told_from_the_first_lines_arrival() -> None:
    first = '{"schema_version": 1, "now": 1003.0}'
    printed = json.dumps({"schema_version": 1, "parts": samples.recorded()})
    host = FakeHost(lambda: Result(0, f"{first}\n{printed}\n", "", 9.0))
    times = iter([1000.0, 1001.0])
    facts = read_host(host, HostWant(), now=lambda: next(times))
    assert facts.clock is not None
    assert (facts.clock.offset, facts.clock.error_bar) == (2.5, 0.5)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_refuse, "no route to host"),
        (_bug, "KeyError: 'x'"),
        (lambda: Result(127, "", "", 0.1), "there is no python3 of 3.9 or newer"),
        (lambda: Result(1, "", "This account is currently not available.\n", 0.1), "not available"),
        (lambda: Result(0, "{}\n[]\n{broken\n", "", 0.1), "could not be looked at (status 0)"),
    ],
)
def test_it_never_raises(answer: Callable[[], Result], error: str) -> None:
    facts = read_host(FakeHost(answer), HostWant())
    assert facts.error is not None
    assert error in facts.error


def test_python_is_the_hosts_own_else_the_engines(tmp_path: Path) -> None:
    for name, line in (("old", "exit 1"), ("shim", "echo not found >&2; exit 127")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    argv = look_command(HostWant(engine_python="/opt/engine/bin/python")).argv()
    assert argv[:2] == ["sh", "-c"]
    assert argv[4:] == [
        "python3",
        "/usr/bin/python3",
        "/opt/engine/bin/python",
        sys.executable,
    ]
    found = LocalHost().run(
        replace(
            look_command(HostWant()),
            parts=(
                *argv[:4],
                "/nonexistent",
                f"{tmp_path}/old",
                f"{tmp_path}/shim",
                sys.executable,
            ),
        ),
        timeout=20,
        stdin=b"print('ran')",
    )
    assert found.stdout == "ran\n"
    none = LocalHost().run(
        replace(look_command(HostWant()), parts=(*argv[:4], "/nonexistent/python3")), timeout=20
    )
    assert none.exit_status == 127


def test_the_script_carries_what_is_wanted_whatever_it_is() -> None:
    want = HostWant(engine_env={"UCX_TLS": "a'b\"c\\\n"}, engine_python="/x\"y'z")
    compile(look_script(want), "look", "exec")


def test_what_a_local_pair_asks() -> None:
    config = load_checked(EXAMPLES / "local-cpu.yaml").config
    place = place_of(config)
    wants = wants_of(config, place, render(config, place), started=("decode-0",))
    want = wants["localhost"]
    assert (want.target, want.backends, want.on_cpu, want.gpus) == ("local", ("UCX",), True, 0)
    assert want.roles == ("prefill", "decode", "router")
    assert want.engine_env == {"UCX_NET_DEVICES": "lo", "UCX_TLS": "tcp,self,sm"}
    assert [(p.process, p.kind) for p in want.ports] == [
        ("prefill-0", "http"),
        ("prefill-0", "side channel"),
        ("decode-0", "http"),
        ("decode-0", "side channel"),
        ("router-0", "http"),
    ]
    # Only what was started is connected to.
    assert [(p.process, p.kind) for p in want.peers] == [
        ("decode-0", "http"),
        ("decode-0", "side channel"),
    ]
    # The built-in model is made, not downloaded.
    assert [path.use for path in want.paths] == ["engines", "state and logs", "temporary files"]
    assert not want.over_efa


def test_engines_that_share_gpus_are_not_added_up(tmp_path: Path) -> None:
    """Two roles tried on a machine with one GPU, and two engines with GPUs of their own."""
    base = "name: x\nmodel: {id: m/m}\nengine: {install: pip}\n"
    local = tmp_path / "local.yaml"
    local.write_text(base + "target: {kind: local}\n")
    config = load_checked(local).config
    assert (
        wants_of(config, place_of(config), render(config, place_of(config)))["localhost"].gpus == 1
    )
    ssh = tmp_path / "ssh.yaml"
    ssh.write_text(
        base + "target:\n  kind: ssh\n  hosts:\n"
        "    prefill: [{address: 10.0.0.1, gpus: [0, 1]}]\n"
        "    decode: [{address: 10.0.0.1, gpus: [2, 3], port: 8200, side_channel_port: 5601}]\n"
    )
    config = load_checked(ssh).config
    want = wants_of(config, place_of(config), render(config, place_of(config)))["10.0.0.1"]
    assert want.gpus == 4


def test_what_p5en_hosts_are_asked() -> None:
    config = load_checked(EXAMPLES / "p5en-1p1d.yaml").config
    place = place_of(config)
    chosen = Chosen(addresses={"decode-0": "10.0.0.2", "prefill-0": "10.0.0.1"})
    wants = wants_of(
        config, place, render(config, place, chosen), started=("prefill-0", "decode-0", "router-0")
    )
    prefill, router = wants["prefill-0"], wants["router-0"]
    assert (prefill.instance_type, prefill.efa, prefill.gpus) == ("p5en.48xlarge", 16, 8)
    assert prefill.over_efa
    assert prefill.units
    assert prefill.engine_env["FI_PROVIDER"] == "efa"
    assert [(p.process, p.address, p.kind) for p in prefill.peers] == [
        ("decode-0", "10.0.0.2", "side channel")
    ]
    assert "models" in [path.use for path in prefill.paths]
    assert [path.use for path in router.paths] == ["state and logs", "temporary files"]
    assert (router.instance_type, router.efa, router.engine_python) == ("c7i.2xlarge", None, None)
    assert not router.over_efa
    assert [(p.process, p.kind) for p in router.peers] == [
        ("prefill-0", "http"),
        ("decode-0", "http"),
    ]


def test_secrets_are_not_asked_with(tmp_path: Path) -> None:
    text = (EXAMPLES / "local-cpu.yaml").read_text()
    file = tmp_path / "pd.yaml"
    model = "model:\n  env: {UCX_LOG_LEVEL: info, MY_TOKEN: s3cret}\n"
    file.write_text(text.replace("model:\n", model, 1))
    config = load_checked(file).config
    place = place_of(config)
    want = wants_of(config, place, render(config, place))["localhost"]
    with_lo = {"UCX_NET_DEVICES": "lo", "UCX_TLS": "tcp,self,sm"}
    assert want.engine_env == {"UCX_LOG_LEVEL": "info", **with_lo}
    assert b"s3cret" not in look_script(want)
