"""The entry point, and what the package may be made of."""

import ast
import importlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pdctl.plugin
from pdctl.plugin import register
from tests.plugin import engine_shapes
from tests.plugin.conftest import InstallEngine

SOURCES = sorted(Path(pdctl.plugin.__file__).parent.glob("*.py"))
MODULES = (
    "vllm.entrypoints.openai.chat_completion.serving",
    "vllm.entrypoints.openai.completion.serving",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler",
    "vllm.v1.core.sched.scheduler",
    "nixl",
)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, logger="vllm.pdctl")
    for name in list(os.environ):
        if name.startswith("PDCTL_"):
            monkeypatch.delenv(name)


def _start_engine() -> None:
    for name in MODULES:
        importlib.import_module(name)


def test_all_levers(
    install_engine: InstallEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install_engine(engine_shapes.VLLM_032, engine_shapes.NIXL_151)
    monkeypatch.setenv("PDCTL_TTL_FILE", "ttl.json")
    monkeypatch.setenv("PDCTL_NIXL_PROGRESS_US", "1000")
    register()
    register()
    _start_engine()
    said = [message.split(":")[1].strip() for message in caplog.messages]
    assert sorted(said) == [
        "live_ttl applied",
        "pull_once applied",
        "quiet_progress applied",
        "settled_frees applied",
        "streaming_handles applied",
    ]
    assert all(message.startswith("pdctl plugin: ") for message in caplog.messages)


def test_off(
    install_engine: InstallEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    install_engine(engine_shapes.VLLM_032, engine_shapes.NIXL_151)
    monkeypatch.setenv("PDCTL_PLUGIN", "off")
    monkeypatch.setenv("PDCTL_TTL_FILE", "ttl.json")
    monkeypatch.setenv("PDCTL_PLUGIN_STATUS_DIR", str(tmp_path / "status"))
    before = list(sys.meta_path)
    register()
    _start_engine()
    assert caplog.messages == ["pdctl plugin: off (PDCTL_PLUGIN=off)"]
    assert sys.meta_path == before
    assert not (tmp_path / "status").exists()
    scheduler = importlib.import_module(MODULES[2]).NixlBaseConnectorScheduler
    assert "decoder_kv_blocks_ttl" not in vars(scheduler)


def test_only_the_wanted_levers(
    install_engine: InstallEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install_engine(engine_shapes.VLLM_032, engine_shapes.NIXL_151)
    monkeypatch.setenv("PDCTL_PLUGIN_LEVERS", "live_ttl, warp_drive")
    monkeypatch.setenv("PDCTL_TTL_FILE", "ttl.json")
    register()
    _start_engine()
    assert caplog.messages == [
        "pdctl plugin: no lever is called warp_drive; there are streaming_handles, live_ttl,"
        " lease_renewal, settled_frees, pull_once, quiet_progress, quiet_queue",
        "pdctl plugin: live_ttl applied: NixlBaseConnectorScheduler.decoder_kv_blocks_ttl"
        " follows ttl.json",
    ]


def test_never_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(env: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(pdctl.plugin, "_register", fail)
    register()
    assert "the engine runs without it" in caplog.text


@pytest.mark.parametrize("tree", [{}, engine_shapes.VLLM_WITHOUT_ANY, engine_shapes.VLLM_CHANGED])
def test_unknown_engines_are_left_alone(
    install_engine: InstallEngine, monkeypatch: pytest.MonkeyPatch, tree: dict[str, str]
) -> None:
    install_engine(tree)
    monkeypatch.setenv("PDCTL_TTL_FILE", "ttl.json")
    monkeypatch.setenv("PDCTL_NIXL_PROGRESS_US", "1000")
    register()
    for name in MODULES:
        if f"{name.replace('.', '/')}.py" in tree:
            importlib.import_module(name)


def test_status_of_a_process_and_of_its_fork(install_engine: InstallEngine, tmp_path: Path) -> None:
    # A process of its own: what is registered for forks and for the end cannot be taken back.
    install_engine(engine_shapes.VLLM_032)
    status = tmp_path / "status"
    script = f"""
import json, os, sys
from pathlib import Path
from pdctl.plugin import register
register()
import {MODULES[2]}
if (pid := os.fork()) == 0:
    os._exit(0)
os.waitpid(pid, 0)
files = [Path(sys.argv[1], f"plugin-{{each}}.json") for each in (os.getpid(), pid)]
print(json.dumps([json.loads(file.read_text()) for file in files]))
"""
    root = Path(pdctl.plugin.__file__).parents[2]
    path = os.pathsep.join((str(tmp_path / "site-packages"), str(root)))
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, str(status)],
        env={
            "PYTHONPATH": path,
            "PDCTL_PLUGIN_STATUS_DIR": str(status),
            "PDCTL_TTL_FILE": "ttl.json",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    parent, child = json.loads(done.stdout)
    assert parent["pid"] != child["pid"]
    assert parent["levers"] == child["levers"]
    states = {name: lever["state"] for name, lever in parent["levers"].items()}
    assert states == {
        "streaming_handles": "waiting",
        "live_ttl": "applied",
        "lease_renewal": "off",
        "settled_frees": "waiting",
        "pull_once": "waiting",
        "quiet_progress": "off",
        "quiet_queue": "off",
    }
    assert [file.name for file in status.iterdir()] == [f"plugin-{child['pid']}.json"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_standard_library_only(source: Path) -> None:
    tree = ast.parse(source.read_text(), feature_version=(3, 10))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= sys.stdlib_module_names
        if isinstance(node, ast.ImportFrom):
            assert node.level == 1 or (node.module or "").split(".")[0] in sys.stdlib_module_names
