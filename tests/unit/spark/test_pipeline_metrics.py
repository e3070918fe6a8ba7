"""Metrics of a pipeline by HTTP."""

from __future__ import annotations

import socket
from http.client import HTTPConnection

import pytest

from ingestd.spark.pipelines.metrics import PipelineMetrics, served


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/", 200), ("/healthz", 404), ("/readyz", 404)])
def test_metrics_are_all_that_a_pipeline_answers(path: str, status: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    with served(PipelineMetrics(), address):
        asked = HTTPConnection(address, timeout=10)
        asked.request("GET", path)
        answer = asked.getresponse()
        assert answer.status == status
        assert (b"ingestd_pipeline_rows_total" in answer.read()) == (status == 200)
        asked.close()
