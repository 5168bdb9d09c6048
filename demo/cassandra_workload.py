"""A shop in Cassandra: tables of several shapes, and writes of every kind that a mirror must handle.

All randomness is seeded, so a difference can be made again. Short TTLs end within :data:`SHORT_TTL_SECONDS`.
"""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cassandra.cluster import Session

KEYSPACE = "shop"
SHORT_TTL_SECONDS = 3
MEDIUM_TTL_SECONDS = 60
LONG_TTL_SECONDS = 86_400

TABLES = {
    "products": """CREATE TABLE {ks}.products (sku text PRIMARY KEY, name text, price decimal, stock int,
        weight double, views bigint, huge varint, active boolean, added date, changed timestamp, origin inet,
        picture blob, supplier uuid) WITH cdc = true""",
    "orders": """CREATE TABLE {ks}.orders (customer int, placed timestamp, line int, tier text static,
        credit decimal static, sku text, quantity int, note text, PRIMARY KEY (customer, placed, line))
        WITH CLUSTERING ORDER BY (placed DESC, line ASC) AND cdc = true""",
    "carts": """CREATE TABLE {ks}.carts (customer int, cart timeuuid, items list<text>, tags set<text>,
        amounts map<text, int>, ship_to {ks}.address, bill_to frozen<{ks}.address>, sizes frozen<list<int>>,
        point tuple<int, text>, PRIMARY KEY (customer, cart)) WITH cdc = true""",
    "logins": "CREATE TABLE {ks}.logins (customer int, device text, seen timestamp, ticket text, "
    "PRIMARY KEY (customer, device)) WITH cdc = true",
    "follows": "CREATE TABLE {ks}.follows (a int, b int, PRIMARY KEY (a, b)) WITH cdc = true",
    # Its rows are written before change data capture is switched on: only a snapshot can find them.
    "archive": "CREATE TABLE {ks}.archive (id int PRIMARY KEY, title text, pages int)",
}
_EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_PAST_US = 1_760_000_000_000_000
"""Write times before every write of the server's own clock."""

Statement = tuple[str, tuple[Any, ...]]


def create(session: Session) -> None:
    """Create keyspace, types and tables."""
    from server_kit import create_keyspace

    create_keyspace(session, KEYSPACE)
    session.execute(f"CREATE TYPE IF NOT EXISTS {KEYSPACE}.address (street text, zip int, city text)")
    for statement in TABLES.values():
        session.execute(statement.format(ks=KEYSPACE))


def load(session: Session, rows: int, seed: int = 1) -> int:
    """Write the rows that exist before the first run, then enable CDC for the archive.

    Returns:
        The number of statements.
    """
    rng = random.Random(seed)
    statements: list[Statement] = []
    for number in range(rows):
        statements += [
            _product(rng, number),
            _order(rng, number % 500),
            _follow(rng),
            (
                f"INSERT INTO {KEYSPACE}.archive (id, title, pages) VALUES (%s, %s, %s)",
                (number, f"volume {number}", rng.randrange(900)),
            ),
        ]
    statements += [_cart(rng, customer) for customer in range(100)]
    _execute(session, statements)
    session.execute(f"ALTER TABLE {KEYSPACE}.archive WITH cdc = true")
    return len(statements)


def change(session: Session, statements: int, seed: int) -> int:
    """Write a mixed workload.

    Args:
        session: Where.
        statements: How many.
        seed: Of the random choices.

    Returns:
        The number of statements.
    """
    rng = random.Random(seed)
    kinds: Sequence[tuple[int, Callable[[random.Random], Statement]]] = (
        (20, lambda r: _product(r, r.randrange(4000))),
        (20, lambda r: _order(r, r.randrange(500))),
        (20, _change_product),
        (12, _change_order),
        (12, _change_cart),
        (8, _login),
        (6, _follow),
        (2, _unfollow),
        (4, _change_archive),
    )
    weights = [weight for weight, _ in kinds]
    makers = [maker for _, maker in kinds]
    chosen = [maker(rng) for maker in rng.choices(makers, weights, k=statements)]
    _execute(session, chosen)
    return len(chosen)


def write_expiring(session: Session, rows: int = 50) -> None:
    """Write rows that live when the first run merges them and have expired before the second."""
    statement = (
        f"INSERT INTO {KEYSPACE}.logins (customer, device, seen, ticket) VALUES (%s, 'kiosk', %s, 't') "
        f"USING TTL {MEDIUM_TTL_SECONDS}"
    )
    _execute(session, [(statement, (1000 + number, _EPOCH)) for number in range(rows)])


def _execute(session: Session, statements: Sequence[Statement], at_once: int = 64) -> None:
    """Execute statements concurrently: their write times determine the result."""
    from cassandra.concurrent import execute_concurrent

    session.encoder.mapping[tuple] = session.encoder.cql_encode_tuple  # the driver takes tuples for lists
    for result in execute_concurrent(session, statements, concurrency=at_once, raise_on_first_error=True):
        assert result.success


def _timestamp(rng: random.Random, chance: float = 0.4) -> str:
    """Write at the server's time, or at one of few old times, so that ties occur."""
    return f"TIMESTAMP {_PAST_US + rng.randrange(200)}" if rng.random() < chance else ""


def _ttl(rng: random.Random) -> str:
    return f"TTL {rng.choice([SHORT_TTL_SECONDS, LONG_TTL_SECONDS])}" if rng.random() < 0.15 else ""


def _using(*parts: str) -> str:
    present = [part for part in parts if part]
    return f" USING {' AND '.join(present)}" if present else ""


def _columns(rng: random.Random, number: int) -> Iterator[tuple[str, Any]]:
    yield "name", rng.choice([f"product {number}", "Füller", "名前", ""])
    yield (
        "price",
        rng.choice([Decimal("9.90"), Decimal("0.1"), Decimal("-1.50"), Decimal("12345678901234.5678")]),
    )
    yield "stock", rng.randrange(1000)
    yield "weight", rng.choice([0.25, -0.0, 1e-300, 3.0])
    yield "views", rng.choice([0, 2**62, -1])
    yield "huge", rng.choice([0, -(2**80), 2**70])
    yield "active", rng.random() < 0.5
    yield "added", dt.date(2020, 1, 1) + dt.timedelta(days=rng.randrange(2000))
    yield "changed", _EPOCH + dt.timedelta(milliseconds=rng.randrange(10**9))
    yield "origin", rng.choice(["192.0.2.1", "2001:db8::1"])
    yield "picture", rng.randbytes(rng.randrange(40))
    yield "supplier", uuid.UUID(int=rng.randrange(50), version=4)


def _product(rng: random.Random, number: int) -> Statement:
    values = dict(_columns(rng, number))
    return (
        f"INSERT INTO {KEYSPACE}.products (sku, {', '.join(values)}) "
        f"VALUES (%s, {', '.join(['%s'] * len(values))}){_using(_timestamp(rng, 0.2))}",
        (f"sku-{number}", *values.values()),
    )


def _change_product(rng: random.Random) -> Statement:
    number = rng.randrange(4000)
    values = dict(rng.sample(list(_columns(rng, number)), 3))
    sku = f"sku-{number}"
    kind = rng.randrange(10)
    if kind < 6:
        return (
            f"UPDATE {KEYSPACE}.products{_using(_timestamp(rng), _ttl(rng))} "
            f"SET {', '.join(f'{c} = %s' for c in values)} WHERE sku = %s",
            (*(None if rng.random() < 0.1 else v for v in values.values()), sku),
        )
    if kind < 8:
        return (
            f"DELETE {', '.join(values)} FROM {KEYSPACE}.products{_using(_timestamp(rng))} WHERE sku = %s",
            (sku,),
        )
    return f"DELETE FROM {KEYSPACE}.products{_using(_timestamp(rng))} WHERE sku = %s", (sku,)


def _place(rng: random.Random) -> tuple[int, dt.datetime, int]:
    return rng.randrange(500), _EPOCH + dt.timedelta(hours=rng.randrange(20)), rng.randrange(4)


def _order(rng: random.Random, customer: int) -> Statement:
    _, placed, line = _place(rng)
    return (
        f"INSERT INTO {KEYSPACE}.orders (customer, placed, line, sku, quantity, note) "
        f"VALUES (%s, %s, %s, %s, %s, %s){_using(_timestamp(rng, 0.2), _ttl(rng))}",
        (customer, placed, line, f"sku-{rng.randrange(4000)}", rng.randrange(1, 9), rng.choice(["", "gift"])),
    )


def _change_order(rng: random.Random) -> Statement:
    customer, placed, line = _place(rng)
    table, when = f"{KEYSPACE}.orders", _using(_timestamp(rng))
    kind = rng.randrange(10)
    if kind < 3:
        return (
            f"UPDATE {table}{_using(_timestamp(rng), _ttl(rng))} SET quantity = %s, note = %s "
            "WHERE customer = %s AND placed = %s AND line = %s",
            (rng.randrange(9), rng.choice([None, "late"]), customer, placed, line),
        )
    if kind < 5:
        return f"UPDATE {table}{when} SET tier = %s, credit = %s WHERE customer = %s", (
            rng.choice(["gold", "silver", None]),
            Decimal(rng.randrange(1000)) / 100,
            customer,
        )
    if kind == 5:
        return f"DELETE tier FROM {table}{when} WHERE customer = %s", (customer,)
    if kind == 6:
        return f"DELETE FROM {table}{when} WHERE customer = %s AND placed = %s AND line = %s", (
            customer,
            placed,
            line,
        )
    if kind == 7:
        return f"DELETE FROM {table}{when} WHERE customer = %s AND placed >= %s AND placed < %s", (
            customer,
            placed,
            placed + dt.timedelta(hours=3),
        )
    if kind == 8:
        return f"DELETE FROM {table}{when} WHERE customer = %s AND placed = %s AND line > %s", (
            customer,
            placed,
            line,
        )
    return f"DELETE FROM {table}{when} WHERE customer = %s", (customer,)


def _cart_key(customer: int) -> tuple[int, uuid.UUID]:
    return customer, uuid.UUID(fields=(customer, 0, 0x1000, 0x80, 0, 1))


def _cart(rng: random.Random, customer: int) -> Statement:
    words = [rng.choice("abcdef") for _ in range(4)]
    return (
        f"INSERT INTO {KEYSPACE}.carts (customer, cart, items, tags, amounts, sizes, point) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s)",
        (*_cart_key(customer), words, set(words), {w: rng.randrange(9) for w in words}, [1, 2], (3, "x")),
    )


def _change_cart(rng: random.Random) -> Statement:
    key = _cart_key(rng.randrange(100))
    word, number = rng.choice("abcdef"), rng.randrange(9)
    table, when = f"{KEYSPACE}.carts", _using(_timestamp(rng), _ttl(rng))
    at, where = _using(_timestamp(rng)), " WHERE customer = %s AND cart = %s"
    street = f"street {number}"
    return rng.choice(
        [
            (f"UPDATE {table}{when} SET items = items + %s{where}", ([word], *key)),
            (f"UPDATE {table}{when} SET items = %s + items{where}", ([word], *key)),
            (f"UPDATE {table} SET items = items - %s{where}", ([word], *key)),
            (f"UPDATE {table} SET items = %s{where}", ([word, "z"], *key)),
            (f"UPDATE {table}{when} SET tags = tags + %s{where}", ({word}, *key)),
            (f"UPDATE {table}{at} SET tags = tags - %s{where}", ({word}, *key)),
            (f"UPDATE {table}{when} SET amounts[%s] = %s{where}", (word, number, *key)),
            (f"DELETE amounts[%s] FROM {table}{at}{where}", (word, *key)),
            (f"UPDATE {table} SET ship_to = {{street: '{street}', zip: {number}, city: 'B'}}{where}", key),
            (f"UPDATE {table}{when} SET ship_to.zip = %s{where}", (number, *key)),
            (f"UPDATE {table}{when} SET bill_to = {{street: '{street}', zip: {number}}}{where}", key),
            (f"UPDATE {table}{when} SET sizes = %s, point = %s{where}", ([number], (number, word), *key)),
            (f"DELETE items, tags FROM {table}{at}{where}", key),
            (f"DELETE FROM {table}{at}{where}", key),
        ]
    )


def _login(rng: random.Random) -> Statement:
    if rng.random() < 0.2:
        return f"DELETE ticket FROM {KEYSPACE}.logins WHERE customer = %s AND device = %s", (
            rng.randrange(99),
            "tv",
        )
    return (
        f"INSERT INTO {KEYSPACE}.logins (customer, device, seen, ticket) VALUES (%s, %s, %s, %s) "
        f"USING TTL {rng.choice([SHORT_TTL_SECONDS, LONG_TTL_SECONDS])}",
        (rng.randrange(99), rng.choice(["tv", "phone"]), _EPOCH, f"ticket {rng.randrange(1000)}"),
    )


def _follow(rng: random.Random) -> Statement:
    return f"INSERT INTO {KEYSPACE}.follows (a, b) VALUES (%s, %s){_using(_timestamp(rng, 0.2))}", (
        rng.randrange(60),
        rng.randrange(60),
    )


def _unfollow(rng: random.Random) -> Statement:
    return f"DELETE FROM {KEYSPACE}.follows{_using(_timestamp(rng))} WHERE a = %s AND b = %s", (
        rng.randrange(60),
        rng.randrange(60),
    )


def _change_archive(rng: random.Random) -> Statement:
    number = rng.randrange(4000)
    if rng.random() < 0.3:
        return f"DELETE FROM {KEYSPACE}.archive WHERE id = %s", (number,)
    return f"UPDATE {KEYSPACE}.archive SET pages = %s WHERE id = %s", (rng.randrange(900), number)
