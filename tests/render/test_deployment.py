"""From a configuration to processes, folders and files."""

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from pdctl.base.command import Secret
from pdctl.base.problems import ConfigError
from pdctl.engine.argv import EnginePaths
from pdctl.engine.models import built_in_dir
from pdctl.engine.plugin_bundle import bundle_files, bundle_name
from pdctl.render.check import load_checked
from pdctl.render.deployment import render
from pdctl.render.model import Chosen, Deployment, RenderedDir, Secrets
from pdctl.render.place import place_of
from tests.engine.configs import LOCAL, P5EN, config
from tests.render.deployments import PLACE, rendered

EC2: dict[str, Any] = {
    **{key: value for key, value in P5EN.items() if key not in ("target", "kv")},
    "target": {"kind": "ec2", "region": "us-west-2", "prefill": {"count": 2}},
}
EXTERNAL: dict[str, Any] = {
    **{key: value for key, value in LOCAL.items() if key != "target"},
    "target": {
        "kind": "external",
        "prefill": ["http://p1:8100", "http://p2:8100"],
        "decode": ["http://d1:8200"],
    },
}


def by_name(deployment: Deployment) -> dict[str, Any]:
    return {spec.name: spec for spec in deployment.processes}


# --- a local pair --------------------------------------------------------------------------------


def test_a_local_pair_whole() -> None:
    _, deployment = rendered()
    places = [
        (each.name, each.host, each.url, each.side_channel_port) for each in deployment.processes
    ]
    assert places == [
        ("prefill-0", "localhost", "http://127.0.0.1:8100", 5600),
        ("decode-0", "localhost", "http://127.0.0.1:8200", 5601),
        ("router-0", "localhost", "http://127.0.0.1:8000", None),
    ]
    assert [each.log_name for each in deployment.processes] == [
        "prefill-0.log",
        "decode-0.log",
        "router-0.log",
    ]
    assert deployment.directories == tuple(
        RenderedDir("localhost", PurePosixPath(path))
        for path in (
            "/state/x",
            "/state/x/tmp",
            "/state/x/control/prefill-0",
            "/state/x/plugin/prefill-0",
            "/state/x/control/decode-0",
            "/state/x/plugin/decode-0",
            "/state/x/control/router-0",
        )
    )
    assert deployment.recipe is not None
    assert deployment.model_step is not None
    assert deployment.model_step.marker.parent == built_in_dir(PLACE.cache)


def test_the_local_engines_command_lines() -> None:
    _, deployment = rendered(chosen=Chosen(engine_ids={"prefill-0": "p-1", "decode-0": "d-1"}))
    prefill = by_name(deployment)["prefill-0"].command
    assert deployment.recipe is not None
    assert prefill.argv()[0] == f"{deployment.recipe.layout.root}/venv/bin/python"
    assert prefill.argv()[4] == str(built_in_dir(PLACE.cache))
    assert '"engine_id":"p-1"' in prefill.argv()[-1]
    env = prefill.environ()
    assert env["PYTHONPATH"] == f"/cache/plugins/{bundle_name(bundle_files())}"
    assert env["PDCTL_PROCESS"] == "/state/x/prefill-0"
    assert env["SPT_NOENV"] == "1"
    assert env["TMPDIR"] == env["VLLM_RPC_BASE_PATH"] == prefill.cwd == "/state/x/tmp"


def test_the_router_whole() -> None:
    _, deployment = rendered()
    command = by_name(deployment)["router-0"].command
    assert command.argv() == [
        *("/venv/bin/python", "-m", "pdctl", "router"),
        *("--prefill", "http://127.0.0.1:8100"),
        *("--decode", "http://127.0.0.1:8200"),
        *("--host", "127.0.0.1", "--port", "8000"),
        *("--ttl", "472", "--ttl-file", "/state/x/control/router-0/router_ttl.json"),
        *("--engines-file", "/state/x/control/router-0/engines.json"),
        *("--threshold", "64"),
        *("--deployment", "local-cpu"),
    ]
    assert command.environ() == {
        "PDCTL_PROCESS": "/state/x/router-0",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",
    }


def test_the_router_with_everything() -> None:
    _, deployment = rendered(
        router={
            "host": "0.0.0.0",
            "port": 9000,
            "ttl": "90.5s",
            "renew_idle": "5m",
            "api_keys_file": "clients.txt",
            "allow_unauthenticated": True,
            "tenant_salt": True,
            "reuse_share": 0.25,
            "audit_share": 0.01,
            "audit_floor": 0.1,
            "request_log": "/var/log/requests.jsonl",
            "request_log_mib": 64,
            "request_log_keep": 9,
            "limits": {"first_byte": "5m", "body_mib": 1.5, "concurrent_requests": 7},
        },
        engine={"api_key_file": "engine.key"},
        kv={"recompute_threshold": 256},
    )
    router = by_name(deployment)["router-0"]
    assert router.command.argv()[8:] == [
        *("--host", "0.0.0.0", "--port", "9000"),
        *("--ttl", "90.5", "--renew-idle", "300"),
        *("--ttl-file", "/state/x/control/router-0/router_ttl.json"),
        *("--engines-file", "/state/x/control/router-0/engines.json"),
        *("--threshold", "256"),
        *("--limit", "first_byte=300", "--limit", "body_mib=1.5"),
        *("--limit", "concurrent_requests=7"),
        *("--reuse-share", "0.25"),
        *("--audit-share", "0.01", "--audit-floor", "0.1"),
        *("--api-keys", "/srv/clients.txt"),
        *("--allow-unauthenticated", "--tenant-salt"),
        *("--engine-key-file", "/srv/engine.key"),
        *("--request-log", "/var/log/requests.jsonl"),
        *("--request-log-mib", "64", "--request-log-keep", "9"),
        *("--deployment", "local-cpu"),
    ]
    assert router.url == "http://127.0.0.1:9000"  # where it is reached, not where it listens
    assert router.binds == "0.0.0.0"


def test_the_routers_traces_go_where_the_configuration_says() -> None:
    def environ(**router: Any) -> dict[str, str]:
        _, deployment = rendered(router=router)
        return by_name(deployment)["router-0"].command.masked_environ()

    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in environ()
    told = environ(otlp_endpoint="http://10.0.0.9:4318/")
    assert told["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://10.0.0.9:4318"


def test_the_routers_own_parser_takes_what_is_rendered() -> None:
    import typer.main

    from pdctl.cli.app import app

    _, deployment = rendered(
        router={
            "limits": {"first_byte": "5m"},
            "reuse_share": 0.5,
            "api_keys_file": "clients",
            "request_log": "requests.jsonl",
            "request_log_mib": 1,
        },
        engine={"api_key_file": "engine"},
    )
    words = by_name(deployment)["router-0"].command.argv()[4:]
    command = typer.main.get_command(app).commands["router"]  # type: ignore[attr-defined]
    taken = command.make_context("router", words).params
    assert taken["prefill"] == ["http://127.0.0.1:8100"]
    assert (taken["ttl"], taken["threshold"], taken["limit"]) == ("472", 64, ["first_byte=300"])
    assert taken["engine_key_file"] == Path("/srv/engine")
    assert (taken["request_log_mib"], taken["request_log_keep"]) == (1, 4)


def test_a_password_in_a_store_is_masked() -> None:
    _, deployment = rendered(router={"store": "redis://user:sesame@cache:6379/0"})
    router = by_name(deployment)["router-0"].command
    assert "redis://user:sesame@cache:6379/0" in router.argv()
    assert "sesame" not in router.masked() + repr(deployment)


def test_the_example_proxy() -> None:
    _, deployment = rendered(router={"kind": "vllm-example", "source": "/src/vllm"})
    router = by_name(deployment)["router-0"].command
    prefill = by_name(deployment)["prefill-0"].command
    assert router.argv() == [
        prefill.argv()[0],
        "/src/vllm/examples/disaggregated/disaggregated_serving/disagg_proxy_multiturn.py",
        *("--host", "127.0.0.1", "--port", "8000"),
        *("--prefiller-hosts", "127.0.0.1", "--prefiller-ports", "8100"),
        *("--decoder-hosts", "127.0.0.1", "--decoder-ports", "8200"),
    ]
    _, single = rendered(router={"kind": "vllm-example", "source": "/src/proxy.py"})
    assert by_name(single)["router-0"].command.argv()[1] == "/src/proxy.py"


def test_the_example_proxy_of_an_archive_is_a_file_of_the_deployment() -> None:
    change: dict[str, Any] = {"router": {"kind": "vllm-example", "source": "/src/vllm.tar.gz"}}
    _, deployment = rendered(**change)
    script = by_name(deployment)["router-0"].command.argv()[1]
    assert script == "/state/x/example/disagg_proxy_multiturn.py"
    assert script not in [str(file.path) for file in deployment.files]
    _, known = rendered(example=b"import httpx\n", **change)
    (file,) = [file for file in known.files if str(file.path) == script]
    assert file.content == b"import httpx\n"
    folders = [str(each.path) for each in known.directories]
    assert "/state/x/example" in folders
    _, other = rendered(example=b"x", router={"kind": "vllm-example", "source": "/src/vllm"})
    assert not [file for file in other.files if "disagg" in file.path.name]


def test_the_example_proxy_shows_the_engines_their_key() -> None:
    _, deployment = rendered(
        router={"kind": "vllm-example", "source": "/src/vllm"},
        engine={"api_key_file": "engine.key"},
        secrets=Secrets(engine_key=Secret("sesame")),
    )
    command = by_name(deployment)["router-0"].command
    assert command.environ()["OPENAI_API_KEY"] == "sesame"
    assert "sesame" not in command.masked() + repr(deployment)


def test_the_example_proxy_for_engines_that_something_else_runs() -> None:
    _, deployment = rendered(EXTERNAL, router={"kind": "vllm-example", "source": "/src/vllm"})
    assert by_name(deployment)["router-0"].command.argv()[0] == PLACE.default_python


def test_what_a_start_chooses_and_nothing_else_changes() -> None:
    free = {"prefill": {"port": 0, "side_channel_port": 0}, "decode": {"port": 0}}
    change: dict[str, Any] = {"target": free, "router": {"port": 0}}
    _, shown = rendered(**change)
    chosen = Chosen(
        ports={"prefill-0": 4001, "decode-0": 4002, "router-0": 4003},
        side_channel_ports={"prefill-0": 4004},
        engine_ids={"prefill-0": "p", "decode-0": "d"},
    )
    _, started = rendered(chosen=chosen, **change)
    assert by_name(started)["router-0"].command.argv()[4:12] == [
        *("--prefill", "http://127.0.0.1:4001", "--decode", "http://127.0.0.1:4002"),
        *("--host", "127.0.0.1", "--port", "4003"),
    ]
    for before, after in zip(shown.processes, started.processes, strict=True):
        words = zip(before.command.argv(), after.command.argv(), strict=True)
        for old, new in words:
            restored = (
                new.replace('"p"', '"<new at every start>"')
                .replace('"d"', '"<new at every start>"')
                .replace("400", "")
            )
            assert old == new or old in {"0", restored} or old.startswith("http://"), (old, new)
        envs = (before.command.environ(), after.command.environ())
        differing = {key for key in envs[0] if envs[0][key] != envs[1][key]}
        assert differing <= {"VLLM_NIXL_SIDE_CHANNEL_PORT"}
    assert (shown.directories, shown.files) == (started.directories, started.files)


def test_rendering_is_deterministic() -> None:
    assert rendered() == rendered()
    assert rendered(P5EN) == rendered(P5EN)


def test_replicas_of_the_router() -> None:
    _, deployment = rendered(router={"replicas": 2, "store": "redis://cache:6379/0"})
    routers = [each for each in deployment.processes if each.role == "router"]
    assert [each.port for each in routers] == [8000, 8001]
    assert "redis://cache:6379/0" in routers[0].command.argv()


def test_plugin_off_leaves_the_bundle_out() -> None:
    _, deployment = rendered(engine={"plugin": "off"})
    assert deployment.files == ()
    assert by_name(deployment)["decode-0"].command.environ()["PDCTL_PLUGIN"] == "off"


def test_the_bundle_is_among_the_files() -> None:
    _, deployment = rendered()
    folder = PurePosixPath("/cache/plugins") / bundle_name(bundle_files())
    assert {str(file.path.relative_to(folder)): file.content for file in deployment.files} == (
        bundle_files()
    )


def test_an_engine_of_ones_own_has_no_recipe() -> None:
    own = {"install": "existing", "python": "/v/bin/python", "vllm": "0.32.0"}
    _, deployment = rendered(engine=own, kv={"buffer_device": "cpu"})
    assert deployment.recipe is None
    assert deployment.model_step is not None
    assert by_name(deployment)["prefill-0"].command.argv()[0] == "/v/bin/python"


# --- other targets -------------------------------------------------------------------------------


def test_hosts_over_ssh() -> None:
    hosts = {
        "prefill": [{"address": "p.example", "private_address": "10.0.0.1", "gpus": [0, 1]}],
        "decode": [
            {"address": "d.example", "private_address": "10.0.0.2"},
            {"address": "10.0.0.3", "port": 8300, "side_channel_port": 5700},
        ],
    }
    made, deployment = rendered(
        P5EN,
        target={"hosts": hosts},
        place=place_of(config(P5EN)),
        engine={"api_key_file": "/keys/engine"},
        secrets=Secrets(engine_key=Secret("sesame")),
    )
    specs = by_name(deployment)
    assert [(each.name, each.host, each.url) for each in deployment.processes] == [
        ("prefill-0", "p.example", "http://10.0.0.1:8100"),
        ("decode-0", "d.example", "http://10.0.0.2:8100"),
        ("decode-1", "10.0.0.3", "http://10.0.0.3:8300"),
        ("router-0", "p.example", "http://127.0.0.1:8000"),
    ]
    assert specs["decode-1"].side_channel_port == 5700
    assert specs["prefill-0"].command.environ()["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert specs["prefill-0"].command.environ()["HF_HOME"] == "/opt/pdctl/models/hub"
    assert specs["prefill-0"].command.cwd == "/run/pdctl/qwen"
    router = specs["router-0"].command.argv()
    assert router[0] == "/opt/pdctl/pdctl/bin/python"
    assert (
        router[router.index("--engine-key-file") + 1] == "/opt/pdctl/deployments/qwen/keys/engine"
    )
    (key,) = [file for file in deployment.files if file.secret]
    assert (key.host, key.mode, key.content) == ("p.example", 0o600, b"sesame")
    assert "sesame" not in repr(deployment)
    bundles = {file.host for file in deployment.files if not file.secret}
    assert bundles == {"p.example", "d.example", "10.0.0.3"}
    assert made.target.kind == "ssh"


def test_hosts_that_do_not_exist_yet() -> None:
    _, deployment = rendered(EC2, place=place_of(config(EC2)))
    assert [(each.name, each.host, each.url) for each in deployment.processes] == [
        ("prefill-0", "prefill-0", "http://<address of prefill-0>:8100"),
        ("prefill-1", "prefill-1", "http://<address of prefill-1>:8100"),
        ("decode-0", "decode-0", "http://<address of decode-0>:8100"),
        ("router-0", "prefill-0", "http://127.0.0.1:8000"),
    ]
    assert by_name(deployment)["decode-0"].command.environ()["FI_PROVIDER"] == "efa"
    chosen = Chosen(addresses={"prefill-0": "10.1.0.4"})
    _, started = rendered(EC2, place=place_of(config(EC2)), chosen=chosen)
    assert started.processes[0].url == "http://10.1.0.4:8100"


def test_engines_that_something_else_runs() -> None:
    _, deployment = rendered(EXTERNAL)
    (router,) = deployment.processes
    assert router.command.argv()[4:10] == [
        *("--prefill", "http://p1:8100", "--prefill", "http://p2:8100"),
        *("--decode", "http://d1:8200"),
    ]
    assert deployment.recipe is None
    assert deployment.model_step is None
    assert deployment.files == ()


# --- places --------------------------------------------------------------------------------------


def test_sockets_fit_however_deep_the_state_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / ("deep" * 20)))
    place = place_of(config())
    assert len(f"{place.temp}/{'x' * 36}") <= 107  # vLLM's sockets are named by a UUID
    assert len(f"{place.temp}/pymp-xxxxxxxx/listener-xxxxxxxx") <= 107
    longest = config(P5EN, name="n" * 42)
    assert len(f"{place_of(longest).temp}/{'x' * 36}") <= 107


def test_places_by_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PDCTL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PDCTL_TORCH_INDEX", "https://torch.example")
    local = place_of(config())
    assert local.cache == tmp_path / "cache"
    assert local.state == tmp_path / "state" / "local-cpu"
    assert local.torch_index == "https://torch.example"
    remote = place_of(config(P5EN, target={"base_dir": "/data", "model_dir": "/models"}))
    assert (str(remote.cache), str(remote.state)) == ("/data", "/data/deployments/qwen")
    assert remote.hub == PurePosixPath("/models")


def test_the_ttl_file_is_each_engines_own() -> None:
    _, deployment = rendered()
    files = [
        each.command.environ()["PDCTL_TTL_FILE"]
        for each in deployment.processes
        if each.role != "router"
    ]
    assert files == [
        "/state/x/control/prefill-0/decoder_ttl.json",
        "/state/x/control/decode-0/decoder_ttl.json",
    ]
    paths = EnginePaths(PLACE.temp, PurePosixPath("/c"), PurePosixPath("/s"), None)
    assert str(paths.ttl_file) == "/c/decoder_ttl.json"


# --- loading -------------------------------------------------------------------------------------


def test_load_checked_judges_with_the_engines_knowledge(tmp_path: Path) -> None:
    file = tmp_path / "pd.yaml"
    file.write_text("name: x\nmodel: {id: m}\ntarget: {kind: local}\nrouter: {ttl: 480, prot: 1}\n")
    with pytest.raises(ConfigError) as caught:
        load_checked(file)
    assert [problem.key for problem in caught.value.problems] == ["router.ttl", "router.prot"]


@pytest.mark.parametrize(
    "example", sorted((Path(__file__).parents[2] / "examples").glob("*.yaml")), ids=lambda p: p.name
)
def test_every_example_is_rendered(example: Path) -> None:
    made = load_checked(example).config
    deployment = render(made, replace(PLACE))
    assert deployment.processes[-1].role == "router"
    assert deployment.name == made.name
