"""TLS with a certificate of one's own: for clients that speak nothing else.

Nobody vouches for it, so clients have to be given the certificate's file.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from leasehold.errors import BadInput, MissingExtra

VALID = timedelta(days=365)
RENEW_BEFORE = timedelta(days=7)
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Certificate(NamedTuple):
    public: Path
    """For clients."""
    private: Path
    """Key and certificate, for this endpoint only."""


def certificate(hub: Path, host: str) -> Certificate:
    """The certificate of the hub's endpoint, made if there is none that is good for this host."""
    public = hub.with_name(f"{hub.name}.certificate.pem")
    private = hub.with_name(f"{hub.name}.tls-key.pem")
    names = {*LOCAL_NAMES, host} - {"0.0.0.0", "::"}
    try:
        if not _is_good(public, private, names):
            key, made = _self_signed(sorted(names))
            _write(private, key + made, 0o600)
            _write(public, made, 0o644)
    except OSError as error:
        raise BadInput(f"the certificate cannot be kept in {public}: {error}") from error
    return Certificate(public, private)


def context_of(found: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(found.private)
    except (ssl.SSLError, OSError) as error:
        raise BadInput(
            f"{found.private} holds no key and certificate ({error}); remove it to get new ones"
        ) from error
    return context


def _x509() -> Any:
    try:
        from cryptography import x509  # noqa: PLC0415
    except ImportError:
        raise MissingExtra(
            "--tls makes a certificate with the package cryptography; install it, or "
            "leasehold[eventhubs], which brings it"
        ) from None
    return x509


def _is_good(public: Path, private: Path, names: set[str]) -> bool:
    if not (public.exists() and private.exists()):
        return False
    x509 = _x509()
    try:
        known = x509.load_pem_x509_certificate(public.read_bytes())
        listed = known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    held = {str(each.value) for each in listed}
    return names <= held and known.not_valid_after_utc > datetime.now(UTC) + RENEW_BEFORE


def _self_signed(names: list[str]) -> tuple[bytes, bytes]:
    x509 = _x509()
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([_name(x509, n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, made.public_bytes(pem)


def _name(x509: Any, name: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes, mode: int) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)
    partial.replace(path)
