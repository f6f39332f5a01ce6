"""Premises that explain a sentence, from another system, in five lines.

python examples/retrieve.py science "a magnet attracts an iron nail"
"""

import sys

import aeenc

client = aeenc.connect()
for hit in client.index.retrieve(sys.argv[1], [sys.argv[2]], k=5)[0]:
    print(f"{hit.score:.3f}  {hit.text}")
