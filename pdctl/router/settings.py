"""What one router process is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pdctl.config.model import RouterLimits


@dataclass(frozen=True)
class RouterSettings:
    """Settings of a router.

    Attributes:
        prefill, decode: base URLs of the engines.
        cells: by URL; engines of different cells never work together.
        engines_file: keeps what was said of single engines while the router ran, such as that one
            is drained; None forgets it when the router ends.
        ttl: seconds for which a handle is offered; must be below decode's own TTL (FACTS T1).
        ttl_file: keeps the TTL that was set while it ran, for the next start.
        threshold: fewer reusable tokens than this are recomputed.
        renew_idle: seconds after a turn for which its conversation may be active, so that decode is
            asked to keep it for longer; 0: never.
        reuse_share: share of conversations for which reuse is on, 0 to 1.
        store: `memory`, or the URL of a store that routers share; may hold a password.
        deployment: routers of one name share handles.
        tenant_salt: requests get a `cache_salt` of their tenant's own.
        audit_share: share of the turns that reuse which are compared with cold runs.
        audit_floor: nats below which a difference between them is never a breach.
        request_log: file to append one JSON line a request to; no contents are written.
        request_log_mib, request_log_keep: size at which it is put aside, and how many are kept so.
    """

    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    cells: Mapping[str, str] = field(default_factory=dict)
    engines_file: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    ttl: float = 450.0
    ttl_file: Path | None = None
    threshold: int = 64
    renew_idle: float = 0.0
    reuse_share: float = 1.0
    store: str = field(default="memory", repr=False)
    deployment: str = "default"
    tenant_salt: bool = False
    audit_share: float = 0.0
    audit_floor: float = 0.5
    request_log: Path | None = None
    request_log_mib: int = 256
    request_log_keep: int = 4
    limits: RouterLimits = field(default_factory=RouterLimits)
