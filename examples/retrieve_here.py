"""Premises that explain sentences, in this process, from the home of `aeenc up`: its services may run or not.

python examples/retrieve_here.py .aeenc science "a magnet attracts an iron nail"
"""

import sys

import aeenc.local

here = aeenc.local.open(sys.argv[1])
for hits in here.retrieve(sys.argv[2], sys.argv[3:], k=5):
    for hit in hits:
        print(f"{hit.score:.3f}  {hit.text}")
