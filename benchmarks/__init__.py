"""Benchmarks, one folder a service: `make bench NAME=x` runs `benchmarks/*/x.py`. They share `tests/support`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # behind all else, so that it shadows nothing
