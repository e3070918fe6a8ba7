"""A Kafka for anybody's tests. With pytest: `def test_mine(kafka): …`, where `kafka` is a new `LocalKafka`."""

from __future__ import annotations

from ingestd.testing.local_kafka import LocalKafka

__all__ = ["LocalKafka"]
