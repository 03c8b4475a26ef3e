"""What hosts need besides: each is looked at, done once, and then there is nothing to do."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from pdctl import __version__
from pdctl.base.errors import BadAnswerError, PermissionDeniedError
from pdctl.base.events import StepDone, StepProgress
from pdctl.config.model import Config
from pdctl.deploy.prepare import disks, efa, memory, packages, router, task
from pdctl.deploy.prepare.everything import tasks_of
from pdctl.deploy.prepare.packages import Need
from pdctl.deploy.prepare.task import Task
from pdctl.deploy.prepare.wheel import build_wheel, wheel_name
from pdctl.plan.facts import TaskFacts
from pdctl.render.deployment import render
from pdctl.render.model import Secrets
from pdctl.render.place import place_of
from pdctl.targets import privilege
from pdctl.targets.base import Host
from pdctl.targets.local import LocalHost
from tests.deploy.pair import Pair, names

AT = PurePosixPath("/nvme")


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that come before the machine's own; `sudo` lets everything through."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script(folder, "sudo", 'shift; exec "$@"')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def script(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def host() -> Iterator[LocalHost]:
    found = LocalHost("localhost")
    yield found
    found.close()


def config(**target: Any) -> Config:
    hosts = {
        "prefill": [{"address": "p"}],
        "decode": [{"address": "d"}],
        "router": [{"address": "r"}],
    }
    return Config.model_validate(
        {
            "name": "x",
            "model": {"id": "acme/model", "revision": "c" * 40},
            "target": {"kind": "ssh", "hosts": hosts, **target},
        }
    )


def tasks(made: Config) -> dict[str, Task]:
    place = place_of(made)
    return {each.id: each for each in tasks_of(made, place, render(made, place), Secrets())}


# --- which of them, and in the plan --------------------------------------------------------------


def test_which_hosts_need_what() -> None:
    found = tasks(config())
    assert {name: each.hosts for name, each in found.items()} == {
        "packages": ("p", "d", "r"),
        "pdctl": ("r",),
        "model": ("p", "d"),
    }
    efa_pair = config(efa_installer="1.50.0", nvme="/nvme")
    efa_pair = efa_pair.model_copy(
        update={"kv": efa_pair.kv.model_copy(update={"backends": ["LIBFABRIC"]})}
    )
    assert list(tasks(efa_pair)) == [
        *("packages", "efa", "nvme", "limits", "huge-pages"),
        *("pdctl", "model"),
    ]
    assert str(place_of(efa_pair).hub) == "/nvme/models"


def counting(tmp_path: Path, *, phase: task.Phase = "machine") -> Task:
    done = tmp_path / "done"
    return Task(
        id="count",
        what="count",
        done="it is counted",
        hosts=("localhost",),
        look=lambda host: "" if done.exists() else "nobody counted",
        apply=lambda host, tell: (tell("one"), done.touch())[0],
        phase=phase,
    )


def test_up_does_a_task_once_and_says_why(pair: Pair, tmp_path: Path) -> None:
    pair.tasks = (counting(tmp_path),)
    steps = {step.id: step for step in pair.survey().plan.steps}
    assert (steps["count"].why, steps["count"].changes) == ("localhost: nobody counted", True)
    assert next(iter(steps)) == "count"
    pair.up()
    assert "count" in names(pair.told(StepDone))
    assert "localhost: one" in [event.text for event in pair.told(StepProgress)]
    steps = {step.id: step for step in pair.survey().plan.steps}
    assert (steps["count"].why, steps["count"].changes) == ("it is counted", False)
    assert not pair.up().changed


def test_a_task_that_needs_root_says_what_to_run_by_hand(
    host: LocalHost, bin_: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(bin_, "sudo", "echo 'sudo: a password is required' >&2; exit 1")
    monkeypatch.setattr(privilege, "root_words", lambda host: ("sudo", "-n"))
    did: list[str] = []
    wants_root = Task(
        *("t", "tune it", "it is tuned", ("localhost",)),
        look=lambda host: "it is not tuned",
        apply=lambda host, tell: did.append("x"),
        root=lambda host: "sudo tune",
    )
    with pytest.raises(PermissionDeniedError, match="root is needed to tune it") as caught:
        task.apply_on(wants_root, [host], lambda host, line: None)
    assert caught.value.hints[0] == "run on the host: `sudo tune`"
    assert did == []


def test_all_hosts_are_looked_at() -> None:
    hosts: dict[str, Host] = {name: LocalHost(name) for name in ("a", "b")}
    needed = Task("t", "w", "d", ("a", "b"), lambda host: host.name * (host.name == "b"), print)
    assert task.look_at((needed,), hosts) == (TaskFacts("t", "w", "d", "machine", (("b", "b"),)),)


# --- packages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("manager", ["apt-get", "dnf"])
def test_packages_are_installed_by_what_is_missing(
    host: LocalHost, bin_: Path, tmp_path: Path, manager: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(bin_, manager, f'echo "$@" >> {tmp_path}/calls; touch {tmp_path}/there')
    only = f"PATH={bin_}:/usr/bin:/bin; " if manager == "apt-get" else f"PATH={bin_}; "
    monkeypatch.setattr(
        packages,
        "_MANAGER",
        f"{only}for m in apt-get dnf; do command -v $m >/dev/null && echo $m && break; done",
    )
    needs = (
        Need("libthing", f"test -e {tmp_path}/there", {"apt-get": "libthing1", "dnf": "thing"}),
        Need("sh", "command -v sh", {"apt-get": "dash", "dnf": "dash"}),
    )
    made = packages.packages_task({"localhost": needs}, sudo=True)
    assert made.look(host) == "libthing missing"
    assert made.root is not None
    assert made.root(host).endswith("libthing1" if manager == "apt-get" else "thing")
    made.apply(host, lambda line: None)
    assert made.look(host) == ""
    calls = (tmp_path / "calls").read_text().splitlines()
    if manager == "apt-get":
        assert calls[0] == "-q update"
        assert calls[1].endswith("install -y --no-install-recommends libthing1")
    else:
        assert calls == ["-q -y install thing"]


def test_a_package_that_does_not_bring_it_is_told(
    host: LocalHost, bin_: Path, tmp_path: Path
) -> None:
    script(bin_, "apt-get", "exit 0")
    need = Need("libthing", f"test -e {tmp_path}/never", {"apt-get": "libthing1", "dnf": "t"})
    made = packages.packages_task({"localhost": (need,)}, sudo=True)
    with pytest.raises(BadAnswerError, match="libthing missing still"):
        made.apply(host, lambda line: None)


# --- memory --------------------------------------------------------------------------------------


def test_limits_are_written_for_the_user(
    host: LocalHost, tmp_path: Path, bin_: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = PurePosixPath(tmp_path / "limits.d" / "90-pdctl.conf")
    monkeypatch.setattr(memory, "LIMITS", file)
    made = memory.limits_task(("localhost",), sudo=True)
    look = made.look(host)
    if look:
        assert "RDMA locks all of the KV cache" in look
    made.apply(host, lambda line: None)
    assert made.look(host) == ""
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    assert Path(file).read_text().splitlines()[0] == f"{user} - memlock unlimited"


def test_huge_pages_that_the_kernel_does_not_find_are_told(
    host: LocalHost, tmp_path: Path, bin_: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, settings = tmp_path / "nr", tmp_path / "90-pdctl.conf"
    number.write_text("8\n")
    monkeypatch.setattr(memory, "_NUMBER", PurePosixPath(number))
    monkeypatch.setattr(memory, "SYSCTL", PurePosixPath(settings))
    made = memory.huge_pages_task(("localhost",), sudo=True)
    assert made.look(host) == "there are 8"
    script(bin_, "sysctl", f"echo 4000 > {number}")
    with pytest.raises(BadAnswerError, match="4000 of 5128 huge pages only"):
        made.apply(host, lambda line: None)
    script(bin_, "sysctl", f"cut -d= -f2 {settings} > {number}")
    made.apply(host, lambda line: None)
    assert made.look(host) == ""


# --- EFA -----------------------------------------------------------------------------------------


@pytest.fixture
def installer(tmp_path: Path, bin_: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that serves installers; each writes down its version, as the real one does."""
    served, installed = tmp_path / "served", tmp_path / "efa_installed_packages"
    served.mkdir()
    text = f"#!/bin/sh\necho '# EFA installer version: 1.50.0' > {installed}\n".encode()
    with tarfile.open(served / "aws-efa-installer-1.50.0.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("aws-efa-installer/efa_installer.sh")
        entry.size, entry.mode = len(text), 0o755
        archive.addfile(entry, io.BytesIO(text))
    monkeypatch.setattr(efa, "SOURCE", served.as_uri())
    monkeypatch.setattr(efa, "INSTALLED", PurePosixPath(installed))
    return served


def test_the_installer_is_checked_run_and_then_left_alone(host: LocalHost, installer: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("`curl` is not installed (package curl)")
    tarball = installer / "aws-efa-installer-1.50.0.tar.gz"
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    wrong = efa.efa_task(("localhost",), "1.50.0", "0" * 64, sudo=True)
    assert wrong.look(host) == "it was never installed"
    with pytest.raises(BadAnswerError, match="cannot be had") as caught:
        wrong.apply(host, lambda line: None)
    assert "the checksum of aws-efa-installer-1.50.0.tar.gz is another one" in caught.value.detail
    assert wrong.look(host) == "it was never installed"
    right = efa.efa_task(("localhost",), "1.50.0", digest, sudo=True)
    right.apply(host, lambda line: None)
    assert right.look(host) == ""
    older = efa.efa_task(("localhost",), "1.9.0", None, sudo=True)
    assert older.look(host) == ""
    newer = efa.efa_task(("localhost",), "1.51.0", None, sudo=True)
    assert newer.look(host) == "version 1.50.0 is older"


def test_only_the_key_of_aws_signs_installers(
    host: LocalHost, installer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("gpg") is None or shutil.which("curl") is None:
        pytest.skip("`gpg` or `curl` is not installed")
    home = tmp_path / "g"
    home.mkdir(mode=0o700)

    def gpg(*words: str) -> str:
        options = ("--homedir", str(home), "--batch", "--pinentry-mode", "loopback")
        done = subprocess.run(
            ["gpg", *options, "--passphrase", "", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    gpg("--quick-gen-key", "test@example.com", "ed25519", "sign")
    fingerprint = next(
        line.split(":")[9]
        for line in gpg("--list-keys", "--with-colons").splitlines()
        if line.startswith("fpr")
    )
    tarball = installer / "aws-efa-installer-1.50.0.tar.gz"
    (installer / "aws-efa-installer.key").write_text(gpg("--armor", "--export"))
    gpg("--output", f"{tarball}.sig", "--detach-sign", str(tarball))
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
    made = efa.efa_task(("localhost",), "1.50.0", None, sudo=True)
    with pytest.raises(BadAnswerError) as caught:  # good, and by another than AWS
        made.apply(host, lambda line: None)
    assert "AWS did not sign aws-efa-installer-1.50.0.tar.gz" in caught.value.detail
    monkeypatch.setattr(efa, "KEY_FINGERPRINT", fingerprint)
    made.apply(host, lambda line: None)
    assert made.look(host) == ""


# --- disks ---------------------------------------------------------------------------------------


def disk(path: str, **more: object) -> dict[str, object]:
    return {"path": path, "type": "disk", "model": disks.MODEL, **more}


def test_only_instance_disks_that_hold_nothing_are_used() -> None:
    lsblk = {
        "blockdevices": [
            disk("/dev/nvme0n1", model="Amazon Elastic Block Store", mountpoint=None),
            disk("/dev/nvme1n1"),
            disk("/dev/nvme2n1", fstype="xfs"),
            disk("/dev/nvme3n1", pttype="gpt"),
            disk("/dev/nvme4n1", children=[{"path": "/dev/md0", "type": "raid0"}]),
            disk("/dev/nvme5n1", mountpoint="/opt/dlami/nvme"),
            disk("/dev/nvme6n1", model=None),
            disk("/dev/nvme7n1", model=None),
            {"path": "/dev/loop0", "type": "loop", "model": disks.MODEL},
        ]
    }
    found = disks.choose(lsblk, {"/dev/nvme6n1": disks.PCI_ID}, AT)
    assert found.empty == ("/dev/nvme1n1", "/dev/nvme6n1")
    assert found.others == (
        "/dev/nvme2n1 holds a xfs file system",
        "/dev/nvme3n1 holds a gpt partition table",
        "/dev/nvme4n1 holds partitions, or is part of an array",
        "/dev/nvme5n1 holds what is mounted at /opt/dlami/nvme",
    )
    assert (found.mounted, found.ours) == (False, False)


def test_what_an_earlier_run_made_is_mounted_again() -> None:
    array = {"path": "/dev/md127", "type": "raid0", "label": disks.LABEL, "fstype": "ext4"}
    lsblk: dict[str, Any] = {"blockdevices": [disk("/dev/nvme1n1", children=[array])]}
    found = disks.choose(lsblk, {}, AT)
    assert (found.mounted, found.ours, found.empty) == (False, True, ())
    array["mountpoint"] = str(AT)
    found = disks.choose(lsblk, {}, AT)
    assert (found.mounted, found.ours) == (True, False)


def test_a_host_without_such_disks_is_told_what_it_has(host: LocalHost, bin_: Path) -> None:
    listed = {"blockdevices": [disk("/dev/nvme1n1", fstype="ext4")]}
    script(bin_, "lsblk", f"echo '{json.dumps(listed)}'")
    made = disks.nvme_task(("localhost",), AT, sudo=True)
    assert made.look(host) == "0 disks of the instance hold nothing"
    with pytest.raises(BadAnswerError, match="no NVMe disk of its own") as caught:
        made.apply(host, lambda line: None)
    assert caught.value.detail == ("/dev/nvme1n1 holds a ext4 file system",)


def loop_device(file: Path) -> str | None:
    with file.open("wb") as made:
        made.truncate(64 * 2**20)
    done = subprocess.run(
        ["losetup", "--find", "--show", str(file)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def test_a_file_system_is_made_once_and_never_over_something(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loop device, which the script itself takes for a disk like any other."""
    if os.geteuid() != 0 or shutil.which("losetup") is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("only root has loop devices")
    device = loop_device(tmp_path / "disk")
    if device is None:
        pytest.skip("the kernel gives no loop devices here")
    at = tmp_path / "at"
    words = ("sh", "-c", disks._MAKE, "sh", str(at), "root", "pdctl-test", device)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0 and "mount" in done.stderr:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        (at / "kept").write_text("x")
        again = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert again.returncode == 3
        assert f"{device} holds something" in again.stderr
        assert (at / "kept").read_text() == "x"
        subprocess.run(["umount", str(at)], check=True)
        again = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert again.returncode == 3  # unmounted, and it still holds a file system
    finally:
        subprocess.run(["umount", str(at)], capture_output=True, check=False)
        subprocess.run(["losetup", "--detach", device], check=False)


# --- pdctl on router hosts -----------------------------------------------------------------------


def test_the_wheel_is_this_program_whole(tmp_path: Path) -> None:
    content = build_wheel()
    assert content == build_wheel()
    file = tmp_path / wheel_name()
    file.write_bytes(content)
    with zipfile.ZipFile(file) as archive:
        inside = set(archive.namelist())
        info = f"pdctl-{__version__}.dist-info"
        record = archive.read(f"{info}/RECORD").decode().splitlines()
        meta = archive.read(f"{info}/METADATA").decode()
    assert {line.split(",")[0] for line in record} == inside
    assert "pdctl/templates/systemd/process.service.j2" in inside
    assert "pdctl/engine/data/constraints-cpu-0.32.0.txt" in inside
    assert "pdctl/router/redis_store.lua" in inside
    assert not [name for name in inside if "__pycache__" in name]
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert all(f"Requires-Dist: {each}\n" in meta for each in project["dependencies"])
    assert "Requires-Dist: redis>=5.2; extra == 'redis'\n" in meta
    from_wheel = f"import sys; sys.path.insert(0, {str(file)!r}); "
    from_wheel += "import pdctl.router.server as s; print(s.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", from_wheel],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={},
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith(str(file)), done.stderr


@pytest.fixture
def router_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PurePosixPath:
    """A base interpreter whose environments are scripts that write down what they are told."""
    base = tmp_path / "python"
    inner = f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
    script(
        tmp_path,
        "python",
        f'for d; do :; done; rm -rf "$d"; mkdir -p "$d/bin"; '
        f'cat > "$d/bin/python" <<\'END\'\n{inner}END\nchmod 755 "$d/bin/python"',
    )
    monkeypatch.setattr(router, "_base_python", lambda host: str(base))
    return PurePosixPath(tmp_path / "opt" / "pdctl" / "bin" / "python")


def test_pdctl_is_installed_once_and_again_when_it_is_another(
    host: LocalHost, router_python: PurePosixPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = router.pdctl_task(("localhost",), router_python, redis=True)
    assert made.look(host) == "there is none"
    made.apply(host, lambda line: None)
    assert made.look(host) == ""
    calls = (tmp_path / "calls").read_text()
    wheel = tmp_path / "opt" / "wheels" / wheel_name()
    assert f"-I -m pip install {wheel}[redis] " in calls
    assert f"--force-reinstall --no-deps {wheel} " in calls
    assert wheel.read_bytes() == build_wheel()
    other = router.pdctl_task(("localhost",), router_python, redis=False)
    assert other.look(host) == "it is another version"
    (Path(router_python).parent.parent / "PDCTL").write_text("unfinished\n")
    assert made.look(host) == "it is another version"


def test_an_environment_of_the_users_own_is_left_alone(
    host: LocalHost, router_python: PurePosixPath, tmp_path: Path
) -> None:
    Path(router_python).parent.mkdir(parents=True)
    script(Path(router_python).parent, "python", f'exec {sys.executable} "$@"')
    made = router.pdctl_task(("localhost",), router_python, redis=False)
    assert made.look(host) == ""
    script(Path(router_python).parent, "python", "exit 1")  # one that has no pdctl is nobody's
    assert made.look(host) == "there is none"
