"""Rendered text read back the way those who run it read it."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.base.command import Command, Secret
from pdctl.base.process import ProcessSpec
from pdctl.render.formats import shell_word, systemd_env_value, systemd_words, texts
from pdctl.render.model import NEW_AT_EVERY_START, Deployment, Secrets
from pdctl.render.place import place_of
from tests.engine.configs import P5EN, config
from tests.render import systemd
from tests.render.deployments import rendered

NASTY = """ a"b'c `d` $E ${F} $(g) %h %% \\i \\n \t;j&k|l<m>n*o?p[q]r~s#t!u{v},w=x\ny é ☃ \u2028 """
WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=("Cs",)), max_size=30
)


CONFIG = config()


def one(argv: list[str], env: dict[str, Any] | None = None) -> Deployment:
    """A deployment of one process."""
    spec = ProcessSpec(
        role="prefill",
        index=0,
        host="localhost",
        address="127.0.0.1",
        port=1,
        side_channel_port=2,
        command=Command(tuple(argv), env or {}),
        log_name="prefill-0.log",
    )
    return Deployment("n", (spec,), (), (), None, None)


# --- shell ---------------------------------------------------------------------------------------

PRINTER = ("/bin/sh", "-c", 'printf "%s\\0" "$VALUE" "$@"', "printer")
"""Prints `$VALUE` and its arguments, each with a NUL behind it."""


def run_script(script: str, **env: str) -> list[str]:
    """Run a script with the real `sh` and read what the printer printed."""
    result = subprocess.run(
        ["sh"],
        input=script.encode(),
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", **env},
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().split("\0")[:-1]


QUICK = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(st.lists(WORDS, max_size=5), WORDS)
def test_a_script_gives_the_program_its_very_words(words: list[str], value: str) -> None:
    (text,) = texts(one([*PRINTER, *words], {"VALUE": value}), CONFIG, "shell")
    assert run_script(text.content) == [value, *words]


def test_a_script_with_everything_that_shells_expand() -> None:
    (text,) = texts(one([*PRINTER, NASTY, "--x", "", "-"], {"VALUE": NASTY}), CONFIG, "shell")
    assert run_script(text.content) == [NASTY, NASTY, "--x", "", "-"]


def test_the_engine_id_is_new_at_every_start() -> None:
    argument = f'{{"a":"$x","engine_id":"{NEW_AT_EVERY_START}","b":"y\'z"}}'
    (text,) = texts(one([*PRINTER, argument], {"VALUE": ""}), CONFIG, "shell")
    ids = set()
    for _ in range(2):
        _, printed = run_script(text.content)
        made = json.loads(printed)
        assert (made["a"], made["b"]) == ("$x", "y'z")
        assert re.fullmatch(r"n-prefill-0-[0-9a-f]{8}", made["engine_id"])
        ids.add(made["engine_id"])
    assert len(ids) == 2


def test_a_secret_must_be_given_and_is_passed_on() -> None:
    (text,) = texts(one([*PRINTER], {"VALUE": Secret("sesame")}), CONFIG, "shell")
    assert "sesame" not in text.content
    assert run_script(text.content, VALUE="from outside") == ["from outside"]
    refused = subprocess.run(["sh"], input=text.content.encode(), capture_output=True, timeout=60)
    assert refused.returncode != 0
    assert b"is a secret and not shown here" in refused.stderr


def test_a_secret_argument_runs_nothing() -> None:
    _, deployment = rendered(router={"store": "redis://user:sesame@cache:6379/0"})
    (text,) = texts(deployment, config(), "shell", role="router")
    assert "sesame" not in text.content
    assert subprocess.run(["sh", "-n"], input=text.content.encode(), timeout=60).returncode == 0
    assert '"${SECRET:?an argument is a secret and not shown here}"' in text.content


@pytest.mark.parametrize("base", [{}, P5EN])
def test_every_real_script_is_valid_and_executable(base: dict[str, Any]) -> None:
    made, deployment = rendered(**base) if not base else rendered(base)
    scripts = texts(deployment, made, "shell")
    assert [text.name for text in scripts] == ["prefill-0.sh", "decode-0.sh", "router-0.sh"]
    for text in scripts:
        assert text.mode == 0o755
        check = subprocess.run(["sh", "-n"], input=text.content.encode(), timeout=60)
        assert check.returncode == 0


def test_a_script_makes_only_its_own_folders() -> None:
    made, deployment = rendered()
    scripts = {text.name: text.content for text in texts(deployment, made, "shell")}
    folders = {
        name: re.findall(r"^mkdir -p -m 700 (.*)$", content, re.M)
        for name, content in scripts.items()
    }
    assert folders["decode-0.sh"] == [
        "/state/x",
        "/state/x/tmp",
        "/state/x/control/decode-0",
        "/state/x/plugin/decode-0",
    ]
    assert folders["router-0.sh"] == ["/state/x", "/state/x/tmp", "/state/x/control/router-0"]


def test_shell_words() -> None:
    assert shell_word("plain") == "plain"
    assert shell_word("") == "''"
    assert shell_word(f"a{NEW_AT_EVERY_START}") == 'a"$ENGINE_ID"'


# --- systemd -------------------------------------------------------------------------------------


def unit(argv: list[str], env: dict[str, Any] | None = None) -> tuple[str, str]:
    service, environment = texts(one(argv, env), CONFIG, "systemd")
    return service.content, environment.content


@QUICK
@given(st.lists(WORDS, max_size=5))
def test_exec_words_are_read_back(words: list[str]) -> None:
    line = systemd_words(["/bin/x", *words])
    assert "\n" not in line
    assert systemd.exec_words(line) == ["/bin/x", *words]


@QUICK
@given(WORDS)
def test_environment_values_are_read_back(value: str) -> None:
    assert systemd.env_file(f"A={systemd_env_value(value)}\nB=1\n") == {"A": value, "B": "1"}


def test_everything_that_systemd_expands() -> None:
    service, environment = unit(["/bin/x", NASTY, ";", "$A", "%h", "-x"], {"V": NASTY})
    (command,) = [
        value for key, value in systemd.sections(service)["Service"] if key == "ExecStart"
    ]
    assert systemd.exec_words(command) == ["/bin/x", NASTY, ";", "$A", "%h", "-x"]
    assert systemd.env_file(environment) == {"V": NASTY}


def test_a_unit_whole() -> None:
    made, deployment = rendered(P5EN, place=place_of(config(P5EN)))
    files = texts(deployment, made, "systemd")
    assert [(text.name, text.mode) for text in files] == [
        (f"pdctl-qwen-{name}.{kind}", mode)
        for name in ("prefill-0", "decode-0", "router-0")
        for kind, mode in (("service", 0o644), ("env", 0o600))
    ]
    found = systemd.sections(files[0].content)
    prefill = deployment.processes[0].command
    service = dict(found["Service"])
    command = service.pop("ExecStart")
    shown = [word.replace(f'"engine_id":"{NEW_AT_EVERY_START}",', "") for word in prefill.argv()]
    assert systemd.exec_words(command) == shown
    assert "engine_id" not in command
    assert service == {
        "Type": "exec",
        "WorkingDirectory": "/run/pdctl/qwen",
        "RuntimeDirectory": "pdctl/qwen",
        "RuntimeDirectoryMode": "0700",
        "RuntimeDirectoryPreserve": "yes",
        "EnvironmentFile": "/etc/pdctl/pdctl-qwen-prefill-0.secrets",  # the last of two
        "LimitMEMLOCK": "infinity",
        "LimitNOFILE": "1048576",
        "TasksMax": "infinity",
        "KillMode": "mixed",
        "TimeoutStartSec": "30",
        "TimeoutStopSec": "60",
        "Restart": "always",
        "RestartSec": "5",
        "StandardOutput": "journal",
        "StandardError": "journal",
        "LogRateLimitIntervalSec": "0",
    }
    assert dict(found["Unit"]) == {
        "Description": "pdctl qwen: prefill-0",
        "Wants": "network-online.target",
        "After": "network-online.target",
        "StartLimitIntervalSec": "600",
        "StartLimitBurst": "5",
    }
    assert found["Install"] == [("WantedBy", "multi-user.target")]
    environment = dict(prefill.environ())
    assert environment.pop("VLLM_API_KEY") == ""  # engines on other hosts ask for a key
    assert systemd.env_file(files[1].content) == environment


def test_a_routers_unit_pins_no_memory() -> None:
    made, deployment = rendered()
    service = texts(deployment, made, "systemd", role="router")[0].content
    assert "LimitMEMLOCK" not in service
    assert "engine_id" not in service


def test_the_user_of_a_unit() -> None:
    made, deployment = rendered(P5EN, target={"access": {"user": "ubuntu"}})
    service = dict(systemd.sections(texts(deployment, made, "systemd")[0].content)["Service"])
    assert service["User"] == "ubuntu"


def test_secrets_of_a_unit_are_in_a_file_of_their_own() -> None:
    made, deployment = rendered(
        P5EN,
        engine={"api_key_file": "/keys/engine"},
        secrets=Secrets(engine_key=Secret("sesame")),
    )
    files = texts(deployment, made, "systemd")
    assert not any("sesame" in text.content for text in files)
    assert "VLLM_API_KEY" not in systemd.env_file(files[1].content)
    service = systemd.sections(files[0].content)["Service"]
    assert [value for key, value in service if key == "EnvironmentFile"] == [
        "/etc/pdctl/pdctl-qwen-prefill-0.env",
        "/etc/pdctl/pdctl-qwen-prefill-0.secrets",
    ]


# --- JSON ----------------------------------------------------------------------------------------


def test_json_has_what_runs_and_no_secret() -> None:
    made, deployment = rendered(
        P5EN,
        engine={"api_key_file": "/keys/engine"},
        secrets=Secrets(engine_key=Secret("sesame")),
    )
    (text,) = texts(deployment, made, "json")
    assert text.name == "qwen.json"
    assert "sesame" not in text.content
    document = json.loads(text.content)
    assert [each["name"] for each in document["processes"]] == ["prefill-0", "decode-0", "router-0"]
    for shown, spec in zip(document["processes"], deployment.processes, strict=True):
        assert shown["argv"] == spec.command.masked_argv()
        assert shown["env"] == spec.command.masked_environ()
    assert document["processes"][0]["env"]["VLLM_API_KEY"] == "***"
    (key,) = [file for file in document["files"] if file["path"].endswith("/keys/engine")]
    assert (key["sha256"], key["mode"]) == (None, "0600")
    assert [step["id"] for step in document["install"]] == ["venv", "vllm", "nixl", "seal"]


def test_json_of_one_role_has_its_hosts_only() -> None:
    made, deployment = rendered(P5EN)
    document = json.loads(texts(deployment, made, "json", role="decode")[0].content)
    assert [each["name"] for each in document["processes"]] == ["decode-0"]
    assert {each["host"] for each in document["files"]} == {"d.example"}
    assert {each["host"] for each in document["directories"]} == {"d.example"}


def test_templates_fail_on_what_is_not_there(tmp_path: Path) -> None:
    import jinja2

    from pdctl.render.formats import _environment

    with pytest.raises(jinja2.UndefinedError):
        _environment().from_string("{{ nothing }}").render()
