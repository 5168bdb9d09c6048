"""VGTIDs as text: kernels against the plain way, and what JSON and Gson escape."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess.protocol import VGtid
from airflow_cdc_provider.sources.vitess.vgtid_text import vgtid_text, vgtid_texts

ENTRY = st.tuples(st.text(max_size=6), st.sampled_from(["-80", "80-", "0", "ü"]), st.text(max_size=30))


def message(*entries: tuple[str, str, str], key: bytes | None = None) -> bytes:
    vgtid = VGtid()
    for keyspace, shard, gtid in entries:
        entry = vgtid.shard_gtids.add(keyspace=keyspace, shard=shard, gtid=gtid)
        if key is not None:
            table = entry.table_p_ks.add(table_name="t")
            table.lastpk.fields.add(name="k", type=10262, charset=63, flags=20611)
            table.lastpk.rows.add(lengths=[len(key)], values=key)
    data: bytes = vgtid.SerializeToString()
    return data


def written(messages: list[bytes], shards: list[str] | None = None) -> list[str]:
    data = np.frombuffer(b"".join(messages) + b"\xff", np.uint8)
    ends = np.cumsum([len(one) for one in messages], dtype=np.int64)
    starts = ends - np.array([len(one) for one in messages], np.int64)
    texts: list[str] = vgtid_texts(data, starts, ends, shards or ()).to_pylist()
    return texts


@given(st.lists(st.lists(ENTRY, max_size=3), max_size=4))
def test_many_are_written_as_one_is(vgtids: list[list[tuple[str, str, str]]]) -> None:
    messages = [message(*entries) for entries in vgtids]
    assert written(messages) == [vgtid_text(one) for one in messages]
    if messages:
        local = ["-80"] * len(messages)
        assert written(messages, local) == [vgtid_text(one, "-80") for one in messages]


@given(st.lists(ENTRY, min_size=1, max_size=3))
def test_the_text_is_json_that_says_the_same(entries: list[tuple[str, str, str]]) -> None:
    (text,) = written([message(*entries)])
    assert [(e["keyspace"], e["shard"], e["gtid"]) for e in json.loads(text)] == entries
    assert not set(text) & set("<>&='")


def test_the_last_key_of_a_copy_is_formatted() -> None:
    text = vgtid_text(message(("shop", "-80", ""), key="é".encode()))
    assert text == (
        '[{"keyspace":"shop","shard":"-80","gtid":"","table_p_ks":[{"table_name":"t","lastpk":{"fields":['
        '{"name":"k","type":"VARBINARY","charset":63,"flags":20611}],"rows":[{"lengths":["2"],"values":"é"}]}}]}]'
    )
    assert '"values":"\ufffd"' in vgtid_text(message(("shop", "-80", ""), key=b"\xff"))


@pytest.mark.parametrize("broken", [b"\x0a\x05\x0a", b"\xff", b"\x0a\x02\x0a\x05"])
def test_an_invalid_vgtid_is_rejected(broken: bytes) -> None:
    with pytest.raises(CorruptInput, match="VGtid"):
        written([broken])
