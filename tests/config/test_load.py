"""Reading a file: what comes out, what is said when it does not, where it was looked for."""

import io
import os
import sys
from pathlib import Path

import pytest

from pdctl.base.errors import NotFoundError
from pdctl.base.exits import ExitCode
from pdctl.base.problems import ConfigError, Problem
from pdctl.config.load import display, load
from pdctl.config.model import Config, LocalTarget
from tests.config.helpers import BASE, MINIMAL, read, said, told

DURATION = "a duration above zero such as 480 (seconds) or `8m`, at most 30 days"


def test_the_smallest_file_has_every_default() -> None:
    config = read(MINIMAL).config
    assert config == Config.model_validate(
        {"name": "x", "model": {"id": "a/b"}, "target": {"kind": "local"}}
    )
    assert isinstance(config.target, LocalTarget)
    assert config.target.prefill.model_dump() == {"port": 8100, "side_channel_port": 5600}
    assert config.target.decode.model_dump() == {"port": 8200, "side_channel_port": 5601}
    assert config.kv.decoder_ttl == 480.0
    assert config.router.port == 8000


def test_one_port_leaves_the_other_at_its_default() -> None:
    config = read("name: x\nmodel: {id: a}\ntarget: {kind: local, decode: {port: 0}}").config
    assert isinstance(config.target, LocalTarget)
    assert config.target.decode.model_dump() == {"port": 0, "side_channel_port": 5601}


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("480", 480.0),
        ("8m", 480.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        ('"90"', 90.0),
        ("7.5", 7.5),
    ],
)
def test_durations(written: str, seconds: float) -> None:
    assert read(MINIMAL + f"kv: {{decoder_ttl: {written}}}").config.kv.decoder_ttl == seconds


def test_plugin_off_is_text() -> None:
    assert read(MINIMAL + "engine: {plugin: off}").config.engine.plugin == "off"


def test_whole_numbers_may_stand_for_text_in_env_and_arguments() -> None:
    config = read(
        "name: x\ntarget: {kind: local}\n"
        "model: {id: a, env: {OMP_NUM_THREADS: 1, A: yes}, extra_args: [--seed, 7]}"
    ).config
    assert config.model.env == {"OMP_NUM_THREADS": "1", "A": "yes"}
    assert config.model.extra_args == ["--seed", "7"]


VALUES = {
    "engine: {nixl: 1.10}": "engine.nixl: found the number 1.10, expected a version in quotes, "
    'such as "0.33.0" (quote it: "1.10")',
    "engine: {vllm: 0.33}": "engine.vllm: found the number 0.33, expected a version in quotes, "
    'such as "0.33.0" (quote it: "0.33")',
    "engine: {vllm: latest}": "engine.vllm: found `latest`, expected a version in quotes, "
    'such as "0.33.0"',
    "engine: {plugin: no}": "engine.plugin: found `no`, expected one of `auto`, `off`",
    "engine: {plugin: false}": "engine.plugin: found `false`, expected one of `auto`, `off`",
    "engine: {install: PIP}": "engine.install: found `PIP`, expected one of `pip`, `existing`, "
    "`cpu` (did you mean `pip`?)",
    "engine: {api_key_file: 3}": "engine.api_key_file: found the number 3, expected a path "
    '(quote it: "3")',
    'engine: {api_key_file: ""}': 'engine.api_key_file: found the text "", expected a path',
    "kv: {bidirectional: on}": "kv.bidirectional: found `on`, expected `true` or `false` "
    "(write `true`)",
    "kv: {bidirectional: No}": "kv.bidirectional: found `No`, expected `true` or `false` "
    "(write `false`)",
    "kv: {bidirectional: 1}": "kv.bidirectional: found the number 1, expected `true` or `false`",
    "kv: {decoder_ttl: 1:30}": "kv.decoder_ttl: `1:30` is a number in base 60 in YAML 1.1 and text "
    'in YAML 1.2 (write 1m30s or 1h30m for a duration, "1:30" for text)',
    'kv: {decoder_ttl: "1:30"}': f'kv.decoder_ttl: found the text "1:30", expected {DURATION}',
    "kv: {decoder_ttl: 8 minutes}": f"kv.decoder_ttl: found `8 minutes`, expected {DURATION}",
    "kv: {decoder_ttl: -1}": f"kv.decoder_ttl: found the number -1, expected {DURATION}",
    "kv: {decoder_ttl: 0}": f"kv.decoder_ttl: found the number 0, expected {DURATION}",
    "kv: {decoder_ttl: 480000000}": "kv.decoder_ttl: found the number 480000000, "
    f"expected {DURATION}",
    "kv: {decoder_ttl: true}": f"kv.decoder_ttl: found `true`, expected {DURATION}",
    "kv: {decoder_ttl: .inf}": "kv.decoder_ttl: `.inf` is not a finite number "
    '(write ".inf" for text)',
    "kv: {decoder_ttl: [8]}": f"kv.decoder_ttl: found a list, expected {DURATION}",
    "kv: {decoder_ttl: }": f"kv.decoder_ttl: found nothing, expected {DURATION} "
    "(give it a value or remove the key)",
    "kv: {recompute_threshold: 010}": "kv.recompute_threshold: `010` is octal in YAML 1.1 and "
    'decimal in YAML 1.2 (write "010" for text, or a plain number)',
    "kv: {recompute_threshold: 64.0}": "kv.recompute_threshold: found the number 64.0, "
    "expected a whole number, 0 or more",
    'kv: {recompute_threshold: "64"}': 'kv.recompute_threshold: found the text "64", '
    "expected a whole number, 0 or more (remove the quotes)",
    "kv: {recompute_threshold: true}": "kv.recompute_threshold: found `true`, "
    "expected a whole number, 0 or more",
    "kv: {backends: UCX}": "kv.backends: found `UCX`, expected a list of at least one, each item "
    "one of `UCX`, `LIBFABRIC` (write [UCX])",
    "kv: {backends: []}": "kv.backends: found an empty list, expected a list of at least one, "
    "each item one of `UCX`, `LIBFABRIC`",
    "kv: {backends: [libfabric]}": "kv.backends[0]: found `libfabric`, expected one of `UCX`, "
    "`LIBFABRIC` (did you mean `LIBFABRIC`?)",
    "kv: 5": "kv: found the number 5, expected keys such as `bidirectional`",
    "kv:": "kv: found nothing, expected keys such as `bidirectional` "
    "(put keys below it or remove the key)",
    "router: {port: 8000:8000}": "router.port: found `8000:8000`, "
    "expected a whole number from 0 to 65535",
    "router: {port: 65536}": "router.port: found the number 65536, "
    "expected a whole number from 0 to 65535",
    "router: {reuse_share: 1.5}": "router.reuse_share: found the number 1.5, "
    "expected a number from 0 to 1",
    "router: {host: 'http://x'}": 'router.host: found the text "http://x", '
    "expected a host name or IP address, without user, port or scheme",
    "router: {store: localhost}": "router.store: found `localhost`, expected `memory` or "
    "`redis://host:port/db` (`rediss://` for TLS; `valkey://` too)",
    "router: {limits: {idle: 0}}": f"router.limits.idle: found the number 0, expected {DURATION}",
    "prefill: {gpu_memory_utilization: 95}": "prefill.gpu_memory_utilization: found the number 95, "
    "expected a number above 0 and at most 1",
    "prefill: {max_num_seqs: 0}": "prefill.max_num_seqs: found the number 0, "
    "expected a whole number, 1 or more",
    "prefill: {env: {1A: x}}": "prefill.env.1A: found the key `1A`, "
    "expected the name of an environment variable",
    "prefill: {env: {A: 1.10}}": "prefill.env.A: found the number 1.10, expected text "
    '(quote it: "1.10")',
    "prefill: {env: {A: true}}": 'prefill.env.A: found `true`, expected text (quote it: "true")',
    "prefill: {env: {A: 2026-11-29}}": "prefill.env.A: `2026-11-29` is a date in YAML 1.1 and "
    'text in YAML 1.2 (write "2026-11-29")',
    "prefill: {extra_args: --foo}": "prefill.extra_args: found `--foo`, "
    "expected a list, each item text (write [--foo])",
}


@pytest.mark.parametrize(("line", "words"), VALUES.items())
def test_wrong_value(line: str, words: str) -> None:
    place, _, said_words = told(MINIMAL + line).partition(" ")
    assert said_words == words
    assert place.startswith("4:")


STRUCTURE: dict[str, list[str]] = {
    "{}": [
        "pd.yaml:1:1 model: is missing (what is served, the same on prefill and decode)",
        "pd.yaml:1:1 name: is missing "
        "(lower-case letters, digits and dashes; names state, services and tags)",
        "pd.yaml:1:1 target: is missing "
        "(where it runs: `kind` is `local`, `ssh`, `ec2` or `external`)",
    ],
    "[]": ["pd.yaml:1:1: expected keys such as `name:` and `model:` at the top level"],
    "hello": ["pd.yaml:1:1: expected keys such as `name:` and `model:` at the top level"],
    "name: x\nmodel: {}\ntarget: {kind: local}": [
        "pd.yaml:2:1 model.id: is missing (hub id, path (`/…`, `./…`), "
        "or `pdctl/tiny-random` for a built-in offline model)"
    ],
    "name: x\nmodel: Qwen/Qwen3-32B\ntarget: {kind: local}": [
        "pd.yaml:2:8 model: found `Qwen/Qwen3-32B`, expected keys such as `id` "
        "(write {id: Qwen/Qwen3-32B})"
    ],
    "name: My_Pair\nmodel: {id: 7}\ntarget: {kind: local}": [
        "pd.yaml:1:7 name: found `My_Pair`, expected 1 to 42 lower-case letters, digits and "
        "dashes, no dash at either end",
        'pd.yaml:2:13 model.id: found the number 7, expected one line of text (quote it: "7")',
    ],
    "name: x\nmodel: {id: a}\ntarget: {kind: kubernetes, region: x, bad: 1}": [
        "pd.yaml:3:16 target.kind: found `kubernetes`, "
        "expected one of `local`, `ssh`, `ec2`, `external`"
    ],
    "name: x\nmodel: {id: a}\ntarget: {kind: Local}": [
        "pd.yaml:3:16 target.kind: found `Local`, "
        "expected one of `local`, `ssh`, `ec2`, `external` (did you mean `local`?)"
    ],
    "name: x\nmodel: {id: a}\ntarget: {hosts: {}}": [
        "pd.yaml:3:1 target.kind: is missing (one of `local`, `ssh`, `ec2`, `external`)"
    ],
    "name: x\nmodel: {id: a}\ntarget: local": [
        "pd.yaml:3:9 target: found `local`, expected keys such as `kind`"
    ],
    "name: x\nmodel: {id: a}\ntarget:": [
        "pd.yaml:3:8 target: found nothing, expected keys such as `kind` "
        "(put keys below it or remove the key)"
    ],
    # Only the errors of the chosen kind.
    "name: x\nmodel: {id: a}\ntarget: {kind: local, region: us-west-2}": [
        "pd.yaml:3:23 target.region: `region` is not a key of `target` (it is one of `kind: ec2`)"
    ],
    "name: x\nmodel: {id: a}\ntarget:\n  kind: ssh\n  hosts:\n    prefill: [{address: me@h}]\n"
    "    decode: [{port: 70000}]\n": [
        "pd.yaml:6:25 target.hosts.prefill[0].address: found `me@h`, "
        "expected a host name or IP address, without user, port or scheme",
        "pd.yaml:7:14 target.hosts.decode[0].address: is missing (how pdctl reaches it)",
        "pd.yaml:7:21 target.hosts.decode[0].port: found the number 70000, "
        "expected a whole number from 1 to 65535",
    ],
    "name: x\nmodel: {id: a}\ntarget: {kind: external, prefill: ['http://h:1/v1'], decode: []}": [
        'pd.yaml:3:36 target.prefill[0]: found the text "http://h:1/v1", '
        "expected a URL such as `http://10.0.0.1:8100`, without a path",
        "pd.yaml:3:62 target.decode: found an empty list, expected a list of at least one, "
        "each item a URL such as `http://10.0.0.1:8100`, without a path",
    ],
    "name: x\nmodel: {id: a}\ntarget: {kind: ec2, region: Frankfurt, instance_ids: {cache: []}}": [
        "pd.yaml:3:29 target.region: found `Frankfurt`, expected a region such as `us-west-2`",
        "pd.yaml:3:55 target.instance_ids.cache: found the key `cache`, "
        "expected one of `prefill`, `decode`, `router`",
    ],
}


@pytest.mark.parametrize(("text", "lines"), STRUCTURE.items())
def test_structure(text: str, lines: list[str]) -> None:
    assert said(text) == lines


def test_everything_wrong_is_said_at_once_in_the_order_of_the_file() -> None:
    text = """\
nam: pair
model: {id: a/b, tp: 8}
prefill:
  max_num_seqs: many
engine: {nixl: 1.10}
kv:
  remote_pull_threshold: 64
  decoder_ttl: 1:30
target:
  kind: local
  prefill: {port: 8000}
  decode: {port: 8200}
  decode: {port: 8300}
router: {host: 0.0.0.0, replicas: 2}
"""
    assert said(text) == [
        "pd.yaml:1:1 nam: `nam` is not a key of the top level; did you mean `name`?",
        "pd.yaml:1:1 name: is missing "
        "(lower-case letters, digits and dashes; names state, services and tags)",
        "pd.yaml:2:18 model.tp: `tp` is not a key of `model`; did you mean `tensor_parallel_size`?",
        "pd.yaml:4:17 prefill.max_num_seqs: found `many`, expected a whole number, 1 or more",
        "pd.yaml:5:16 engine.nixl: found the number 1.10, expected a version in quotes, "
        'such as "0.33.0" (quote it: "1.10")',
        "pd.yaml:7:3 kv.remote_pull_threshold: `remote_pull_threshold` is not a key of any vLLM "
        "release; did you mean `recompute_threshold`?",
        "pd.yaml:8:16 kv.decoder_ttl: `1:30` is a number in base 60 in YAML 1.1 and text in "
        'YAML 1.2 (write 1m30s or 1h30m for a duration, "1:30" for text)',
        "pd.yaml:11:19 target.prefill.port: port 8000 is also taken by `router.port`, "
        "which takes 8000 to 8001 (choose another port)",
        "pd.yaml:13:3 target.decode: `decode` is set twice, first on line 12",
        "pd.yaml:14:16 router.host: `0.0.0.0` is reachable from elsewhere, and clients need no "
        "API key (set `api_keys_file`, or `allow_unauthenticated: true`)",
        "pd.yaml:14:35 router.replicas: 2 routers with a store each would use a handle twice "
        "(set `store: redis://host:port/db`)",
    ]


def test_a_default_that_stands_in_for_a_bad_value_is_not_complained_about() -> None:
    # decode's port is wrong, so 8200 stands in: no clash with the router's own 8200.
    text = (
        "name: x\nmodel: {id: a}\ntarget: {kind: local, decode: {port: -1}}\nrouter: {port: 8200}\n"
    )
    assert said(text) == [
        "pd.yaml:3:38 target.decode.port: found the number -1, "
        "expected a whole number from 0 to 65535"
    ]


def test_more_checks_are_asked_in_the_same_run_and_each_key_is_told_once() -> None:
    def engine(config: Config) -> list[Problem]:
        return [
            Problem(("kv", "decoder_ttl"), f"{config.kv.decoder_ttl:g} is too short"),
            Problem(("router", "host"), "said already"),
            Problem(("engine", "vllm"), "about a value that is no more in the file"),
        ]

    text = MINIMAL + "kv: {decoder_ttl: 5}\nrouter: {host: 0.0.0.0}\nengine: {vllm: 1.1}\nx: 1\n"
    assert [line.split(" ", 2)[1] for line in said(text, engine)] == [
        "kv.decoder_ttl:",
        "router.host:",
        "engine.vllm:",
        "x:",
    ]
    assert said(text, engine)[0] == "pd.yaml:4:19 kv.decoder_ttl: 5 is too short"


def test_a_loaded_configuration_places_later_problems() -> None:
    loaded = read(MINIMAL + "kv: {decoder_ttl: 5}\n")
    error = loaded.error([Problem(("kv", "decoder_ttl"), "too short")], hints=["`pdctl x`"])
    assert error.detail == ("pd.yaml:4:19 kv.decoder_ttl: too short",)
    assert error.hints == ("`pdctl x`",)
    assert error.exit_code is ExitCode.CONFIG
    assert error.message == "pd.yaml has 1 problem"


def test_json_of_the_error_has_every_place() -> None:
    with pytest.raises(ConfigError) as caught:
        read(MINIMAL + "kv: {ttl: 5}\n")
    assert caught.value.as_dict() == {
        "error": "pd.yaml has 1 problem",
        "file": "pd.yaml",
        "problems": [
            {
                "line": 4,
                "column": 6,
                "key": "kv.ttl",
                "message": "`ttl` is not a key of `kv`; did you mean `decoder_ttl`?",
                "hint": None,
            }
        ],
        "exit_code": 65,
    }


# --- paths ---------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config = read(
        "name: x\nmodel: {id: ./models/a, chat_template: t.jinja}\n"
        "engine: {api_key_file: ~/key}\ntarget: {kind: local}\n"
        "router: {api_keys_file: keys.txt, request_log: /var/log/r.jsonl}\n"
    ).config
    assert config.model.id == "/srv/app/models/a"
    assert config.model.chat_template == "/srv/app/t.jinja"
    assert config.engine.api_key_file == Path("/home/me/key")
    assert config.router.api_keys_file == BASE / "keys.txt"
    assert config.router.request_log == Path("/var/log/r.jsonl")


def test_paths_on_other_hosts_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config = read(
        "name: x\nmodel: {id: org/model}\ntarget:\n  kind: ssh\n"
        "  hosts: {prefill: [{address: p, key_file: p.pem}], decode: [{address: d}]}\n"
        "  access: {key_file: ~/.ssh/id}\n"
        "router: {request_log: /var/log/r.jsonl}\n"
    ).config
    assert config.model.id == "org/model"
    target = config.target
    assert target.kind == "ssh"
    assert target.access.key_file == Path("/home/me/.ssh/id")
    assert target.hosts.prefill[0].key_file == BASE / "p.pem"
    assert config.router.request_log == Path("/var/log/r.jsonl")


# --- reading -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_named_as_one_would_type_it(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "pd.yaml").write_text(MINIMAL)
    loaded = load("sub/../sub/pd.yaml")
    assert loaded.file == "sub/pd.yaml"
    assert load(folder / "sub" / "pd.yaml").file == "sub/pd.yaml"
    assert display("/elsewhere/pd.yaml") == "/elsewhere/pd.yaml"


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(MINIMAL.encode()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert load("-").file == "<stdin>"
    monkeypatch.setattr(sys, "stdin", io.StringIO("x: 1"))
    with pytest.raises(ConfigError) as caught:
        load("-")
    assert caught.value.detail[0].startswith("<stdin>:1:1 ")


def test_a_missing_file_says_where_it_was_looked_for(folder: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        load("pd.yaml")
    assert caught.value.exit_code == 66
    assert caught.value.message == "there is no file `pd.yaml`"
    assert caught.value.where == str(folder)
    assert caught.value.hints == (
        "`pdctl init` writes a configuration to start from",
        "`--file FILE` or PDCTL_FILE names another file",
    )


def test_a_missing_file_with_the_other_ending_is_pointed_out(folder: Path) -> None:
    (folder / "pd.yml").write_text(MINIMAL)
    with pytest.raises(NotFoundError) as caught:
        load("pd.yaml")
    assert caught.value.hints[0] == "there is `pd.yml`: add `--file pd.yml`"


def test_a_directory(folder: Path) -> None:
    (folder / "conf").mkdir()
    with pytest.raises(NotFoundError, match=r"^`conf` is a directory, not a file$") as caught:
        load("conf")
    assert caught.value.where == str(folder)


def test_no_permission(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(NotFoundError, match=r"^`pd.yaml` may not be read by this user$"):
        load("pd.yaml")


@pytest.mark.parametrize("name", ["a\0b", "n" * 300, "pd.yaml/inside"])
def test_names_that_cannot_be_files(folder: Path, name: str) -> None:
    (folder / "pd.yaml").write_text(MINIMAL)
    with pytest.raises(NotFoundError, match="cannot be read: "):
        load(name)


def test_a_deleted_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    os.rmdir(gone)
    with pytest.raises(NotFoundError, match=r"^there is no file `pd.yaml`$"):
        load("pd.yaml")
