"""What `doctor` is to look at, by target and by what was recorded."""

from pathlib import Path

import pytest

from pdctl.base.configfacts import KEY_FILES, STATE
from pdctl.base.paths import STATE_DIR_ENV
from pdctl.deploy.case import NEVER, case_of, reachable, secret_values
from pdctl.observe.examine import ROUTER, Case
from pdctl.render.check import load_checked
from pdctl.state.store import StateStore
from pdctl.targets.local import LocalHost
from pdctl.targets.ssh.host import SshHost

LOCAL = "engine: {install: cpu}\ntarget: {kind: local}\n"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_DIR_ENV, str(tmp_path / "state"))


def case(tmp_path: Path, text: str) -> Case:
    file = tmp_path / "pd.yaml"
    file.write_text(f"name: x\nmodel: {{id: pdctl/tiny-random}}\n{text}")
    loaded = load_checked(file)
    return case_of(loaded, reachable(loaded.config, {"localhost": LocalHost()}))


def test_what_was_never_started_is_not_asked(tmp_path: Path) -> None:
    found = case(tmp_path, LOCAL)
    assert set(found.hosts) == {"localhost"}
    assert dict(found.not_asked) == dict.fromkeys(("prefill-0", "decode-0", ROUTER), NEVER)
    assert found.model is not None
    assert "tiny-random" in found.model.id
    assert [problem.key for problem in found.config.problems] == []


def test_engines_of_others_are_asked_and_their_hosts_are_not(tmp_path: Path) -> None:
    found = case(
        tmp_path, "target: {kind: external, prefill: ['http://p:1'], decode: ['http://d:2']}\n"
    )
    assert (found.hosts, found.wants, found.model) == ({}, {}, None)
    assert dict(found.not_asked) == {}
    assert found.endpoints is not None
    assert [each.url for each in found.endpoints.engines] == ["http://p:1", "http://d:2"]
    assert found.endpoints.router is not None
    assert found.endpoints.router.url == "http://127.0.0.1:8000"


def test_hosts_over_ssh_are_looked_at_and_nothing_is_connected_to_before(tmp_path: Path) -> None:
    found = case(
        tmp_path,
        "target: {kind: ssh, hosts: {prefill: [{address: a}], decode: [{address: b}]}}\n",
    )
    assert {name: type(host) for name, host in found.hosts.items()} == {"a": SshHost, "b": SshHost}
    never = dict.fromkeys(("prefill-0", "decode-0", ROUTER), NEVER)
    assert dict(found.not_asked) == never


def test_hosts_that_cannot_be_reached_yet_are_named_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "pd.yaml"
    file.write_text(
        "name: x\nmodel: {id: /m}\n"
        "target: {kind: ssh, hosts: {prefill: [{address: a}], decode: [{address: b}]}}\n"
    )
    found = case_of(load_checked(file), {})
    assert set(found.wants) == {"a", "b"}
    why = "`--offline` asks no other machine"
    assert dict(found.not_asked) == dict.fromkeys(("a", "b", "prefill-0", "decode-0", ROUTER), why)


def test_a_damaged_state_and_a_missing_key_are_findings_and_no_end(tmp_path: Path) -> None:
    store = StateStore("x")
    store.directory.mkdir(parents=True)
    store.path.write_text("{")
    found = case(tmp_path, f"{LOCAL}router: {{api_keys_file: none.txt}}\n")
    assert {problem.key for problem in found.config.problems} == {STATE, KEY_FILES}
    assert found.config.settings is not None


def test_every_key_is_known_to_be_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hubtoken")
    (tmp_path / "keys").write_text("a:first\n# no\nsecond\n")
    (tmp_path / "engine").write_text("third\n")
    file = tmp_path / "pd.yaml"
    file.write_text(
        "name: x\nmodel: {id: pdctl/tiny-random}\n"
        "engine: {install: cpu, api_key_file: engine}\ntarget: {kind: local}\n"
        "router: {api_keys_file: keys}\n"
    )
    assert set(secret_values(load_checked(file).config)) == {
        *("hubtoken", "first", "second", "third")
    }
