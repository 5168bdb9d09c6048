"""What becomes of MongoDB's ``snapshot.mode``, and of the properties that say how it is meant."""

from __future__ import annotations

from typing import Final

from airflow_cdc_provider.connector.imported import Draft, boolean, refusal, wrong
from airflow_cdc_provider.exceptions import ConfigurationError

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
}
"""By whether to read data at first, to stream, and to read data anew when the position is lost."""


def snapshot_mode(draft: Draft, name: str, value: str) -> None:
    """Take over a mode; what decides it else stands in properties of its own.

    Raises:
        ConfigurationError: It is none, or can't be followed.
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
    elif mode == "custom":
        place = draft.properties.get("snapshot.mode.custom.name", "").strip()
        if ":" not in place:
            raise refusal(
                name,
                f"{value} with {place}" if place else value,
                "Debezium's snapshotters are Java classes: derive a Python class from "
                "airflow_cdc_provider.connector.snapshotter.Snapshotter, and name it as package.module:Class "
                "in snapshot.mode.custom.name",
            )
        draft.set("snapshot.mode", "custom")
        draft.set("snapshot.custom", place)
    else:
        raise wrong(name, f"one of {', '.join(known)}, configuration_based, custom", value)


def _configured_mode(draft: Draft) -> str:
    """Return the mode that does what the five flags say."""
    flags = {
        flag: boolean(
            f"{_BASED_ON}.{flag}", draft.properties.get(f"{_BASED_ON}.{flag}", "").strip() or "false"
        )
        for flag in _FLAGS
    }
    wanted = (flags["snapshot.data"], flags["start.stream"], flags["snapshot.on.data.error"])
    if wanted not in _MODES:
        found = ", ".join(flag for flag in _FLAGS if flags[flag]) or "none of them"
        raise ConfigurationError(
            f"the flags of {_BASED_ON} can't be followed",
            expected="start.stream, snapshot.data, or both; with both also snapshot.on.data.error",
            found=found,
            remedy="MongoDB has no schema, so the flags of schemas say nothing",
        )
    return _MODES[wanted]
