"""Loading of YAML files: connector declarations and Cassandra's configuration.

Both may contain passwords, and parsers quote the text around an error. Errors therefore report only the line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.plain_data import require_usable

_MOST_MERGED: Final = 100_000


def parse_yaml(text: str) -> Any:
    """Return the value of one YAML document, in which merge keys (``<<``) stand for a bounded number of keys.

    They are expanded while a document is parsed: a few hundred characters can stand for billions.

    Raises:
        yaml.YAMLError: It is not valid, or more is merged.
    """
    import yaml  # deferred: DAG files that build connectors in Python need no YAML

    class Loader(yaml.SafeLoader):
        left = _MOST_MERGED

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            for key, value in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                        if isinstance(one, yaml.MappingNode):
                            self.spend(one)  # to look at it
                            self.flatten_mapping(one)
                            self.spend(one)  # to copy it
            super().flatten_mapping(node)

        def spend(self, node: yaml.MappingNode) -> None:
            self.left -= len(node.value) + 1
            if self.left < 0:
                raise yaml.constructor.ConstructorError(None, None, "too much is merged", node.start_mark)

    return yaml.load(text, Loader)  # noqa: S506  # a SafeLoader


def read_yaml(path: str | Path) -> Any:
    """Load a file with one YAML document.

    Raises:
        FileNotFoundError: The file does not exist.
        ConfigurationError: The file can't be read or is not valid YAML.
    """
    import yaml

    try:
        found = parse_yaml(Path(path).read_text())
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
