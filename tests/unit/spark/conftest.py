"""Fetched batches without a broker."""

import pytest

from ingestd.consumer.fetched import cut
from ingestd.consumer.settings import Isolation
from ingestd.records.batch import patch_offset, patch_producer
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Compression


@pytest.fixture
def fetched():
    """fetched(first offset, [(key, value, headers, timestamp)…], …): a batch as the consumer hands it out."""

    def make(base_offset, records, *, position=0, end=None, log_append_time=False):
        builder = BatchBuilder(1 << 24)
        for key, value, headers, timestamp_ms in records:
            builder.append(key, value, headers, timestamp_ms)
        batch = memoryview(builder.build(Compression.parse("lz4")))
        if log_append_time:
            batch[22] |= 0x08
        patch_producer(batch, -1, -1, -1)
        patch_offset(batch, base_offset, 0)
        found = cut(batch, len(batch), position=position, end=end, isolation=Isolation.read_uncommitted, aborted=())
        return found.batches[0]

    return make
