"""The premises nearest to one of them, from the folder that `aeenc export vectors` writes, without any service.

python examples/exported_vectors.py FOLDER ID
"""

import json
import sys
from pathlib import Path

import numpy as np

folder = Path(sys.argv[1])
vectors = np.load(folder / "vectors.npy", mmap_mode="r")  # (n, dim), of length 1
premises = [json.loads(line) for line in (folder / "premises.jsonl").open(encoding="utf-8")]
row = [one["id"] for one in premises].index(sys.argv[2])
scores = vectors @ vectors[row]
for place in np.argsort(-scores)[:5]:
    print(f"{scores[place]:.3f}  {premises[place]['text']}")
