"""Who changed what: on this machine and on the hosts, and read from both."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from pdctl.base import paths
from pdctl.base.errors import UnreachableError
from pdctl.deploy import audit
from pdctl.deploy.teardown import purge
from pdctl.deploy.world import World
from pdctl.render.model import Place
from pdctl.render.place import place_here
from pdctl.targets.base import Host
from pdctl.targets.local import LocalHost


class Dead(LocalHost):
    """Answers nothing."""

    def run(self, *args: object, **options: object) -> object:  # type: ignore[override]
        raise UnreachableError("it does not answer", where="dead")

    def read_file(self, *args: object, **options: object) -> bytes | None:
        raise UnreachableError("it does not answer", where="dead")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(paths.STATE_DIR_ENV, str(tmp_path / "st"))
    paths.deployment_dir("demo").mkdir(parents=True)
    (tmp_path / "far").mkdir()
    return tmp_path / "far"


def world(base: Path, **more: Host) -> World:
    hosts: Mapping[str, Host] = {"far": LocalHost("far"), **more}
    return World(hosts, trail=PurePosixPath(base / audit.FILE_NAME))


def test_a_change_is_kept_here_and_there_and_told_once(base: Path) -> None:
    there = world(base, dead=Dead("dead"))
    audit.note_on(there, ["far", "far", "dead"], "demo", "start decode-0 pid=7")
    audit.note_on(there, ["far"], "other", "start decode-0 pid=8")
    audit.note("demo", "something of this machine")
    with (base / audit.FILE_NAME).open("a") as file:
        file.write("2020-01-01T00:00:00Z pid=1 user=bob from=lap deployment=demo stop router-0\n")
        file.write("what is this\n")
    trail = audit.read(there, "demo")
    assert [(change.change, change.kept) for change in trail.changes] == [
        ("stop router-0", ("far",)),
        ("start decode-0 pid=7", (audit.HERE, "far")),
        ("something of this machine", (audit.HERE,)),
    ]
    assert (trail.changes[0].user, trail.changes[0].machine) == ("bob", "lap")
    assert trail.changes[1].machine == os.uname().nodename
    assert trail.problems == ("dead: it does not answer",)
    assert (base / audit.FILE_NAME).stat().st_mode & 0o777 == 0o600


def far_place(base: Path) -> Place:
    return replace(
        place_here("demo"),
        cache=PurePosixPath(base),
        state=PurePosixPath(base / "deployments" / "demo"),
        pdctl_python=str(base / "pdctl" / "bin" / "python"),
    )


@pytest.mark.parametrize("alone", [True, False])
def test_purge_leaves_what_others_use_and_what_is_not_ours(base: Path, *, alone: bool) -> None:
    place = far_place(base)
    for folder in ("deployments/demo/logs", "engines/e", "models/hub", "plugins/p", "mine"):
        (base / folder).mkdir(parents=True)
    if not alone:
        (base / "deployments" / "another").mkdir()
    there = world(base)
    gone = purge(there, "demo", place)
    left = {"mine", "deployments", audit.FILE_NAME}
    assert {each.name for each in base.iterdir()} == (
        left if alone else left | {"engines", "models", "plugins"}
    )
    assert f"far: {place.state}" in gone
    assert not (base / "deployments" / "demo").exists()
    assert purge(there, "demo", place) == []
    assert audit.read(there, "demo").changes[-1].change.startswith("purge ")


@pytest.mark.parametrize("made", [True, False])
def test_purge_removes_the_routers_environment_if_up_made_it(base: Path, *, made: bool) -> None:
    (base / "pdctl" / "bin").mkdir(parents=True)
    if made:
        (base / "pdctl" / "PDCTL").touch()
    purge(world(base), "demo", far_place(base))
    assert (base / "pdctl").exists() is not made


def test_on_this_machine_logs_go_and_the_audit_log_stays(base: Path) -> None:
    place = place_here("demo")
    (paths.log_dir("demo")).mkdir(parents=True)
    audit.note("demo", "down: nothing is left")
    assert purge(World({"localhost": LocalHost()}), "demo", place) == [
        f"localhost: {paths.log_dir('demo')}"
    ]
    changes = audit.read(World({"localhost": LocalHost()}), "demo").changes
    assert [change.change.split()[0] for change in changes] == ["down:", "purge"]
