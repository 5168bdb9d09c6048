"""Import of ``snapshot.mode`` and related properties."""

from __future__ import annotations

from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.rules import Draft, boolean, invalid, unsupported_error

_BASED_ON: Final = "snapshot.mode.configuration.based"
_FLAGS: Final = (
    "snapshot.data",
    "snapshot.schema",
    "start.stream",
    "snapshot.on.schema.error",
    "snapshot.on.data.error",
)
_MODES: Final = {
    (False, True, False): "never",
    (True, False, False): "initial_only",
    (True, True, False): "initial",
    (True, True, True): "when_needed",
    (False, True, True): "custom",
}
"""Modes by flags: initial data snapshot, streaming, new snapshot when the position is lost."""


def snapshot_mode(draft: Draft, name: str, value: str) -> None:
    """Import a snapshot mode; modes configuration_based and custom have further properties.

    Raises:
        ConfigurationError: The mode is unknown or not supported.
    """
    mode = value.lower()
    known = {
        "initial": "initial",
        "always": "always",
        "no_data": "never",
        "never": "never",
        "initial_only": "initial_only",
        "when_needed": "when_needed",
    }
    if mode in known:
        draft.set("snapshot.mode", known[mode])
    elif mode == "configuration_based":
        draft.set("snapshot.mode", _configured_mode(draft))
        if draft.get("snapshot.mode") == "custom":
            draft.set("snapshot.custom", "airflow_cdc_provider.connector.snapshotter:WhenLost")
    elif mode == "custom":
        class_path = draft.properties.get("snapshot.mode.custom.name", "").strip()
        if ":" not in class_path:
            raise unsupported_error(
                name,
                f"{value} with {class_path}" if class_path else value,
                "It is a Java class: derive a Python class from "
                "airflow_cdc_provider.connector.snapshotter.Snapshotter, and set package.module:Class in "
                "snapshot.mode.custom.name",
            )
        draft.set("snapshot.mode", "custom")
        draft.set("snapshot.custom", class_path)
    else:
        raise invalid(name, f"one of {', '.join(known)}, configuration_based, custom", value)


def _configured_mode(draft: Draft) -> str:
    """Return the mode that corresponds to the five flags."""
    flags = {
        flag: boolean(
            f"{_BASED_ON}.{flag}", draft.properties.get(f"{_BASED_ON}.{flag}", "").strip() or "false"
        )
        for flag in _FLAGS
    }
    enabled = (flags["snapshot.data"], flags["start.stream"], flags["snapshot.on.data.error"])
    if enabled not in _MODES:
        found = ", ".join(flag for flag in _FLAGS if flags[flag]) or "none of them"
        raise ConfigurationError(
            f"unsupported combination of flags {_BASED_ON}",
            expected="start.stream, snapshot.data, or both; with start.stream also snapshot.on.data.error",
            found=found,
            remedy="flags of schemas have no effect: a run reads the schemas that it needs",
        )
    return _MODES[enabled]
