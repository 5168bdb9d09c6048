"""Read certificates and a private key from Java keystores: JKS, PKCS12, and certificates from JCEKS.

A JKS file has the layout of a JCEKS file (:mod:`.jceks`) with another magic number. Its private keys are
``EncryptedPrivateKeyInfo`` of Sun's proprietary algorithm (1.3.6.1.4.1.42.2.17.1.1)::

    0     20   salt
    20    n    the key in PKCS#8, XORed with SHA-1(password, salt), SHA-1(password, the 20 bytes before) ...
    20+n  20   SHA-1(password, key)

with the password in UTF-16. The type is detected from the file: Java also accepts PKCS12 where JKS is
configured.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from airflow_cdc_provider.connection_settings import read_file
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.jceks import JavaReader, Malformed, read_entries

_JKS: Final = 0xFEEDFEED
_JCEKS: Final = 0xCECECECE
_DIGEST_BYTES: Final = 20
_WHITENING: Final = b"Mighty Aphrodite"
_SUNS_PROTECTION: Final = bytes.fromhex("060a2b060104012a021101010500")
"""DER of the algorithm: its identifier without parameters."""


@dataclass(frozen=True)
class Keystore:
    """The contents of a keystore, in DER.

    Args:
        trusted: Certificates without a key.
        key: The first private key, in PKCS#8; empty for none.
        chain: Its certificates, its own first.
    """

    trusted: tuple[bytes, ...]
    key: bytes = field(default=b"", repr=False)
    chain: tuple[bytes, ...] = ()


def read_keystore(path: str, password: str, setting: str) -> Keystore:
    """Read a keystore whose keys have the keystore's password.

    Args:
        path: The file.
        password: Its password.
        setting: Its name in the settings, for messages.

    Returns:
        The contents.

    Raises:
        ConfigurationError: The file can't be read, has an unsupported type, or the password is wrong.
    """
    data = read_file(path, setting)
    magic = int.from_bytes(data[:4], "big")
    if magic not in (_JKS, _JCEKS):
        return _read_pkcs12(data, path, password, setting)
    body, word = data[:-_DIGEST_BYTES], password.encode("utf-16-be")
    # Java also opens a trust store without a password: then it doesn't verify its integrity.
    verify = password or not setting.lower().endswith("truststore")
    if verify and _sha1(word, _WHITENING, body) != data[-_DIGEST_BYTES:]:
        raise _wrong_password(path, setting)
    try:
        return _open_entries(body, word, f"{setting} {path}")
    except (Malformed, RecursionError) as error:
        raise ConfigurationError(f"{setting} {path} can't be read", found=str(error)) from error


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
            f"the key {name} has an unsupported protection",
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
            f"the key {name} can't be decrypted",
            expected="a key with the keystore's own password",
            found="another password",
            remedy="keytool -keypasswd",
        )
    return key


def _read_pkcs12(data: bytes, path: str, password: str, setting: str) -> Keystore:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    if data[:1] != b"\x30":
        raise ConfigurationError(
            f"{setting} {path} is not a keystore",
            expected="a file of type JKS, PKCS12 or JCEKS",
            remedy="for PEM files use tls_ca_file, tls_certificate_file and tls_key_file (for MongoDB: "
            "tlsCAFile and tlsCertificateKeyFile)",
        )
    try:
        found = load_pkcs12(data, password.encode())
    except ValueError:
        raise _wrong_password(path, setting) from None
    others = tuple(one.certificate.public_bytes(form.Encoding.DER) for one in found.additional_certs)
    if found.key is None:
        return Keystore(others)
    key = found.key.private_bytes(form.Encoding.DER, form.PrivateFormat.PKCS8, form.NoEncryption())
    own = () if found.cert is None else (found.cert.certificate.public_bytes(form.Encoding.DER),)
    return Keystore((), key, own + others)


def _wrong_password(path: str, setting: str) -> ConfigurationError:
    return ConfigurationError(
        f"{setting} {path} can't be opened",
        expected=f"its password, as {setting}.password",
        found="another password, or a corrupt file",
    )


def _sha1(*parts: bytes) -> bytes:
    return hashlib.sha1(b"".join(parts), usedforsecurity=False).digest()
