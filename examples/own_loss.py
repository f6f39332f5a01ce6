"""A loss of your own: python examples/own_loss.py CORPUS DATA_DIRECTORY (docs/training.md)."""

import sys
from pathlib import Path

import torch
from torch import Tensor

import aeenc
from aeenc.trees import Dataset
from services.trainer.train.losses import Options
from services.trainer.train.run import run


def cosine_hinge(cosines: Tensor, explains: Tensor, options: Options) -> Tensor:
    """1 - cos of a pair that explains; of a refused one, the cosine above the margin."""
    return torch.where(explains, 1 - cosines, torch.clamp(cosines - options.margin, min=0)).mean()


if __name__ == "__main__":
    data = Path(sys.argv[2])
    gold = [(query.text, query.gold) for query in Dataset.load(data).queries("dev")]
    options = {"split": "train", "validation": gold, "margin": 0.3}
    version = run(cosine_hinge, corpus=sys.argv[1], data_sets={"gold": data}, **options)
    print(aeenc.connect().registry.publish(version, wait_s=60).label)
