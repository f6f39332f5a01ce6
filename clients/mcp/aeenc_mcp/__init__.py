"""MCP server of AE-Enc: the tools retrieve, explain and status."""

from aeenc_mcp.server import make_server

__all__ = ["make_server"]
