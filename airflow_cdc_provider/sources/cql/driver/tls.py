"""TLS of connections to a cluster: from PEM files, or from settings with Debezium's names.

Debezium has them in a properties file, set by ``cassandra.ssl.config.path``. Here they may be in such a file
(``tls_config_file``) or in a connection's extra:

=========================  ==========================================================================
``keyStore.location``      keystore with the client's key and certificate, if nodes require one
``keyStore.password``      its password, and its key's
``keyStore.type``          ``JKS`` by default; the type is detected from the file
``keyManager.algorithm``   ``SunX509`` by default; ``PKIX`` and ``NewSunX509`` are equivalent here
``trustStore.location``    keystore with the authorities' or the nodes' certificates; ``trustStore.password``,
                           ``trustStore.type`` and ``trustManager.algorithm`` likewise
``cipherSuites``           the allowed suites, comma-separated, by Java's or OpenSSL's names; default: all
=========================  ==========================================================================
"""

from __future__ import annotations

import re
import secrets
import ssl
import tempfile
from collections.abc import Mapping
from typing import Any, Final

from airflow_cdc_provider.connection_settings import check_files, flag, read_file
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.keystores import Keystore, read_keystore
from airflow_cdc_provider.masking import remember
from airflow_cdc_provider.properties_file import parse_properties

_DEFAULTS: Final = {
    "keyStore.location": "",
    "keyStore.password": "",
    "keyStore.type": "JKS",
    "keyManager.algorithm": "SunX509",
    "trustStore.location": "",
    "trustStore.password": "",
    "trustStore.type": "JKS",
    "trustManager.algorithm": "SunX509",
    "cipherSuites": "",
}
SETTINGS: Final = (
    "tls",
    "tls_ca_file",
    "tls_certificate_file",
    "tls_key_file",
    "tls_key_password",
    "tls_check_hostname",
    "tls_config_file",
    *_DEFAULTS,
)
"""TLS settings of a connection's extra."""
_OWN_NAME: Final = re.compile(r"(key|trust)(Store|Manager)\.[A-Za-z.]{1,20}|(cipher|ssl|tls)[A-Za-z._]{1,20}")
_TYPES: Final = ("JKS", "PKCS12", "JCEKS")
_ALGORITHMS: Final = ("SunX509", "NewSunX509", "PKIX")
_RENEGOTIATION: Final = "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"
"""A signaling value that Java lists as a suite; OpenSSL sends it automatically."""
_OF_TLS_1_3: Final = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)


def wants_tls(extra: Mapping[str, Any]) -> bool:
    """Return whether a connection's extra enables TLS: by ``tls``, or by any other setting of TLS.

    Raises:
        ConfigurationError: ``tls`` is false, and there are other settings of TLS; or a flag is invalid.
    """
    named = {name for name in SETTINGS[1:] if extra.get(name) not in (None, "")}
    enabled = flag(extra, "tls", default=bool(named))
    if flag(extra, "tls_check_hostname"):
        named.discard("tls_check_hostname")  # the default: it may be stored without TLS
    if named and not enabled:
        raise ConfigurationError(
            "the connection disables TLS, but has settings of TLS",
            expected=f"tls: true, or none of {', '.join(sorted(named))}",
            remedy="correct the extra of the Airflow connection",
        )
    return enabled


def tls_context(extra: Mapping[str, Any]) -> ssl.SSLContext:
    """Build the context of a connection.

    Args:
        extra: The connection's extra: ``tls_ca_file``, ``tls_certificate_file``, ``tls_key_file``,
            ``tls_key_password``, ``tls_check_hostname``; and the module's settings, there or in the file
            ``tls_config_file``. The extra takes precedence.

    Returns:
        The context.

    Raises:
        ConfigurationError: A file can't be used, a password is wrong, or a setting is unknown.
    """
    settings = _settings(extra)
    check_files(extra, "tls_ca_file", "tls_certificate_file", "tls_key_file")
    try:
        context = _trusting(extra, settings)
        context.check_hostname = flag(extra, "tls_check_hostname", default=True)
        _identify(context, extra, settings)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            "the connection's TLS files can't be used",
            expected="PEM files readable on this machine (executors, too)",
            found=str(error),
        ) from error
    if settings["cipherSuites"]:
        _limit(context, [name.strip() for name in settings["cipherSuites"].split(",") if name.strip()])
    return context


def _settings(extra: Mapping[str, Any]) -> dict[str, str]:
    settings = dict(_DEFAULTS)
    path = extra.get("tls_config_file")
    if path:
        # The encoding of java.util.Properties:
        from_file = parse_properties(read_file(path, "tls_config_file").decode("latin-1"))
        if unknown := sorted(set(from_file) - set(_DEFAULTS)):
            # Of another file, a line may be a secret.
            own = [name for name in unknown if _OWN_NAME.fullmatch(name)]
            raise ConfigurationError(
                f"{path} has unknown TLS settings",
                expected=", ".join(_DEFAULTS),
                found=", ".join(own) or f"{len(unknown)} others",
            )
        remember(from_file)
        settings |= from_file
    settings |= {name: str(extra[name]) for name in _DEFAULTS if extra.get(name)}
    for name, allowed in (("Store.type", _TYPES), ("Manager.algorithm", _ALGORITHMS)):
        for side in ("key", "trust"):
            if settings[side + name].upper() not in map(str.upper, allowed):
                raise ConfigurationError(
                    f"invalid value for {side}{name}",
                    expected=f"one of {', '.join(allowed)}",
                    found=settings[side + name],
                )
    return settings


def _trusting(extra: Mapping[str, Any], settings: Mapping[str, str]) -> ssl.SSLContext:
    if not settings["trustStore.location"]:
        return ssl.create_default_context(cafile=extra.get("tls_ca_file"))
    store = _open(settings, "trustStore")
    trusted = store.trusted or store.chain
    if not trusted:
        raise ConfigurationError(
            f"trustStore {settings['trustStore.location']} has no certificate",
            expected="the certificates of the nodes, or of the authority that signed them",
        )
    context = ssl.create_default_context(cadata="".join(map(ssl.DER_cert_to_PEM_cert, trusted)))
    # Like Java: all certificates of a trust store are trusted, of authorities and of nodes.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if extra.get("tls_ca_file"):
        context.load_verify_locations(extra["tls_ca_file"])
    return context


def _identify(context: ssl.SSLContext, extra: Mapping[str, Any], settings: Mapping[str, str]) -> None:
    if extra.get("tls_certificate_file"):
        context.load_cert_chain(
            extra["tls_certificate_file"], extra.get("tls_key_file"), extra.get("tls_key_password")
        )
    elif settings["keyStore.location"]:
        store = _open(settings, "keyStore")
        if not store.key:
            raise ConfigurationError(
                f"keyStore {settings['keyStore.location']} has no private key",
                expected="the client's key with its certificate",
            )
        _load(context, store)


def _open(settings: Mapping[str, str], name: str) -> Keystore:
    return read_keystore(settings[f"{name}.location"], settings[f"{name}.password"], name)


def _load(context: ssl.SSLContext, store: Keystore) -> None:
    """Load a key into a context, which only accepts files: the key is briefly in a file, encrypted."""
    from cryptography.hazmat.primitives import serialization as form

    word = secrets.token_hex(16)
    key = form.load_der_private_key(store.key, None).private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(word.encode())
    )
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(key + "".join(map(ssl.DER_cert_to_PEM_cert, store.chain)).encode())
        file.flush()
        context.load_cert_chain(file.name, password=word)


def _limit(context: ssl.SSLContext, suites: list[str]) -> None:
    """Restrict the suites; those of TLS 1.3 can only be all or none, as Python can't restrict them."""
    suites = [name for name in suites if name != _RENEGOTIATION]
    newest = _OF_TLS_1_3 & set(suites)
    if newest and newest != _OF_TLS_1_3:
        raise ConfigurationError(
            "cipherSuites has only some suites of TLS 1.3, and Python can't restrict them",
            expected=f"all of {', '.join(sorted(_OF_TLS_1_3))}, or none: then TLS 1.2 is used",
            found=", ".join(sorted(newest)),
        )
    older = [openssl_name(name) for name in suites if name not in _OF_TLS_1_3]
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        context.set_ciphers(":".join(older))
    except ssl.SSLError:
        known: set[str] = set()
    else:
        known = {suite["name"] for suite in context.get_ciphers()}
    if unknown := [name for name in older if name not in known]:
        raise ConfigurationError(
            f"cipherSuites has suites unknown to OpenSSL: {', '.join(unknown)}",
            expected="names such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, or OpenSSL's",
        )


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 suite: Java's is ``TLS_<exchange>_WITH_<cipher>_<hash>``."""
    exchange, separator, rest = suite.removeprefix("TLS_").removeprefix("SSL_").partition("_WITH_")
    if not separator:
        return suite
    cipher = rest.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    if cipher.startswith("CHACHA20"):
        cipher = "CHACHA20_POLY1305"
    name = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    return name.replace("_", "-")
