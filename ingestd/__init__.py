"""ingestd: a multiprocess, high-throughput ingestion daemon for Apache Kafka."""

__version__ = "0.1.0"
