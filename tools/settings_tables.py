"""Write tables of other products' settings, and of transforms' options, into the docs.

They are between ``<!-- table: NAME -->`` and an end mark.

Usage: ``python tools/settings_tables.py [--check]``.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from airflow_cdc_provider.events.transforms.options import TRANSFORMS
from airflow_cdc_provider.migration import datastax
from airflow_cdc_provider.migration.debezium import properties
from airflow_cdc_provider.migration.rules import table

_DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PAGES: Final = (
    *(_DOCS / f"moving-to-{name}.md" for name in ("cassandra", "mongodb", "scylla", "vitess")),
    _DOCS / "transforms.md",
)


def options_table() -> str:
    """Return the table of the options of each type of transform."""
    lines = ["| type | options |", "|---|---|"]
    for name, options in TRANSFORMS.items():
        described = []
        for field in dataclasses.fields(options):
            if field.name in ("type", "when"):
                continue
            needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            plain = isinstance(field.default, (str, int)) and field.default
            default = f" (`{field.default}`)" if plain else ""
            described.append(f"`{field.name}`{' (needed)' if needed else default}: {field.metadata['doc']}")
        summary = (options.__doc__ or "").splitlines()[0]
        lines.append(f"| `{name}` | {summary}{'<br>' if described else ''}{'<br>'.join(described)} |")
    return "\n".join(lines) + "\n"


TABLES: Final[Mapping[str, str]] = {
    "debezium-cassandra": table(properties.RULES["cassandra"]),
    "debezium-mongodb": table(properties.RULES["mongodb"]),
    "scylla": table(properties.RULES["scylla"]),
    "debezium-vitess": table(properties.RULES["vitess"]),
    "datastax": table(datastax.RULES),
    "transforms": options_table(),
}


def written(text: str) -> str:
    """Return a page with its tables generated from the rules."""
    for name, content in TABLES.items():
        before, mark, rest = text.partition(f"<!-- table: {name} -->\n")
        if mark:
            text = f"{before}{mark}{content}<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


def main() -> None:
    """Write the pages, or with ``--check`` only check whether they are up to date."""
    for page in PAGES:
        text = page.read_text()
        if "--check" not in sys.argv:
            page.write_text(written(text))
        elif written(text) != text:
            sys.exit(f"{page.name} is out of date: run python tools/settings_tables.py")


if __name__ == "__main__":
    main()
