"""The command of a router, and the files it reads and writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath

from pdctl.base.command import Command, Part, Secret
from pdctl.config.model import Config, Router, RouterLimits
from pdctl.engine import choices, example
from pdctl.engine.choices import EngineRole
from pdctl.render.model import Place
from pdctl.render.spots import THIS_MACHINE, Spot

_ENV: Mapping[str, Part] = {
    "PYTHONSAFEPATH": "1",  # a stray `pdctl` in the working directory must not be what runs
    "PYTHONUNBUFFERED": "1",
}

OTLP_ENV = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Variable with the address of the collector that a router sends traces to."""

TTL_FILE = "--ttl-file"
"""Option with the file in which a router keeps the TTL that was set while it ran."""

ENGINES_FILE = "--engines-file"
"""Option with the file in which it keeps which engines are drained."""

Urls = Mapping[EngineRole, Sequence[str]]


@dataclass(frozen=True)
class RouterFiles:
    """Files that a router reads or writes, on its own host; None for what is not configured."""

    client_keys: PurePosixPath | None
    engine_key: PurePosixPath | None
    request_log: PurePosixPath | None


def router_files(config: Config, place: Place, spot: Spot) -> RouterFiles:
    """Where they are: keys as configured on this machine, copies of them on any other."""
    here = spot.host == THIS_MACHINE

    def key(configured: PurePath | None, copy: str) -> PurePosixPath | None:
        if here or (configured is None and copy == "clients"):
            return None if configured is None else PurePosixPath(configured)
        return place.state / "keys" / copy

    log = config.router.request_log
    return RouterFiles(
        client_keys=key(config.router.api_keys_file, "clients"),
        engine_key=key(config.engine.api_key_file, "engine"),
        request_log=None if log is None else PurePosixPath(log),
    )


def router_command(
    config: Config,
    spot: Spot,
    place: Place,
    engine_python: str,
    urls: Urls,
    engine_key: Secret | None = None,
    cells: Mapping[str, str] | None = None,
) -> Command:
    """One router's command; upstream's example proxy runs with the engine's interpreter.

    Args:
        cells: by URL, of engines that have one.
    """
    if config.router.kind == "vllm-example":
        return _example(config, spot, place, engine_python, urls, engine_key)
    return _own(config, spot, place, urls, cells or {})


def ttl_file(place: Place, spot: Spot) -> PurePosixPath:
    """Where a router keeps the TTL that was set while it ran."""
    return place.state / "control" / spot.name / "router_ttl.json"


def example_script(config: Config, place: Place) -> PurePosixPath:
    """The example proxy's file on the router's host."""
    source = PurePosixPath(config.router.source or "")
    if example.is_archive(source):
        return place.state / "example" / example.FILE_NAME
    return source if source.suffix == ".py" else source / example.PATH


def _own(config: Config, spot: Spot, place: Place, urls: Urls, cells: Mapping[str, str]) -> Command:
    router = config.router
    files = router_files(config, place, spot)
    # A password in a URL is never shown, though argv on the router's own host has it.
    store: Part = Secret(router.store) if "@" in router.store else router.store
    options: list[tuple[str, object | None]] = [
        *(("--prefill", url) for url in urls["prefill"]),
        *(("--decode", url) for url in urls["decode"]),
        ("--host", spot.address),
        ("--port", spot.port),
        ("--ttl", _number(choices.router_ttl(config))),
        ("--renew-idle", _number(router.renew_idle) if router.renew_idle else None),
        (TTL_FILE, ttl_file(place, spot)),
        *(("--cell", f"{cell}={url}") for url, cell in cells.items()),
        (ENGINES_FILE, ttl_file(place, spot).with_name("engines.json")),
        ("--threshold", config.kv.recompute_threshold),
        *(("--limit", limit) for limit in _limits(router.limits)),
        ("--reuse-share", None if router.reuse_share == 1.0 else _number(router.reuse_share)),
        *_audit(router),
        ("--store", None if router.store == "memory" else store),
        ("--api-keys", files.client_keys),
        *_flags(router),
        ("--engine-key-file", files.engine_key),
        ("--request-log", files.request_log),
        *_log_size(router),
        ("--deployment", config.name),
    ]
    words: list[Part] = []
    for flag, value in options:
        if value is True:
            words.append(flag)
        elif value is not None:
            words += [flag, value if isinstance(value, Secret) else str(value)]
    parts = (place.pdctl_python, "-m", "pdctl", "router", *words)
    return Command(parts, {**_ENV, **_traces(router)}, cwd=str(place.temp))


def _traces(router: Router) -> dict[str, Part]:
    """In OpenTelemetry's own variable, which a router that is started by hand reads too."""
    return {} if router.otlp_endpoint is None else {OTLP_ENV: router.otlp_endpoint}


def _flags(router: Router) -> Iterator[tuple[str, object]]:
    if router.allow_unauthenticated:
        yield "--allow-unauthenticated", True
    if router.tenant_salt:
        yield "--tenant-salt", True


def _audit(router: Router) -> Iterator[tuple[str, float]]:
    if router.audit_share:
        yield "--audit-share", _number(router.audit_share)
        if router.audit_floor != Router.model_fields["audit_floor"].default:
            yield "--audit-floor", _number(router.audit_floor)


def _log_size(router: Router) -> Iterator[tuple[str, int]]:
    """What differs from the defaults, if there is a log at all."""
    for name in ("request_log_mib", "request_log_keep"):
        value = getattr(router, name)
        if router.request_log is not None and value != Router.model_fields[name].default:
            yield f"--{name.replace('_', '-')}", value


def _limits(limits: RouterLimits) -> Iterator[str]:
    """What differs from the defaults, which the router knows by itself."""
    defaults = RouterLimits()
    for name in RouterLimits.model_fields:
        value = getattr(limits, name)
        if value != getattr(defaults, name):
            yield f"{name}={_number(value)}"


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _example(
    config: Config, spot: Spot, place: Place, python: str, urls: Urls, key: Secret | None
) -> Command:
    # Engines that something else runs say nothing of their interpreter.
    python = python or config.engine.python or place.default_python
    env = dict(_ENV)
    if choices.asks_key(config):
        env[example.KEY_ENV] = key or Secret("")
    words = ["--host", spot.address, "--port", str(spot.port)]
    for role, flag in (("prefill", "prefiller"), ("decode", "decoder")):
        ends = [_host_and_port(url) for url in urls["prefill" if role == "prefill" else "decode"]]
        words += [f"--{flag}-hosts", *(host for host, _ in ends)]
        words += [f"--{flag}-ports", *(port for _, port in ends)]
    script = example_script(config, place)
    return Command((python, str(script), *words), env, cwd=str(place.temp))


def _host_and_port(url: str) -> tuple[str, str]:
    # The example proxy puts the two together again itself, so brackets of IPv6 stay.
    host, _, port = url.partition("://")[2].rpartition(":")
    return (host, port) if host else (port, "80")
