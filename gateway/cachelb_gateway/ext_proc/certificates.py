"""Certificates of the command: signed by itself, or watched for changes."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachelb.common.extras import need

if TYPE_CHECKING:
    from cachelb_gateway.certificate import Certificate
    from cachelb_gateway.ext_proc.server import EndpointPicker

INTERVAL_S = 5.0
_YEARS = 10

_log = logging.getLogger("cachelb.ext_proc")


def self_signed(folder: Path) -> Path:
    """Write `tls.crt` and `tls.key` of a certificate that signs itself, for proxies that do not verify it.

    The folder, which is returned, is an empty one that no other user can read.
    """
    need("--secure-serving without --cert-path", "cryptography", extra="cachelb-gateway[extproc]")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cachelb")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "tls.crt").write_bytes(certificate.public_bytes(pem))
    (folder / "tls.key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    return folder


async def watch(picker: EndpointPicker[Any], certificate: Certificate, *, interval_s: float = INTERVAL_S) -> None:
    """Give a picker its certificate anew whenever the files change, until cancelled.

    Files that cannot be used are logged once, and tried again: what was there remains.
    """
    complaint = None
    while True:
        await asyncio.sleep(interval_s)
        try:
            replaced = await picker.reload_certificate(certificate)
        except (OSError, ValueError) as error:
            if str(error) != complaint:
                complaint = str(error)
                _log.error("the certificate was not replaced: %s", complaint)
            continue
        complaint = None
        if replaced:
            _log.info("the certificate was replaced")
