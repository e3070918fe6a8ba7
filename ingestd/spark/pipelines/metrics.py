"""Metrics of a pipeline's stream, for Prometheus, from an HTTP server of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, make_wsgi_app, start_http_server

from ingestd.checks import parse_address
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from ingestd.spark.pipelines.progress import BatchProgress

__all__ = ["PipelineMetrics", "served"]


class PipelineMetrics:
    """Takes the progress of streams."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        to, of = self.registry, ["pipeline"]
        words = "Micro-batches with rows, and their seconds."
        self._rows = Counter("ingestd_pipeline_rows_total", "Rows that were read.", of, registry=to)
        self._seconds = Summary("ingestd_pipeline_batch_seconds", words, of, registry=to)
        self._state = Gauge("ingestd_pipeline_state_rows", "Rows in the states of all steps.", of, registry=to)
        words = "Rows that were dropped as too late. Those of one window, task and micro-batch count as one."
        self._late = Counter("ingestd_pipeline_late_rows_total", words, of, registry=to)
        self._letters = Counter("ingestd_pipeline_dead_letters_total", "Dead letters sent.", of, registry=to)
        labels = ["pipeline", "topic"]
        self._lag = Gauge("ingestd_pipeline_lag_records", "Offsets that are not read yet.", labels, registry=to)

    def take(self, progress: BatchProgress) -> None:
        """Count one micro-batch."""
        name = progress.pipeline
        if progress.rows:
            self._seconds.labels(name).observe(progress.seconds)
        self._rows.labels(name).inc(progress.rows)
        self._state.labels(name).set(progress.state_rows)
        self._late.labels(name).inc(progress.late_rows)
        self._letters.labels(name).inc(progress.dead_letters)
        for topic, records in progress.lag.items():
            self._lag.labels(name, topic).set(records)


@contextmanager
def served(metrics: PipelineMetrics, address: str | None) -> Iterator[None]:
    """Answer GET /metrics at `HOST:PORT`. None: nowhere. Raises `ConfigurationError` if that is not free."""
    if address is None:
        yield
        return
    host, port = parse_address(address)
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise ConfigurationError(f"http: {address}: {error.strerror}") from error
    server.set_app(_metrics_alone(make_wsgi_app(metrics.registry)))
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _metrics_alone(metrics: WSGIApplication) -> WSGIApplication:
    """Another path is not there: a probe of /healthz must not take metrics for good news."""

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environment["PATH_INFO"] in {"/", "/metrics"}:
            return metrics(environment, start)
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"a pipeline has /metrics alone\n"]

    return answer
