"""A cluster of a configuration reaches Spark as options; and the source makes the same connection of them."""

from __future__ import annotations

from typing import Any

import pytest

from ingestd.daemon.configuration import ClusterSettings
from ingestd.daemon.security import SaslSettings
from ingestd.errors import ConfigurationError
from ingestd.spark.pipelines.clusters import cluster_options
from ingestd.spark.read_options import read_options
from ingestd.wire.sasl.plain import Plain
from ingestd.wire.sasl.scram import Scram
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

PASSWORD = 'it\'s "\\n"; secret'


@pytest.mark.parametrize(
    "tls",
    [
        None,
        TlsSettings(),
        TlsSettings(ca_file="/ca", certificate_file="/mine", key_password="p", verify="certificate"),
    ],
)
@pytest.mark.parametrize("mechanism", [None, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_source_connects_as_the_configuration_says(tls: TlsSettings | None, mechanism: Any) -> None:
    account = {"username": 'a "b', "password": PASSWORD, "cleartext": mechanism == "PLAIN"}
    sasl = None if mechanism is None else SaslSettings(mechanism, **account)
    options = cluster_options(ClusterSettings("c", bootstrap=("k:1", "l:2"), tls=tls, sasl=sasl), ("k:1", "l:2"))
    found = read_options({**options, "subscribe": "t"}).cluster
    assert found.bootstrap == ("k:1", "l:2")
    assert found.client.connection.tls == tls
    expected = {
        None: None,
        "PLAIN": Plain('a "b', Secret(value=PASSWORD), cleartext=tls is None),
        "SCRAM-SHA-256": Scram('a "b', Secret(value=PASSWORD), "SHA-256"),
        "SCRAM-SHA-512": Scram('a "b', Secret(value=PASSWORD), "SHA-512"),
    }[mechanism]
    assert found.client.connection.sasl == expected


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"tls": TlsSettings(verify="none")}, "tls.verify"),
        ({"tls": TlsSettings(server_name="x")}, "tls.server_name"),
        ({"tls": TlsSettings(certificate_file="/c", key_file="/k")}, "tls.key_file"),
    ],
)
def test_what_the_source_has_no_option_for_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"clusters.c.{key}: expected "):
        cluster_options(ClusterSettings("c", bootstrap=("k:1",), **settings), ("k:1",))
