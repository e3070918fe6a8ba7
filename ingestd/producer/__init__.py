"""Producers: from a record or a batch to an acknowledgement."""
