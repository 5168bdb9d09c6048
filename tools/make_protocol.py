"""Make ``vitess.descriptors`` of the protocol files of Vitess that are kept in the package.

Usage: make protocol (it needs grpcio-tools, which nothing else does)
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc_tools  # make protocol brings it
from grpc_tools import protoc

_FOLDER = Path(__file__).parent.parent / "airflow_cdc_provider/sources/vitess/protocol"


def main() -> int:
    """Run protoc; return its exit code."""
    included = Path(grpc_tools.__file__).parent / "_proto"
    return int(
        protoc.main(
            [
                "protoc",
                f"-I{_FOLDER}",
                f"-I{included}",
                f"--descriptor_set_out={_FOLDER / 'vitess.descriptors'}",
                *(path.name for path in sorted(_FOLDER.glob("*.proto"))),
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
