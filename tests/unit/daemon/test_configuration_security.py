"""`tls` and `sasl` of a cluster: what they may say, that what is wrong is named, and that no secret is shown."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ingestd.daemon.configuration_file import load
from ingestd.daemon.control import Configure
from ingestd.daemon.security import SaslSettings
from ingestd.daemon.tables import FaultyConfiguration
from ingestd.errors import ConfigurationError
from ingestd.wire import secret
from ingestd.wire.sasl.oauthbearer import OAuthBearer
from ingestd.wire.sasl.plain import Plain
from ingestd.wire.sasl.scram import Scram
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.daemon.configuration import Configuration

HIDDEN = "hunter2"
ABSOLUTE = 'expected an absolute path, as in "/etc/ingestd/NAME"'
BEARER = "mechanism='OAUTHBEARER', token_endpoint='https://id.test/token', client_id='me', client_secret='hunter2'"


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], Configuration]:
    """A cluster `a` with these lines."""

    def read(lines: str) -> Configuration:
        file = tmp_path / "ingestd.toml"
        file.touch(mode=0o600)
        file.write_text(f"[clusters.a]\nbootstrap = ['b:1']\n{lines}\n")
        return load(file, {})

    return read


@pytest.fixture
def faults(read: Callable[[str], Configuration]) -> Callable[[str], list[str]]:
    """What is wrong with a cluster `a` that has these lines."""

    def faults(lines: str) -> list[str]:
        with pytest.raises(FaultyConfiguration) as caught:
            read(lines)
        return [str(fault).partition("ingestd.toml: clusters.a.")[2] for fault in caught.value.faults]

    return faults


def test_tls_without_keys_is_tls_by_default(read: Callable[[str], Configuration]) -> None:
    cluster = read("tls = {}").clusters["a"]
    assert cluster.tls == TlsSettings()
    assert cluster.connection("me").tls == TlsSettings()
    assert read("").clusters["a"].connection("me").tls is None


def test_every_key_of_tls(read: Callable[[str], Configuration]) -> None:
    text = """tls = { ca_file = "/ca", certificate_file = "/c", key_file = "/k", key_password = { file = "/p" }, \
verify = "certificate", server_name = "kafka", minimum_version = "1.3" }"""
    assert read(text).clusters["a"].tls == TlsSettings(
        Path("/ca"), Path("/c"), Path("/k"), Secret(file=Path("/p")), "certificate", "kafka", "1.3"
    )


@pytest.mark.parametrize(
    ("lines", "mechanism"),
    [
        ("tls={}\nsasl={mechanism='PLAIN', username='me', password='p'}", Plain("me", "p")),
        ("sasl={mechanism='PLAIN', username='me', password='p', cleartext=true}", Plain("me", "p", cleartext=True)),
        ("sasl={mechanism='SCRAM-SHA-256', username='me', password='p'}", Scram("me", "p", "SHA-256")),
        ("sasl={mechanism='SCRAM-SHA-512', username='me', password={value='p'}}", Scram("me", "p")),
        (
            "[clusters.a.sasl]\nmechanism='SCRAM-SHA-512'\nusername='me'\npassword.environment='P'",
            Scram("me", Secret(environment="P")),
        ),
    ],
)
def test_every_mechanism_with_an_account(read: Callable[[str], Configuration], lines: str, mechanism: object) -> None:
    assert read(lines).clusters["a"].connection("me").sasl == mechanism


def test_tokens_by_client_credentials(read: Callable[[str], Configuration]) -> None:
    text = f"tls={{}}\nsasl={{{BEARER}, scope='kafka', token_ca_file='/ca', extensions={{logicalCluster='lkc-1'}}}}"
    sasl = read(text).clusters["a"].connection("me").sasl
    assert isinstance(sasl, OAuthBearer)
    assert repr(sasl.token) == "<ClientCredentials me at https://id.test/token>"
    assert sasl.extensions == {"logicalCluster": "lkc-1"}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("tls = true", "tls = true: expected a table; {} will do where this machine trusts the brokers' authority"),
        ("tls = {cafile='/x'}", "tls.cafile = (hidden): unknown key; did you mean 'ca_file'?"),
        (
            "tls = {verify='nune'}",
            "tls.verify = \"nune\": expected 'full', 'certificate' or 'none'; did you mean 'none'?",
        ),
        ("tls = {minimum_version=1.2}", "tls.minimum_version = 1.2: expected '1.2' or '1.3'"),
        ("tls = {key_file='/k'}", 'tls.key_file = "/k": expected certificate_file beside it'),
        ("tls = {key_password='hunter2'}", "tls.key_password = (hidden): expected certificate_file beside it"),
        (
            "tls = {certificate_file='/c', key_password={fil='hunter2'}}",
            "tls.key_password.fil = (hidden): unknown key; did you mean 'file'?",
        ),
        ("sasl = 'hunter2'", "sasl = (hidden): expected a table"),
        ("sasl = {}", "sasl.mechanism: missing, and has no default"),
        (
            "sasl = {mechanism='SCRAM-SHA-1', username='me', password='hunter2'}",
            """sasl.mechanism = "SCRAM-SHA-1": expected 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512' or 'OAUTHBEARER'; \
did you mean 'SCRAM-SHA-512'?""",
        ),
        ("sasl = {mechanism='SCRAM-SHA-512', password='hunter2'}", "sasl.username: expected one, for SCRAM-SHA-512"),
        ("sasl = {mechanism='SCRAM-SHA-512', username='me'}", "sasl.password: expected one, for SCRAM-SHA-512"),
        (
            "sasl = {mechanism='SCRAM-SHA-512', username='me', password='hunter2', scope='x'}",
            'sasl.scope = "x": expected none, for SCRAM-SHA-512',
        ),
        (
            "sasl = {mechanism='SCRAM-SHA-512', username='me', pasword='hunter2'}",
            "sasl.pasword = (hidden): unknown key; did you mean 'password'?",
        ),
        (
            "sasl = {mechanism='SCRAM-SHA-512', username='me', password=7}",
            "sasl.password = (hidden): expected a table or a string",
        ),
        (
            "sasl = {mechanism='SCRAM-SHA-512', username='me', password={}}",
            "sasl.password.file: expected exactly one of file, environment and value",
        ),
        (
            "sasl = {mechanism='SCRAM-SHA-512', username='me', password={file='/p', value='hunter2'}}",
            'sasl.password.file = "/p": expected exactly one of file, environment and value',
        ),
        (
            "sasl = {mechanism='SCRAM-SHA-512', username='me', password={file=3}}",
            "sasl.password.file = 3: expected a path",
        ),
        (
            "sasl = {mechanism='SCRAM-SHA-512', username='me', password={passwd='hunter2'}}",
            "sasl.password.passwd = (hidden): unknown key",
        ),
        (
            "sasl = {mechanism='PLAIN', username='me', password='hunter2'}",
            "tls: expected TLS, since PLAIN sends a secret as it is, or `clusters.a.sasl.cleartext = true` to allow it",
        ),
        (
            f"tls = {{}}\nsasl = {{{BEARER.replace('https://', 'http://')}}}",
            'sasl.token_endpoint = "http://id.test/token": expected an https URL without a user in it',
        ),
        (
            f"tls = {{}}\nsasl = {{{BEARER.replace('https://', 'https://me:hunter2@')}}}",
            "sasl.token_endpoint = (hidden): expected an https URL without a user in it",
        ),
        (
            f"tls = {{}}\nsasl = {{{BEARER}, extensions={{auth='hunter2'}}}}",
            "sasl.extensions = (hidden): expected names of letters other than auth, not 'auth'",
        ),
        ("tls = {ca_file='ca'}", f'tls.ca_file = "ca": {ABSOLUTE}'),
        ("tls = {certificate_file='~/c'}", f'tls.certificate_file = "~/c": {ABSOLUTE}'),
        ("tls = {certificate_file='/c', key_file='k'}", f'tls.key_file = "k": {ABSOLUTE}'),
        (
            "tls = {certificate_file='/c', key_password={file='p'}}",
            f'tls.key_password.file = "p": {ABSOLUTE}',
        ),
        (
            "sasl = {mechanism='SCRAM-SHA-512', username='me', password={file='p'}}",
            f'sasl.password.file = "p": {ABSOLUTE}',
        ),
        (f"tls = {{}}\nsasl = {{{BEARER}, token_ca_file='ca'}}", f'sasl.token_ca_file = "ca": {ABSOLUTE}'),
        (
            "tls = {}\nsasl = {" + BEARER.replace("'hunter2'", "{file='s'}") + "}",
            f'sasl.client_secret.file = "s": {ABSOLUTE}',
        ),
        (
            f"tls = {{}}\nsasl = {{{BEARER}, extensions={{a=1}}}}",
            "sasl.extensions.a = (hidden): expected a string",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_key_and_no_secret_is_shown(
    faults: Callable[[str], list[str]], lines: str, expected: str
) -> None:
    found = faults(lines)
    assert found == [expected]
    assert HIDDEN not in "".join(found)


def test_an_embedded_cluster_has_neither(tmp_path: Path) -> None:
    file = tmp_path / "ingestd.toml"
    file.write_text("[clusters.a]\nembedded = true\ntls = {}\nsasl = {mechanism='PLAIN', username='me', password='x'}")
    with pytest.raises(FaultyConfiguration) as caught:
        load(file, {})
    assert [str(fault).partition("clusters.a.")[2] for fault in caught.value.faults] == [
        "tls = (hidden): expected none, in an embedded cluster",
        "sasl = (hidden): expected none, in an embedded cluster",
    ]


@pytest.mark.parametrize("given", ["'hunter2'", "{value='hunter2'}"])
def test_a_secret_in_a_file_for_everybody_is_in_the_log(
    read: Callable[[str], Configuration], caplog: pytest.LogCaptureFixture, tmp_path: Path, given: str
) -> None:
    secret.warn_if_others_can_read.cache_clear()
    (tmp_path / "ingestd.toml").touch(mode=0o644)
    with caplog.at_level(logging.WARNING, "ingestd"):
        configuration = read(f"sasl = {{mechanism='SCRAM-SHA-512', username='me', password={given}}}")
        assert not caplog.records, "the log is not set up before the configuration is read"
        configuration.check_security("a")
    said = "every user of this machine can read the secret in it; chmod o= would end that"
    assert [record.getMessage() for record in caplog.records] == [f"{tmp_path}/ingestd.toml (-rw-r--r--): {said}"]


def test_a_secret_elsewhere_says_nothing_of_the_configuration(
    read: Callable[[str], Configuration], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    secret.warn_if_others_can_read.cache_clear()
    (tmp_path / "ingestd.toml").touch(mode=0o644)
    (tmp_path / "p").touch(mode=0o600)
    (tmp_path / "p").write_text(HIDDEN)
    with caplog.at_level(logging.WARNING, "ingestd"):
        sasl = f"sasl = {{mechanism='SCRAM-SHA-512', username='me', password={{file='{tmp_path}/p'}}}}"
        read(sasl).check_security("a")
    assert not caplog.records


def test_no_secret_is_in_a_repr_or_in_what_workers_get_unless_it_stands_in_the_configuration(
    read: Callable[[str], Configuration], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p").write_text(HIDDEN)
    monkeypatch.setenv("SECRET_OF_THIS_TEST", HIDDEN)
    for place in (f"{{file='{tmp_path}/p'}}", "{environment='SECRET_OF_THIS_TEST'}"):
        configuration = read(f"sasl = {{mechanism='SCRAM-SHA-512', username='me', password={place}}}")
        configuration.check_security("a")
        message = Configure(0, 1, (), configuration.clusters, "info", "json", 1.0, 1.0)
        assert HIDDEN.encode() not in pickle.dumps(message)
        assert pickle.loads(pickle.dumps(message)) == message
    inline = read("sasl = {mechanism='SCRAM-SHA-512', username='me', password='hunter2'}")
    assert HIDDEN not in repr(inline)
    assert HIDDEN not in repr(inline.clusters["a"].connection("me"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("tls = {ca_file='/nowhere'}", "clusters.a.tls.ca_file: /nowhere: can not be read: No such file or directory"),
        (
            "sasl = {mechanism='SCRAM-SHA-512', username='me', password={file='/nowhere'}}",
            "clusters.a.sasl.password: /nowhere: a secret can not be read: No such file or directory",
        ),
        (
            "sasl = {mechanism='SCRAM-SHA-512', username='me', password={environment='NOT_SET_HERE'}}",
            "clusters.a.sasl.password: environment variable NOT_SET_HERE: empty or not set; expected a secret",
        ),
        (
            f"tls = {{}}\nsasl = {{{BEARER}, token_ca_file='/nowhere'}}",
            "clusters.a.sasl.token_ca_file: /nowhere: can not be read: No such file or directory",
        ),
    ],
)
def test_what_can_not_be_read_is_named_by_file_and_key(
    read: Callable[[str], Configuration], tmp_path: Path, lines: str, message: str
) -> None:
    configuration = read(lines)  # which looks at nothing else: it may be checked on another machine
    with pytest.raises(ConfigurationError) as caught:
        configuration.check_security("a")
    assert str(caught.value) == f"{tmp_path}/ingestd.toml: {message}"


def test_all_that_can_not_be_read_of_a_cluster_is_named_at_once(
    read: Callable[[str], Configuration], tmp_path: Path
) -> None:
    """Of a password file, an authority and a client's certificate that are all missing, the first alone was named."""
    (tmp_path / "empty").touch()
    configuration = read(
        f"""tls = {{ca_file='{tmp_path}/empty', certificate_file='/c', key_file='/k', key_password={{file='/kp'}}}}
sasl = {{mechanism='SCRAM-SHA-512', username='me', password={{file='/p'}}}}"""
    )
    with pytest.raises(ConfigurationError) as caught:
        configuration.check_security("a")
    gone = "No such file or directory"
    assert [line.partition("clusters.a.")[2] for line in str(caught.value).splitlines()] == [
        f"tls.key_password: /kp: a secret can not be read: {gone}",
        f"sasl.password: /p: a secret can not be read: {gone}",
        f"tls.ca_file: {tmp_path}/empty: no certificates in PEM: no certificate or crl found",
        f"tls.certificate_file: /c: can not be read: {gone}",
        f"tls.key_file: /k: can not be read: {gone}",
    ]


def test_a_password_that_can_not_be_read_is_named_once(
    read: Callable[[str], Configuration], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read for itself, and once more to open the key."""
    monkeypatch.setattr(
        "ingestd.daemon.configuration.client_context", lambda tls: tls.key_password and tls.key_password.read()
    )
    configuration = read("tls = {certificate_file='/c', key_password={environment='NOT_SET_HERE'}}")
    with pytest.raises(ConfigurationError) as caught:
        configuration.check_security("a")
    assert str(caught.value).count("NOT_SET_HERE") == 1


def test_settings_made_in_python_are_held_to_the_same() -> None:
    with pytest.raises(ConfigurationError, match="password: expected one, for PLAIN"):
        SaslSettings("PLAIN", username="me")


def test_a_worker_without_security_imports_nothing_for_it() -> None:
    program = (
        "import sys, ingestd.daemon.worker, ingestd.daemon.configuration as c; "
        "c.ClusterSettings('a', bootstrap=('b:1',)).connection('x'); "
        "print(sorted({'scramp', 'asn1crypto', 'aiohttp', 'ingestd.wire.sasl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
