"""PyMongo's options that a connection may have, and whether they enable TLS.

A connection has the options of a connection string: text, numbers and flags. PyMongo's others are objects
with callbacks, or change how documents are decoded.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pymongo.errors import PyMongoError
from pymongo.uri_parser import split_options, validate_options

from airflow_cdc_provider.connection_settings import flag
from airflow_cdc_provider.exceptions import ConfigurationError

FILES: Final = ("tlscafile", "tlscrlfile", "tlscertificatekeyfile")
"""Options that name files."""
_FLAGS_OF_TLS: Final = (
    "tlsAllowInvalidCertificates",
    "tlsAllowInvalidHostnames",
    "tlsDisableOCSPEndpointCheck",
    "tlsInsecure",
)
_OF_TLS: Final = (
    *_FLAGS_OF_TLS,
    "tlsCAFile",
    "tlsCRLFile",
    "tlsCertificateKeyFile",
    "tlsCertificateKeyFilePassword",
)
_SWITCHES: Final = ("tls", "ssl")
_FLAGS: Final = frozenset(
    name.lower()
    for name in (
        *_SWITCHES,
        *_FLAGS_OF_TLS,
        *("directConnection", "enableOverloadRetargeting", "journal"),
        *("loadBalanced", "retryReads", "retryWrites"),
    )
)
_STRUCTURED: Final = ("authmechanismproperties", "compressors", "readpreferencetags")
_ALLOWED: Final = {
    name.lower(): name
    for name in (
        *_OF_TLS,
        "appName",
        "authMechanism",
        "authMechanismProperties",
        "authSource",
        "compressors",
        "connectTimeoutMS",
        "directConnection",
        "enableOverloadRetargeting",
        "heartbeatFrequencyMS",
        "journal",
        "loadBalanced",
        "localThresholdMS",
        "maxAdaptiveRetries",
        "maxConnecting",
        "maxIdleTimeMS",
        "maxPoolSize",
        "maxStalenessSeconds",
        "minPoolSize",
        "readConcernLevel",
        "readPreference",
        "readPreferenceTags",
        "replicaSet",
        "retryReads",
        "retryWrites",
        "serverMonitoringMode",
        "serverSelectionTimeoutMS",
        "socketTimeoutMS",
        "srvAllowedHostsSuffix",
        "srvMaxHosts",
        "srvServiceName",
        "ssl",
        "timeoutMS",
        "tls",
        "uuidRepresentation",
        "w",
        "wTimeoutMS",
        "waitQueueTimeoutMS",
        "zlibCompressionLevel",
    )
}
"""Names by their lower case, which PyMongo compares."""


def checked(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return options with their flags parsed, and without those that aren't set.

    Raises:
        ConfigurationError: One isn't allowed, or has an invalid value, such as an object.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        require_absent(found, name, name)
        if name.lower() not in _ALLOWED:
            near = difflib.get_close_matches(name.lower(), _ALLOWED, n=1)
            raise ConfigurationError(
                f"the MongoDB connection is invalid: unknown option {name!r} in its {where}",
                expected=f"options of connection strings: {', '.join(sorted(_ALLOWED.values()))}",
                remedy=f"Did you mean {_ALLOWED[near[0]]}?" if near else "remove it",
            )
        if value is None or value == "":
            continue
        parts = [value]
        if name.lower() in _STRUCTURED and isinstance(value, (list, dict)):
            parts = list(value.values()) if isinstance(value, dict) else value
        if not all(isinstance(part, (str, int, float, bool)) for part in parts):
            raise ConfigurationError(
                f"invalid value for {name} in the MongoDB connection", expected="a text, number or boolean"
            )
        found[name] = flag(options, name) if name.lower() in _FLAGS else value
    return found


def require_absent(options: Iterable[str], name: str, other: str) -> None:
    """Refuse an option that is set twice, in different cases, or by another one.

    Raises:
        ConfigurationError: It is there already.
    """
    for one in options:
        if one.lower() == name.lower():
            raise ConfigurationError(
                f"the MongoDB connection sets {one} twice: {other} is the same", remedy="remove one of them"
            )


def uri_options(uri: str) -> dict[str, Any]:
    """Return the options of a connection string as PyMongo reads them, by their names in lower case.

    PyMongo itself drops what it can't read. The files that options name are not opened.

    Raises:
        ConfigurationError: An option is unknown or invalid. The message has none of them: a password that
            isn't escaped may look like one.
    """
    text = uri.partition("?")[2]
    names = [part.partition("=")[0].lower() for part in re.split(r"[&;\s]", text)]
    try:
        if any(count > 1 and name != "readpreferencetags" for name, count in Counter(names).items()):
            raise ValueError("an option is set twice")
        options = dict(split_options(text, validate=False)) if text else {}
        files = {name.lower(): options.pop(name) for name in list(options) if name.lower() in FILES}
        return {name.lower(): value for name, value in validate_options(options).items()} | files
    except (PyMongoError, ValueError, TypeError) as error:
        raise ConfigurationError(
            "the MongoDB connection's string has invalid options",
            expected="name=value, separated by &, as in MongoDB's documentation; flags such as tls are true "
            "or false, in lower case",
            found=type(error).__name__,
            remedy="correct the connection string of the Airflow connection",
        ) from None


def with_tls(
    extra: Mapping[str, Any], uri: Mapping[str, Any], stores: Mapping[str, str], *, srv: bool
) -> dict[str, Any]:
    """Return the extra with ``tls`` if an option there, in the connection string or a keystore implies it.

    A connection string takes precedence: it may enable TLS that the extra disables, not the other way round.

    Args:
        extra: Options of the extra.
        uri: Those of the connection string, by names in lower case.
        stores: Keystores.
        srv: Whether the servers are those of a DNS seed list, which implies TLS.

    Raises:
        ConfigurationError: TLS is disabled, and another option enables it.
    """
    own, of_uri = (
        {value for name, value in some.items() if name.lower() in _SWITCHES} for some in (extra, uri)
    )
    of_tls = {name.lower() for name in _OF_TLS}
    implying = [name for name in (*extra, *uri) if name.lower() in of_tls] + list(stores)
    if True in own:
        implying.append("tls: true")
    if srv and not of_uri and False in own:
        raise ConfigurationError(
            "the MongoDB connection's extra disables TLS, which a DNS seed list (SRV) enables",
            expected="no tls or ssl in the extra",
            remedy="leave it out; to disable TLS on purpose, use a connection string with ?tls=false",
        )
    if implying and False in (of_uri or own):
        raise ConfigurationError(
            "the MongoDB connection disables TLS, but has options of TLS",
            expected=f"tls: true, or none of {', '.join(sorted(implying))}",
            remedy="correct the extra or the connection string of the Airflow connection",
        )
    others = {name: value for name, value in extra.items() if name.lower() not in _SWITCHES}
    if of_uri or not (own or implying):
        return others
    return {**others, "tls": bool(implying)}
