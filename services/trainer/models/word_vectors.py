"""Makes a base model of word vectors: the recurrent encoder of Diallo et al. 2019, untrained, and its tokenizer.

    python -m services.trainer.models.word_vectors wiki.vec DIRECTORY
    AEENC_TRAINER_BASE_MODEL=DIRECTORY aeenc up

Reads the text files of fastText and word2vec, which begin with a line of two numbers, and of GloVe, which do not: a
word and its values a line. Words are the pieces between spaces and punctuation, in lower case if
the file has no capitals.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import AeencError, InvalidArgument
from aeenc.files.lines import text_lines

PAD, UNKNOWN, END = "[PAD]", "[UNK]", "[END]"  # with vectors of zeros
MOST_WORDS = 200_000
DIM = 300
MAX_VALUES = 4096


@dataclass(frozen=True)
class WordVectors:
    """Words in the order of their file, and a vector (words, values) float32 for each."""

    words: list[str]
    vectors: NDArray[np.float32]

    @classmethod
    def read(cls, path: Path, most: int = MOST_WORDS) -> WordVectors:
        """Reads the first so many words, each once. Raises InvalidArgument for none, and naming file and line."""
        if most < 1:
            raise InvalidArgument.field("words", f"must be at least 1, got {most}")
        found: dict[str, NDArray[np.float32]] = {}
        width = 0
        for place, line in text_lines(path):
            if not (line := line.rstrip()):
                continue
            cells = line.split(" ")
            if not width and len(cells) == 2 and all(cell.isdecimal() for cell in cells):
                width = int(cells[1])  # the header of fastText and word2vec
                if not 0 < width <= MAX_VALUES:
                    raise InvalidArgument(f"{place}: {width} values a word; give 1 to {MAX_VALUES}")
                continue
            width = width or len(cells) - 1
            word, vector = _vector(place, line, width)
            found.setdefault(word, vector)
            if len(found) == most:
                break
        if not found:
            raise InvalidArgument(f"{path}:1: no word; give a text file of word vectors")
        return cls(list(found), np.stack(list(found.values())))

    @property
    def lowercase(self) -> bool:
        """Whether no word has a capital letter."""
        return all(word == word.lower() for word in self.words)


def _vector(place: str, line: str, width: int) -> tuple[str, NDArray[np.float32]]:
    word, *cells = line.rsplit(" ", width)  # a word of GloVe may have spaces
    try:
        vector = np.array(cells, dtype=np.float32)
    except ValueError:
        vector = np.empty(0, dtype=np.float32)
    if not word or len(vector) != width or not width or not np.isfinite(vector).all():
        raise InvalidArgument(f"{place}: not a word and {width} numbers; give the text form of the vectors")
    return word, vector


def write_base_model(
    vectors: WordVectors, directory: Path, *, dim: int = DIM, dropout: float = 0.6, seed: int = 0
) -> Path:
    """Writes config.json, model.safetensors, tokenizer.json and the pooling; `dim` is that of a text's vector."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    from services.bigru import BiGru, BiGruConfig

    special = (PAD, UNKNOWN, END)
    words = [*special, *(word for word in vectors.words if word not in special)]
    ids = {word: n for n, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    if vectors.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B:1 {END}:1", special_tokens=[(END, ids[END])]
    )
    known = dict(zip(vectors.words, vectors.vectors, strict=True))
    table = np.zeros((len(words), vectors.vectors.shape[1]), dtype=np.float32)
    table[len(special) :] = [known[word] for word in words[len(special) :]]
    torch.manual_seed(seed)
    model = BiGru(BiGruConfig(len(words), table.shape[1], dim, dropout))
    model.words.weight.copy_(torch.from_numpy(table))
    directory.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), directory / "model.safetensors")
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps(model.config.to_dict(), indent=1))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    return directory


def main() -> None:
    """Makes the base model that the arguments describe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", type=Path, help="a text file of fastText, word2vec or GloVe")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dim", type=int, default=DIM, help="of a text's vector, half of it from each direction")
    parser.add_argument("--dropout", type=float, default=0.6, help="of the word vectors")
    parser.add_argument("--words", type=int, default=MOST_WORDS, help="so many, from the top of the file")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        read = WordVectors.read(given.vectors, given.words)
        write_base_model(read, given.directory, dim=given.dim, dropout=given.dropout, seed=given.seed)
    except (AeencError, OSError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
