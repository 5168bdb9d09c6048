"""The work folder, which Airflow's workers, its triggerer and Spark's driver share."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from airflow.providers.common.compat.sdk import conf

from airflow_cdc_provider.tasks.stream_application import StreamFolder


def stream_folder(given: str | None, connector: str) -> StreamFolder:
    """Return the folder of a connector's continuous application; it need not exist.

    Args:
        given: The work folder; None for the configured one.
        connector: The connector's name.
    """
    return StreamFolder(configured_work_folder(given) / safe_name(connector) / "stream")


def signals_folder(given: str | None, connector: str) -> Path:
    """Return the folder from which a connector's jobs read signals; it need not exist.

    Args:
        given: The work folder; None for the configured one.
        connector: The connector's name.
    """
    return configured_work_folder(given) / safe_name(connector) / "signals"


def configured_work_folder(given: str | None = None) -> Path:
    """Return the given work folder, else ``[cdc] work_folder``, else ``$AIRFLOW_HOME/cdc``."""
    folder = given or conf.get("cdc", "work_folder", fallback="")
    if not folder:
        folder = os.path.join(os.environ.get("AIRFLOW_HOME", "~/airflow"), "cdc")
    return Path(folder).expanduser().absolute()


def safe_name(text: str) -> str:
    """Return a text as one path component; different texts give different names."""
    safe = re.sub(r"[^A-Za-z0-9_.=-]", "_", text)[:120]
    if safe == text and text not in (".", "..", ""):
        return safe
    return f"{safe.strip('.')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
