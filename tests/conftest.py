"""Fixtures of every test. The harnesses, on real Kafka and on the embedded broker, are plugins for all directories."""

pytest_plugins = ["harness.fixtures", "embedded.fixtures"]
