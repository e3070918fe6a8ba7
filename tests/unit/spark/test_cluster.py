import pickle
import re

import pytest

from ingestd.errors import ConfigurationError
from ingestd.spark.cluster import CLUSTER_OPTIONS, REFUSED, cluster_of
from ingestd.spark.given import Given

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECRET = 'p=,"\\;ﬁ'
ACCOUNT = 'username="shipper" password="p=,\\"\\\\;ﬁ"'


def cluster(**options):
    given = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    return cluster_of(Given("ingestd source", {"bootstrap": "a:1"} | given, CLUSTER_OPTIONS, REFUSED))


def sasl(protocol="SASL_SSL", mechanism="SCRAM-SHA-512", config=f"{SCRAM} required {ACCOUNT};"):
    return cluster(security_protocol=protocol, sasl_mechanism=mechanism, sasl_jaas_config=config)


@pytest.mark.parametrize(
    ("mechanism", "config"),
    [
        ("PLAIN", f"{PLAIN} required {ACCOUNT};"),
        ("SCRAM-SHA-256", f"  shaded.{SCRAM}\n required\n {ACCOUNT} ;\n"),
        ("SCRAM-SHA-512", f"{SCRAM} required {ACCOUNT} tokenauth=false;"),
    ],
)
def test_an_account_is_read_as_java_reads_it_and_never_shown(mechanism, config):
    found = sasl(mechanism=mechanism, config=config)
    account = found.client.connection.sasl
    assert (account.name, account.username, account.password.read()) == (mechanism, "shipper", SECRET)
    assert found.client.connection.tls is not None
    assert "ﬁ" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_protocols_name_says_what_is_encrypted():
    assert cluster().client.connection.tls is None
    plain = sasl("sasl_plaintext", "PLAIN", f"{PLAIN} required {ACCOUNT};").client.connection
    assert plain.tls is None
    assert plain.sasl.cleartext


def test_files_of_tls_are_named_and_the_brokers_name_may_go_unverified(tmp_path):
    given = {"ssl_truststore_location": str(tmp_path / "ca.pem"), "ssl_truststore_type": "PEM"}
    tls = cluster(security_protocol="SSL", **given).client.connection.tls
    assert (tls.ca_file, tls.verify) == (tmp_path / "ca.pem", "full")
    tls = cluster(security_protocol="SSL", ssl_endpoint_identification_algorithm="").client.connection.tls
    assert tls.verify == "certificate"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"security_protocol": "TLS"}, "option kafka.security.protocol = 'TLS'; expected PLAINTEXT, SSL"),
        ({"security_protocol": "SSL", "ssl_truststore_type": "JKS"}, "kafka.ssl.truststore.type = 'JKS'; expected pem"),
        ({"ssl_keystore_key": "-----BEGIN"}, "kafka.ssl.keystore.key is not supported; expected a PEM file"),
        ({"security_protocol": "SASL_SSL"}, "kafka.sasl.mechanism = None; expected PLAIN, SCRAM-SHA-256"),
    ],
)
def test_what_is_wrong_is_named(options, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        cluster(**options)


@pytest.mark.parametrize(
    "config",
    [
        "",
        SECRET,
        f"{PLAIN} required {ACCOUNT};",
        f'{SCRAM} required username="shipper";',
        f"{SCRAM} required {ACCOUNT}; {SCRAM} required {ACCOUNT};",
        f'{SCRAM} required username="shipper" password="{SECRET}',
    ],
)
def test_a_wrong_login_is_refused_without_a_word_of_it(config):
    with pytest.raises(ConfigurationError, match=r"option kafka.sasl.jaas.config = \(not shown\); expected") as caught:
        sasl(config=config)
    assert "ﬁ" not in str(caught.value)
