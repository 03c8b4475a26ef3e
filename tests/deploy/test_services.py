"""Processes that something starts again when they die: pdctl's supervisor, and systemd."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

import pytest

from pdctl.base.command import Secret, command
from pdctl.base.errors import PermissionDeniedError, UnreachableError, UsageError
from pdctl.base.events import StepDone
from pdctl.base.process import Kept, ProcessRef
from pdctl.config.model import SshTarget
from pdctl.deploy import logs, runner, services
from pdctl.engine.scripts import supervise
from pdctl.observe.processes import read_process
from pdctl.observe.status import Status, read_status
from pdctl.plan import build
from pdctl.render import formats
from pdctl.render.keeper import edition_of
from pdctl.render.model import NEW_AT_EVERY_START
from pdctl.targets import hostlog, privilege, units
from pdctl.targets.local import LocalHost
from tests.deploy.pair import Pair, names
from tests.observe.logs.helpers import ids

LIMIT_S = 15.0
T = TypeVar("T")


def wait_for(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + LIMIT_S
    while (found := look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def kept(pair: Pair, name: str) -> Kept | None:
    ref = pair.state().processes[name].ref
    assert ref is not None
    return pair.host.kept(ref)


def now(pair: Pair, name: str) -> ProcessRef:
    """The process itself, never its supervisor."""

    def look() -> ProcessRef | None:
        found = kept(pair, name)
        return found.ref if found else None

    return wait_for(look)


def kill(pair: Pair, name: str) -> ProcessRef:
    """SIGKILL to the process itself; gives what it is afterwards."""
    before = now(pair, name)
    os.kill(before.pid, signal.SIGKILL)

    def look() -> ProcessRef | None:
        found = kept(pair, name)
        return found.ref if found and found.ref and found.ref != before else None

    return wait_for(look)


def status_of(pair: Pair) -> Status:
    return asyncio.run(read_status(pair.world.hosts, pair.state()))


def healthy(pair: Pair) -> Status:
    def look() -> Status | None:
        found = status_of(pair)
        return found if found.healthy else None

    return wait_for(look)


# --- pdctl's own supervisor ----------------------------------------------------------------------


@pytest.fixture
def supervised(pair: Pair) -> Pair:
    pair.supervision = "process"
    return pair


def test_what_is_killed_comes_back_with_another_engine_id_and_up_starts_nothing(
    supervised: Pair,
) -> None:
    pair = supervised
    assert pair.up().changed
    first = healthy(pair)
    assert first.proven_at is not None
    assert {role.restarts for role in first.roles} == {0}
    ids = {role.name: role.engine_id for role in first.roles}
    assert ids["prefill-0"] is not None
    assert ids["prefill-0"].startswith("demo-prefill-0-")
    assert ids["router-0"] is None

    kill(pair, "decode-0")
    again = healthy(pair)
    assert [(role.name, role.restarts) for role in again.roles] == [
        ("prefill-0", 0),
        ("decode-0", 1),
        ("router-0", 0),
    ]
    assert again.proven_at is None  # it was about the one that died
    after = {role.name: role.engine_id for role in again.roles}
    assert after["decode-0"] != ids["decode-0"]
    assert after["prefill-0"] == ids["prefill-0"]
    assert "decode-0 ended with SIGKILL" in pair.log("decode-0")

    outcome = pair.up()
    assert not outcome.changed
    assert names(pair.told(StepDone)) == ["verify"]
    assert pair.proofs == 2
    assert not pair.up().changed
    assert pair.proofs == 2
    pair.down()
    assert pair.running() == []


def test_doctor_compares_the_process_itself_not_its_supervisor(supervised: Pair) -> None:
    pair = supervised
    pair.up()
    kill(pair, "decode-0")
    record, spec = pair.state().processes["decode-0"], pair.render_now()["decode-0"]
    assert NEW_AT_EVERY_START in record.argv
    facts = read_process(pair.host, record, spec, pair.host.find(pair.marks))
    assert facts.alive
    assert facts.pid == now(pair, "decode-0").pid
    assert facts.restarts == 1
    assert facts.engine_id is not None
    assert facts.running["--id"] == facts.wanted["--id"] == facts.engine_id
    assert facts.env["PDCTL_PROCESS"] == f"{pair.marks}decode-0"


def test_one_that_cannot_start_is_told_at_once_and_tried_a_few_times_only(
    supervised: Pair,
) -> None:
    supervised.how["decode-0"] = "dies"
    with pytest.raises(
        UnreachableError, match=r"decode-0 .* ended while it was starting"
    ) as caught:
        supervised.up()
    assert "RuntimeError: no weights there" in "\n".join(caught.value.detail)
    supervised.how.clear()
    supervised.up()  # its configuration is another one now
    assert healthy(supervised)
    supervised.down()
    assert supervised.running() == []


def test_supervision_that_is_turned_on_restarts_and_auto_leaves_alone(pair: Pair) -> None:
    pair.up()
    pair.supervision = "process"
    plan = [step.why for step in pair.survey().plan.steps if step.id == "stop-decode-0"]
    assert plan == ["the configuration changed: supervision: none → process"]
    pair.up()
    assert {role.restarts for role in healthy(pair).roles} == {0}
    pair.supervision = "systemd"
    assert not pair.survey().plan.changes


def test_another_supervisor_is_a_difference_and_restarts_what_the_old_one_keeps(
    supervised: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = supervised
    pair.up()
    before = pair.pids()
    assert {record.keeper for record in pair.state().processes.values()} == {edition_of("process")}
    assert not pair.up().changed
    for module in (build, runner):
        monkeypatch.setattr(module, "edition_of", lambda how: "another")
    assert pair.up().changed
    assert not set(pair.pids().values()) & set(before.values())
    assert {record.keeper for record in pair.state().processes.values()} == {"another"}
    assert not pair.up().changed


def test_a_supervisor_that_is_killed_takes_its_process_along_and_up_starts_both(
    supervised: Pair,
) -> None:
    pair = supervised
    pair.up()
    engine = now(pair, "decode-0")
    os.kill(pair.pids()["decode-0"], signal.SIGKILL)
    wait_for(lambda: None if pair.host.alive(engine) else True)
    (problem,) = [role.problem for role in status_of(pair).roles if role.problem]
    assert problem == "it is gone, and is not started again: it ended too often, or was ended"
    pair.up()
    assert healthy(pair)


def run_supervisor(
    tmp_path: Path, *argv: str, changes: str = "", env: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    """The script itself, with other waits."""
    run = f"import sys; sys.argv[0] = 'supervise.py'; import supervise as s; {changes}; s.main()"
    folder = Path(supervise.__file__).parent
    words = ("--name", "decode-0", "--report", str(tmp_path / "report.json"), "--", *argv)
    return subprocess.Popen(
        [sys.executable, "-c", f"{run.replace('s.main()', 'sys.exit(s.main())')}", *words],
        env={"PYTHONPATH": str(folder), "PDCTL_PROCESS": f"{tmp_path}/decode-0", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_it_gives_up_after_a_burst(tmp_path: Path) -> None:
    quick = "s.FIRST_WAIT_S = s.LONGEST_WAIT_S = s._LOOK_S = 0.01"
    process = run_supervisor(tmp_path, "/bin/sh", "-c", "exit 3", changes=quick)
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said.count("ended with status 3") == supervise.MOST_STARTS
    assert "5 starts within 600 s did not last, so it is not started again" in said
    assert ids(said) == ["supervisor.restarted"] * 4 + ["supervisor.gave_up"]
    missing = run_supervisor(tmp_path, "/no/such", changes=quick)
    said, _ = missing.communicate(timeout=LIMIT_S)
    assert "cannot be started: No such file or directory: /no/such" in said
    assert ids(said).count("supervisor.no_start") == supervise.MOST_STARTS


def test_nothing_of_one_start_is_left_when_the_next_begins(tmp_path: Path) -> None:
    """An engine core whose server was killed holds the port and the memory."""
    script = f"setsid sleep 600 & echo $! >> {tmp_path}/pids; exec sleep 600"
    quick = "s.FIRST_WAIT_S = s._LOOK_S = 0.01"
    process = run_supervisor(tmp_path, "/bin/sh", "-c", script, changes=quick)
    report = tmp_path / "report.json"
    wait_for(lambda: True if report.exists() and (tmp_path / "pids").exists() else None)
    os.kill(json.loads(report.read_text())["pid"], signal.SIGKILL)
    wait_for(lambda: True if len((tmp_path / "pids").read_text().split()) == 2 else None)
    first, second = map(int, (tmp_path / "pids").read_text().split())
    assert not Path(f"/proc/{first}").exists() or "Z" in Path(f"/proc/{first}/stat").read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LIMIT_S) == 0
    assert not [pid for pid in (second,) if os.path.exists(f"/proc/{pid}/cwd")]


def test_a_secret_is_passed_on_by_the_environment_alone(supervised: Pair) -> None:
    pair = supervised
    plain = pair.spec

    def with_secret(*given: object) -> object:
        spec = plain(*given)  # type: ignore[arg-type]
        return replace(spec, command=replace(spec.command, env={"VLLM_API_KEY": Secret("sesame")}))

    pair.spec = with_secret  # type: ignore[assignment]
    pair.up()
    for each in pair.host.find(pair.marks):
        assert "sesame" not in Path(f"/proc/{each.ref.pid}/cmdline").read_text()
    environ = Path(f"/proc/{now(pair, 'decode-0').pid}/environ").read_text()
    assert "VLLM_API_KEY=sesame" in environ
    assert "sesame" not in pair.store.path.read_text()


# --- systemd -------------------------------------------------------------------------------------


@pytest.fixture
def systemd_pair(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """A host whose systemd is a stand-in, and a user who needs `sudo` for it."""
    root, bin_ = tmp_path / "systemd", tmp_path / "bin"
    for folder in (root / "units", bin_):
        folder.mkdir(parents=True)
    scripts = {
        "systemctl": f'exec {sys.executable} {Path(__file__).with_name("fake_systemctl.py")} "$@"',
        "sudo": 'shift; exec "$@"',
        "journalctl": f"cat {root}/journal",
    }
    for name, text in scripts.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(root))
    monkeypatch.setattr("pdctl.targets.local.INHERITED", frozenset(("PATH", "FAKE_SYSTEMD")))
    monkeypatch.setattr(units, "FOLDER", str(root / "units"))
    monkeypatch.setattr(services, "UNIT_FOLDER", str(root / "units"))
    for module in (services, formats):
        monkeypatch.setattr(module, "SETTINGS_FOLDER", str(root / "etc"))
    monkeypatch.setattr(units, "SETTINGS", str(root / "etc"))
    monkeypatch.setattr(units, "_sudo", lambda: ["sudo", "-n"])
    for module in (privilege, hostlog):
        monkeypatch.setattr(module, "root_words", lambda host: ("sudo", "-n"))
    pair.supervision = "systemd"
    return pair


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "systemd" / "calls").read_text().splitlines()


def test_units_are_installed_started_seen_restarted_and_removed(
    systemd_pair: Pair, tmp_path: Path
) -> None:
    pair, root = systemd_pair, tmp_path / "systemd"
    pair.up()
    unit = "pdctl-demo-decode-0.service"
    assert [call for call in calls(tmp_path) if unit in call and "show" not in call] == [
        f"enable --quiet {unit}",
        f"restart {unit}",
    ]
    record = pair.state().processes["decode-0"]
    assert record.ref is not None
    assert (record.ref.unit, record.log) == (unit, f"journal:{unit}")
    assert healthy(pair).roles[1].restarts == 0
    assert not pair.up().changed
    assert "loading weights" in "\n".join(logs.last_lines(pair.host, record, 50))

    kill(pair, "decode-0")
    again = healthy(pair)
    assert [role.restarts for role in again.roles] == [0, 1, 0]
    assert again.roles[1].pid == now(pair, "decode-0").pid
    assert not pair.up().changed
    # After a reboot systemd has started it again: nothing of what was recorded fits but the unit.
    rebooted = replace(record.ref, boot_id="another", pid=1, start_ticks=1)
    assert pair.host.alive(rebooted)

    pair.down()
    assert f"disable --now --quiet {unit}" in calls(tmp_path)
    assert list((root / "units").iterdir()) == []
    assert list((root / "etc").iterdir()) == []
    assert pair.running() == []


def test_a_unit_holds_no_secret_and_verifies(systemd_pair: Pair, tmp_path: Path) -> None:
    pair, root = systemd_pair, tmp_path / "systemd"
    plain = pair.spec

    def with_secret(*given: object) -> object:
        spec = plain(*given)  # type: ignore[arg-type]
        env = {**spec.command.env, "VLLM_API_KEY": Secret('ses"a me$')}
        return replace(spec, command=replace(spec.command, env=env))

    pair.spec = with_secret  # type: ignore[assignment]
    pair.up()
    for file in (root / "units").iterdir():
        assert "ses" not in file.read_text()
    secrets = root / "etc" / "pdctl-demo-decode-0.secrets"
    assert secrets.stat().st_mode & 0o777 == 0o600
    environ = Path(f"/proc/{now(pair, 'decode-0').pid}/environ").read_text()
    assert 'VLLM_API_KEY=ses"a me$' in environ
    assert "ses" not in "\n".join(calls(tmp_path))
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("`systemd-analyze` is not installed (package systemd)")
    found = subprocess.run(
        [analyze, "verify", *map(str, sorted((root / "units").iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")  # an unknown key is a warning, and exits 0


def test_a_unit_that_does_not_start_is_taken_away_again(systemd_pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "systemd" / "refuses").touch()
    with pytest.raises(UnreachableError, match="the unit of prefill-0 could not be started") as bad:
        systemd_pair.up()
    assert "Job for it failed" in "\n".join(bad.value.detail)
    assert not list((tmp_path / "systemd" / "units").glob("*prefill*"))


def test_a_router_starts_after_the_engines_of_its_host(systemd_pair: Pair, tmp_path: Path) -> None:
    systemd_pair.up()
    unit = (tmp_path / "systemd" / "units" / "pdctl-demo-router-0.service").read_text()
    assert (
        "After=network-online.target pdctl-demo-prefill-0.service pdctl-demo-decode-0.service\n"
        in unit
    )


# --- which of them -------------------------------------------------------------------------------


class Machine(LocalHost):
    """A host with or without systemd, and with one kind of user."""

    def __init__(self, *, systemd: bool, uid: int) -> None:
        super().__init__("h")
        self.systemd, self.uid = systemd, uid

    def exists(self, path: PurePosixPath) -> bool:
        return self.systemd

    def run(self, command, **options):  # type: ignore[no-untyped-def]
        if command.argv() == ["id", "-u"]:
            return replace(super().run(command, **options), stdout=f"{self.uid}\n")
        return super().run(command, **options)


def target(**changes: object) -> SshTarget:
    hosts = {"prefill": [{"address": "p"}], "decode": [{"address": "d"}]}
    return SshTarget.model_validate({"kind": "ssh", "hosts": hosts, **changes})


@pytest.mark.parametrize(
    ("systemd", "uid", "sudo", "found"),
    [
        (True, 0, "exit 1", "systemd"),
        (True, 1000, "exit 0", "systemd"),
        (True, 1000, "exit 1", "process"),
        (False, 0, "exit 0", "process"),
    ],
)
def test_what_keeps_processes_running(
    systemd: bool,
    uid: int,
    sudo: str,
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "sudo").write_text(f"#!/bin/sh\n{sudo}\n")
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host = Machine(systemd=systemd, uid=uid)
    assert services.choose(host, target()) == found
    assert services.choose(host, target(supervision="process")) == "process"
    if found == "process":
        with pytest.raises(UsageError, match=r"systemd does not run|root is needed") as caught:
            services.choose(host, target(supervision="systemd"))
        assert caught.value.where == "h, key `target.supervision`"
    if uid:
        assert services.choose(host, target(access={"sudo": False})) == "process"


def test_root_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sudo").write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host = Machine(systemd=True, uid=1000)
    with pytest.raises(PermissionDeniedError, match="`sudo -n` does not give it"):
        privilege.write_as_root(host, PurePosixPath(tmp_path / "x"), b"s", mode=0o600)
    root = Machine(systemd=True, uid=0)
    privilege.write_as_root(root, PurePosixPath(tmp_path / "a" / "x"), b"s", mode=0o600)
    assert (tmp_path / "a" / "x").stat().st_mode & 0o777 == 0o600
    assert root.run(command("cat", str(tmp_path / "a" / "x")), timeout=5).stdout == "s"
