"""PyMongo's options that a connection may have, and whether they enable TLS.

A connection has the options of a connection string: text, numbers and flags. PyMongo's others are objects
with callbacks, or change how documents are decoded.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_plus

from airflow_cdc_provider.exceptions import ConfigurationError

_OF_TLS: Final = (
    "tlsAllowInvalidCertificates",
    "tlsAllowInvalidHostnames",
    "tlsCAFile",
    "tlsCRLFile",
    "tlsCertificateKeyFile",
    "tlsCertificateKeyFilePassword",
    "tlsDisableOCSPEndpointCheck",
    "tlsInsecure",
)
_FLAGS: Final = ("tls", "ssl")
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


def require_allowed(extra: Mapping[str, Any]) -> None:
    """Refuse other options, and values that are objects.

    Raises:
        ConfigurationError: Names the first one.
    """
    for name, value in extra.items():
        if name.lower() not in _ALLOWED:
            near = difflib.get_close_matches(name.lower(), _ALLOWED, n=1)
            raise ConfigurationError(
                f"the MongoDB connection is invalid: unknown option {name!r} in its extra",
                expected=f"options of connection strings: {', '.join(sorted(_ALLOWED.values()))}",
                remedy=f"Did you mean {_ALLOWED[near[0]]}?" if near else "remove it",
            )
        parts = [value]
        if name.lower() in _STRUCTURED and isinstance(value, (list, dict)):
            parts = list(value.values()) if isinstance(value, dict) else value
        if not all(isinstance(part, (str, int, float, bool)) for part in parts):
            raise ConfigurationError(
                f"invalid value for {name} in the MongoDB connection", expected="a text, number or boolean"
            )


def uri_options(host: str) -> dict[str, str]:
    """Return the options of a connection string, by their names in lower case, as PyMongo reads them."""
    pairs = (part.partition("=") for part in re.split("[&;]", host.partition("?")[2]))
    return {name.lower(): unquote_plus(value) for name, _, value in pairs if name}


def with_tls(extra: Mapping[str, Any], uri: Mapping[str, str], stores: Mapping[str, str]) -> dict[str, Any]:
    """Return the extra with ``tls`` if an option there, in the connection string or a keystore implies it.

    A connection string takes precedence: it may enable TLS that the extra disables, not the other way round.

    Raises:
        ConfigurationError: TLS is disabled, and another option enables it.
    """
    own, of_uri = (
        {str(value).lower() for name, value in some.items() if name.lower() in _FLAGS}
        for some in (extra, uri)
    )
    of_tls = {name.lower() for name in _OF_TLS}
    implying = [name for name in (*extra, *uri) if name.lower() in of_tls] + list(stores)
    if "true" in own:
        implying.append("tls: true")
    if implying and (of_uri or own) - {"true"}:
        raise ConfigurationError(
            "the MongoDB connection disables TLS, but has options of TLS",
            expected=f"tls: true, or none of {', '.join(sorted(implying))}",
            remedy="correct the extra or the connection string of the Airflow connection",
        )
    others = {name: value for name, value in extra.items() if name.lower() not in _FLAGS}
    if of_uri or not (own or implying):
        return others
    return {**others, "tls": bool(implying)}
