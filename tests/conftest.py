"""Fixtures of every test. The harness on real Kafka is a plugin, so that any directory can use it."""

pytest_plugins = ["harness.fixtures"]
