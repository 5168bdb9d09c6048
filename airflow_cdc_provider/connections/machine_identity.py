"""Refuses connections that take tokens of a machine's identity, unless Airflow's configuration allows it.

The connection names the audience of such a token, and the server that gets it. A metadata service issues it
to whoever runs on the machine, so an editor of connections would have the machine's rights. A private key
file of the machine signs tokens likewise.

Tasks check this when they look up a connection; jobs on Spark only get connections of tasks.
"""

from __future__ import annotations

from typing import Final

from airflow.providers.common.compat.sdk import conf

from airflow_cdc_provider.exceptions import ConfigurationError

OPTION: Final = "workload_identity_tokens"


def check_machine_identity(conn_id: str, setting: str) -> None:
    """Refuse a connection with a setting by which servers get tokens of the machine's identity.

    Args:
        conn_id: Its id.
        setting: The setting; empty for none.

    Raises:
        ConfigurationError: There is such a setting, and ``[cdc] workload_identity_tokens`` is off.
    """
    if setting and not conf.getboolean("cdc", OPTION, fallback=False):
        raise ConfigurationError(
            f"connection {conn_id} sends tokens of this machine's identity: {setting}",
            expected="a login of its own",
            remedy="if all editors of connections may use the machine's identity, set option "
            f"{OPTION} of section [cdc] of Airflow's configuration to True",
        )
