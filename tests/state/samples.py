from pdctl.base.process import ProcessRef
from pdctl.state.model import DeploymentState, Intervals, ProcessRecord, Proof

PREFILL = ProcessRecord(
    name="prefill-0",
    role="prefill",
    index=0,
    host="localhost",
    address="127.0.0.1",
    port=8100,
    side_channel_port=5600,
    health_path="/health",
    argv=("python", "-m", "engine"),
    env={"A": "1", "KEY": "***"},
    cwd=None,
    log="/st/demo/logs/prefill-0.log",
    engine_id="demo-prefill-0-ab",
    log_offset=12,
    ref=ProcessRef(100, 5000, "boot", "/st/demo/prefill-0"),
    started_at=10.0,
    healthy_at=12.5,
)
STATE = DeploymentState(
    name="demo",
    target="local",
    phase="running",
    pdctl_version="0.1.0",
    config_file="/w/pd.yaml",
    config_digest="d1",
    created_at=9.0,
    stop_timeout=20.0,
    kv=Intervals(480.0, 472.0),
    processes={"prefill-0": PREFILL},
    directories=("/st/demo/tmp",),
    proof=Proof(13.0, 99, (ProcessRef(100, 5000, "boot", "/st/demo/prefill-0"),)),
)
