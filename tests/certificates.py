"""Certificates for servers of tests, each signed by one authority."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates; ``ca.pem`` in a folder is its own.

    Args:
        folder: Where its certificate is written.
    """

    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the authority")])
        whole = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._draft(self._name, self._key.public_key()).add_extension(whole, critical=True)
        self.file = folder / "ca.pem"
        self.file.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(form.Encoding.PEM))

    def issue(self, host: str) -> tuple[bytes, bytes]:
        """Return the key and the certificate of a server with this name or address, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            named: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            named = x509.DNSName(host)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        draft = self._draft(subject, key.public_key())
        certificate = draft.add_extension(x509.SubjectAlternativeName([named]), critical=False)
        return (
            key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()),
            certificate.sign(self._key, hashes.SHA256()).public_bytes(form.Encoding.PEM),
        )

    def _draft(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
