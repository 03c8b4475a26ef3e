from dataclasses import replace

from aiohttp import web

from pdctl.base.explain import STATE_PATH
from pdctl.base.process import ProcessRef
from pdctl.observe.status import read_status
from pdctl.state.model import DeploymentState, Intervals, ProcessRecord, Proof
from pdctl.targets.local import LocalHost


class AllAlive(LocalHost):
    def alive(self, ref: ProcessRef) -> bool:
        return True


def record(role: str, port: int) -> ProcessRecord:
    return ProcessRecord(
        name=f"{role}-0",
        role=role,  # type: ignore[arg-type]
        index=0,
        host="localhost",
        address="127.0.0.1",
        port=port,
        side_channel_port=None,
        health_path="/health",
        argv=(),
        env={},
        cwd=None,
        log="/l",
        engine_id=None if role == "router" else f"{role}-id",
        ref=ProcessRef(len(role), 1, "boot"),
        started_at=1.0,
    )


def state(port: int) -> DeploymentState:
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
    for role in ("router", "decode", "prefill"):
        saved = saved.with_process(record(role, port))
    return saved


async def serving(health: int) -> web.AppRunner:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/health":
            return web.Response(status=health)
        version = {"/version": "0.32.0", STATE_PATH: "9.9"}.get(request.path)
        return web.json_response({"version": version})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


async def test_each_says_its_own_version_in_the_order_of_a_request() -> None:
    runner = await serving(200)
    saved = state(runner.addresses[0][1])
    saved = replace(saved, proof=Proof(5.0, 77, saved.refs()))
    found = await read_status({"localhost": AllAlive()}, saved)
    await runner.cleanup()
    assert [(role.name, role.version, role.engine_id) for role in found.roles] == [
        ("prefill-0", "0.32.0", "prefill-id"),
        ("decode-0", "0.32.0", "decode-id"),
        ("router-0", "9.9", None),  # its /version is decode's
    ]
    assert found.healthy
    assert (found.proven_at, found.reused_tokens) == (5.0, 77)
    assert all(role.age_s is not None and role.age_s > 0 for role in found.roles)


async def test_what_answers_badly_says_why_and_an_old_proof_is_none() -> None:
    runner = await serving(503)
    saved = state(runner.addresses[0][1])
    stale = Proof(5.0, 77, (ProcessRef(1, 1, "boot"),))
    found = await read_status({"localhost": AllAlive()}, replace(saved, proof=stale))
    await runner.cleanup()
    assert not found.healthy
    assert all("HTTP 503" in role.problem and role.version is None for role in found.roles)
    assert found.reused_tokens is None
