"""Credentials from a custom class, for logins that are not stored in an Airflow connection.

``source.authentication_class`` names the class. It is instantiated and called each time a process connects,
so it may return short-lived tokens. Credentials in the connection string and options in the connection's
extra take precedence; the connection's login and password are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from airflow_cdc_provider.custom_classes import load_custom
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.masking import remember

_OPTION: Final = "source.authentication_class"
_ALLOWED: Final = ("username", "password", "authSource", "authMechanism", "authMechanismProperties")


class AuthenticationProvider(Protocol):
    """A class that provides credentials; it is instantiated without arguments."""

    def credentials(self, hosts: str) -> Mapping[str, Any]:
        """Return the login options.

        Args:
            hosts: The servers as the connection names them, without secrets.

        Returns:
            Any of PyMongo's options ``username``, ``password``, ``authSource``, ``authMechanism`` and
            ``authMechanismProperties``; an empty mapping keeps the connection's login.
        """
        ...


def provider_credentials(class_path: str, hosts: str) -> dict[str, Any]:
    """Return the credentials that a class provides.

    Args:
        class_path: ``package.module:Class``.
        hosts: The servers.

    Raises:
        ConfigurationError: The class can't be loaded, fails, or returns other options. The message contains
            no values.
    """
    provider = load_custom(_OPTION, class_path)
    try:
        credentials = provider().credentials(hosts)
    except CdcError:
        raise
    except Exception as error:  # noqa: BLE001  # user code may raise anything
        # The error's text may contain a secret.
        raise ConfigurationError(f"{_OPTION} {class_path} failed", found=type(error).__name__) from None
    if not isinstance(credentials, Mapping) or not set(credentials) <= set(_ALLOWED):
        is_mapping = isinstance(credentials, Mapping)
        found = sorted(map(str, credentials)) if is_mapping else type(credentials).__name__
        raise ConfigurationError(
            f"{_OPTION} {class_path} returned no credentials",
            expected=f"a mapping with some of {', '.join(_ALLOWED)}",
            found=str(found),
        )
    remember(credentials)
    return dict(credentials)
