"""Real Apache Kafka for tests and load tests: from Maven, one node or several, killed and restarted at will."""
