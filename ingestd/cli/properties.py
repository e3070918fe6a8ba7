"""`-X NAME=VALUE`: settings by the names that librdkafka has for them, for those who know them from kcat.

Names: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ingestd.checks import did_you_mean
from ingestd.consumer.settings import Isolation
from ingestd.daemon.security import SaslSettings
from ingestd.errors import ConfigurationError, IngestdError, WrongSetting
from ingestd.producer.partitioners import PARTITIONERS
from ingestd.records.codecs import Codec, Compression
from ingestd.wire.connection import ConnectionSettings
from ingestd.wire.secret import Secret, warn_if_others_can_read
from ingestd.wire.tls import TlsSettings, client_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeVar

    from ingestd.consumer.settings import ConsumerSettings
    from ingestd.producer.settings import ProducerSettings

    Settings = TypeVar("Settings", ProducerSettings, ConsumerSettings)

__all__ = ["Properties", "known_properties", "parse_properties"]

_CLEARTEXT: Final = ("PLAIN", "OAUTHBEARER")
_LONGEST_FILE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Property:
    """A name that is known: which settings it is about, its field there, and what its value is made of."""

    settings: Literal["cluster", "connection", "tls", "sasl", "producer", "consumer"]
    field: str
    parse: Callable[[str], Any]
    """Raises `ValueError`."""
    expected: str


@dataclass(frozen=True, slots=True)
class Properties:
    """What `-X` said: values by their names. Of what a verb has no use for it takes no notice."""

    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def brokers(self) -> tuple[str, ...]:
        """`bootstrap.servers`, if it was given."""
        return tuple(self._of("cluster").values())

    @property
    def about_connections(self) -> tuple[str, ...]:
        """The names given that are about brokers, connections and security, which a configuration file has too."""
        kinds = ("cluster", "connection", "tls", "sasl")
        return tuple(name for name in self.values if _KNOWN[name].settings in kinds)

    def connection(self) -> ConnectionSettings:
        """Client id, TLS and SASL; what secrets and certificates they name can be read.

        Raises `ConfigurationError`, naming the property.
        """
        protocol = self.values.get("security.protocol", "plaintext")
        encrypted, accounts = protocol.endswith("ssl"), protocol.startswith("sasl")
        for name in self.values:
            if _KNOWN[name].settings == "tls" and not encrypted:
                raise ConfigurationError(f"-X {name}: expected security.protocol=ssl or sasl_ssl beside it")
            if _KNOWN[name].settings == "sasl" and not accounts:
                raise ConfigurationError(f"-X {name}: expected security.protocol=sasl_ssl or sasl_plaintext beside it")
        if accounts and "sasl.mechanism" not in self.values:
            raise ConfigurationError(f"-X sasl.mechanism: missing; expected {_KNOWN['sasl.mechanism'].expected}")
        try:
            self._read_secrets()
            tls = self._tls() if encrypted else None
            sasl = None
            if accounts:
                # The protocol's name says that nothing is encrypted: who gives it has chosen that.
                given = self._of("sasl")
                cleartext = not encrypted and given["mechanism"] in _CLEARTEXT
                sasl = SaslSettings(**given, cleartext=cleartext).as_mechanism()
            return ConnectionSettings(**{"client_id": "ingestd", **self._of("connection")}, tls=tls, sasl=sasl)
        except ConfigurationError as error:
            raise _by_property(error) from None

    def producer(self, settings: ProducerSettings) -> ProducerSettings:
        """The settings, changed as was said. Raises `ConfigurationError`, naming the property."""
        given = self._of("producer")
        codec, level = given.pop("codec", Compression.of(settings.compression).codec.name), given.pop("level", None)
        try:
            if {"compression.type", "compression.level"} & self.values.keys():
                given["compression"] = Compression.parse(codec, level)
        except IngestdError as error:
            raise ConfigurationError(f"-X compression.level: {error}") from None
        return _changed(settings, given)

    def consumer(self, settings: ConsumerSettings) -> ConsumerSettings:
        """The settings, changed as was said. Raises `ConfigurationError`, naming the property."""
        return _changed(settings, self._of("consumer"))

    def _of(self, settings: str) -> dict[str, Any]:
        known = ((_KNOWN[name], value) for name, value in self.values.items())
        return {each.field: value for each, value in known if each.settings == settings and each.field}

    def _tls(self) -> TlsSettings:
        given = self._of("tls")
        certificate, name = given.pop("verify_certificate", True), given.pop("verify_name", True)
        verify: Literal["full", "certificate", "none"] = (
            "none" if not certificate else "full" if name else "certificate"
        )
        settings = TlsSettings(**given, verify=verify)
        client_context(settings)
        return settings

    def _read_secrets(self) -> None:
        for name, value in self.values.items():
            if isinstance(value, Secret):
                try:
                    value.read()
                except ConfigurationError as error:
                    raise ConfigurationError(f"-X {name}: {error}") from error


def parse_properties(texts: Iterable[str]) -> Properties:
    """Properties from `NAME=VALUE` and `@FILE`, a file with one a line; of several with one name the last counts.

    A value that is a secret may be `@FILE` or `@env:NAME`, where it is kept. Raises `ConfigurationError`, which shows
    no secret.
    """
    values: dict[str, Any] = {}
    for text in texts:
        if text.startswith("@"):
            for where, line in _lines(Path(text[1:])):
                _take(line, where, values)
        else:
            _take(text, "-X", values)
    return Properties(values)


def known_properties() -> Iterator[tuple[str, str]]:
    """Every name that is known, with what is expected for it."""
    other_names: dict[str, list[str]] = {}
    for alias, name in _ALIASES.items():
        other_names.setdefault(name, []).append(alias)
    for name, known in sorted(_KNOWN.items()):
        also = f" (or {', '.join(other_names[name])})" if name in other_names else ""
        yield name + also, known.expected


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The settings in a file, each with where it stands; empty lines and those that begin with `#` are none."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise ConfigurationError(f"-X @{path}: can not be read: {error.strerror}") from error
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    if len(raw) > _LONGEST_FILE or (raw and not text):
        raise ConfigurationError(f"-X @{path}: expected UTF-8, at most {_LONGEST_FILE} bytes, a NAME=VALUE each line")
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, equals, value = line.partition("=")
            if _is_secret(name.strip()) and not value.strip().startswith("@"):
                warn_if_others_can_read(path)
            yield f"{path}:{number}", f"{name.strip()}{equals}{value.strip()}"


def _take(text: str, where: str, values: dict[str, Any]) -> None:
    given, equals, value = text.partition("=")
    name = _canonical(given)
    if name is None:
        if not equals:  # not shown: nobody knows what it is
            raise ConfigurationError(f"{where}: expected NAME=VALUE, as in security.protocol=sasl_ssl")
        close = did_you_mean(given, [*_KNOWN, *_ALIASES])
        raise ConfigurationError(f"{where} {given}: unknown{close}; `-X list` lists those that are known")
    known = _KNOWN[name]
    if not equals:
        raise ConfigurationError(f"{where} {given}: expected {given}=VALUE, with {known.expected}")
    try:
        values[name] = known.parse(value)
    except ValueError:
        shown = "" if _is_secret(name) else f"={value}"
        raise ConfigurationError(f"{where} {given}{shown}: expected {known.expected}") from None


def _canonical(given: str) -> str | None:
    """The name that a property is known by; librdkafka lets `topic.` stand before those of topics."""
    name = given.removeprefix("topic.")
    name = _ALIASES.get(name, name)
    return name if name in _KNOWN else None


def _is_secret(given: str) -> bool:
    name = _canonical(given)
    return name is not None and _KNOWN[name].parse is _secret


def _by_property(error: ConfigurationError) -> ConfigurationError:
    """An error that begins with one of our settings' names, with the property's in its place."""
    for wrong in (error, *getattr(error, "also", ())):
        setting, colon, rest = str(wrong).partition(":")
        for name, known in _KNOWN.items():
            if colon and known.field == setting:
                return ConfigurationError(f"-X {name}:{rest}")
    return error


def _changed(settings: Settings, given: Mapping[str, Any]) -> Settings:
    try:
        return dataclasses.replace(settings, **given)
    except (ConfigurationError, WrongSetting) as error:
        raise _by_property(error) from None


def _text(value: str) -> str:
    if not value:
        raise ValueError
    return value


def _secret(value: str) -> Secret:
    if value.startswith("@env:"):
        return Secret(environment=_text(value.removeprefix("@env:")))
    return Secret(file=Path(_text(value[1:]))) if value.startswith("@") else Secret(value=_text(value))


def _path(value: str) -> Path:
    return Path(_text(value))


def _seconds(milliseconds: str) -> float:
    number = float(milliseconds)
    if not 0 <= number < float("inf"):
        raise ValueError
    return number / 1000


def _patience(milliseconds: str) -> float:
    return _seconds(milliseconds) or float("inf")


def _level(value: str) -> int | None:
    return None if value == "-1" else int(value)


def _extensions(value: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in value.split(",")]
    if not all(name and equals for name, equals, _ in pairs):
        raise ValueError
    return {name: held for name, _, held in pairs}


class _OneOf:
    """One of some words, whatever their case, and what each stands for."""

    def __init__(self, choices: Mapping[str, Any]) -> None:
        self._choices = {word.lower(): meaning for word, meaning in choices.items()}
        *others, last = choices
        self.expected = f"{', '.join(others)} or {last}" if others else last

    def __call__(self, value: str) -> Any:
        if value.lower() not in self._choices:
            raise ValueError
        return self._choices[value.lower()]


def _one_of(settings: Any, key: str, choices: Mapping[str, Any]) -> _Property:
    parse = _OneOf(choices)
    return _Property(settings, key, parse, parse.expected)


_TRUTH: Final = {"true": True, "false": False}
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_PROTOCOLS: Final = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_HIDDEN: Final = "a secret, or where it is kept: @FILE or @env:NAME"
_FILE: Final = "a PEM file"
_BYTES: Final = "bytes, a whole number"
_MILLISECONDS: Final = "milliseconds"

_KNOWN: Final[Mapping[str, _Property]] = {
    "bootstrap.servers": _Property("cluster", "bootstrap", _text, "HOST[:PORT][,…]"),
    "client.id": _Property("connection", "client_id", _text, "a name"),
    "security.protocol": _one_of("connection", "", {word: word for word in _PROTOCOLS}),
    "ssl.ca.location": _Property("tls", "ca_file", _path, _FILE),
    "ssl.certificate.location": _Property("tls", "certificate_file", _path, _FILE),
    "ssl.key.location": _Property("tls", "key_file", _path, _FILE),
    "ssl.key.password": _Property("tls", "key_password", _secret, _HIDDEN),
    "enable.ssl.certificate.verification": _one_of("tls", "verify_certificate", _TRUTH),
    "ssl.endpoint.identification.algorithm": _one_of("tls", "verify_name", {"https": True, "none": False}),
    "sasl.mechanism": _one_of("sasl", "mechanism", {word: word for word in _MECHANISMS}),
    "sasl.username": _Property("sasl", "username", _text, "a name"),
    "sasl.password": _Property("sasl", "password", _secret, _HIDDEN),
    "sasl.oauthbearer.method": _one_of("sasl", "", {"oidc": "oidc"}),
    "sasl.oauthbearer.token.endpoint.url": _Property("sasl", "token_endpoint", _text, "a URL"),
    "sasl.oauthbearer.client.id": _Property("sasl", "client_id", _text, "a name"),
    "sasl.oauthbearer.client.secret": _Property("sasl", "client_secret", _secret, _HIDDEN),
    "sasl.oauthbearer.scope": _Property("sasl", "scope", _text, "a scope"),
    "sasl.oauthbearer.extensions": _Property("sasl", "extensions", _extensions, "NAME=VALUE[,NAME=VALUE…]"),
    "https.ca.location": _Property("sasl", "token_ca_file", _path, _FILE),
    "acks": _Property("producer", "acks", _text, "all, -1, 1 or 0"),
    "linger.ms": _Property("producer", "linger", _seconds, _MILLISECONDS),
    "compression.type": _one_of("producer", "codec", {codec.name: codec.name for codec in Codec}),
    "compression.level": _Property("producer", "level", _level, "a whole number; -1: the codec's default"),
    "enable.idempotence": _one_of("producer", "idempotent", _TRUTH),
    "partitioner": _one_of(
        "producer",
        "partitioner",
        {
            "murmur2_random": PARTITIONERS["murmur2"],
            "consistent_random": PARTITIONERS["crc32"],
            "fnv1a_random": PARTITIONERS["fnv1a"],
            "murmur2": PARTITIONERS["murmur2-all"],
            "consistent": PARTITIONERS["crc32-all"],
            "fnv1a": PARTITIONERS["fnv1a-all"],
            "random": PARTITIONERS["random"],
        },
    ),
    "batch.size": _Property("producer", "batch_bytes", int, _BYTES),
    "batch.num.messages": _Property("producer", "batch_records", int, "a whole number"),
    "max.in.flight.requests.per.connection": _Property("producer", "in_flight_requests", int, "a whole number"),
    "message.timeout.ms": _Property("producer", "delivery_timeout", _patience, "milliseconds; 0: no limit"),
    "request.timeout.ms": _Property("producer", "acknowledge_timeout", _seconds, _MILLISECONDS),
    "isolation.level": _one_of("consumer", "isolation", {level.name: level for level in Isolation}),
    "client.rack": _Property("consumer", "rack", _text, "a rack"),
    "check.crcs": _one_of("consumer", "check_crcs", _TRUTH),
    "fetch.min.bytes": _Property("consumer", "fetch_min_bytes", int, _BYTES),
    "fetch.max.bytes": _Property("consumer", "fetch_max_bytes", int, _BYTES),
    "fetch.wait.max.ms": _Property("consumer", "fetch_max_wait", _seconds, _MILLISECONDS),
    "max.partition.fetch.bytes": _Property("consumer", "partition_max_bytes", int, _BYTES),
}

_ALIASES: Final[Mapping[str, str]] = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "request.required.acks": "acks",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
}
