"""Security settings of a cluster, as a configuration file has them. They pickle; connections use what they make."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - types of fields are looked up when a configuration is read
from dataclasses import dataclass, field, fields
from pathlib import Path  # noqa: TC003
from typing import TYPE_CHECKING, Final, Literal

from ingestd.checks import Checks
from ingestd.wire.secret import Secret

if TYPE_CHECKING:
    from ingestd.wire.sasl.mechanism import SaslMechanism

__all__ = ["SaslSettings"]

_ACCOUNT: Final = frozenset({"username", "password"})
_CLIENT: Final = frozenset({"token_endpoint", "client_id", "client_secret"})
_NEEDS: Final = {"PLAIN": _ACCOUNT, "SCRAM-SHA-256": _ACCOUNT, "SCRAM-SHA-512": _ACCOUNT, "OAUTHBEARER": _CLIENT}
_TAKES: Final = {
    "PLAIN": frozenset({"cleartext"}),
    "OAUTHBEARER": frozenset({"scope", "token_ca_file", "extensions", "cleartext"}),
}


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """`sasl` of `[clusters.NAME]`: the account of this host at the cluster's brokers."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    """How this host authenticates. SCRAM never sends the password; OAUTHBEARER gets tokens by client credentials."""
    username: str | None = None
    """The account, for PLAIN and SCRAM."""
    password: Secret | str | None = None
    """Its password: a secret."""
    token_endpoint: str | None = None
    """OAUTHBEARER: the URL that gives out tokens, https unless `cleartext`."""
    client_id: str | None = None
    """OAUTHBEARER: this client's name at the token endpoint."""
    client_secret: Secret | str | None = None
    """OAUTHBEARER: the secret of that client."""
    scope: str = ""
    """OAUTHBEARER: the scope to ask for; several are separated by spaces."""
    token_ca_file: Path | None = None
    """OAUTHBEARER: PEM file of the authorities that may vouch for the token endpoint; else those of the system."""
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)
    """OAUTHBEARER: names and values that go to the broker with the token, as some services ask for."""
    cleartext: bool = False
    """Let PLAIN and OAUTHBEARER send password or token where there is no TLS, for everybody on the way to read."""

    def __post_init__(self) -> None:
        for name in ("password", "client_secret"):
            object.__setattr__(self, name, Secret.of(getattr(self, name)))
        needs = _NEEDS[self.mechanism]
        takes = needs | _TAKES.get(self.mechanism, frozenset())
        checks = Checks()
        for name in (each.name for each in fields(self) if each.name != "mechanism"):
            given = bool(getattr(self, name))
            for_it = f"for {self.mechanism}"
            checks.require(name, f"one, {for_it}", holds=given or name not in needs, beside=["mechanism"])
            checks.require(name, f"none, {for_it}", holds=name in takes or not given, beside=["mechanism"])
        if all(getattr(self, name) for name in needs):
            with checks.noting(beside=["mechanism"]):
                self.as_mechanism()
        checks.finish()

    def as_mechanism(self) -> SaslMechanism:
        """What connections authenticate with. Raises `WrongSetting`."""
        # Only what is used is imported, to keep a worker's start short.
        if self.mechanism == "OAUTHBEARER":
            return self._bearer()
        assert self.username is not None
        assert self.password is not None
        if self.mechanism == "PLAIN":
            from ingestd.wire.sasl.plain import Plain  # noqa: PLC0415

            return Plain(self.username, self.password, cleartext=self.cleartext)
        from ingestd.wire.sasl.scram import Scram  # noqa: PLC0415

        return Scram(self.username, self.password, "SHA-256" if self.mechanism == "SCRAM-SHA-256" else "SHA-512")

    def _bearer(self) -> SaslMechanism:
        from ingestd.wire.sasl.client_credentials import ClientCredentials  # noqa: PLC0415
        from ingestd.wire.sasl.oauthbearer import OAuthBearer  # noqa: PLC0415

        assert self.token_endpoint is not None
        assert self.client_id is not None
        assert self.client_secret is not None
        tokens = ClientCredentials(
            self.token_endpoint,
            self.client_id,
            self.client_secret,
            scope=self.scope,
            ca_file=self.token_ca_file,
            cleartext=self.cleartext,
        )
        return OAuthBearer(tokens, self.extensions, cleartext=self.cleartext)
