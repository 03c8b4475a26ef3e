"""A small deployment, its state, and facts, as values."""

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from pdctl.base.command import command
from pdctl.base.process import ProcessRef, ProcessSpec, RoleName
from pdctl.config.model import Config
from pdctl.engine.install import InstallRecipe, InstallStep
from pdctl.engine.layout import EngineLayout
from pdctl.plan.facts import Facts
from pdctl.render.model import NEW_AT_EVERY_START, Chosen, Deployment, RenderedDir, RenderedFile
from pdctl.state.model import DeploymentState, Intervals, Proof, record_of

LAYOUT = EngineLayout(PurePosixPath("/cache/engines/cpu-1"), "cpu-1")
NAMES = ("prefill-0", "decode-0", "router-0")


def config(**changes: Any) -> Config:
    return Config.model_validate(
        {
            "name": "demo",
            "model": {"id": "pdctl/tiny-random", "dtype": "float32"},
            "engine": {"install": "cpu"},
            "target": {"kind": "local"},
            **changes,
        }
    )


def step(name: str) -> InstallStep:
    return InstallStep(
        id=name,
        what=f"install {name}",
        why=f"{name} is needed",
        marker=LAYOUT.marker(name),
        fingerprint=f"fp-{name}",
        commands=(command("install", name),),
    )


RECIPE = InstallRecipe(
    kind="cpu",
    layout=LAYOUT,
    steps=(step("venv"), step("torch")),
    needed_bytes=100,
    about=(),
    check=command("check"),
)


def spec(
    role: RoleName, *, port: int, side: int | None, extra: tuple[str, ...] = ()
) -> ProcessSpec:
    return ProcessSpec(
        role=role,
        index=0,
        host="localhost",
        address="127.0.0.1",
        port=port,
        side_channel_port=side,
        command=command("python", "-m", role, "--port", str(port), *extra, env={"A": "1"}),
        log_name=f"{role}-0.log",
    )


def deployment(
    chosen: Chosen | None = None, *, changed: tuple[str, ...] = (), auto: bool = False
) -> Deployment:
    """The deployment; decode has `changed` on its command line."""
    chosen = chosen or Chosen()
    ids = {name: chosen.engine_ids.get(name, NEW_AT_EVERY_START) for name in NAMES}
    port = {"prefill-0": 8100, "decode-0": 8200, "router-0": 8000}
    if auto:
        port = {name: chosen.ports.get(name, 0) for name in NAMES}
    prefill = spec("prefill", port=port["prefill-0"], side=5600, extra=("--id", ids["prefill-0"]))
    decode = spec(
        "decode", port=port["decode-0"], side=5601, extra=("--id", ids["decode-0"], *changed)
    )
    router = spec("router", port=port["router-0"], side=None, extra=("--decode", decode.url))
    return Deployment(
        name="demo",
        processes=(prefill, decode, router),
        directories=(RenderedDir("localhost", PurePosixPath("/st/demo/tmp")),),
        files=(RenderedFile("localhost", PurePosixPath("/cache/plugin/a.py"), b"x"),),
        recipe=RECIPE,
        model_step=step("tiny-model"),
    )


def state(*, proven: bool = True) -> DeploymentState:
    """What is recorded when everything of `deployment()` was started and proven."""
    chosen = Chosen(engine_ids={"prefill-0": "p-1", "decode-0": "d-1"})
    saved = DeploymentState(
        name="demo",
        target="local",
        phase="running",
        pdctl_version="0.1.0",
        config_file="/w/pd.yaml",
        config_digest="d",
        created_at=1.0,
        stop_timeout=20.0,
        kv=Intervals(480.0, 472.0),
    )
    for number, each in enumerate(deployment(chosen).processes):
        record = record_of(each, log=f"/l/{each.name}", engine_id=chosen.engine_ids.get(each.name))
        ref = ProcessRef(100 + number, 5, "boot", f"/st/demo/{each.name}")
        saved = saved.with_process(replace(record, ref=ref))
    return replace(saved, proof=Proof(2.0, 77, saved.refs())) if proven else saved


RUNNING = Facts(alive=frozenset(NAMES), healthy=frozenset(NAMES))
FRESH = Facts(
    missing_directories=("/st/demo/tmp",),
    changed_files=("/cache/plugin/a.py",),
    pending_install=("venv", "torch"),
    model_pending=True,
)
