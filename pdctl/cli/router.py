"""`pdctl router`: the router alone, for any prefill/decode pair."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from pdctl.config.model import RouterLimits


def router(
    prefill: Annotated[list[str], typer.Option("--prefill", help="URL of a prefill server.")],
    decode: Annotated[list[str], typer.Option("--decode", help="URL of a decode server.")],
    cell: Annotated[
        list[str] | None,
        typer.Option("--cell", help="NAME=URL: engines of different cells never work together."),
    ] = None,
    engines_file: Annotated[
        Path | None,
        typer.Option(help="Keeps which engines are drained over a restart of the router."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses one.")
    ] = 8000,
    ttl: Annotated[
        str, typer.Option(help="How long a handle is offered; below decode's own TTL.")
    ] = "450s",
    renew_idle: Annotated[
        str,
        typer.Option(help="How long after a turn decode is asked to keep it for an active client."),
    ] = "0",
    ttl_file: Annotated[
        Path | None,
        typer.Option(help="Keeps the TTL that is set while it runs, for the next start."),
    ] = None,
    threshold: Annotated[
        int, typer.Option(min=0, help="Fewer reusable tokens than this are recomputed.")
    ] = 64,
    reuse_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of conversations that reuse.")
    ] = 1.0,
    audit_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of reused turns to compare with cold runs.")
    ] = 0.0,
    audit_floor: Annotated[
        float, typer.Option(min=0, help="Nats that are no breach, whatever the noise.")
    ] = 0.5,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", help="A limit as name=value, see docs/router.md.")
    ] = None,
    store: Annotated[
        str, typer.Option(help="Where handles are kept: memory, or redis://…")
    ] = "memory",
    api_keys: Annotated[
        Path | None, typer.Option("--api-keys", help="File with the clients' API keys.")
    ] = None,
    allow_unauthenticated: Annotated[
        bool,
        typer.Option(
            "--allow-unauthenticated", help="Listen off loopback without asking clients for keys."
        ),
    ] = False,
    tenant_salt: Annotated[
        bool,
        typer.Option("--tenant-salt", help="Keep tenants apart in the engines' prefix caches too."),
    ] = False,
    engine_key_file: Annotated[
        Path | None, typer.Option(help="File with the engines' API key.")
    ] = None,
    request_log: Annotated[
        Path | None, typer.Option(help="Append one JSON line a request to this file.")
    ] = None,
    request_log_mib: Annotated[
        int, typer.Option(min=1, help="Size in MiB at which that file is put aside.")
    ] = 256,
    request_log_keep: Annotated[
        int, typer.Option(min=1, help="How many such files are kept aside.")
    ] = 4,
    deployment: Annotated[
        str | None, typer.Option(help="Named in log lines; routers of one name share handles.")
    ] = None,
) -> None:
    """Run the multi-turn router until SIGTERM."""
    from pdctl.router import logs, serve
    from pdctl.router.keys import KeyFile
    from pdctl.router.settings import RouterSettings

    logs.to_stderr(deployment)
    seconds, idle = _duration("--ttl", ttl), _duration("--renew-idle", renew_idle)
    _check_access(host, api_keys, allowed=allow_unauthenticated, salted=tenant_salt)
    urls = _urls([*prefill, *decode])
    settings = RouterSettings(
        prefill=urls[: len(prefill)],
        decode=urls[len(prefill) :],
        cells=_cells(cell or [], urls),
        engines_file=engines_file,
        host=host,
        port=port,
        ttl=seconds,
        renew_idle=idle,
        ttl_file=ttl_file,
        threshold=threshold,
        reuse_share=reuse_share,
        store=_store(store),
        deployment=deployment or "default",
        tenant_salt=tenant_salt,
        audit_share=audit_share,
        audit_floor=audit_floor,
        request_log=request_log,
        request_log_mib=request_log_mib,
        request_log_keep=request_log_keep,
        limits=_limits(limit or []),
    )
    # The first line, as `up` reads it: a line break cannot stand in a header.
    engine_key = _read(engine_key_file).splitlines()[0].strip() if engine_key_file else None
    key_file = KeyFile(api_keys) if api_keys else None
    serve.serve(settings, key=engine_key, key_file=key_file)


def _duration(option: str, text: str) -> float:
    from pdctl.base.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def _check_access(host: str, api_keys: Path | None, *, allowed: bool, salted: bool) -> None:
    from pdctl.config.checks import is_loopback

    if not (is_loopback(host) or api_keys or allowed):
        raise UsageError(
            f"`{host}` is reachable from elsewhere, and clients need no API key",
            where="--host",
            hints=["give `--api-keys FILE`, or `--allow-unauthenticated`"],
        )
    if salted and not api_keys:
        raise UsageError(
            "there are no tenants to keep apart", where="--tenant-salt", expected="--api-keys FILE"
        )


def _read(file: Path) -> str:
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"cannot read a file of keys: {error}", where=str(file)) from error
    if not text:
        raise NotFoundError("a file of keys is empty", where=str(file), expected="one key a line")
    return text


def _store(given: str) -> str:
    from pydantic import TypeAdapter, ValidationError

    from pdctl.config.model import Store

    try:
        TypeAdapter(Store).validate_python(given)
    except ValidationError:
        raise UsageError(
            "this is not the URL of a store",  # which may hold a password: it is not repeated
            where="--store",
            expected="memory or redis://host:port/db",
        ) from None
    return given


def _urls(given: list[str]) -> tuple[str, ...]:
    from urllib.parse import urlsplit

    urls = []
    for url in given:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is no number or too large, a bracket without its end
            valid = False
        if not valid or not url.isprintable() or " " in url:
            raise UsageError(f"`{url}` is not a URL of an engine", expected="http://host:port")
        urls.append(url.rstrip("/"))
    if len(set(urls)) != len(urls):
        raise UsageError("an engine is named twice", where=", ".join(urls))
    return tuple(urls)


def _cells(given: list[str], urls: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        name, sign, url = each.partition("=")
        url = url.rstrip("/")
        if not (name and sign) or url not in urls or url in found:
            raise UsageError(
                f"`{each}` puts no engine in a cell",
                where="--cell",
                expected="NAME=URL, with the URL of a `--prefill` or `--decode`, each once",
            )
        found[url] = name
    return found


def _limits(given: list[str]) -> "RouterLimits":
    from pydantic import ValidationError

    from pdctl.config.model import RouterLimits

    values: dict[str, str] = {}
    for item in given:
        name, sign, value = item.partition("=")
        if not sign or name not in RouterLimits.model_fields:
            raise UsageError(
                f"`{item}` is not a limit",
                where="--limit",
                expected=f"name=value, with name one of {', '.join(RouterLimits.model_fields)}",
            )
        values[name] = value
    try:
        return RouterLimits.model_validate(values, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg']}", where="--limit") from error
