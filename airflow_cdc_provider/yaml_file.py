"""YAML files that people write: connectors, and Cassandra's configuration.

Both may hold passwords, and a parser's message quotes what it stumbles on. So errors tell the line only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError


def read_yaml(path: str | Path) -> Any:
    """Read a file of one YAML document.

    Raises:
        FileNotFoundError: There is none.
        ConfigurationError: It can't be read, or is no YAML.
    """
    import yaml  # deferred: DAG files that build connectors in Python need no YAML

    try:
        return yaml.safe_load(Path(path).read_text())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read", found=error.strerror or str(error)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"a mistake in line {mark.line + 1}" if mark else "characters that YAML doesn't have"
        raise ConfigurationError(f"{path} is no YAML", found=place) from None
