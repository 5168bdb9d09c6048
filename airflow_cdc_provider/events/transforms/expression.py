"""Expressions of filters, routes and predicates: a small SQL subset that is parsed, never executed as code.

=================  =====================================================================================
names              ``value.after.status``, ``key.id``, ``topic``, ``partition``, ``timestamp`` (ms),
                   ``headers['name']``; other names in double quotes
literals           ``'text'``, ``12``, ``1.5``, ``true``, ``false``, ``null``
comparison         ``= <> != < <= > >=``, ``is [not] distinct from``, ``[not] between``, ``[not] in (...)``,
                   ``is [not] null``, ``is [not] true``, ``is [not] false``
logic              ``and``, ``or``, ``not``
text               ``||``, ``[not] like``, ``[not] ilike``, ``rlike`` (a part of the text matches)
numbers            ``+ - * / %``; ``/`` returns a double; division by 0 returns null
choice             ``case when ... then ... else ... end``, ``if``, ``coalesce``, ``nullif``
functions          ``length``, ``lower``, ``upper``, ``trim``, ``substring``, ``starts_with``, ``ends_with``,
                   ``contains``, ``replace``, ``regexp_replace``, ``concat``, ``abs``, ``matches`` (the whole
                   text matches), ``cast(x as bigint | double | text | boolean)``
=================  =====================================================================================

Null has SQL semantics: comparisons with null are neither true nor false. Regular expressions are RE2, with
linear time. Other SQL (subqueries, columns by number, functions of the current time) is rejected when the
declaration is loaded, as are comparisons of incompatible types. sqlglot parses; this module converts its
output to a tree that has only the operations above.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from airflow_cdc_provider.events.transforms.expression_tree import (
    ROOTS,
    Constant,
    Expression,
    Kind,
    Node,
    Operation,
    Reference,
)
from airflow_cdc_provider.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sqlglot import exp

MAX_CHARACTERS: Final = 10_000
MAX_DEPTH: Final = 50
MAX_NODES: Final = 1_000
MAX_PATTERN: Final = 1_000


def wrong_expression(text: str, kind: Kind) -> str:
    """Return the error of an expression with an expected type; empty if it is valid."""
    try:
        parse_expression(text, kind)
    except ConfigurationError as error:
        return "an expression: " + str(error).removeprefix(f"[CDC-{error.code}] ")
    return ""


@lru_cache(maxsize=256)
def parse_expression(text: str, kind: Kind) -> Expression:
    """Parse an expression and check it as far as possible without records.

    Args:
        text: The expression.
        kind: Expected type of the result.

    Raises:
        ConfigurationError: It is invalid, too large, or has incompatible types; the message shows the
            position.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    if len(text) > MAX_CHARACTERS:
        raise ConfigurationError(
            "an expression is too long", expected=f"{MAX_CHARACTERS} characters", found=str(len(text))
        )
    _LOG.setLevel(
        logging.ERROR
    )  # sqlglot only warns of statements that it keeps as text; they are rejected here
    try:
        found = sqlglot.parse(text)
    except SqlglotError as error:
        raise ConfigurationError(
            f"the expression {_short(text)} can't be read", found=_fault(error)
        ) from None
    except RecursionError:
        raise _too_deep(text) from None
    if len(found) != 1 or found[0] is None:
        raise ConfigurationError(f"the expression {_short(text)} can't be read", expected="one expression")
    node = _Reader(text).node(cast("exp.Expression", found[0]), 0)
    if kind not in ("any", node.kind) and node.kind not in ("any", "null"):
        raise ConfigurationError(f"the expression {_short(text)} gives a {node.kind}", expected=_NAMES[kind])
    return Expression(text, node)


_NAMES: Final[Mapping[str, str]] = {
    "any": "a value",
    "number": "a number",
    "text": "a text",
    "boolean": "a condition",
    "null": "null",
}

_FUNCTIONS: Final[Mapping[str, tuple[str, tuple[Kind, ...], int, Kind]]] = {
    "Length": ("length", ("text",), 1, "number"),
    "Lower": ("lower", ("text",), 1, "text"),
    "Upper": ("upper", ("text",), 1, "text"),
    "Trim": ("trim", ("text",), 1, "text"),
    "Substring": ("substring", ("text", "number", "number"), 2, "text"),
    "StartsWith": ("starts_with", ("text", "text"), 2, "boolean"),
    "EndsWith": ("ends_with", ("text", "text"), 2, "boolean"),
    "Contains": ("contains", ("text", "text"), 2, "boolean"),
    "Replace": ("replace", ("text", "text", "text"), 3, "text"),
    "RegexpReplace": ("regexp_replace", ("text", "text", "text"), 3, "text"),
    "Abs": ("abs", ("number",), 1, "number"),
    "Add": ("add", ("number", "number"), 2, "number"),
    "Sub": ("subtract", ("number", "number"), 2, "number"),
    "Mul": ("multiply", ("number", "number"), 2, "number"),
    "Div": ("divide", ("number", "number"), 2, "number"),
    "Mod": ("modulo", ("number", "number"), 2, "number"),
    "Neg": ("negate", ("number",), 1, "number"),
    "DPipe": ("concat", ("text", "text"), 2, "text"),
    "Like": ("like", ("text", "text"), 2, "boolean"),
    "ILike": ("ilike", ("text", "text"), 2, "boolean"),
    "RegexpLike": ("rlike", ("text", "text"), 2, "boolean"),
}
"""Functions by sqlglot class: name, argument types, number of required arguments, result type."""
_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Substring": ("this", "start", "length"),
    "Replace": ("this", "expression", "replacement"),
    "RegexpReplace": ("this", "expression", "replacement"),
}
_COMPARISONS: Final = {
    "EQ": "equal",
    "NEQ": "not_equal",
    "LT": "less",
    "LTE": "less_equal",
    "GT": "greater",
    "GTE": "greater_equal",
    "NullSafeEQ": "same",
    "NullSafeNEQ": "not_same",
}
_CASTS: Final[Mapping[str, tuple[str, Kind]]] = {
    "BIGINT": ("bigint", "number"),
    "INT": ("bigint", "number"),
    "DOUBLE": ("double", "number"),
    "TEXT": ("text", "text"),
    "VARCHAR": ("text", "text"),
    "BOOLEAN": ("boolean", "boolean"),
}
_NUMBER: Final = re.compile(r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LOG: Final = logging.getLogger("sqlglot")
_HARMLESS: Final = frozenset({"safe", "typed", "coalesce", "offset", "_type"})
"""Arguments of sqlglot classes for dialects, which are not part of the expression."""
_PATTERNED: Final = frozenset(
    {
        "like",
        "ilike",
        "rlike",
        "matches",
        "regexp_replace",
        "replace",
        "starts_with",
        "ends_with",
        "contains",
    }
)
"""Operations whose second argument must be a literal, which is compiled once."""


class _Reader:
    """Converts sqlglot's tree to ours, and rejects unsupported operations.

    Args:
        text: The expression.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._nodes = 0

    def node(self, found: exp.Expression, depth: int) -> Node:
        """Read a part."""
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise _too_deep(self._text)
        name = type(found).__name__
        if name in _FUNCTIONS:
            return self._function(found, depth)
        if name in _COMPARISONS:
            self._only(found, "this", "expression")
            both = self._all((found.this, found.expression), depth)
            self._same_kinds(found, both)
            return Operation(_COMPARISONS[name], both, "boolean", self._where(found))
        read = self._READERS.get(name)
        if read is None:
            self._refuse(found)
        return read(self, found, depth)

    def _all(self, found: Any, depth: int) -> tuple[Node, ...]:
        return tuple(self.node(one, depth + 1) for one in found)

    def _function(self, found: exp.Expression, depth: int) -> Node:
        name, kinds, least, result = _FUNCTIONS[type(found).__name__]
        names = _ARGUMENTS.get(type(found).__name__, ("this", "expression"))
        self._only(found, *names, "negate")
        given = [found.args[n] for n in names if found.args.get(n) is not None]
        operation = self._operation(name, self._all(given, depth), kinds, least, result, found)
        return (
            Operation("not", (operation,), "boolean", operation.where)
            if found.args.get("negate")
            else operation
        )

    def _operation(
        self,
        name: str,
        arguments: tuple[Node, ...],
        kinds: tuple[Kind, ...],
        least: int,
        result: Kind,
        found: exp.Expression,
    ) -> Operation:
        if not least <= len(arguments) <= len(kinds):
            self._fail(found, f"{name} takes {least} to {len(kinds)} arguments", str(len(arguments)))
        for argument, kind in zip(arguments, kinds, strict=False):
            self._want(argument, kind)
        if name in _PATTERNED:
            given = arguments[1]
            if not isinstance(given, Constant) or not isinstance(given.value, str):
                self._fail(found, f"the pattern of {name} must be a literal", "an expression")
            if len(given.value) > MAX_PATTERN:
                self._fail(found, f"a pattern has at most {MAX_PATTERN} characters", str(len(given.value)))
        return Operation(name, arguments, result, self._where(found))

    def _want(self, node: Node, kind: Kind) -> None:
        if kind != "any" and node.kind not in (kind, "any", "null"):
            raise ConfigurationError(
                f"the expression {_short(self._text)} doesn't fit {node.where}",
                expected=_NAMES[kind],
                found=_NAMES[node.kind],
                remedy="cast(... as text), as bigint or as double makes one of the other",
            )

    def _same_kinds(self, found: exp.Expression, nodes: tuple[Node, ...]) -> Kind:
        kinds = {node.kind for node in nodes} - {"any", "null"}
        if len(kinds) > 1:
            self._fail(found, "operands of one type", " and ".join(sorted(kinds)))
        return kinds.pop() if kinds else "any"

    def _logic(self, found: exp.Expression, depth: int) -> Node:
        """Flatten ``a and b and c``, which sqlglot nests."""
        kind, parts, rest = type(found), [], found
        while isinstance(rest, kind):
            self._only(rest, "this", "expression")
            parts.append(rest.expression)
            rest = rest.this
        nodes = self._all([rest, *reversed(parts)], depth)
        for node in nodes:
            self._want(node, "boolean")
        return Operation(kind.__name__.lower(), nodes, "boolean", self._where(found))

    def _not(self, found: exp.Expression, depth: int) -> Node:
        (node,) = self._all([found.this], depth)
        self._want(node, "boolean")
        return Operation("not", (node,), "boolean", self._where(found))

    def _paren(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "this")
        return self.node(found.this, depth + 1)

    def _is(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "this", "expression")
        (node,) = self._all([found.this], depth)
        other = self.node(found.expression, depth + 1)
        if not isinstance(other, Constant) or other.kind not in ("null", "boolean"):
            self._refuse(found)
        if other.value is None:
            return Operation("is_null", (node,), "boolean", self._where(found))
        self._want(node, "boolean")
        return Operation("same", (node, other), "boolean", self._where(found))

    def _in(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "this", "expressions")
        nodes = self._all([found.this, *found.expressions], depth)
        if len(nodes) == 1 or not all(isinstance(node, Constant) for node in nodes[1:]):
            self._fail(found, "a list of literals after in", "something else")
        self._same_kinds(found, nodes)
        return Operation("in", nodes, "boolean", self._where(found))

    def _between(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "this", "low", "high")
        low, node, high = self._all([found.args["low"], found.this, found.args["high"]], depth)
        self._same_kinds(found, (low, node, high))
        where = self._where(found)
        above = Operation("less_equal", (low, node), "boolean", where)
        return Operation(
            "and", (above, Operation("less_equal", (node, high), "boolean", where)), "boolean", where
        )

    def _case(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "this", "ifs", "default")
        conditions = self._all([branch.this for branch in found.args["ifs"]], depth)
        if found.this is not None:
            subject = self.node(found.this, depth + 1)
            for condition in conditions:
                self._same_kinds(found, (subject, condition))
            conditions = tuple(Operation("equal", (subject, one), "boolean", one.where) for one in conditions)
        for condition in conditions:
            self._want(condition, "boolean")
        results = self._all([branch.args["true"] for branch in found.args["ifs"]], depth)
        default = found.args.get("default")
        last = self.node(default, depth + 1) if default is not None else Constant(None)
        return self._choice(found, conditions, (*results, last))

    def _if(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "this", "true", "false")
        (condition,) = self._all([found.this], depth)
        self._want(condition, "boolean")
        default = found.args.get("false")
        last = self.node(default, depth + 1) if default is not None else Constant(None)
        return self._choice(found, (condition,), (self.node(found.args["true"], depth + 1), last))

    def _choice(self, found: exp.Expression, conditions: tuple[Node, ...], results: tuple[Node, ...]) -> Node:
        kind = self._same_kinds(found, results)
        return Operation("case", (*conditions, *results), kind, self._where(found))

    def _coalesce(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "this", "expressions")
        nodes = self._all([found.this, *found.expressions], depth)
        return Operation("coalesce", nodes, self._same_kinds(found, nodes), self._where(found))

    def _nullif(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "this", "expression")
        one, other = self._all([found.this, found.expression], depth)
        self._same_kinds(found, (one, other))
        equal = Operation("equal", (one, other), "boolean", self._where(found))
        return Operation("case", (equal, Constant(None), one), one.kind, self._where(found))

    def _concat(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "expressions")
        nodes = self._all(found.expressions, depth)
        for node in nodes:
            self._want(node, "text")
        return Operation("concat", nodes, "text", self._where(found))

    def _cast(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "this", "to")
        target = found.args["to"]
        type_name = getattr(target.this, "name", str(target.this))
        if type_name not in _CASTS or target.expressions:
            self._fail(found, "cast as bigint, double, text or boolean", str(target))
        (node,) = self._all([found.this], depth)
        name, kind = _CASTS[type_name]
        return Operation("cast_" + name, (node,), kind, self._where(found))

    def _anonymous(self, found: exp.Expression, depth: int) -> Node:
        if str(found.this).lower() != "matches":
            self._refuse(found)
        nodes = self._all(found.expressions, depth)
        return self._operation("matches", nodes, ("text", "text"), 2, "boolean", found)

    def _literal(self, found: exp.Expression, depth: int) -> Node:
        where = self._where(found)
        if found.is_string:
            return Constant(found.this, where)
        if not _NUMBER.fullmatch(found.this):
            self._fail(found, "a number", found.this)
        whole = found.this.isdigit()
        number: int | float = int(found.this) if whole else float(found.this)
        if (whole and number >= 2**63) or number == float("inf"):
            self._fail(found, "a number of 64 bits", found.this)
        return Constant(number, where)

    def _boolean(self, found: exp.Expression, depth: int) -> Node:
        return Constant(bool(found.this), self._where(found))

    def _null(self, found: exp.Expression, depth: int) -> Node:
        return Constant(None, self._where(found))

    def _name(self, found: exp.Expression, depth: int) -> Node:
        parts = self._parts(found)
        root, *path = parts
        if root not in ROOTS or root == "headers" or (path and ROOTS[root] != "any"):
            self._fail(
                found,
                "a name that begins with value. or key., topic, partition, timestamp or headers['name']",
                ".".join(parts),
            )
        return Reference(root, tuple(path), self._where(found))

    def _parts(self, found: exp.Expression) -> list[str]:
        name = type(found).__name__
        if name == "Dot":
            return [*self._parts(found.this), *self._parts(found.expression)]
        if name == "Identifier":
            return [found.this]
        parts = cast("exp.Column", found).parts if name == "Column" else []
        if not parts or not all(type(part).__name__ == "Identifier" for part in parts):
            self._refuse(found)
        return [part.this for part in parts]

    def _header(self, found: exp.Expression, depth: int) -> Node:
        self._only(found, "this", "expressions")
        names = found.expressions
        if (
            self._parts(found.this) != ["headers"]
            or len(names) != 1
            or not getattr(names[0], "is_string", False)
        ):
            self._refuse(found)
        return Reference("headers", (names[0].this,), self._where(found))

    _READERS: Final[Mapping[str, Callable[[_Reader, exp.Expression, int], Node]]] = {
        "And": _logic,
        "Or": _logic,
        "Not": _not,
        "Paren": _paren,
        "Is": _is,
        "In": _in,
        "Between": _between,
        "Case": _case,
        "If": _if,
        "Coalesce": _coalesce,
        "Nullif": _nullif,
        "Concat": _concat,
        "Cast": _cast,
        "Anonymous": _anonymous,
        "Literal": _literal,
        "Boolean": _boolean,
        "Null": _null,
        "Column": _name,
        "Dot": _name,
        "Bracket": _header,
    }

    def _only(self, found: exp.Expression, *names: str) -> None:
        """Reject a node with unsupported arguments."""
        for name, given in found.args.items():
            if name not in names and name not in _HARMLESS and given not in (None, False, []):
                self._refuse(found)

    def _refuse(self, found: exp.Expression) -> NoReturn:
        self._fail(found, "what the language of expressions has", found.sql()[:80])

    def _fail(self, found: exp.Expression, expected: str, actual: str) -> NoReturn:
        raise ConfigurationError(
            f"the expression {_short(self._text)} is wrong at {self._where(found)}",
            expected=expected,
            found=actual,
        )

    def _where(self, found: exp.Expression) -> str:
        """Return the location of a part: the number of its first character, from 1, and its text."""
        places = [node.meta for node in found.walk() if "start" in node.meta]
        if not places:
            return repr(found.sql()[:60])
        start = min(place["start"] for place in places)
        end = max(place["end"] for place in places) + 1
        return f"character {start + 1} ({self._text[start:end][:60]})"


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _fault(error: Exception) -> str:
    """Say what the parser found, without its colours."""
    details = getattr(error, "errors", None)
    if not details:
        return str(error).splitlines()[0][:200]
    first = details[0]
    return f"{first.get('description', '')} at character {first.get('col', 0)}"


def _too_deep(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"the expression {_short(text)} is too large",
        expected=f"at most {MAX_NODES} parts, {MAX_DEPTH} levels deep",
    )
