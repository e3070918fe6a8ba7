"""Consumers: from a partition to records, batches or columns."""
