"""Fixtures of every test. The harnesses, on real Kafka and on the embedded broker, are plugins that any directory can use."""

pytest_plugins = ["harness.fixtures", "embedded.fixtures"]
