"""Compile the protocol files in tools/vitess_protocol to ``vitess.descriptors`` of the package.

Usage: make protocol
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

_PROTOCOL = Path(__file__).parent / "vitess_protocol"
_PACKAGE = Path(__file__).parent.parent / "airflow_cdc_provider/sources/vitess/protocol"


def main() -> int:
    """Run protoc; return its exit code."""
    included = Path(grpc_tools.__file__).parent / "_proto"
    return int(
        protoc.main(
            [
                "protoc",
                f"-I{_PROTOCOL}",
                f"-I{included}",
                f"--descriptor_set_out={_PACKAGE / 'vitess.descriptors'}",
                *(path.name for path in sorted(_PROTOCOL.glob("*.proto"))),
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
