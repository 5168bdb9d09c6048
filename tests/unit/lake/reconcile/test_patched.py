from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, DELETE, PATCH, ROW, UPSERT
from airflow_cdc_provider.lake.reconcile import reconcile_patched


def append(states: pa.Array, patches: pa.Array, offsets: Any) -> pa.Array:
    """Patch so that the order shows: each is appended; ``!`` can't be applied, and null can't be changed."""
    out: list[bytes | None] = []
    for row, state in enumerate(states.to_pylist()):
        some = patches.to_pylist()[offsets[row] : offsets[row + 1]]
        out.append(None if state is None or b"!" in some else b"".join([state, *some]))
    return pa.array(out, pa.large_binary())


def contribution(
    key: str, version: int, op: int, state: bytes | None = None, generation: int = 0
) -> dict[str, Any]:
    return {
        "key": key.encode(),
        "scope": ROW,
        "clustering": b"",
        "generation": generation,
        "version": bytes([version]),
        "op": op,
        "state": state,
    }


def merged(*rows: dict[str, Any]) -> tuple[dict[str, Any], list[str], set[str]]:
    found = reconcile_patched(pa.Table.from_pylist(list(rows), CONTRIBUTION_SCHEMA), 0, append)
    live = {row["key"].decode(): (row["state"], row["version"][0]) for row in found.live.to_pylist()}
    gone = [row["key"].decode() for row in found.tombstones.to_pylist()]
    return live, gone, {key.decode() for key in found.unresolved_keys.to_pylist()}


def test_patches_newer_than_the_row_are_applied_in_order_and_once() -> None:
    patches = [contribution("k", v, PATCH, str(v).encode()) for v in (5, 3, 4, 2, 4)]
    assert merged(contribution("k", 2, UPSERT, b"base "), *patches) == ({"k": (b"base 345", 5)}, [], set())


def test_a_whole_row_replaces_the_patches_before_it() -> None:
    rows = [
        contribution("k", 1, UPSERT, b"a"),
        contribution("k", 2, PATCH, b"b"),
        contribution("k", 3, UPSERT, b"c"),
    ]
    assert merged(*rows) == ({"k": (b"c", 3)}, [], set())
    assert merged(*rows[:2], contribution("k", 3, DELETE)) == ({}, ["k"], set())


def test_a_patch_without_a_row_to_change_leaves_the_key_unresolved() -> None:
    live, gone, unresolved = merged(
        contribution("unknown", 1, PATCH, b"x"),
        contribution("deleted", 1, DELETE),
        contribution("deleted", 2, PATCH, b"x"),
        contribution("stateless", 1, UPSERT),
        contribution("stateless", 2, PATCH, b"x"),
        contribution("refusing", 1, UPSERT, b"as it was"),
        contribution("refusing", 2, PATCH, b"!"),
        contribution("good", 1, UPSERT, b"a"),
        contribution("good", 2, PATCH, b"b"),
    )
    assert live == {"stateless": (None, 1), "refusing": (b"as it was", 1), "good": (b"ab", 2)}
    assert gone == ["deleted"]
    assert unresolved == {"unknown", "deleted", "stateless", "refusing"}


def test_generations_come_before_versions() -> None:
    rows = [
        contribution("k", 9, UPSERT, b"old"),
        contribution("k", 1, UPSERT, b"new", 1),
        contribution("k", 9, PATCH, b"x"),
    ]
    assert merged(*rows) == ({"k": (b"new", 1)}, [], set())
    later = contribution("k", 0, PATCH, b"!", 2)
    assert merged(*rows, later)[2] == {"k"}


CHANGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 6), st.sampled_from([UPSERT, DELETE, PATCH, PATCH])),
    max_size=14,
)


@given(CHANGES, st.randoms(use_true_random=False), st.integers(0, 14))
def test_order_duplicates_and_steps_do_not_matter(
    changes: list[tuple[str, int, int]], chance: Any, cut: int
) -> None:
    """As a mirror is merged: first some, then the result with the rest; unresolved keys are read again."""
    distinct = {(key, version): op for key, version, op in changes}
    rows = [
        contribution(key, version, op, None if op == DELETE else f"{op}{version} ".encode())
        for (key, version), op in sorted(distinct.items())
    ]
    at_once, gone, unresolved = merged(*rows)
    shuffled = [*rows, *chance.choices(rows, k=3)] if rows else []
    chance.shuffle(shuffled)
    assert merged(*shuffled) == (at_once, gone, unresolved)

    first, rest = rows[:cut], rows[cut:]
    before = reconcile_patched(pa.Table.from_pylist(first, CONTRIBUTION_SCHEMA), 0, append)
    kept = [
        {**row, "scope": ROW, "op": UPSERT} for row in before.live.drop_columns(["static_state"]).to_pylist()
    ]
    kept = [{n: v for n, v in row.items() if n in CONTRIBUTION_SCHEMA.names} for row in kept]
    left_unresolved = {key.decode() for key in before.unresolved_keys.to_pylist()}
    live, deleted, later = merged(*kept, *before.tombstones.to_pylist(), *rest)
    for key in {"a", "b"} - left_unresolved:
        assert live.get(key) == at_once.get(key)
        assert (key in deleted, key in later) == (key in gone, key in unresolved)
