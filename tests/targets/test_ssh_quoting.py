"""What is written for a shell is what a shell reads: any text, through `sh` and through sshd."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.base.command import Command, Secret
from pdctl.targets.ssh.host import SshHost
from tests.targets.sshd import Sshd

_TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)
SPECIAL = st.sampled_from(
    [
        "",
        " ",
        "-",
        "--",
        "-n",
        "~",
        "*",
        "$HOME",
        "`id`",
        "a=b",
        "\n",
        "'",
        '"',
        "\\",
        "!x",
        "#",
        "é",
    ]
)
WORD = st.one_of(TEXT, SPECIAL, st.lists(SPECIAL, max_size=4).map("".join))
PART = st.one_of(WORD, WORD.map(Secret))
NAME = st.from_regex(r"\A[A-Z][A-Z0-9_]{0,8}\Z").map(lambda name: f"PD_{name}")
FOLDER = st.sampled_from([None, "plain", "with space", "-dash", "it's", "new\nline", "a=b", "~"])


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with folders of odd names, and a program with each of some."""
    room = tmp_path_factory.mktemp("room")
    for name in ("plain", "with space", "-dash", "it's", "new\nline", "a=b", "~"):
        (room / name).mkdir()
    return room


def expected(command: Command, room: Path) -> tuple[list[str], dict[str, str], str]:
    where = room / command.cwd if command.cwd else room
    return command.argv()[3:], command.environ(), str(where)


def heard(output: str, command: Command) -> tuple[list[str], dict[str, str], str]:
    argv, environ, where = json.loads(output)
    return argv, {name: environ.get(name) for name in command.env}, where


COMMANDS = st.builds(
    Command,
    parts=st.lists(PART, max_size=5).map(lambda words: (sys.executable, "-c", _TELL, *words)),
    env=st.dictionaries(NAME, PART, max_size=3),
    cwd=FOLDER,
)


@settings(max_examples=60, deadline=None)
@given(command=COMMANDS)
def test_a_line_for_sh_is_read_by_sh_as_it_was_meant(room: Path, command: Command) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", command.shell()],
        cwd=room,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, (command.shell(), done.stderr)
    assert heard(done.stdout, command) == expected(command, room)


@pytest.mark.parametrize("program", ["a=b", "if", "done", "time", "{", "~", "has space", "!"])
def test_a_program_of_any_name_is_a_program(room: Path, program: str) -> None:
    folder = room / "programs"
    folder.mkdir(exist_ok=True)
    (folder / program).write_text("#!/bin/sh\necho ran\n")
    (folder / program).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", Command((program,)).shell()],
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.stdout, done.stderr) == ("ran\n", "")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(command=COMMANDS)
def test_a_command_arrives_through_sshd_as_it_was_meant(
    room: Path, ssh_host: SshHost, command: Command
) -> None:
    there = Command(command.parts, command.env, str(room / command.cwd if command.cwd else room))
    result = ssh_host.run(there, timeout=30)
    assert result.ok, result.stderr
    assert heard(result.stdout, there) == expected(command, room)


@settings(max_examples=15, deadline=None)
@given(command=COMMANDS)
def test_a_line_for_sh_is_read_by_the_login_shell_too(
    room: Path, sshd: Sshd, command: Command
) -> None:
    """What `render` shows can be pasted behind `ssh HOST`."""
    there = Command(command.parts, command.env, str(room / command.cwd if command.cwd else room))
    options = ["-F", "none", "-i", str(sshd.key), "-p", str(sshd.port), "-o", "BatchMode=yes"]
    options += ["-o", f"UserKnownHostsFile={sshd.known_hosts}"]
    done = subprocess.run(
        ["ssh", *options, sshd.address, there.shell()],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, (there.shell(), done.stderr)
    assert heard(done.stdout, there) == expected(command, room)
