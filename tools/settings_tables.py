"""Write tables of other products' settings into the docs, from ``<!-- table: NAME -->`` to an end mark.

Usage: ``python tools/settings_tables.py [--check]``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from airflow_cdc_provider.connector import datastax, debezium
from airflow_cdc_provider.connector.imported import Rules, table

_DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PAGES: Final = tuple(_DOCS / f"moving-to-{name}.md" for name in ("cassandra", "mongodb", "scylla", "vitess"))
TABLES: Final[Mapping[str, Rules]] = {
    "debezium-cassandra": debezium.RULES["cassandra"],
    "debezium-mongodb": debezium.RULES["mongodb"],
    "scylla": debezium.RULES["scylla"],
    "debezium-vitess": debezium.RULES["vitess"],
    "datastax": datastax.RULES,
}


def written(text: str) -> str:
    """Return a page with its tables as the rules make them."""
    for name, rules in TABLES.items():
        before, mark, rest = text.partition(f"<!-- table: {name} -->\n")
        if mark:
            text = f"{before}{mark}{table(rules)}<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


def main() -> None:
    """Write the pages, or with ``--check`` only tell whether they are up to date."""
    for page in PAGES:
        text = page.read_text()
        if "--check" not in sys.argv:
            page.write_text(written(text))
        elif written(text) != text:
            sys.exit(f"{page.name} is out of date: run python tools/settings_tables.py")


if __name__ == "__main__":
    main()
