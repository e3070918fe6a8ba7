"""Partition logs: segments of record batches as they came, their indexes, producer state, recovery and retention."""
