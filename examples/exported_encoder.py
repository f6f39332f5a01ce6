"""Facts ranked for a text by an exported encoder, in transformers alone.

aeenc export encoder VERSION --to FOLDER
python examples/exported_encoder.py FOLDER TEXT FACT…

sentence-transformers opens the same folder: SentenceTransformer(FOLDER).encode_query([TEXT]), .encode_document(FACTS).
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer


def encode(folder: Path, side: str, texts: list[str]) -> torch.Tensor:
    """Embeds texts by one side, `query` or `document`, of an encoder with mean pooling: (n, dim), of length 1."""
    prompt = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))["prompts"][side]
    own = folder / f"{side}_0_Transformer"
    path = own if own.exists() else folder  # of an encoder that nobody has trained: both sides are one
    tokens = AutoTokenizer.from_pretrained(path)(
        [prompt + text for text in texts], padding=True, truncation=True, return_tensors="pt"
    )
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(path).eval()(**tokens).last_hidden_state  # (n, tokens, dim)
    mask = tokens["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)


folder, (text, *facts) = Path(sys.argv[1]), sys.argv[2:]
scores = (encode(folder, "document", facts) @ encode(folder, "query", [text])[0]).tolist()
for score, fact in sorted(zip(scores, facts, strict=True), reverse=True):
    print(f"{score:.3f}  {fact}")
