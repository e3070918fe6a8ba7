"""ingestd: a multiprocess, high-throughput ingestion daemon for Apache Kafka, and the client that it is made of.

`from ingestd import Client, AsyncProducer, SyncProducer, Consumer, ConsumerGroup, ClusterAdmin`: what a user of the
client begins with is imported from here; the rest from the module that it lives in. Each name is imported when it is
first asked for, so that a process pays for what it uses.
"""

import contextlib
import importlib
from typing import TYPE_CHECKING, Any, Final

from ingestd.imports import without

if TYPE_CHECKING:
    from ingestd.client.admin import ClusterAdmin
    from ingestd.client.client import Client
    from ingestd.client.group import GroupMember, OffsetAndMetadata
    from ingestd.client.metadata import TopicPartition
    from ingestd.client.settings import ClientSettings
    from ingestd.consumer.blocking import BlockingConsumer
    from ingestd.consumer.consumer import Consumer
    from ingestd.consumer.group.consumer_group import ConsumerGroup
    from ingestd.consumer.group.handler import ConsumerGroupHandler
    from ingestd.consumer.group.settings import GroupSettings
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.settings import AtTime, ConsumerSettings, Edge, Isolation
    from ingestd.errors import (
        AuthenticationFailed,
        CommitOutcomeUnknown,
        IngestdError,
        KafkaError,
        ProducerFenced,
        TransactionFailed,
    )
    from ingestd.producer.delivery import Delivery
    from ingestd.producer.producer import AsyncProducer
    from ingestd.producer.settings import ProducerSettings
    from ingestd.producer.sync import SyncProducer
    from ingestd.producer.transaction_state import TransactionState
    from ingestd.records.decode import Record
    from ingestd.wire.connection import ConnectionSettings
    from ingestd.wire.sasl.client_credentials import ClientCredentials
    from ingestd.wire.sasl.oauthbearer import OAuthBearer
    from ingestd.wire.sasl.plain import Plain
    from ingestd.wire.sasl.scram import Scram
    from ingestd.wire.secret import Secret
    from ingestd.wire.tls import TlsSettings

__version__ = "0.1.0"

__all__ = [
    "AsyncProducer",
    "AtTime",
    "AuthenticationFailed",
    "BlockingConsumer",
    "Client",
    "ClientCredentials",
    "ClientSettings",
    "ClusterAdmin",
    "CommitOutcomeUnknown",
    "ConnectionSettings",
    "Consumer",
    "ConsumerGroup",
    "ConsumerGroupHandler",
    "ConsumerSettings",
    "Delivery",
    "Edge",
    "GroupMember",
    "GroupSettings",
    "IngestdError",
    "Isolation",
    "KafkaError",
    "OAuthBearer",
    "OffsetAndMetadata",
    "PartitionConsumer",
    "Plain",
    "ProducerFenced",
    "ProducerSettings",
    "Record",
    "Scram",
    "Secret",
    "SyncProducer",
    "TlsSettings",
    "TopicPartition",
    "TransactionFailed",
    "TransactionState",
    "__version__",
]

_HOMES: Final = {
    "client.admin": ("ClusterAdmin",),
    "client.client": ("Client",),
    "client.group": ("GroupMember", "OffsetAndMetadata"),
    "client.metadata": ("TopicPartition",),
    "client.settings": ("ClientSettings",),
    "consumer.blocking": ("BlockingConsumer",),
    "consumer.consumer": ("Consumer",),
    "consumer.group.consumer_group": ("ConsumerGroup",),
    "consumer.group.handler": ("ConsumerGroupHandler",),
    "consumer.group.settings": ("GroupSettings",),
    "consumer.partition_consumer": ("PartitionConsumer",),
    "consumer.settings": ("AtTime", "ConsumerSettings", "Edge", "Isolation"),
    "errors": (
        "AuthenticationFailed",
        "CommitOutcomeUnknown",
        "IngestdError",
        "KafkaError",
        "ProducerFenced",
        "TransactionFailed",
    ),
    "producer.delivery": ("Delivery",),
    "producer.producer": ("AsyncProducer",),
    "producer.settings": ("ProducerSettings",),
    "producer.sync": ("SyncProducer",),
    "producer.transaction_state": ("TransactionState",),
    "records.decode": ("Record",),
    "wire.connection": ("ConnectionSettings",),
    "wire.sasl.client_credentials": ("ClientCredentials",),
    "wire.sasl.oauthbearer": ("OAuthBearer",),
    "wire.sasl.plain": ("Plain",),
    "wire.sasl.scram": ("Scram",),
    "wire.secret": ("Secret",),
    "wire.tls": ("TlsSettings",),
}
_HOME_OF: Final = {name: f"ingestd.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ingestd' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})


# kio imports hypothesis, for its own tests, wherever that is installed: 0.1 CPU seconds and 13 MB for every process of
# ours in a development environment, and thus in every benchmark.
with without("hypothesis"), contextlib.suppress(ImportError):
    importlib.import_module("kio.static._phantom")
