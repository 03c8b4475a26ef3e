"""How a running process differs from what the configuration says now, option by option."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pdctl.base.process import ProcessSpec
from pdctl.state.model import ProcessRecord

TTL_OPTIONS = (
    "--ttl",
    "--kv-transfer-config kv_connector_extra_config.decoder_kv_blocks_ttl",
)
"""What a process starts with and `set-ttl` changes while it runs."""


def differences(
    record: ProcessRecord, spec: ProcessSpec, ignored: Collection[str] = ()
) -> tuple[str, ...]:
    """Lines such as `--max-num-seqs: 8 → 16`; empty when the process is as configured.

    Args:
        ignored: options that may differ.
    """
    old, new = by_option(record.argv), by_option(spec.command.masked_argv())
    for option in ignored:
        old.pop(option, None)
        new.pop(option, None)
    return (
        *changes(old, new),
        *changes(record.env, spec.command.masked_environ()),
        *changes({"working directory": record.cwd}, {"working directory": spec.command.cwd}),
    )


def by_option(argv: Sequence[str]) -> dict[str, str]:
    """Arguments by option; JSON values by their own keys, so that one change is one line.

    What comes before the first option is the `program`; an option given more than once has its
    values one after the other.
    """
    found: dict[str, list[str]] = {}
    option = "program"
    for word in argv:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            found.setdefault(option, []).extend([value] if equals else [])
        else:
            found.setdefault(option, []).append(word)
    flat: dict[str, str] = {}
    for name, values in found.items():
        flat.update(_flat(name, " ".join(values)))
    return flat


def _flat(name: str, text: str) -> Iterator[tuple[str, str]]:
    if text.startswith("{"):
        try:
            value = json.loads(text)
        except ValueError:
            pass
        else:
            for path, leaf in _leaves("", value):
                yield f"{name} {path}".rstrip(), leaf
            return
    yield name, text


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}" if path else key, item)
        return
    yield path, value if isinstance(value, str) else json.dumps(value)


def changes(old: Mapping[str, str | None], new: Mapping[str, str | None]) -> Iterator[str]:
    """Lines such as `--max-num-seqs: 8 → 16`, one for each name that is not the same in both."""
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            yield f"{name}: {old[name]} → not given" if old[name] else f"{name}: no longer given"
        elif name not in old:
            yield f"{name}: not given → {new[name]}" if new[name] else f"{name}: newly given"
        elif old[name] != new[name]:
            yield f"{name}: {old[name]} → {new[name]}"
