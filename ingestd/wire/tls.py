"""TLS: what a client trusts and shows, as an `ssl.SSLContext`. And the error for a failed handshake."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path  # noqa: TC003 - types of fields are looked up when a configuration is read
from typing import TYPE_CHECKING, Final, Literal

from ingestd.checks import Checks, as_path, check_kinds
from ingestd.errors import AuthenticationFailed, ConfigurationError, IngestdError
from ingestd.wire.secret import Secret, warn_if_others_can_read

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TlsSettings", "UnusableTls", "client_context", "handshake_error"]

_log = logging.getLogger(__name__)


class UnusableTls(ConfigurationError):
    """The files of TLS settings can not be used. `problems`: the setting of each, with what is wrong."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(problem for _, problem in problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[UnusableTls], tuple[object]]:
        return UnusableTls, (self.problems,)  # it may go from one process to another


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How a client does TLS. The defaults verify the broker's certificate and name. Files are PEM.

    A file that was replaced (a renewed certificate) counts from the next connection on. Raises `WrongSetting` and
    `ConfigurationError`, naming the setting. Files are read when a connection needs them.
    """

    ca_file: Path | None = None
    """PEM file of the authorities that may sign brokers' certificates; by default those that the system trusts."""
    certificate_file: Path | None = None
    """PEM file with this client's certificate and its intermediates, for brokers that ask for one (mutual TLS)."""
    key_file: Path | None = None
    """PEM file with that certificate's private key; without it, the key is in `certificate_file` too."""
    key_password: Secret | str | None = None
    """The password of the private key, if it is encrypted: a secret."""
    verify: Literal["full", "certificate", "none"] = "full"
    """`full`: the broker's certificate and its name are verified; `certificate`: not its name; `none`: nothing. With
    `none` anybody on the network can read and change everything; the log says so at every start."""
    server_name: str | None = None
    """The name that brokers' certificates must have, if it is not the host that is connected to (a tunnel)."""
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest version of TLS that is spoken."""

    def __post_init__(self) -> None:
        for name in ("ca_file", "certificate_file", "key_file"):
            object.__setattr__(self, name, as_path(name, getattr(self, name)))
        check_kinds(self, {"server_name": str})
        checks = Checks()
        for name, choices in (("verify", _CHOICES), ("minimum_version", tuple(_VERSIONS))):
            checks.require(name, " or ".join(map(repr, choices)), holds=getattr(self, name) in choices)
        object.__setattr__(self, "key_password", Secret.of(self.key_password))
        for name in ("key_file", "key_password"):
            holds = getattr(self, name) is None or self.certificate_file is not None
            checks.require(name, "certificate_file beside it", holds=holds, beside=["certificate_file"])
        checks.finish()


_CHOICES: Final = ("full", "certificate", "none")
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of these settings. It is made again only if one of the files has changed.

    Raises `UnusableTls`, with a line for each file that is wrong.
    """
    files = (settings.ca_file, settings.certificate_file, settings.key_file)
    return _context(settings, tuple(None if file is None else _stamp(file) for file in files))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None  # whoever reads it says so
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=32)
def _context(settings: TlsSettings, _files: tuple[object, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and name unless told otherwise
    context.minimum_version = _VERSIONS[settings.minimum_version]
    if settings.verify != "full":
        context.check_hostname = False
        unchecked = "name" if settings.verify == "certificate" else "certificate"
        _log.warning("TLS without a look at the brokers' %s: anybody on the way can pretend to be one", unchecked)
    problems: list[tuple[str, str]] = []
    for load in (_load_authorities, _load_certificate):
        try:
            load(context, settings)
        except UnusableTls as error:
            problems += error.problems
    if problems:
        raise UnusableTls(problems)
    return context


def _require_there(settings: TlsSettings, *names: str) -> None:
    """Raises `UnusableTls`, with a line for each file that is not there. `names`: of the settings that name it."""
    problems = []
    for name in names:
        file: Path | None = getattr(settings, name)
        try:
            if file is not None:
                file.stat()
        except OSError as error:
            problems.append((name, f"{file}: can not be read: {error.strerror}"))
    if problems:
        raise UnusableTls(problems)


def _load_authorities(context: ssl.SSLContext, settings: TlsSettings) -> None:
    ca_file = settings.ca_file
    _require_there(settings, "ca_file")
    if settings.verify == "none":
        context.verify_mode = ssl.CERT_NONE
        return
    if ca_file is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError as error:
        raise UnusableTls([("ca_file", f"{ca_file}: no certificates in PEM: {_reason(error)}")]) from None
    except OSError as error:
        raise UnusableTls([("ca_file", f"{ca_file}: can not be read: {error.strerror}")]) from error


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    certificate_file, key_file = settings.certificate_file, settings.key_file
    if certificate_file is None:
        return
    password = Secret.of(settings.key_password)
    _require_there(settings, "certificate_file", "key_file")
    holder = key_file or certificate_file
    holding = "certificate_file" if key_file is None else "key_file"

    def ask() -> str:  # OpenSSL would ask at the terminal if it were given none
        if password is None:
            raise UnusableTls([(holding, f"{holder}: its private key is encrypted; expected key_password")])
        return password.read()

    try:
        context.load_cert_chain(certificate_file, key_file, ask)
    except UnusableTls:
        raise
    except ConfigurationError as error:  # the secret can not be read
        raise UnusableTls([("key_password", str(error))]) from error
    except ssl.SSLError as error:
        encrypted = "" if password is None else ", opened with key_password"
        expected = f"expected a certificate in PEM and in {holder} its private key{encrypted}"
        raise UnusableTls([("certificate_file", f"{certificate_file}: {expected}: {_reason(error)}")]) from None
    except OSError as error:
        unread = f"{certificate_file}, {holder}: can not be read: {error.strerror}"
        raise UnusableTls([("certificate_file", unread)]) from error
    if password is None:
        warn_if_others_can_read(holder)


def handshake_error(error: BaseException, broker: str) -> IngestdError | None:
    """Why a handshake with `broker` (HOST:PORT) failed, if trying again is pointless; None if it is not pointless."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _REMEDIES.get(error.verify_code, "")
        reason = error.verify_message.rstrip(".")
        return AuthenticationFailed(f"{broker}: the broker's certificate is refused: {reason}{remedy}")
    if not isinstance(error, ssl.SSLError) or isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return None
    if error.reason in _NOT_TLS:
        return AuthenticationFailed(f"{broker}: this is not a listener for TLS")
    if "ALERT" in (error.reason or ""):
        return AuthenticationFailed(f"{broker}: the broker refused the TLS handshake: {_reason(error)}")
    return AuthenticationFailed(f"{broker}: no TLS handshake with this broker: {_reason(error)}")


_REMEDIES: Final = {
    **dict.fromkeys((18, 19, 20, 21), "; `ca_file` names whom to trust"),
    **dict.fromkeys((62, 64), "; connect to a name that is in it, or say in `server_name` which one it must have"),
}
"""By OpenSSL's number: self-signed, or signed by nobody whose certificate is there; for another name, or address."""

_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "OpenSSL does not say why").replace("_", " ").lower()
