"""Loading of YAML files: connector declarations and Cassandra's configuration.

Both may contain passwords, and parsers quote the text around an error. Errors therefore report only the line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.plain_data import require_usable


def read_yaml(path: str | Path) -> Any:
    """Load a file with one YAML document.

    Raises:
        FileNotFoundError: The file does not exist.
        ConfigurationError: The file can't be read or is not valid YAML.
    """
    import yaml  # deferred: DAG files that build connectors in Python need no YAML

    try:
        found = yaml.safe_load(Path(path).read_text())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read", found=error.strerror or str(error)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        location = (
            f"a syntax error in line {mark.line + 1}"
            if mark
            else "characters, a number or levels that YAML does not allow"
        )
        raise ConfigurationError(f"{path} is not valid YAML", found=location) from None
    require_usable(found, str(path))
    return found
