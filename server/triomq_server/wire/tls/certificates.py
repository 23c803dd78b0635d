"""The certificates of a server: read at the start and when their files change (`TlsHelper`, `FileWatchService`).

Unusable files change nothing, and are logged: links continue with the previous certificate. A change takes effect when
the files are the same at two checks in a row, so that a certificate and its key are replaced together. An unusable change
is tried again at each check: its files may become readable without a change that a check would see.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import logging
import os
import ssl
import tempfile
from collections.abc import Callable
from typing import Final, NoReturn, Protocol, TypeVar

import trio

from triomq_server.config import ConfigError, PropertiesError, TlsConfig, load_properties, read_tls_file
from triomq_server.config.tls import CONFIG_FILE
from triomq_server.plain_files import read_plain
from triomq_server.wire.tls.handshakes import Handshakes, TlsMode, TlsSettings

T = TypeVar("T")

WATCH_S: Final = 1.0
"""Interval between checks of the files."""
_MOST_BYTES: Final = 1_048_576
_EXPIRY_LOOK_S: Final = 86_400.0
_EXPIRY_DAYS: Final = 14

_Seen = dict[str, tuple[int, int, int] | None]

_log = logging.getLogger(__name__)


class Run(Protocol):
    """Runs a function off the event loop, and returns its result."""

    async def __call__(self, chore: Callable[[], T]) -> T:
        """Run it."""
        ...


class Certificates:
    """A server's TLS, for its ports and for the connections that it dials.

    Args:
        own: the server's own settings; settings in ``tls.config.file`` override them.

    Attributes:
        config: the settings in effect.
        settings: the settings of the ports; `watch` changes their context.
    """

    def __init__(self, own: TlsConfig) -> None:
        self._own = own
        self.config = effective(own)
        self.settings = TlsSettings(
            mode=TlsMode(self.config.mode),
            handshakes=Handshakes(self.config.max_handshakes, self.config.handshake_timeout_ms / 1000),
        )
        self._client: ssl.SSLContext | None = None
        self._seen: _Seen = {}
        self._unusable: str | None = None  # why the last change could not be taken

    def load(self, *, dials: bool) -> None:
        """Read the files at the start.

        Args:
            dials: whether the server's own connections speak TLS.

        Raises:
            ConfigError: settings contradict each other, or a file cannot be used.
        """
        self.config.check()
        self._seen = _look(self.config)
        if self.config.test_mode:
            if self.settings.mode is not TlsMode.DISABLED:
                self.settings.make_context = self_signed_context
                if self.settings.mode is TlsMode.ENFORCING:
                    _check_cryptography()
                    _log.warning("TLS runs in test mode (tls.test.mode.enable): its certificate is worth nothing")
        elif self.settings.mode is not TlsMode.DISABLED:
            self.settings.context = server_context(self.config)
        if dials:
            self._client = client_context(self.config)
            if not self.config.client_auth_server:
                _log.warning(
                    "links to name servers and other brokers are encrypted, but nobody's certificate is verified: set "
                    "tls.client.authServer=true and tls.client.trustCertPath"
                )
        self._note_expiry()

    def client(self) -> ssl.SSLContext:
        """The context of the server's own connections, as read last."""
        if self._client is None:
            self._client = client_context(self.config)
        return self._client

    @property
    def watched(self) -> bool:
        """Whether there are files whose change `watch` would see."""
        return any(seen is not None for seen in self._seen.values())

    async def watch(self, run: Run) -> NoReturn:
        """Task: read the files again when they have changed."""
        before = self._seen
        expiry_due = trio.current_time() + _EXPIRY_LOOK_S
        while True:
            await trio.sleep(WATCH_S)
            seen = await run(lambda: _look(self.config))
            if trio.current_time() >= expiry_due:
                expiry_due = trio.current_time() + _EXPIRY_LOOK_S
                self._note_expiry()
            if seen == before and (seen != self._seen or self._unusable is not None):
                self._seen = seen
                await self._take(run)
                before = self._seen
            else:
                before = seen

    async def _take(self, run: Run) -> None:
        serves = self.settings.mode is not TlsMode.DISABLED

        def read() -> tuple[TlsConfig, _Seen, ssl.SSLContext | None, ssl.SSLContext | None]:
            # Before they are read: a file that changes meanwhile is then read again.
            settings = _state_of(self._own.config_file)
            config = effective(self._own)
            config.check()
            seen = _look(config)
            if self._own.config_file in seen:
                seen[self._own.config_file] = settings
            made = server_context(config) if serves and not config.test_mode else None
            return config, seen, made, None if self._client is None else client_context(config)

        try:
            config, seen, server, client = await run(read)
        except ConfigError as error:
            if str(error) != self._unusable:
                self._unusable = str(error)
                _log.error("certificates have changed and cannot be used, those read before stay in force: %s", error)
            return
        self._unusable = None
        self.config, self._client, self._seen = config, client, seen
        if server is not None:
            self.settings.context = server
        _log.info("certificates have changed: new links use the new ones")
        self._note_expiry()

    def _note_expiry(self) -> None:
        config = self.config
        if config.test_mode:
            return
        serves = config.server_cert_path if self.settings.mode is not TlsMode.DISABLED else None
        dials = config.client_cert_path if self._client is not None else None
        for path, peers in ((serves, "clients"), (dials, "servers")):
            fault = None if path is None else time_fault(path)
            if fault is not None:
                _log.warning("the certificate %s %s: %s that verify it refuse this server then", path, fault, peers)


def effective(own: TlsConfig) -> TlsConfig:
    """The settings, overridden by ``tls.config.file``. ConfigError if the file cannot be read or used."""
    try:
        data = read_plain(own.config_file, _MOST_BYTES)
    except FileNotFoundError:
        if own.config_file == CONFIG_FILE:
            return own
        raise ConfigError(f"tls.config.file={own.config_file}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"tls.config.file={own.config_file}: {error.strerror}") from None
    try:
        return read_tls_file(own, load_properties(data))
    except PropertiesError as error:
        raise ConfigError(f"tls.config.file={own.config_file}: {error}") from None


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a server's ports. ConfigError if a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    _load_pair(context, "server", config.server_cert_path, config.server_key_path, config.server_key_password)
    if config.server_auth_client and config.need_client_auth != "none":
        _load_trust(context, "tls.server.trustCertPath", config.server_trust_cert_path)
        context.verify_mode = ssl.CERT_REQUIRED if config.need_client_auth == "require" else ssl.CERT_OPTIONAL
    return context


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a server's own connections. ConfigError if a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if config.test_mode or not config.client_auth_server:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.check_hostname = config.client_check_host_name
        if config.client_trust_cert_path:
            _load_trust(context, "tls.client.trustCertPath", config.client_trust_cert_path)
        else:
            context.load_default_certs()
    if not config.test_mode and config.client_cert_path:
        _load_pair(context, "client", config.client_cert_path, config.client_key_path, config.client_key_password)
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if context.protocol is ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # links live long; a session kept for each client would cost memory


def _load_pair(context: ssl.SSLContext, side: str, path: str | None, key: str | None, password: str | None) -> None:
    assert path is not None
    assert key is not None
    for name, file in (("certPath", path), ("keyPath", key)):
        _check_readable(f"tls.{side}.{name}", file)
    try:
        # A password must be given, or OpenSSL would ask for one at the terminal.
        context.load_cert_chain(path, key, password=password or "")
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):  # the latter: keys of other kinds
            raise ConfigError(f"tls.{side}.keyPath={key} is not the key of tls.{side}.certPath={path}") from None
        raise ConfigError(_pair_fault(side, path, key, password, error)) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls.{side}.certPath={path} and tls.{side}.keyPath={key} cannot be used: {error}") from None


def _pair_fault(side: str, path: str, key: str, password: str | None, error: ssl.SSLError) -> str:
    """Why OpenSSL rejects a certificate and its key: for many faults it reports only "PEM lib"."""
    try:
        certificate, text = read_plain(path, _MOST_BYTES), read_plain(key, _MOST_BYTES)
    except OSError as gone:  # they are being replaced
        return f"tls.{side}.certPath={path} and tls.{side}.keyPath={key} cannot be used: {gone}"
    if b"BEGIN CERTIFICATE" not in certificate:
        return f"tls.{side}.certPath={path} cannot be used: it has no certificate in PEM form"
    try:
        # Texts around a certificate may be in any language.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        return f"tls.{side}.certPath={path} cannot be used: its certificate is damaged"
    if b"PRIVATE KEY" not in text:
        return f"tls.{side}.keyPath={key} cannot be used: it has no private key in PEM form"
    if b"ENCRYPTED" in text and error.reason is None:  # other faults have a reason, as a key that is too small
        if not password:
            return f"tls.{side}.keyPath={key} cannot be used: it is encrypted, and tls.{side}.keyPassword is not set"
        return f"tls.{side}.keyPath={key} cannot be used: tls.{side}.keyPassword is not its password, or the file is damaged"
    what = (error.reason or str(error)).replace("_", " ").lower()
    return f"tls.{side}.certPath={path} and tls.{side}.keyPath={key} cannot be used: {what} (both must be PEM)"


def _load_trust(context: ssl.SSLContext, key: str, path: str | None) -> None:
    assert path is not None
    _check_readable(key, path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise ConfigError(f"{key}={path} has no certificate in PEM form: {reason.replace('_', ' ').lower()}") from None


def _check_readable(key: str, path: str) -> None:
    try:
        read_plain(path, 1)
    except OSError as error:
        raise ConfigError(f"{key}={path}: {error.strerror}") from None


def _look(config: TlsConfig) -> _Seen:
    """What shows whether files have changed."""
    paths = {
        config.config_file, config.server_cert_path, config.server_key_path, config.server_trust_cert_path,
        config.client_cert_path, config.client_key_path, config.client_trust_cert_path,
    }  # fmt: skip
    return {path: _state_of(path) for path in sorted(path for path in paths if path)}


def _state_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def time_fault(path: str) -> str | None:
    """The problem with the validity of the first certificate in a file: not valid yet, expired, or about to expire. None
    if there is none, or it is unknown."""
    try:
        from cryptography import x509
    except ImportError:
        return None
    try:
        certificate = x509.load_pem_x509_certificate(read_plain(path, _MOST_BYTES))
    except (OSError, ValueError):
        return None
    now, begin = dt.datetime.now(dt.UTC), certificate.not_valid_before_utc
    if now < begin:
        return f"is not valid before {begin:%Y-%m-%d %H:%M} UTC"
    days_left = (certificate.not_valid_after_utc - now).days
    if days_left >= _EXPIRY_DAYS:
        return None
    return "has expired" if days_left < 0 else f"expires in {days_left} days"


_NO_CRYPTOGRAPHY: Final = (
    "TLS's test mode makes its certificate with the package cryptography, which is not installed: pip install "
    "'triomq[server]', or name a certificate (tls.server.certPath, tls.server.keyPath)"
)


def _check_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ConfigError(_NO_CRYPTOGRAPHY) from None


def self_signed_context() -> ssl.SSLContext:
    """A context with a new self-signed certificate for localhost. OSError if it cannot be made."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise OSError(_NO_CRYPTOGRAPHY) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    with tempfile.NamedTemporaryFile() as file:  # OpenSSL reads files only; this one is its owner's alone
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        file.flush()
        context.load_cert_chain(file.name)
    return context
