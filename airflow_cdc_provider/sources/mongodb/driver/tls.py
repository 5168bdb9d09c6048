"""Converts Java keystores, and PEM files under the same names, to the PEM files that PyMongo reads.

Debezium stores the client's certificate and trusted certificates in keystores. A connection's extra may name
them like Debezium's properties, without the prefix ``mongodb.``:

==============================  ====================================================================
``ssl.keystore``                the client's key and certificate: PKCS12, JKS, or PEM (both in one file);
                                PyMongo's ``tlsCertificateKeyFile``
``ssl.keystore.password``       its password, and its key's; ``tlsCertificateKeyFilePassword``
``ssl.keystore.type``           ``PKCS12`` by default; the format is detected from the file
``ssl.truststore``              certificates of servers or authorities: PKCS12, JKS, or PEM; ``tlsCAFile``
``ssl.truststore.password``     its password
``ssl.truststore.type``         likewise
==============================  ====================================================================

Each of them enables TLS. They apply to this connection only. While a client is created, the key of a keystore
is in a temporary file, encrypted and readable only by the current user.
"""

from __future__ import annotations

import secrets
import ssl
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.connection_settings import read_file
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.keystores import Keystore, read_keystore

_KEYSTORE: Final = "ssl.keystore"
_TRUSTSTORE: Final = "ssl.truststore"
_TYPES: Final = ("PKCS12", "JKS", "PEM")
_OTHERS: Final = {_KEYSTORE: "tlsCertificateKeyFile", _TRUSTSTORE: "tlsCAFile"}


def take_stores(extra: MutableMapping[str, Any]) -> dict[str, str]:
    """Remove the keystore settings from a connection's extra and return them.

    Raises:
        ConfigurationError: A type is unknown, a store is configured twice, or a password has no file.
    """
    stores: dict[str, str] = {}
    for store, other in _OTHERS.items():
        settings = {name: str(extra.pop(f"{store}{name}", "") or "") for name in ("", ".password", ".type")}
        kind = settings.pop(".type") or "PKCS12"
        if kind.upper() not in _TYPES:
            raise ConfigurationError(
                f"invalid value for {store}.type",
                expected=f"one of {', '.join(_TYPES)}",
                found=kind,
                remedy=f"keytool -importkeystore -srckeystore FILE -srcstoretype {kind} "
                "-destkeystore NEW.p12 -deststoretype PKCS12",
            )
        if settings[""] and any(name.lower() == other.lower() for name in extra):
            raise ConfigurationError(f"{store} and {other} are both set", remedy="remove one of them")
        if settings[".password"] and not settings[""]:
            raise ConfigurationError(f"{store}.password is set without {store}", expected="the keystore file")
        stores |= {f"{store}{name}": value for name, value in settings.items() if value}
    return stores


@contextmanager
def pem_options(stores: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield PyMongo's options for keystores; their files exist only inside the ``with``.

    Args:
        stores: The result of :func:`take_stores`.

    Raises:
        ConfigurationError: A keystore can't be read, or has no matching key or certificate.
    """
    if not stores:
        yield {}
        return
    options: dict[str, Any] = {"tls": True}
    with tempfile.TemporaryDirectory(prefix="cdc-tls-") as folder:
        if path := stores.get(_KEYSTORE):
            options |= _identity(path, stores.get(f"{_KEYSTORE}.password", ""), Path(folder))
        if path := stores.get(_TRUSTSTORE):
            options["tlsCAFile"] = _truststore(path, stores.get(f"{_TRUSTSTORE}.password", ""), Path(folder))
        yield options


def _identity(path: str, password: str, folder: Path) -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization as form

    if _is_pem(path, _KEYSTORE):
        own = {"tlsCertificateKeyFilePassword": password} if password else {}
        return {"tlsCertificateKeyFile": path, **own}
    store = read_keystore(path, password, _KEYSTORE)
    if not store.key or not store.chain:
        raise ConfigurationError(
            f"{_KEYSTORE} {path} has no private key with its certificate",
            expected="the client's key and certificate, as keytool -importkeystore or openssl pkcs12 -export "
            "store them",
        )
    passphrase = secrets.token_hex(16)
    key = form.load_der_private_key(store.key, None).private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(passphrase.encode())
    )
    file = folder / "identity.pem"
    file.write_bytes(key + _pem(store.chain))
    return {"tlsCertificateKeyFile": str(file), "tlsCertificateKeyFilePassword": passphrase}


def _truststore(path: str, password: str, folder: Path) -> str:
    if _is_pem(path, _TRUSTSTORE):
        return path
    store: Keystore = read_keystore(path, password, _TRUSTSTORE)
    certificates = store.trusted or store.chain
    if not certificates:
        raise ConfigurationError(
            f"{_TRUSTSTORE} {path} has no certificate",
            expected="certificates of the servers, or of their certificate authority",
        )
    file = folder / "trusted.pem"
    file.write_bytes(_pem(certificates))
    return str(file)


def _is_pem(path: str, setting: str) -> bool:
    return b"-----BEGIN " in read_file(path, setting)


def _pem(certificates: tuple[bytes, ...]) -> bytes:
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode()
