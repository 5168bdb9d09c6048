"""Shapes in which programs write secrets, and a search for secrets that knows none of these shapes."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

SHAPES: Final[dict[str, Callable[[str], str]]] = {
    "plain": lambda secret: f"password={secret} is wrong",
    "HTTP header": lambda secret: f"> Authorization: Bearer {secret}\n> Accept: */*",
    "HTTP login": lambda secret: "Authorization: Basic " + base64.b64encode(f"a:{secret}".encode()).decode(),
    "MongoDB's properties": lambda secret: f"authMechanismProperties=AWS_SESSION_TOKEN:{secret},X:y",
    "list": lambda secret: f"{['PLAIN', secret]}",
    "nested": lambda secret: f"{({'a': ({'b': [secret]},)},)}",
    "bytes": lambda secret: f"{secret.encode()!r}",
    "JSON": lambda secret: json.dumps({"secret": secret}),
    "JSON in JSON": lambda secret: json.dumps({"body": json.dumps({"secret": secret})}),
    "JSON of Unicode": lambda secret: json.dumps({"secret": secret}, ensure_ascii=False),
    "address": lambda secret: f"https://me:{quote(secret, safe='')}@host/v1?x=1",
    "query": lambda secret: f"https://host/v1?token={quote_plus(secret)}&x=1",
    "lower escapes": lambda secret: re.sub("%..", lambda code: code[0].lower(), quote(secret, safe="")),
    "Java's query": lambda secret: quote_plus(secret, safe="*").replace("~", "%7E"),
    "twice in an address": lambda secret: f"https://me/{quote(quote(secret, safe=''))}",
    "repr of repr": lambda secret: repr([repr([secret])]),
    "HTML": lambda secret: html.escape(secret).replace("&#x27;", "&#39;"),
    "XML": lambda secret: f"<secret>{html.escape(secret)}</secret>",
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64 for addresses": lambda secret: base64.urlsafe_b64encode(f"ab:{secret}:c".encode()).decode(),
    "base64 in lines": lambda secret: base64.encodebytes(f"{'x' * 50}:{secret}{'y' * 50}".encode()).decode(),
    "hexadecimal": lambda secret: secret.encode().hex(),
    "joined lines": lambda secret: "".join(secret.splitlines()),
    "spaced lines": lambda secret: " ".join(secret.splitlines()),
    "split lines": lambda secret: "\n    ".join(secret[at : at + 10] for at in range(0, len(secret), 10)),
    "cut": lambda secret: "the server said: " + secret[: max(len(secret) * 3 // 4, 8)],
    "cause": lambda secret: (
        "py4j.protocol.Py4JJavaError: An error occurred while calling o51.sql.\n"
        ": org.apache.iceberg.exceptions.RESTException: Unable to process\n"
        f"\tat java.base/X.y(X.java:1)\nCaused by: java.sql.SQLException: refused {secret}\n\t... 3 more\n"
    ),
}


def leaks(text: str, *secrets: str) -> list[str]:
    """Return the secrets that a text, read in any usual way, has, or most of one."""
    once = {text, unquote(text), unquote_plus(text), html.unescape(text), *_decoded(text)}
    once |= {_unescaped(text), _unescaped(_unescaped(text)), unquote(unquote(text))}
    read = "\0".join(once | {"".join(one.split()) for one in once})
    found = []
    for secret in secrets:
        part = max(len(secret) * 3 // 4, min(len(secret), 8))
        wanted = {secret, secret[:part], secret[-part:]}
        if any(one in read for one in wanted | {"".join(one.split()) for one in wanted}):
            found.append(secret)
    return found


def _unescaped(text: str) -> str:
    one = re.sub(r"\\u([0-9a-f]{4})", lambda code: chr(int(code[1], 16)), text)
    one = re.sub(r"\\x([0-9a-f]{2})", lambda code: chr(int(code[1], 16)), one)
    return re.sub(r"\\(.)", lambda code: {"n": "\n", "t": "\t", "r": "\r"}.get(code[1], code[1]), one)


def _decoded(text: str) -> set[str]:
    found = set()
    for run in re.findall(r"[A-Za-z0-9+/_-]{8,}", "".join(text.split())):
        for begin in range(4):
            data = run[begin:].translate(str.maketrans("-_", "+/"))
            data = data[: len(data) // 4 * 4]
            found.add(base64.b64decode(data).decode(errors="replace"))
    for run in re.findall(r"(?:[0-9a-fA-F]{2}){4,}", text):
        found.add(bytes.fromhex(run).decode(errors="replace"))
    return found
