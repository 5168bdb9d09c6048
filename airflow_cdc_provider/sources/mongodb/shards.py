"""The shards of a cluster: asked for only where offsets that Debezium stored per shard are to be joined."""

from __future__ import annotations

import logging

from pymongo import MongoClient, errors

from airflow_cdc_provider.sources.mongodb.server_errors import UNAUTHORIZED, translated

log = logging.getLogger(__name__)


def shard_names(client: MongoClient) -> list[str] | None:
    """Read the names of the shards from ``config.shards``.

    Returns:
        The names; none of a replica set. None where the user may not read them, which is warned of.

    Raises:
        CdcError: The deployment can't be asked.
    """
    with translated("the cluster's shards can't be read"):
        try:
            return [str(shard["_id"]) for shard in client["config"]["shards"].find({}, {"_id": 1})]
        except errors.OperationFailure as error:
            if error.code != UNAUTHORIZED:
                raise
    log.warning(
        "the user may not read config.shards: that each shard has an offset is taken for granted. To make "
        "sure, grant find on it"
    )
    return None
