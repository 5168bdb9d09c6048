"""Certificates and a private key out of Java's keystores: JKS, PKCS12, and certificates out of JCEKS.

A JKS file is built as a JCEKS file (:mod:`.keystore`), with another magic number. Its private keys
are ``EncryptedPrivateKeyInfo`` of an algorithm of Sun's own (1.3.6.1.4.1.42.2.17.1.1)::

    0     20   salt
    20    n    the key in PKCS#8, XORed with SHA-1(password, salt), SHA-1(password, the 20 bytes before) ...
    20+n  20   SHA-1(password, key)

with the password in UTF-16. What a file is, it says itself: Java too takes PKCS12 where JKS is asked for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cql.driver.keystore import JavaReader, Malformed, read_entries

_JKS: Final = 0xFEEDFEED
_JCEKS: Final = 0xCECECECE
_DIGEST_BYTES: Final = 20
_WHITENING: Final = b"Mighty Aphrodite"
_SUNS_PROTECTION: Final = bytes.fromhex("060a2b060104012a021101010500")
"""DER of the algorithm: its identifier and no parameters."""


@dataclass(frozen=True)
class Keystore:
    """What a keystore holds, in DER.

    Args:
        trusted: Certificates without a key.
        key: The first private key, in PKCS#8; empty for none.
        chain: Its certificates, its own first.
    """

    trusted: tuple[bytes, ...]
    key: bytes = b""
    chain: tuple[bytes, ...] = ()


def read_keystore(path: str, password: str, what: str) -> Keystore:
    """Read a keystore whose keys have the same password as it has itself.

    Args:
        path: The file.
        password: Its password.
        what: What the settings call it, for messages.

    Raises:
        ConfigurationError: It can't be read, is of another kind, or the password is wrong.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{what} {path} can't be read", found=str(error.strerror)) from error
    magic = int.from_bytes(data[:4], "big")
    if magic not in (_JKS, _JCEKS):
        return _read_pkcs12(data, path, password, what)
    body, word = data[:-_DIGEST_BYTES], password.encode("utf-16-be")
    # Java opens a trust store without a password, too: it doesn't look then whether it was changed.
    sealed = password or not what.lower().endswith("truststore")
    if sealed and _sha1(word, _WHITENING, body) != data[-_DIGEST_BYTES:]:
        raise _wrong_password(path, what)
    try:
        return _open_entries(body, word, f"{what} {path}")
    except (Malformed, RecursionError) as error:
        raise ConfigurationError(f"{what} {path} can't be read", found=str(error)) from error


def _open_entries(body: bytes, word: bytes, name: str) -> Keystore:
    trusted: list[bytes] = []
    key, chain = b"", tuple[bytes, ...]()
    for entry in read_entries(body):
        if not entry.private_key:
            trusted += entry.certificates
        elif not key:
            key, chain = _unseal(entry.private_key, word, f"{entry.alias} of {name}"), entry.certificates
    return Keystore(tuple(trusted), key, chain)


def _unseal(sealed: bytes, word: bytes, name: str) -> bytes:
    at = sealed.find(_SUNS_PROTECTION)
    if at < 0:
        raise ConfigurationError(
            f"the key {name} is protected in a way that only Java knows",
            expected="a keystore of type JKS or PKCS12",
            remedy="keytool -importkeystore -srckeystore FILE -destkeystore NEW -deststoretype PKCS12",
        )
    reader = JavaReader(sealed, at + len(_SUNS_PROTECTION))
    if reader.number(1) != 0x04:
        raise Malformed("a sealed key is incomplete")
    length = reader.number(1)
    content = reader.take(reader.number(length & 0x7F) if length & 0x80 else length)
    if len(content) < 2 * _DIGEST_BYTES:
        raise Malformed("a sealed key is incomplete")
    block, hidden, digest = content[:20], content[20:-20], content[-20:]
    stream = b""
    while len(stream) < len(hidden):
        block = _sha1(word, block)
        stream += block
    key = bytes(one ^ two for one, two in zip(hidden, stream, strict=False))
    if _sha1(word, key) != digest:
        raise ConfigurationError(
            f"the key {name} can't be opened",
            expected="a key with the keystore's own password",
            found="another password",
            remedy="keytool -keypasswd",
        )
    return key


def _read_pkcs12(data: bytes, path: str, password: str, what: str) -> Keystore:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    if data[:1] != b"\x30":
        raise ConfigurationError(
            f"{what} {path} is no keystore",
            expected="a file of type JKS, PKCS12 or JCEKS",
            remedy="PEM files go into tls_ca_file, tls_certificate_file and tls_key_file (of MongoDB: into "
            "tlsCAFile and tlsCertificateKeyFile)",
        )
    try:
        found = load_pkcs12(data, password.encode())
    except ValueError:
        raise _wrong_password(path, what) from None
    others = tuple(one.certificate.public_bytes(form.Encoding.DER) for one in found.additional_certs)
    if found.key is None:
        return Keystore(others)
    key = found.key.private_bytes(form.Encoding.DER, form.PrivateFormat.PKCS8, form.NoEncryption())
    own = () if found.cert is None else (found.cert.certificate.public_bytes(form.Encoding.DER),)
    return Keystore((), key, own + others)


def _wrong_password(path: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} {path} can't be opened",
        expected=f"its password, as {what}.password",
        found="another password, or a damaged file",
    )


def _sha1(*parts: bytes) -> bytes:
    return hashlib.sha1(b"".join(parts), usedforsecurity=False).digest()
