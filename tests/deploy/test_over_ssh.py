"""`up`, `status` and `down` as for this machine, over a real SSH server."""

import asyncio
import os
import signal
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from pdctl.base import paths
from pdctl.base.command import command
from pdctl.base.errors import (
    NotFoundError,
    PermissionDeniedError,
    TemporaryError,
    UnreachableError,
    UsageError,
)
from pdctl.base.events import Event, Note, StepDone
from pdctl.config.model import Config, SshTarget
from pdctl.deploy import facts, install, local, reach
from pdctl.deploy.world import World
from pdctl.engine.install import InstallStep, pip_recipe
from pdctl.engine.layout import EngineLayout
from pdctl.observe.status import Status, read_status
from pdctl.plan.model import Install
from pdctl.render.deployment import render
from pdctl.render.place import place_of
from pdctl.render.spots import host_of_name, name_of_host
from pdctl.state.store import StateStore
from pdctl.targets.local import LocalHost
from pdctl.targets.ssh.host import SshHost
from tests.deploy.pair import NAMES, Pair, names
from tests.state.samples import PREFILL, STATE
from tests.targets.sshd import Sshd, nobodys_ssh, running_sshd, user, why_not, with_path


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def far_pair(pair: Pair, sshd: Sshd) -> Iterator[Pair]:
    here, pair.host = pair.host, sshd.host("localhost")
    try:
        yield pair
    finally:
        pair.host.close()
        pair.host = here  # which ends what is left, also where the far one is gone


def status_of(pair: Pair) -> Status:
    return asyncio.run(read_status(pair.world.hosts, pair.state()))


def test_up_again_one_killed_and_down(far_pair: Pair) -> None:
    pair = far_pair
    assert pair.up().changed
    assert status_of(pair).healthy
    before = pair.pids()
    assert not pair.up().changed
    os.kill(before["decode-0"], signal.SIGKILL)
    ref = pair.state().processes["decode-0"].ref
    assert ref is not None
    while pair.host.alive(ref):
        time.sleep(0.01)
    broken = {role.name: role.problem for role in status_of(pair).roles}
    assert broken == {
        "prefill-0": "",
        "decode-0": f"pid {ref.pid} is gone",
        "router-0": "",
    }
    pair.up()
    assert "decode-0" in names(pair.told(StepDone))
    after = pair.pids()
    assert {name for name in NAMES if before[name] != after[name]} == {"decode-0"}
    removed = pair.down()
    assert {each.name for each in removed.ended} == set(NAMES)
    assert pair.running() == []


def test_what_is_supervised_comes_back_seen_over_ssh(far_pair: Pair) -> None:
    pair = far_pair
    pair.supervision = "process"
    pair.up()
    ref = pair.state().processes["decode-0"].ref
    assert ref is not None
    first = pair.host.kept(ref)
    assert first is not None
    assert first.ref is not None
    os.kill(first.ref.pid, signal.SIGKILL)
    while (now := pair.host.kept(ref)) is None or now.ref in (None, first.ref):
        time.sleep(0.02)
    assert (now.restarts, first.restarts) == (1, 0)
    assert now.engine_id != first.engine_id
    assert not pair.up().changed
    pair.down()
    assert pair.running() == []


def test_what_was_started_outlives_pdctl_and_its_connection(far_pair: Pair, sshd: Sshd) -> None:
    far_pair.up(verify=False)
    far_pair.host.close()
    other = sshd.host("localhost")
    state = far_pair.state()
    assert all(other.alive(record.ref) for record in state.processes.values() if record.ref)
    other.close()


def test_a_connection_lost_during_up_is_told_as_such_and_up_goes_on(
    far_pair: Pair, tmp_path: Path
) -> None:
    pair, first = far_pair, far_pair.host
    with running_sshd(tmp_path / "s") as server:
        pair.host = server.host("localhost")
        killed = []

        def kill(seconds: float) -> None:
            if not killed:
                killed.append(True)
                server.stop()
            time.sleep(0.02)

        world = World(
            {"localhost": pair.host}, pair.events.append, probe=lambda url: "not yet", sleep=kill
        )
        with pytest.raises(UnreachableError, match="connect"):
            pair.up(world=world, verify=False)
        notes = [note.text for note in pair.told(Note)]
        assert any("`pdctl up -f pd.yaml` goes on from here" in text for text in notes)
        assert any("cannot be asked" in text for text in notes)
        started = pair.pids()
    with running_sshd(tmp_path / "s", port=server.port):
        pair.host.close()
        pair.host = server.host("localhost")
        pair.up(verify=False)
        assert pair.pids()["prefill-0"] == started["prefill-0"]
        pair.down()
        pair.host.close()
    pair.host = first


def test_a_host_that_does_not_answer_is_one_of_several(far_pair: Pair) -> None:
    far_pair.up(verify=False)
    dead = far_pair.host
    refused = SshHost("localhost", dead._login.__class__("127.0.0.1", port=1), ssh=dead._ssh)
    found = asyncio.run(read_status({"localhost": refused}, far_pair.state()))
    assert [role.pid for role in found.roles] == [None] * 3
    assert "localhost: port 1 cannot be connected to" in found.roles[0].problem
    gone = asyncio.run(read_status({}, far_pair.state()))
    assert "has no host `localhost` any more" in gone.roles[0].problem


def wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    """An empty distribution, which installs in a moment."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    tag = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {f"{info}/METADATA": meta, f"{info}/WHEEL": tag, f"{info}/RECORD": ""}
    target = folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def test_an_engine_is_installed_over_ssh_once_and_repaired(pair: Pair, tmp_path: Path) -> None:
    """The recipe for GPUs, from an index of empty wheels."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    index = tmp_path / "index"
    index.mkdir()
    wheel(index, "vllm", "0.33.0", "Requires-Dist: nixl>=1\n")
    for name in ("nixl", "nixl-cu12", "nixl-cu13"):
        wheel(index, name, "1.5.0")
    root = PurePosixPath(tmp_path / "opt" / "pdctl")
    pair.recipe = pip_recipe(
        root, vllm="0.33.0", nixl="1.5.0", python=None, default_python=sys.executable
    )
    here = pair.host
    with running_sshd(
        tmp_path / "s",
        more=f"SetEnv PATH={os.environ['PATH']} PIP_NO_INDEX=1 PIP_FIND_LINKS={index}\n",
    ) as server:
        pair.host = server.host("localhost")
        try:
            pair.up(verify=False)
            done = names(pair.told(StepDone))
            assert [each for each in done if each.startswith("engine-")] == [
                *("engine-venv", "engine-vllm", "engine-nixl", "engine-seal"),
            ]
            assert not pair.up(verify=False).changed
            (engine,) = [s for s in pair.survey().plan.steps if s.id.startswith("engine")]
            assert engine.why == f"`{pair.recipe.layout.key}` is complete and unchanged"
            site = next(Path(pair.recipe.layout.venv).glob("lib/*/site-packages"))
            record = site / "nixl-1.5.0.dist-info" / "RECORD"
            record.write_text(record.read_text() + "more,,\n")
            reset = next(s for s in pair.survey().plan.steps if s.id == "engine-venv")
            assert "the environment changed" in reset.why
        finally:
            pair.host.close()
            pair.host = here


# --- the engines' key ----------------------------------------------------------------------------


def test_engines_on_other_hosts_get_a_key_that_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(paths.STATE_DIR_ENV, str(tmp_path))
    far = configured()
    assert local.read_secrets(far).engine_key is None
    local.make_key(far)
    first = local.read_secrets(far).engine_key
    local.make_key(far)
    again = local.read_secrets(far).engine_key
    assert first is not None
    assert again is not None
    assert len(first.value) > 40
    assert first.value == again.value
    assert local.made_key("x").stat().st_mode & 0o777 == 0o600

    deployment = render(far, place_of(far), secrets=local.read_secrets(far))
    engine, router = deployment.processes[0].command, deployment.processes[-1].command
    assert engine.environ()["VLLM_API_KEY"] == first.value
    assert first.value not in " ".join(engine.argv() + router.argv())
    (key,) = [file for file in deployment.files if file.secret]
    assert (key.content, key.mode) == (first.value.encode(), 0o600)
    assert router.argv()[router.argv().index("--engine-key-file") + 1] == str(key.path)


def test_engines_of_this_machine_ask_for_no_key_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(paths.STATE_DIR_ENV, str(tmp_path))
    here = Config.model_validate({"name": "x", "model": {"id": "/m"}, "target": {"kind": "local"}})
    local.make_key(here)
    assert not local.made_key("x").exists()
    command = render(here, place_of(here)).processes[0].command
    assert "VLLM_API_KEY" not in command.environ()


def test_only_the_damaged_host_of_several_is_reset(tmp_path: Path) -> None:
    layout = EngineLayout(PurePosixPath(tmp_path / "engines" / "e"), "e")
    step = InstallStep(
        *("venv", "make it", "a test", layout.marker("venv"), "fp"),
        commands=(command("sh", "-c", f"mkdir -p {layout.root} && date +%N > {layout.root}/made"),),
    )
    hosts = [LocalHost("a"), LocalHost("b")]
    events: list[Event] = []
    world = World({host.name: host for host in hosts}, events.append)
    options = {"root": layout.root, "log": tmp_path / "log"}
    install.apply(world, hosts[:1], "engine-venv", Install(step), **options)  # type: ignore[arg-type]
    before = (Path(layout.root) / "made").read_text()
    again = Install(step, reset=True)
    intact = command("true")
    said = install.apply(world, hosts, "engine-venv", again, check=intact, **options)  # type: ignore[arg-type]
    assert said == "another run did it meanwhile"
    assert (Path(layout.root) / "made").read_text() == before
    damaged = command("false")
    install.apply(world, hosts[:1], "engine-venv", again, check=damaged, **options)  # type: ignore[arg-type]
    assert (Path(layout.root) / "made").read_text() != before


# --- from a configuration ------------------------------------------------------------------------


def configured(**target: object) -> Config:
    hosts = {"prefill": [{"address": "p"}], "decode": [{"address": "d"}]}
    return Config.model_validate(
        {
            "name": "x",
            "model": {"id": "/m"},
            "engine": {"install": "existing", "python": "/e/bin/python"},
            "target": {"kind": "ssh", "hosts": hosts, **target},
        }
    )


def test_every_host_once_with_its_own_access_first() -> None:
    config = configured(
        hosts={
            "prefill": [
                {"address": "gw", "ssh_port": 2201, "private_address": "10.0.0.1", "user": "a"},
                {"address": "p", "key_file": "/own"},
            ],
            "decode": [{"address": "gw", "ssh_port": 2202, "private_address": "10.0.0.2"}],
            "router": [{"address": "p"}],
        },
        access={"user": "u", "port": 99, "key_file": "/key", "jump": "j"},
    )
    assert isinstance(config.target, SshTarget)
    hosts = reach.ssh_hosts(config.target)
    assert list(hosts) == ["gw:2201", "p", "gw:2202"]
    assert {
        name: (h._login.user, h._login.port, h._login.key_file) for name, h in hosts.items()
    } == {
        "gw:2201": ("a", 2201, Path("/key")),
        "p": ("u", 99, Path("/own")),
        "gw:2202": ("u", 2202, Path("/key")),
    }
    assert {host._login.jump for host in hosts.values()} == {"j"}
    specs = render(config, place_of(config)).processes
    assert [(spec.host, spec.address) for spec in specs] == [
        ("gw:2201", "10.0.0.1"),
        ("p", "p"),
        ("gw:2202", "10.0.0.2"),
        ("p", "127.0.0.1"),
    ]


def test_what_is_not_written_is_left_to_openssh() -> None:
    target = configured().target
    assert isinstance(target, SshTarget)
    login = reach.login_of(target.access, target.hosts.prefill[0])
    assert (login.user, login.port, login.key_file, login.jump) == (None, None, None, None)
    assert (login.connect_timeout, login.pin) == (None, False)
    written = configured(access={"connect_timeout": 15, "host_keys": "pin-first-use"}).target
    assert isinstance(written, SshTarget)
    login = reach.login_of(written.access, written.hosts.prefill[0])
    assert (login.connect_timeout, login.pin) == (15, True)


def test_a_router_on_all_addresses_is_reached_at_its_hosts_own() -> None:
    config = configured(
        hosts={
            "prefill": [{"address": "p", "private_address": "10.0.0.1"}],
            "decode": [{"address": "d"}],
        }
    )
    config = config.model_copy(
        update={"router": config.router.model_copy(update={"host": "0.0.0.0"})}
    )
    router = render(config, place_of(config)).processes[-1]
    assert (router.url, router.binds) == ("http://10.0.0.1:8000", "0.0.0.0")


def test_a_router_host_without_pdctl_is_told_before_anything_starts(sshd: Sshd) -> None:
    config = configured(
        hosts={"prefill": [{"address": "h"}], "decode": [{"address": "h"}]}, base_dir="/nowhere"
    )
    host = sshd.host("h")
    processes = render(config, place_of(config)).processes
    (router,) = [spec for spec in processes if spec.role == "router"]
    with pytest.raises(NotFoundError, match="no pdctl on the router's host") as caught:
        facts._require_router(host, router)
    assert caught.value.hints == (
        "ssh h 'python3 -m venv /nowhere/pdctl && /nowhere/pdctl/bin/pip install pdctl'",
    )
    host.close()


@pytest.mark.parametrize("case", ["sudo", "no sudo", "off"])
def test_folders_of_the_system_are_made_with_roots_help(tmp_path: Path, case: str) -> None:
    """A user who may not write there is one whose `mkdir` fails; `sudo` has another one."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    scripts = {
        "mkdir": "#!/bin/sh\necho 'mkdir: Permission denied' >&2\nexit 1\n",
        "sudo": '#!/bin/sh\nshift\nPATH=/usr/bin:/bin exec "$@"\n',
    }
    if case == "no sudo":
        scripts["sudo"] = "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n"
    for name, text in scripts.items():
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)
    tops = (str(tmp_path / "opt" / "pdctl"), str(tmp_path / "run" / "pd ctl"))
    with running_sshd(tmp_path / "s", more=with_path(f"{bin_}:/usr/bin:/bin")) as server:
        host = SshHost("h", server.login(), ssh=nobodys_ssh(tmp_path))
        try:
            if case == "sudo":
                reach._own(host, tops, sudo=True)
                assert all(os.stat(top).st_uid == os.getuid() for top in tops)
                assert all(host.run(command("test", "-w", top), timeout=9).ok for top in tops)
                return
            with pytest.raises(PermissionDeniedError) as caught:
                reach._own(host, tops, sudo=case == "no sudo")
            assert not Path(tops[0]).exists()
            words = "`sudo -n` does not" if case == "no sudo" else "`target.access.sudo` is off"
            assert words in caught.value.message
        finally:
            host.close()


def test_a_state_whose_file_is_gone_says_where_its_hosts_were(far_pair: Pair) -> None:
    far_pair.up(verify=False)
    state = far_pair.state()
    assert reach.config_of(state) is None
    with pytest.raises(UsageError, match="the hosts of `demo` are named in a file that") as caught:
        reach.config_of(replace(state, target="ssh", config_file="/gone/pd.yaml"))
    assert caught.value.where == "/gone/pd.yaml"


def test_all_dead_hosts_are_told_at_once(sshd: Sshd) -> None:
    hosts = {name: sshd.host(name, port=1) for name in ("a", "b")}
    hosts["c"] = sshd.host("c")
    with pytest.raises(UnreachableError) as caught:
        reach.connect_all(World(hosts))
    assert caught.value.where == f"{user()}@127.0.0.1:1"
    assert caught.value.detail == ("b too: port 1 cannot be connected to: Connection refused",)
    hosts["c"].close()


@pytest.mark.parametrize("name", ["h", "h:22", "10.0.0.1:2201", "fd00::1", "[fd00::1]:22"])
def test_a_hosts_name_says_where_it_is(name: str) -> None:
    assert name_of_host(host_of_name(name)) == name


def test_hosts_that_the_file_has_no_more_are_still_the_deployments() -> None:
    config = configured(access={"user": "u"})
    world = reach.world_of(config, recorded=["p", "gone:2201"])
    assert world.leaving == {"gone:2201"}
    gone = world.hosts["gone:2201"]
    assert isinstance(gone, SshHost)
    assert (gone._login.address, gone._login.port, gone._login.user) == ("gone", 2201, "u")


def test_what_ran_on_a_lost_host_that_the_file_has_no_more_is_given_up(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path))
    store = StateStore("demo")
    records = {name: replace(PREFILL, name=name, host=name) for name in ("here", "left", "lost")}
    store.save(replace(STATE, processes=records))
    hosts = {
        "here": sshd.host("here"),
        "left": sshd.host("left"),
        "lost": sshd.host("lost", port=1),
    }
    told: list[Event] = []
    world = World(hosts, told.append, leaving=frozenset({"left", "lost"}))
    rest = reach.without_lost(world)
    reach.give_up_lost(rest, store)
    assert set(rest.hosts) == {"here", "left"}
    state = store.load()
    assert state is not None
    assert set(state.processes) == {"here", "left"}
    assert [each.text for each in told if isinstance(each, Note)] == [
        "lost is not in the configuration any more and cannot be reached "
        "(port 1 cannot be connected to: Connection refused); what ran there is given up"
    ]
    with pytest.raises(UnreachableError):
        reach.without_lost(replace(world, leaving=frozenset({"left"})))
    world.close()


def test_two_operators_with_states_of_their_own_do_not_work_at_once(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = f"{tmp_path}/deployments/two/"

    def operator(name: str) -> World:
        monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / name))
        return World({"h1": sshd.host("h1"), "h2": sshd.host("h2")})

    one = operator("one")
    with reach.hold("two", one, marks, "pdctl up"):
        other = operator("other")
        busy = pytest.raises(TemporaryError, match="another pdctl works on `two`")
        with busy as caught, reach.hold("two", other, marks, "pdctl down"):
            pytest.fail("both work at once")
        assert "(`pdctl up`, pid " in caught.value.detail[0]
        with reach.hold("three", other, f"{tmp_path}/deployments/three/", "pdctl down"):
            pass  # another deployment on the same hosts
    one.close()
    with reach.hold("two", other, marks, "pdctl down", wait=10):
        pass
    other.close()
