"""Certificates for servers on the loopback."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for the loopback, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _write(folder / "cert.pem", folder / "key.pem", built, key)


def signed(folder: Path, authority: tuple[Path, Path]) -> tuple[Path, Path]:
    """A certificate for a client, signed by another one, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority[0].read_bytes())
    signer = serialization.load_pem_private_key(authority[1].read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    built = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "client")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(2)
        .not_valid_before(issuer.not_valid_before_utc)
        .not_valid_after(issuer.not_valid_after_utc)
        .sign(signer, hashes.SHA256())
    )
    return _write(folder / "client.pem", folder / "client-key.pem", built, key)


def _write(shown: Path, hidden: Path, built: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
    shown.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    hidden.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return shown, hidden
