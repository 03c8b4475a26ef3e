"""Whether NIXL's backends load in the engine's Python, and why not."""

import json
import re
from typing import Any

from pdctl.base.hostfacts import Backend, BackendFacts, NixlFacts
from pdctl.observe.host.raw import items, mapping, maybe_text, output, said, text

_LOG = re.compile(r"^([EIW])\d{4} [\d:.]+\s+\d+ [\w.]+:\d+\] (.*)$", re.MULTILINE)
_REASON = re.compile(r"Failed to load plugin from \S+: (.*)")
_NOISE = re.compile(r"^(?:createBackend: |Failed to create engine: )")


def read_nixl(raw: object, backends: tuple[Backend, ...]) -> NixlFacts:
    """From the script's `nixl`: one run of the probe for each backend."""
    runs = mapping(raw)
    answers = {backend: _answer(runs.get(backend)) for backend in backends if backend in runs}
    first: dict[str, Any] = next((answer for answer in answers.values() if answer), {})
    tried = tuple(_backend(backend, answer, runs[backend]) for backend, answer in answers.items())
    return NixlFacts(
        python=maybe_text(first.get("python")),
        vllm=maybe_text(first.get("vllm")),
        torch=maybe_text(first.get("torch")),
        cuda=maybe_text(first.get("cuda")),
        nixl=maybe_text(first.get("nixl")),
        ucx=next((u for a in answers.values() if (u := maybe_text(a.get("ucx")))), None),
        backends=tried,
        error="" if first else next((said(runs[b]) for b in answers), "nothing was tried"),
    )


def _answer(run: object) -> dict[str, Any]:
    """What the probe printed last; empty when it did not come to that."""
    for line in reversed((output(run) or "").splitlines()):
        if line.startswith("{"):
            try:
                return mapping(json.loads(line))
            except (ValueError, RecursionError):
                return {}
    return {}


def _backend(backend: Backend, answer: dict[str, Any], run: object) -> BackendFacts:
    ok = answer.get("ok")
    if not isinstance(ok, bool):
        why = text(mapping(run).get("why"))
        # A time limit and a missing interpreter say nothing of the backend; a crash does.
        return BackendFacts(backend, None if why else False, said(run))
    return BackendFacts(
        backend=backend,
        ok=ok,
        error="" if ok else _reason(text(mapping(run).get("err")), text(answer.get("error"))),
        missing=tuple(text(each) for each in items(answer.get("missing")) if text(each)),
        library=maybe_text(answer.get("libfabric")),
        library_version=maybe_text(answer.get("libfabric_version")),
    )


def _reason(log: str, error: str) -> str:
    """The cause as NIXL logged it, which its exception does not carry."""
    if found := _REASON.findall(log):
        return str(found[-1]).strip()[:300]
    errors = [message for level, message in _LOG.findall(log) if level == "E"]
    causes = [message for message in errors if not _NOISE.match(message)]
    return "; ".join(dict.fromkeys(causes or errors))[:300] or error
