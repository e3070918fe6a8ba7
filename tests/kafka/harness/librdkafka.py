"""The librdkafka that confluent-kafka brings along: its partitioners and its mock cluster, which Python does not reach.

The mock cluster: https://github.com/confluentinc/librdkafka/blob/master/src/rdkafka_mock.h
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import confluent_kafka
from confluent_kafka import cimpl  # noqa: F401 - loads the library with what it needs

from ingestd.errors import ErrorCode

if TYPE_CHECKING:
    from ingestd.wire.apis import Api

__all__ = ["DISCONNECT", "LIBRARY", "MockCluster"]

_DIRECTORY = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")

LIBRARY: Final = ctypes.CDLL(str(next(_DIRECTORY.glob("librdkafka-*.so*"))))

DISCONNECT: Final = -195
"""In place of an error code: the broker closes the connection instead of answering."""

_PRODUCER: Final = 0


def _declared(name: str, result: Any, *arguments: Any) -> Any:
    function = LIBRARY[name]
    function.restype = result
    function.argtypes = arguments
    return function


_conf_new = _declared("rd_kafka_conf_new", c_void_p)
_conf_set = _declared("rd_kafka_conf_set", c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)
_new = _declared("rd_kafka_new", c_void_p, c_int, c_void_p, c_char_p, c_size_t)
_destroy = _declared("rd_kafka_destroy", None, c_void_p)
_cluster_new = _declared("rd_kafka_mock_cluster_new", c_void_p, c_void_p, c_int)
_cluster_destroy = _declared("rd_kafka_mock_cluster_destroy", None, c_void_p)
_bootstraps = _declared("rd_kafka_mock_cluster_bootstraps", c_char_p, c_void_p)
_topic_create = _declared("rd_kafka_mock_topic_create", c_int, c_void_p, c_char_p, c_int, c_int)
_set_leader = _declared("rd_kafka_mock_partition_set_leader", c_int, c_void_p, c_char_p, c_int32, c_int32)
_push_errors = _declared("rd_kafka_mock_push_request_errors_array", None, c_void_p, c_int16, c_size_t, POINTER(c_int))
_set_api_version = _declared("rd_kafka_mock_set_apiversion", c_int, c_void_p, c_int16, c_int16, c_int16)
_set_down = _declared("rd_kafka_mock_broker_set_down", c_int, c_void_p, c_int32)
_set_up = _declared("rd_kafka_mock_broker_set_up", c_int, c_void_p, c_int32)
_set_round_trip = _declared("rd_kafka_mock_broker_set_rtt", c_int, c_void_p, c_int32, c_int)


class MockCluster:
    """librdkafka's mock cluster, in this process, on threads of its own. Nodes have ids from 1.

    It keeps what it is sent in memory, as it was sent, and checks producer ids, not sequences.
    """

    def __init__(self, nodes: int = 3) -> None:
        error = ctypes.create_string_buffer(256)
        conf = _conf_new()
        _conf_set(conf, b"log_level", b"2", error, len(error))  # the handle is no client, and says so in a warning
        self._handle = _new(_PRODUCER, conf, error, len(error))
        assert self._handle, error.value
        self._cluster = _cluster_new(self._handle, nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        _cluster_destroy(self._cluster)
        _destroy(self._handle)

    @property
    def servers(self) -> str:
        """HOST:PORT of every node."""
        return str(_bootstraps(self._cluster), "ascii")

    @property
    def bootstrap(self) -> list[str]:
        """The same as a list."""
        return self.servers.split(",")

    def create_topic(self, topic: str, partitions: int, replicas: int = 1) -> None:
        """Create a topic."""
        self._check(_topic_create(self._cluster, topic.encode(), partitions, replicas))

    def fail(self, api: Api, *errors: ErrorCode | int) -> None:
        """Answer the next requests of `api`, to any node, with these errors (none: as it should), or `DISCONNECT`."""
        codes = (c_int * len(errors))(*(int(error) for error in errors))
        _push_errors(self._cluster, api, len(errors), codes)

    def lead(self, topic: str, partition: int, node: int) -> None:
        """Make a node the leader of a partition; -1: nobody."""
        self._check(_set_leader(self._cluster, topic.encode(), partition, node))

    def limit(self, api: Api, lowest: int, highest: int) -> None:
        """Speak these versions of `api` only."""
        self._check(_set_api_version(self._cluster, api, lowest, highest))

    def down(self, node: int) -> None:
        """Close a node's connections, and take no more."""
        self._check(_set_down(self._cluster, node))

    def up(self, node: int) -> None:
        """Take connections again."""
        self._check(_set_up(self._cluster, node))

    def slow(self, node: int, milliseconds: int) -> None:
        """Let every answer of a node take so long."""
        self._check(_set_round_trip(self._cluster, node, milliseconds))

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise RuntimeError(f"librdkafka's mock cluster: {ErrorCode(code) if code > 0 else code}")
