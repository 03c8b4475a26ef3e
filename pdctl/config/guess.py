"""Unknown keys: what was probably meant.

People bring keys from vLLM's flags and its kv-transfer config, from other tools, and from the
right section's neighbour; each of those gets a better answer than the nearest spelling.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from pdctl.base.problems import Loc
from pdctl.config import shape
from pdctl.config.scalars import shown

_CLOSE = 0.7
_CLOSE_ELSEWHERE = 0.85
_MOST = 3


@dataclass(frozen=True)
class _Known:
    """A key that is not ours but known: `why` follows the key, then come ours."""

    ours: tuple[str, ...] = ()
    why: str = ""
    then: str = "did you mean {}?"


def _vllm(*ours: str) -> _Known:
    return _Known(ours, "is vLLM's name", "here it is {}")


_NO_RELEASE = _Known(("kv.recompute_threshold",), "is not a key of any vLLM release")
_OURS_TO_WRITE = _Known(why="is written by pdctl from `kv`; remove it")
_REFUSED = _Known(why="is refused by current vLLM, and pdctl needs no such key; remove it")
_TP = ("model.tensor_parallel_size", "prefill.tensor_parallel_size", "decode.tensor_parallel_size")


def _per_role(key: str) -> tuple[str, str]:
    return (f"prefill.{key}", f"decode.{key}")


_KNOWN: dict[str, _Known] = {
    "remote_pull_threshold": _NO_RELEASE,
    "kv_recompute_threshold": _vllm("kv.recompute_threshold"),
    "threshold": _Known(("kv.recompute_threshold",)),
    "decoder_kv_blocks_ttl": _vllm("kv.decoder_ttl"),
    "bidirectional_kv_xfer": _vllm("kv.bidirectional"),
    "bidir": _Known(("kv.bidirectional",)),
    "kv_lease_duration": _vllm("kv.lease_duration"),
    "kv_buffer_device": _vllm("kv.buffer_device"),
    "kv_load_failure_policy": _vllm("kv.load_failure_policy"),
    "kv_cache_layout": _Known(("kv.layout",)),
    "backend": _Known(("kv.backends",)),
    "kv_connector": _OURS_TO_WRITE,
    "kv_connector_extra_config": _OURS_TO_WRITE,
    "kv_role": _OURS_TO_WRITE,
    "kv_transfer_config": _OURS_TO_WRITE,
    "kv_parallel_size": _REFUSED,
    "kv_rank": _REFUSED,
    "engine_id": _Known(
        why="is never set by hand: pdctl makes a new one at every start, "
        "because a fixed one breaks reuse after a restart; remove it"
    ),
    "ttl": _Known(("kv.decoder_ttl", "router.ttl")),
    "router_ttl": _Known(("router.ttl",)),
    "tp": _Known(_TP),
    "tp_size": _Known(_TP),
    "tensor_parallel": _Known(_TP),
    "dp": _Known(_per_role("data_parallel_size")),
    "dp_size": _Known(_per_role("data_parallel_size")),
    "data_parallel": _Known(_per_role("data_parallel_size")),
    "memory_fraction": _Known(_per_role("gpu_memory_utilization")),
    "gpu_memory": _Known(_per_role("gpu_memory_utilization")),
    "gpu_mem_util": _Known(_per_role("gpu_memory_utilization")),
    "max_sequences": _Known(_per_role("max_num_seqs")),
    "enable_prefix_caching": _vllm(*_per_role("prefix_caching")),
    "no_enable_prefix_caching": _Known(
        _per_role("prefix_caching"), "is vLLM's name", "here it is `false` at {}"
    ),
    "max_model_length": _Known(("model.max_model_len",)),
    "max_length": _Known(("model.max_model_len",)),
    "context_length": _Known(("model.max_model_len",)),
    "model": _Known(("model.id",)),
    "model_id": _Known(("model.id",)),
    "model_name": _Known(("model.served_name", "model.id")),
    "served_model_name": _vllm("model.served_name"),
    "tool_call_parser": _vllm("model.tool_parser"),
    "enable_auto_tool_choice": _Known(("model.tool_parser",), "is vLLM's name", "{} turns it on"),
    "speculative_config": _vllm("model.speculative"),
    "vllm_version": _Known(("engine.vllm",)),
    "nixl_version": _Known(("engine.nixl",)),
    "api_key": _Known(("router.api_keys_file", "engine.api_key_file"), "never stands in the file"),
    "api_keys": _Known(("router.api_keys_file",), "never stand in the file"),
    "api_key_file": _Known(("router.api_keys_file", "engine.api_key_file")),
    "api_keys_file": _Known(("router.api_keys_file",)),
    "redis": _Known(("router.store",)),
    "redis_url": _Known(("router.store",)),
    "type": _Known(("target.kind",)),
    "identity_file": _Known(("target.access.key_file",)),
    "ssh_key": _Known(("target.access.key_file",)),
    "ssh_user": _Known(("target.access.user",)),
    "availability_zone": _Known(("target.zones",)),
    "zone": _Known(("target.zones",)),
    "ami": _Known(("target.image",)),
    "cidrs": _Known(("target.network.allow_from",)),
    "host": _Known(("target.hosts", "target.host", "router.host")),
}


def unknown_key(loc: Loc, kind: str | None) -> tuple[str, str | None]:
    """Message and hint for a key that the schema does not know."""
    section, key = loc[:-1], str(loc[-1])
    known = _KNOWN.get(_normal(key), _Known())
    ours = [path for path in known.ours if _exists(path, kind)]
    if not known.why and not ours:
        ours = _guesses(section, key, kind)
    why = known.why or f"is not a key of {f'`{_path(section)}`' if section else 'the top level'}"
    message = f"`{shown(key)}` {why}"
    if ours:
        return f"{message}; {known.then.format(_or(_nearest(ours, section)))}", None
    return message, None if known.why else _where_else(loc, kind)


def _where_else(loc: Loc, kind: str | None) -> str | None:
    others = [other for other in shape.kinds() if shape.at(loc, other) is not None]
    if loc[0] == "target" and others:
        return f"it is one of `kind: {others[0]}`"
    here = shape.names(loc[:-1], kind)
    return f"keys there: {', '.join(here)}" if here else None


def _nearest(paths: list[str], section: Loc) -> list[str]:
    """Keys of the same section by their last name and alone; else all, by their path."""
    own = [path for path in paths if path.rpartition(".")[0] == _path(section)]
    return [f"`{path.rpartition('.')[2]}`" for path in own] or [f"`{path}`" for path in paths]


def _guesses(section: Loc, key: str, kind: str | None) -> list[str]:
    normal, here = _normal(key), shape.names(section, kind)
    prefix = f"{_path(section)}." if section else ""
    if normal in here:  # only the spelling differs: dashes, capitals
        return [prefix + normal]
    elsewhere = _elsewhere(kind)
    exact = [path for path in elsewhere if path.rsplit(".", 1)[-1] == normal]
    if 0 < len(exact) <= _MOST:
        return exact
    near = get_close_matches(normal, here, n=1, cutoff=_CLOSE)
    if near:
        return [prefix + near[0]]
    last = get_close_matches(
        normal, {path.rsplit(".", 1)[-1] for path in elsewhere}, n=1, cutoff=_CLOSE_ELSEWHERE
    )
    return [path for path in elsewhere if path.rsplit(".", 1)[-1] in last][:_MOST]


def _normal(key: str) -> str:
    return key.strip().lstrip("-").replace("-", "_").lower()


def _elsewhere(kind: str | None) -> list[str]:
    # Keys of list items have no path that could be written down without an index.
    return [".".join(map(str, path)) for path, _ in shape.walk(kind) if shape.ANY not in path]


def _exists(path: str, kind: str | None) -> bool:
    return shape.at(tuple(path.split(".")), kind) is not None


def _path(loc: Loc) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _or(names: Iterable[str]) -> str:
    words = list(names)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
