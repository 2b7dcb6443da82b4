"""`tm.opentelemetry_tracer`: operations of a store as spans of OpenTelemetry."""

from __future__ import annotations

from typing import Any

from tidemark.engine.base.extras import needed
from tidemark.engine.base.watch import Tracer


def opentelemetry_tracer(provider: Any = None) -> Tracer:
    """Return a value for the option `tracer` that makes a span of each operation.

    A span is a child of the current span of the thread that executed the operation. Names of attributes begin with
    `tidemark.`; the status of an operation that failed is ERROR.

    Args:
        provider: An OpenTelemetry `TracerProvider`; None: the global one.

    Raises:
        Unsupported: opentelemetry-api is not installed.

    Examples:
        Without a provider that exports them, spans go nowhere.

        >>> with tm.open("shop", tracer=tm.opentelemetry_tracer(), redo_log="16 MiB") as store:
        ...     item = store.create_table("item", [tm.Column("id", tm.Int64)], "id")
        ...     item.insert((1,))
    """
    with needed("spans need opentelemetry-api", "tracing"):
        from opentelemetry import trace
    tracer = trace.get_tracer("tidemark", tracer_provider=provider)

    def traced(name: str, start_us: int, end_us: int, attributes: dict[str, Any]) -> None:
        named = {f"tidemark.{key}": value for key, value in attributes.items()}
        span = tracer.start_span(name, start_time=start_us * 1_000, attributes=named)
        if "error" in attributes:
            span.set_status(trace.StatusCode.ERROR, attributes["error"])
        span.end(end_time=end_us * 1_000)

    return traced
