"""Certificates for tests: an authority made for one run, and what it issued, as PEM files."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import trustme
from cryptography.hazmat.primitives import serialization

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Certificates"]


class Certificates:
    """One certificate authority and its files in a directory.

    ca: what to trust. foreign_ca: an authority that issued nothing here. broker, expired: certificate and key in one
    file, for 127.0.0.1 only. client, client_key, encrypted_key (with `KEY_PASSWORD`): for mutual TLS; foreign_client:
    certificate and key of the other authority's client.
    """

    KEY_PASSWORD = "opens-the-key"

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        authority, foreign = trustme.CA(organization_name="ingestd tests"), trustme.CA(organization_name="elsewhere")
        past = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
        self.ca = self._write("ca.pem", authority.cert_pem.bytes())
        self.foreign_ca = self._write("foreign-ca.pem", foreign.cert_pem.bytes())
        self.broker = self._write("broker.pem", _whole(authority.issue_cert("127.0.0.1")))
        expired = authority.issue_cert("127.0.0.1", not_before=past - dt.timedelta(days=9), not_after=past)
        self.expired = self._write("expired.pem", _whole(expired))
        client = authority.issue_cert("client@ingestd.test", common_name="client")
        self.client = self._write("client.pem", _chain(client))
        self.client_key = self._write("client-key.pem", _key(client))
        self.encrypted_key = self._write("client-key-encrypted.pem", _key(client, self.KEY_PASSWORD))
        self.foreign_client = self._write("foreign-client.pem", _whole(foreign.issue_cert("client@elsewhere.test")))

    def _write(self, name: str, content: bytes) -> Path:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path


def _chain(issued: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems)


def _key(issued: trustme.LeafCert, password: str | None = None) -> bytes:
    """In PKCS 8, the only form that Java reads."""
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def _whole(issued: trustme.LeafCert) -> bytes:
    return _key(issued) + _chain(issued)
