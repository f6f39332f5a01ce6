"""Starts the MCP server: `aeenc-mcp`, or `python -m aeenc_mcp`."""

from __future__ import annotations

import argparse
import sys

from aeenc.errors import AeencError
from aeenc.transport.targets import Targets
from aeenc_mcp.server import make_server

HOST = "127.0.0.1"


def main() -> None:
    """Serves over stdin and stdout, or over HTTP on this machine alone."""
    parser = argparse.ArgumentParser(prog="aeenc-mcp", description="MCP server of AE-Enc: retrieve, explain, status.")
    parser.add_argument("--transport", choices=["stdio", "streamable-http"], default="stdio")
    parser.add_argument("--port", type=int, default=8000, help=f"of streamable-http, on {HOST} (default: 8000)")
    arguments = parser.parse_args()
    try:
        server = make_server(Targets.find())
    except AeencError as error:
        sys.exit(f"aeenc-mcp: {error}")
    if arguments.transport == "stdio":
        server.run()
    else:
        server.run("streamable-http", host=HOST, port=arguments.port)


if __name__ == "__main__":
    main()
