"""What a run says of itself: what was asked, of which engines, over what."""

import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pdctl import __version__
from pdctl.base.redact import redacted
from pdctl.bench.run import Settings
from pdctl.config.model import Config, ExternalTarget
from pdctl.engine import choices
from pdctl.state.model import DeploymentState


def about(
    config: Config, state: DeploymentState | None, settings: Settings, *, now: float, trace: str
) -> dict[str, Any]:
    """`run.json` of a new run, without what only the running engines say.

    Args:
        now: wall clock, seconds since the epoch.
        trace: name of the file that is replayed; empty: none.
    """
    return {
        "name": config.name,
        "began_at": now,
        "pdctl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "settings": _settings(settings, trace),
        "model": {
            "id": config.model.id,
            "revision": config.model.revision,
            "dtype": config.model.dtype,
            "quantization": config.model.quantization,
            "kv_cache_dtype": config.model.kv_cache_dtype,
        },
        "nixl": None if isinstance(config.target, ExternalTarget) else choices.nixl_version(config),
        "target": config.target.kind,
        "transport": transport(config, state),
        "decoder_ttl": config.kv.decoder_ttl,
        "processes": _processes(state),
    }


def _settings(settings: Settings, trace: str) -> dict[str, Any]:
    return {
        "shape": asdict(settings.shape),
        "legs": list(settings.legs),
        "repeats": settings.repeats,
        "warmup": settings.warmup,
        "seed": settings.seed,
        "trace": trace,
        "speed": settings.speed,
        "max_requests": settings.max_requests,
    }


def transport(config: Config, state: DeploymentState | None) -> str:
    """What KV is meant to go over, as configured; `pdctl doctor` says what it really goes over."""
    if isinstance(config.target, ExternalTarget):
        return "not known: something else runs the engines"
    backends = "+".join(choices.backends(config))
    if "LIBFABRIC" in backends:
        return f"{backends} (EFA)"
    records = state.processes.values() if state else ()
    tls = {record.env["UCX_TLS"] for record in records if "UCX_TLS" in record.env}
    return f"{backends} ({', '.join(sorted(tls)) if tls else 'what UCX chooses'})"


def _processes(state: DeploymentState | None) -> list[Mapping[str, Any]]:
    records = state.processes.values() if state else ()
    return [
        {
            "name": record.name,
            "host": record.host,
            # Secrets are masked already; what users put into `extra_args` may look like one.
            "argv": [redacted(word) for word in record.argv],
        }
        for record in records
    ]
