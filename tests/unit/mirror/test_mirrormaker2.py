"""Where MirrorMaker 2 stopped: what its records say."""

import pytest

from ingestd.client.metadata import TopicPartition
from ingestd.errors import IngestdError
from ingestd.mirror.mirrormaker2 import note_offset

KEY = b'["MirrorSourceConnector",{"cluster":"east","partition":3,"topic":"orders"}]'


def noted(*records):
    found = {}
    for key, value in records:
        note_offset(found, "east", key, value)
    return found


def test_the_offset_is_of_the_last_record_that_was_copied_and_the_newest_counts():
    assert noted((KEY, b'{"offset":41}'), (KEY, b'{"offset":99}')) == {TopicPartition("orders", 3): 100}


def test_an_offset_that_was_dropped_is_none():
    assert noted((KEY, b'{"offset":41}'), (KEY, None)) == {}


@pytest.mark.parametrize(
    "key",
    [
        KEY.replace(b"east", b"north"),
        b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"east","targetClusterAlias":"west"}]',
        b'["MirrorCheckpointConnector",{"group":"g","partition":0,"topic":"orders"}]',
    ],
)
def test_what_is_of_others_is_passed_over(key):
    assert noted((key, b'{"offset":41}')) == {}


@pytest.mark.parametrize(("key", "value"), [(b"", b"{}"), (None, b"{}"), (KEY, b"{}"), (KEY, b"x"), (b"[1]", b"{}")])
def test_what_can_not_be_understood_is_named(key, value):
    with pytest.raises(IngestdError, match="expected what MirrorMaker 2 writes"):
        noted((key, value))
