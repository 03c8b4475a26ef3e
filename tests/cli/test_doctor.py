"""`pdctl doctor` as a person and as a script see it."""

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.base.command import Command
from pdctl.base.errors import UnreachableError
from pdctl.base.exits import ExitCode
from pdctl.base.hostfacts import HostFacts
from pdctl.deploy import case
from pdctl.doctor.checks import CHECKS
from pdctl.state.bundle import CONTENTS, FACTS, save_bundle
from pdctl.targets.base import Host, OutputSink, Result
from pdctl.targets.local import LocalHost
from tests.cli.conftest import Serve
from tests.cli.deployed import Deployed
from tests.cli.helpers import CliResult, run_cli
from tests.doctor import cases
from tests.observe.fakes import FakeEngine

SECRET = "sk-very-secret-key-1"


@pytest.fixture(autouse=True)
def _terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("PDCTL_FILE", raising=False)


@pytest.fixture
def pair_at(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """`pair_at(**faults)` gives a fake pair and its configuration; the terminal is a usual one."""
    monkeypatch.setenv("COLUMNS", "80")
    return serve


def fits(result: CliResult) -> bool:
    """Whether no line of the findings is wider than a terminal."""
    return [line for line in result.stdout.splitlines() if len(line) > 80] == []


def statuses(result: CliResult) -> dict[str, str]:
    """By id, the worst of each."""
    found: dict[str, str] = {}
    for check in result.json["checks"]:
        found.setdefault(check["id"], check["status"])
    return found


# --- what a healthy and a broken pair look like ----------------------------------------------


def test_a_healthy_pair_that_something_else_runs(pair_at: Serve) -> None:
    _, file = pair_at()
    result = run_cli("doctor", "-f", str(file), "--json")
    assert result.exit_code == 0, result.stdout
    document = result.json
    assert set(document) == {"summary", "checks"}
    assert set(document["summary"]) == {"pass", "warn", "fail", "skip"}
    assert set(document["checks"][0]) == {
        *("id", "title", "scope", "target", "status", "severity", "evidence", "fix")
    }
    assert document["summary"]["fail"] == document["summary"]["warn"] == 0
    assert statuses(result)["runtime.two_turn"] == "pass"
    assert statuses(result)["engine.side_channel"] == "skip"

    shown = run_cli("doctor", "-f", str(file))
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1].startswith("0 failed, 0 warnings, ")
    assert fits(shown)
    everything = run_cli("doctor", "-f", str(file), "--all").stdout
    assert "+ runtime.two_turn on fake: turn 2 reused" in everything


def test_a_failure_has_its_evidence_the_fix_and_what_explains_it(pair_at: Serve) -> None:
    canary = "decode returned no handle"
    _, file = pair_at(decode=FakeEngine("decode", bidirectional=False), canary=canary)
    result = run_cli("doctor", "-f", str(file))
    assert result.exit_code == ExitCode.BAD_ANSWER
    lines = result.stdout.splitlines()
    assert lines[0] == "x router.pair (degrade) on fake"
    assert "decode returned no handle" in result.stdout
    assert "    fix: mend what the reason names; the router probes again by itself" in lines
    assert "    more: pdctl explain router.pair" in lines
    assert "begin with the first: `pdctl explain router.pair`" in lines
    assert fits(result)


def test_a_dead_engine_is_named_and_what_stands_on_it_is_folded(pair_at: Serve) -> None:
    _, file = pair_at(prefill=FakeEngine("prefill", alive=False))
    result = run_cli("doctor", "-f", str(file))
    assert result.exit_code == ExitCode.BAD_ANSWER
    assert result.stdout.startswith("x engine.health (block) on prefill-0\n")
    assert "checks skipped: needs engine.health on prefill-0" in result.stdout
    assert result.stdout.count("prefill-0:") <= 2


def test_strict_makes_a_warning_a_failure(pair_at: Serve) -> None:
    _, file = pair_at(ours=False, example=True)
    lenient = run_cli("doctor", "-f", str(file), "--json", "--no-proof")
    assert (lenient.exit_code, statuses(lenient)["router.kind"]) == (0, "warn")
    assert run_cli("doctor", "-f", str(file), "--no-proof", "--strict").exit_code == 1


def test_without_the_proof_no_turn_is_sent(pair_at: Serve) -> None:
    pair, file = pair_at()
    result = run_cli("doctor", "-f", str(file), "--json", "--no-proof")
    assert statuses(result)["runtime.two_turn"] == "skip"
    assert pair.router.turns == []


def test_offline_nobody_is_asked(pair_at: Serve) -> None:
    pair, file = pair_at()
    result = run_cli("doctor", "-f", str(file), "--json", "--offline")
    assert result.exit_code == 0
    found = statuses(result)
    assert (found["config.ttl"], found["engine.health"], found["router.reach"]) == (
        *("pass", "skip", "skip"),
    )
    assert pair.prefill.keys == pair.router.keys == set()


def test_a_deployment_that_pdctl_started(deployed: Deployed) -> None:
    run_cli(*deployed.args("up", "--no-verify"))
    result = run_cli(*deployed.args("doctor", "--json", "--only", "engine.*"))
    found = statuses(result)
    assert found["engine.bidirectional"] == found["engine.id"] == found["engine.drift"] == "pass"
    assert found["engine.flags.equal"] == "pass"
    assert found["engine.health"] == "fail"  # a tiny server says nothing of a model
    assert found["engine.side_channel"] == "fail"

    deployed.write(kv={"buffer_device": "cpu", "recompute_threshold": 128})
    drift = run_cli(*deployed.args("doctor", "--json", "--only", "engine.drift"))
    assert (drift.exit_code, statuses(drift)["engine.drift"]) == (0, "warn")
    told = json.dumps(drift.json["checks"], ensure_ascii=False)
    assert "kv_recompute_threshold: 64 → 128 (running → configured)" in told

    deployed.kill("decode-0")
    gone = run_cli(*deployed.args("doctor", "--json", "--only", "engine.health")).json["checks"]
    assert {c["target"]: c["evidence"][0] for c in gone}["decode-0"].endswith(" is gone")


def test_a_cause_in_the_logs_is_explained_by_its_own_id(tmp_path: Path) -> None:
    facts = cases.logs(cases.logged("gpu.oom", "decode-0"))(cases.GOOD)
    save_bundle(tmp_path / "b", facts, config=None, logs={})
    result = run_cli("doctor", "--from", str(tmp_path / "b"))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "x logs.signature (block) on gpu.oom"
    assert "    more: pdctl explain gpu.oom" in lines
    assert fits(result)
    assert run_cli("explain", "gpu.oom").exit_code == 0


def test_every_failure_there_is_fits_a_terminal(tmp_path: Path) -> None:
    for number, change in enumerate(cases.BAD.values()):
        folder = tmp_path / str(number)
        save_bundle(folder, change(cases.GOOD), config=None, logs={})
        result = run_cli("doctor", "--from", str(folder), "--all")
        assert fits(result)
        assert result.stdout.splitlines()[-1][:1].isalnum()


# --- choosing --------------------------------------------------------------------------------


def test_list_names_all_checks() -> None:
    listed = run_cli("doctor", "--list")
    assert listed.exit_code == 0
    assert all(check.id in listed.stdout for check in CHECKS)
    told = run_cli("doctor", "--list", "--json", "--only", "router.*").json
    assert [row["id"] for row in told] == [c.id for c in CHECKS if c.id.startswith("router.")]


def test_only_takes_globs_and_may_be_repeated(pair_at: Serve) -> None:
    pair, file = pair_at()
    args = ("--only", "config.t*", "--only", "router.kind")
    result = run_cli("doctor", "-f", str(file), "--json", *args)
    assert set(statuses(result)) == {"config.ttl", "router.kind"}
    assert pair.router.turns == []  # nobody asked for what the proof shows


def test_what_is_no_check_is_refused_and_the_nearest_named() -> None:
    result = run_cli("doctor", "--only", "engine.helth")
    assert result.exit_code == ExitCode.USAGE
    assert "`engine.helth` is no check" in result.stderr
    assert "expected: `engine.health`" in result.stderr
    assert run_cli("doctor", "--since", "soon").exit_code == ExitCode.USAGE


# --- nothing there ---------------------------------------------------------------------------


def test_nothing_set_up_ends_with_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_cli("doctor", "--json", "--only", "[!h]*")
    assert result.exit_code == 0
    assert set(statuses(result).values()) == {"skip"}
    shown = run_cli("doctor", "--all")
    assert shown.exit_code in (0, 1)  # this machine is looked at all the same
    assert "there is no file `pd.yaml` here; `pdctl init` writes one" in " ".join(
        shown.stdout.split()
    )
    assert "Traceback" not in shown.stdout + shown.stderr
    assert "host.reach on localhost: it answers" in shown.stdout


def test_a_file_that_was_named_and_is_not_there(tmp_path: Path) -> None:
    result = run_cli("doctor", "-f", str(tmp_path / "none.yaml"), "--json")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert statuses(result)["config.file"] == "fail"
    assert "error: there is no file" in result.stderr
    hosts = run_cli("doctor", "-f", str(tmp_path / "none.yaml"), "--only", "host.reach")
    assert hosts.exit_code == 0  # that is known without it


def test_a_configuration_that_is_wrong_is_told_whole(tmp_path: Path) -> None:
    file = tmp_path / "pd.yaml"
    file.write_text(
        "name: x\nmodel: {id: pdctl/tiny-random}\nengine: {install: cpu}\n"
        "target: {kind: local}\nkv: {decoder_ttl: 5, recompute_treshold: 3}\n"
    )
    result = run_cli("doctor", "-f", str(file), "--json", "--offline")
    assert result.exit_code == ExitCode.CONFIG
    found = statuses(result)
    assert found["config.keys"] == found["config.ttl"] == "fail"
    assert found["config.backends"] == "pass"
    assert result.stderr.splitlines()[-1].endswith("pd.yaml has 2 problems")
    assert "did you mean" in json.dumps(result.json) or "recompute_threshold" in result.stdout


@pytest.mark.parametrize("example", ["local-cpu", "ssh-2p2d", "p5en-1p1d", "external"])
def test_no_example_fails_before_anything_runs(example: str, tmp_path: Path) -> None:
    value = yaml.safe_load((Path(__file__).parents[2] / f"examples/{example}.yaml").read_text())
    if "api_keys_file" in value.get("router", {}):
        (tmp_path / "keys").write_text("a:0123456789abcdef\n")
        value["router"]["api_keys_file"] = str(tmp_path / "keys")
    file = tmp_path / "pd.yaml"
    file.write_text(yaml.safe_dump(value))
    result = run_cli("doctor", "-f", str(file), "--json", "--offline", "--only", "[!h]*")
    assert result.exit_code == 0, result.stdout
    if example in ("ssh-2p2d", "p5en-1p1d"):
        asked = ("doctor", "-f", str(file), "--json", "--only", "host.reach", "--offline")
        reach = run_cli(*asked).json
        assert {c["status"] for c in reach["checks"]} == {"skip"}
        assert "asks no other machine" in reach["checks"][0]["evidence"][0]


# --- bundles ---------------------------------------------------------------------------------


def test_a_bundle_is_judged_as_the_pair_was(pair_at: Serve, tmp_path: Path) -> None:
    canary = "decode returned no handle"
    _, file = pair_at(canary=canary)
    with file.open("a") as more:
        more.write(f"# token: {SECRET}\n")
    folder = tmp_path / "bundle"
    live = run_cli("doctor", "-f", str(file), "--json", "--save", str(folder))
    assert live.exit_code == 1
    assert {each.name for each in folder.iterdir()} == {FACTS, "config.yaml", CONTENTS}
    assert (folder / FACTS).stat().st_mode & 0o077 == 0
    assert FACTS in (folder / CONTENTS).read_text()
    saved = "".join(each.read_text() for each in folder.iterdir())
    assert SECRET not in saved
    assert "kind: external" in saved
    assert f"{FACTS}: what was seen" in live.stderr

    file.unlink()
    again = run_cli("doctor", "--json", "--from", str(folder))
    assert (again.exit_code, again.json) == (1, live.json)
    # An older bundle is replaced; anything else is left alone.
    assert run_cli("doctor", "--save", str(folder), "--only", "config.*").exit_code in (0, 1)


def test_logs_in_a_bundle_have_no_secrets(deployed: Deployed, tmp_path: Path) -> None:
    (deployed.folder / "key").write_text("plainword\n")
    run_cli(*deployed.args("up", "--no-verify"))
    record = deployed.state().processes["decode-0"]
    with open(record.log, "a") as log:
        log.write(f"the key is plainword, and Authorization: Bearer {SECRET}\n")
    deployed.write(
        engine={
            "install": "existing",
            "python": str(deployed.python),
            "vllm": "0.32.0",
            "plugin": "off",
            "api_key_file": str(deployed.folder / "key"),
        }
    )
    folder = tmp_path / "bundle"
    run_cli(*deployed.args("doctor", "--save", str(folder), "--no-proof"))
    said = (folder / "logs" / "decode-0.log").read_text()
    assert "the key is ***, and Authorization" in said
    assert SECRET not in said


def test_a_folder_with_something_else_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    result = run_cli("doctor", "--save", str(tmp_path), "--only", "config.*")
    assert result.exit_code == ExitCode.USAGE
    assert "the folder has something else in it" in result.stderr
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["thesis.txt"]
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / FACTS).write_text("{}")  # of the same name, and no bundle
    assert run_cli("doctor", "--save", str(tmp_path / "d")).exit_code == ExitCode.USAGE
    assert run_cli("doctor", "--save", "a", "--from", "b").exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: "not json", "the bundle is damaged: it is not JSON"),
        (lambda d: json.dumps(d)[:-40], "the bundle is damaged: it is not JSON"),
        (lambda d: json.dumps({"a": 1}), "does not say that it is a pdctl doctor bundle"),
        (lambda d: json.dumps(d | {"schema_version": 99}), "a newer pdctl"),
        (lambda d: json.dumps(d | {"facts": {"name": 1}}), "the bundle is damaged: "),
    ],
)
def test_a_bundle_that_cannot_be_used(tmp_path: Path, change: Any, said: str) -> None:
    folder = tmp_path / "b"
    run_cli("doctor", "--save", str(folder), "--only", "config.*")
    document = json.loads((folder / FACTS).read_text())
    (folder / FACTS).write_text(change(document))
    result = run_cli("doctor", "--from", str(folder))
    assert result.exit_code == ExitCode.NOT_FOUND
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    shutil.rmtree(folder)
    assert "there is no bundle" in run_cli("doctor", "--from", str(folder)).stderr


def test_a_pipe_or_an_odd_name_is_no_bundle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FACTS)
    for given in (tmp_path, tmp_path / FACTS, "a" * 300):
        result = run_cli("doctor", "--from", str(given))
        assert result.exit_code == ExitCode.NOT_FOUND
        assert "bundle" in result.stderr


def test_no_link_in_a_bundle_is_written_through(tmp_path: Path) -> None:
    folder, others = tmp_path / "b", tmp_path / "others"
    run_cli("doctor", "--save", str(folder), "--only", "config.*")
    others.mkdir()
    (others / "a.log").write_text("mine")
    for name in ("logs", "config.yaml"):
        (folder / name).symlink_to(others if name == "logs" else others / "a.log")
        result = run_cli("doctor", "--save", str(folder), "--only", "config.*")
        assert result.exit_code == ExitCode.USAGE
        assert name in result.stderr
        (folder / name).unlink()
    assert (others / "a.log").read_text() == "mine"


def test_a_file_name_that_is_no_text_can_be_saved(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"pd\xff.yaml")
    file.write_text("x: 1\n")
    folder = tmp_path / "b"
    run_cli("doctor", "-f", str(file), "--save", str(folder), "--only", "config.*")
    again = run_cli("doctor", "--from", str(folder), "--only", "config.*")
    assert "begin with the first" in again.stdout


def test_where_nothing_can_be_saved_says_so_of_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "b"
    result = run_cli("doctor", "--save", str(folder), "--only", "config.*")
    assert "the bundle cannot be saved" in result.stderr
    assert "PDCTL_STATE_DIR" not in result.stderr


# --- many hosts, some of them dead -----------------------------------------------------------

LIMIT_S = 1.0


class LiveHost(LocalHost):
    """A host that answers, and shows little."""

    def run(
        self,
        command: Command,
        *,
        timeout: float,
        on_line: OutputSink | None = None,
        stdin: bytes | None = None,
    ) -> Result:
        return Result(0 if command.argv() == ["true"] else 1, "", "", 0.0)


class SilentHost(LiveHost):
    """Connects to an address that never says anything, and keeps to its limit."""

    address = ("127.0.0.1", 0)

    def run(self, command: Command, *, timeout: float, **more: Any) -> Result:
        with socket.create_connection(self.address, timeout=timeout) as connection:
            try:
                connection.recv(1)
            except TimeoutError:
                raise UnreachableError(f"no answer within {timeout:g} s") from None
        raise AssertionError("it answered")


class StuckHost(LiveHost):
    """Hangs, whatever limit it is given."""

    def run(self, command: Command, *, timeout: float, **more: Any) -> Result:
        time.sleep(30)
        raise AssertionError("nobody waits so long")


@pytest.fixture
def silent_address() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()


def test_twelve_hosts_of_which_three_are_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_address: tuple[str, int]
) -> None:
    monkeypatch.setattr(SilentHost, "address", silent_address)
    names = [f"10.77.0.{number}" for number in range(1, 13)]
    dead = {names[2]: SilentHost, names[6]: StuckHost, names[10]: SilentHost}
    hosts: Mapping[str, Host] = {name: dead.get(name, LiveHost)(name) for name in names}
    monkeypatch.setattr(case, "reachable", lambda config, here: hosts)
    monkeypatch.setattr(
        "pdctl.observe.examine.read_host", lambda host, want: HostFacts(host.name, want=want)
    )
    file = tmp_path / "pd.yaml"
    listed = [{"address": name} for name in names]
    file.write_text(
        yaml.safe_dump(
            {
                "name": "twelve",
                "model": {"id": "/models/m"},
                "target": {
                    "kind": "ssh",
                    "hosts": {"prefill": listed[:6], "decode": listed[6:]},
                },
                "router": {"kind": "pdctl"},
            }
        )
    )
    began = time.monotonic()
    result = run_cli("doctor", "-f", str(file), "--connect-limit", str(LIMIT_S))
    took = time.monotonic() - began
    assert took < LIMIT_S + 5
    assert result.exit_code == ExitCode.BAD_ANSWER
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("x ")][:2] == [
        "x host.reach (block) on 10.77.0.3, 10.77.0.7 and 10.77.0.11"
    ]
    assert "    no answer within 1 s" in lines
    folded = "skipped: needs host.reach on 10.77.0.3, 10.77.0.7 and 10.77.0.11"
    assert folded in " ".join(result.stdout.split())
    assert fits(result)
    told = run_cli("doctor", "-f", str(file), "--connect-limit", str(LIMIT_S), "--json").json
    failing = [(c["id"], c["target"]) for c in told["checks"] if c["status"] == "fail"]
    assert failing == [("host.reach", name) for name in dead]
    assert len(lines) < 40


def test_a_host_that_hangs_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    """A pool's threads would be joined at the end of the interpreter."""
    import subprocess
    import sys

    script = (
        "import time\n"
        "from pdctl.base.configfacts import ConfigFacts\n"
        "from pdctl.base.hostfacts import HostWant\n"
        "from pdctl.observe.examine import Case, Look, examine\n"
        "class Stuck:\n"
        "    name = 'h'\n"
        "    def run(self, command, **more): time.sleep(60)\n"
        "case = Case('x', ConfigFacts('x'), {'h': Stuck()}, {'h': HostWant()})\n"
        "facts, _ = examine(case, Look(offline=True, connect_s=0.2))\n"
        "print(facts.hosts[0].error)\n"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "no answer within 0.2 s\n"
    assert time.monotonic() - began < 10
