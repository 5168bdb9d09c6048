"""What Spark hides in its UI, its event log and its own output. Light: operators import it."""

from __future__ import annotations

from typing import Final

REDACTION: Final = "spark.redaction.regex"
_SPARKS: Final = "(?i)secret|password|token|access[.]?key"
_OURS: Final = (
    r"(?i)passphrase|passwd|credential|oauth|authorization|(private|api|account|shared|encryption|master)[._-]?key"
    r"|access[._-]key|pwd|pass(?![a-z])|jaas|[._-](sas|header|cookie)s?[._-]|://\S*:\S*@"
    r"|^spark[.]sql[.]catalog[.][^.]+[.](?!(type|warehouse|catalog-impl|io-impl|cache-enabled)$)"
)
"""Spark searches it in names and in values. Of a catalog, all but the settings named here are hidden."""


def with_redaction(regex: str) -> str:
    """Return the pattern of what Spark hides in its UI and event log, with another one unless it is empty."""
    return regex if _OURS in regex else "|".join(filter(None, (regex and f"(?:{regex})", _SPARKS, _OURS)))
