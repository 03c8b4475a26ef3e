"""OpenTelemetry: one trace a turn, whose spans the engines' own are put under.

Off unless `OTEL_EXPORTER_OTLP_ENDPOINT` is set; then nothing of OpenTelemetry is imported and the
plain driver runs. With it, a driver of its own puts a span around each leg and sends its
`traceparent` with that leg, so that prefill's and decode's spans belong to the same trace.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pdctl import __version__
from pdctl.router.actions import Action, Failure, OpenDecode, Prefill, Relay, Render, Report
from pdctl.router.driver import Driver, Explain

if TYPE_CHECKING:
    from aiohttp import web
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from pdctl.router.giving import Shared

log = logging.getLogger("pdctl.router")

ENDPOINT_ENV = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENV = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOL_ENVS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_CONTEXT = ("traceparent", "tracestate")


def tracing_of(environ: Mapping[str, str], deployment: str) -> "Tracing | None":
    """What the environment asks for, in OpenTelemetry's own variables; None for no traces.

    A router that cannot trace still serves, so what is missing is a warning.
    """
    if not (environ.get(ENDPOINT_ENV) or environ.get(_TRACES_ENV)):
        return None
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    protocol = next((environ[name] for name in _PROTOCOL_ENVS if environ.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        log.warning("no traces: the router speaks OTLP as %s, not %s", _PROTOCOL, protocol)
        return None
    try:
        provider = _provider(environ, deployment)
    except ImportError:
        log.warning("no traces: OpenTelemetry is not installed; `pip install 'pdctl[otel]'`")
        return None
    log.info("traces go to %s", environ.get(_TRACES_ENV) or environ[ENDPOINT_ENV])
    return Tracing(provider)


def _provider(environ: Mapping[str, str], deployment: str) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {"service.version": __version__, "pdctl.deployment": deployment}
    if not environ.get("OTEL_SERVICE_NAME"):
        about["service.name"] = "pdctl-router"
    provider = TracerProvider(resource=Resource.create(about))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Tracing:
    """Makes spans and sends them, from a thread of its own. One a router process."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self.tracer = provider.get_tracer("pdctl.router", __version__)
        self.propagator = TraceContextTextMapPropagator()

    def driver(
        self,
        shared: "Shared",
        request: "web.Request",
        request_id: str,
        headers: dict[str, str],
        *,
        explain: Explain | None,
    ) -> Driver:
        """A driver for one turn, which traces it."""
        return TracedDriver(self, shared, request, request_id, headers, explain=explain)

    def close(self) -> None:
        """Send what is left; takes as long as the collector does, so not in the loop."""
        self._provider.shutdown()


class TracedDriver(Driver):
    """Runs one turn, with a span around it and one around each leg."""

    def __init__(
        self,
        tracing: Tracing,
        shared: "Shared",
        request: "web.Request",
        request_id: str,
        headers: dict[str, str],
        *,
        explain: Explain | None,
    ) -> None:
        super().__init__(shared, request, request_id, headers, explain=explain)
        from opentelemetry.trace import SpanKind, set_span_in_context

        self._tracing, self._kind, self._within = tracing, SpanKind, set_span_in_context
        sent = {name: request.headers[name] for name in _CONTEXT if name in request.headers}
        self._turn_span = tracing.tracer.start_span(
            "turn",
            context=tracing.propagator.extract(sent),
            kind=SpanKind.SERVER,
            attributes={"url.path": request.path, "pdctl.request_id": request_id},
        )
        self._decode_span: Span | None = None
        self._send(self._turn_span)

    def told(self, report: Report) -> None:
        """End the turn's span with what the turn was."""
        self._end_decode(None)
        span = self._turn_span
        said: dict[str, Any] = {
            "pdctl.outcome": report.outcome,
            "pdctl.reason": report.reason,
            "pdctl.reused_tokens": report.reused_tokens,
            "pdctl.prompt_tokens": report.prompt_tokens,
            "pdctl.output_tokens": report.output_tokens,
            "pdctl.retries": list(report.retries),
            "pdctl.ttft_s": self.ttft_s,
            "http.response.status_code": report.status,
        }
        span.set_attributes({key: value for key, value in said.items() if value is not None})
        if report.status >= 500:
            _mark_failed(span, str(report.status))
        span.end()

    async def _perform(self, action: Action) -> Any:
        match action:
            case Render():
                return await self._leg("render", action.url, action)
            case Prefill():
                return await self._leg(
                    "prefill", action.url, action, {"pdctl.carries_handle": action.carries_handle}
                )
            case OpenDecode():
                self._decode_span = self._begin("decode", action.url)
                result = await super()._perform(action)
                if isinstance(result, Failure):
                    self._end_decode(result)
                else:
                    self._decode_span.add_event("first event")
                return result
            case Relay():
                try:
                    return await super()._perform(action)
                finally:
                    self._end_decode(None)
            case _:
                return await super()._perform(action)

    async def _leg(
        self, name: str, url: str, action: Action, about: Mapping[str, Any] | None = None
    ) -> Any:
        span = self._begin(name, url, about)
        try:
            result = await super()._perform(action)
            if isinstance(result, Failure):
                _mark_failed(span, f"{result.kind} {result.status or ''}".strip())
            return result
        except BaseException as error:
            _mark_failed(span, type(error).__name__)
            raise
        finally:
            span.end()

    def _begin(self, name: str, url: str, about: Mapping[str, Any] | None = None) -> "Span":
        span = self._tracing.tracer.start_span(
            name,
            context=self._within(self._turn_span),
            kind=self._kind.CLIENT,
            attributes={"url.full": url, **(about or {})},
        )
        self._send(span)
        return span

    def _send(self, span: "Span") -> None:
        """What is sent to engines from now on belongs to this span."""
        sent: dict[str, str] = {}
        self._tracing.propagator.inject(sent, context=self._within(span))
        self._headers = {**self._headers, **sent}

    def _end_decode(self, failure: Failure | None) -> None:
        span, self._decode_span = self._decode_span, None
        if span is None:
            return
        if failure is not None:
            _mark_failed(span, f"{failure.kind} {failure.status or ''}".strip())
        span.end()


def _mark_failed(span: "Span", why: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, why))
