"""Plain data, as YAML and JSON can hold it: what of it is accepted."""

from __future__ import annotations

from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

_MOST_VALUES: Final = 100_000
_MOST_LEVELS: Final = 50
_MOST_CHARACTERS: Final = 100_000
_MOST_BITS: Final = 1024


def require_usable(value: Any, what: str) -> None:
    """Refuse data that can't be read and written in reasonable time, or not at all.

    Args:
        value: The data; it may contain itself.
        what: Its origin, for the message.

    Raises:
        ConfigurationError: It has too many values or levels, a text that is too long or no Unicode, or a
            number of too many digits.
    """
    left = [(value, 1)]
    for _ in range(_MOST_VALUES):
        if not left:
            return
        one, level = left.pop()
        if isinstance(one, (dict, list, tuple, set)) and level <= _MOST_LEVELS:
            left += [(member, level + 1) for member in one]
            if isinstance(one, dict):
                left += [(member, level + 1) for member in one.values()]
        elif not _is_usable(one):
            break
    raise ConfigurationError(
        f"{what} has too much in it",
        expected=f"at most {_MOST_VALUES} values in {_MOST_LEVELS} levels (what an alias of YAML stands for "
        f"counts at each use), texts in Unicode of at most {_MOST_CHARACTERS} characters, and numbers of "
        f"at most {_MOST_BITS} bits",
    )


def _is_usable(value: Any) -> bool:
    """Return whether a value that contains no others is usable."""
    if isinstance(value, str):
        return len(value) <= _MOST_CHARACTERS and not any("\ud800" <= one <= "\udfff" for one in value)
    if isinstance(value, int):
        return value.bit_length() <= _MOST_BITS
    return not isinstance(value, (dict, list, tuple, set))
