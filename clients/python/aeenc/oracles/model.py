"""An oracle that asks a model: a cross-encoder or an NLI model in ONNX, read from a directory. CPU, in this process.

    DIR/model.onnx (or DIR/onnx/model.onnx)   input_ids, attention_mask and perhaps token_type_ids to one output
    DIR/tokenizer.json                        in the format of the library tokenizers
    DIR/config.json                           id2label, max_position_embeddings

`optimum-cli export onnx` writes such a directory, and the trainer's checkpoints of cross-encoders hold one. Needs the
extra `aeenc[oracle-model]` (onnxruntime, tokenizers); nothing else of the SDK does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aeenc.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, install
from aeenc.files.lines import json_file
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Answer, Oracle, Task, Verdict

BATCH = 32
MAX_TOKENS = 512
_ENTAILMENT = re.compile(r"entail", re.IGNORECASE)  # matched at the start of the name, which `not_entailment` fails
_COUNTS_FROM_PADDING = {"camembert", "roberta", "xlm-roberta"}  # their positions start after the padding id
_INPUTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}

Array = np.ndarray[Any, np.dtype[Any]]


class ModelOracle(Oracle):
    """Explains from `accept` on, refuses up to `refuse`, abstains between; the probability is the verdict's grade.

    With one output the probability is its logistic function; with several, the softmax of `label`, by default of the
    label whose name starts with `entail`. Pairs are (query, premise) for the former, as re-rankers are trained, and
    (premise, query) for the latter, as NLI models are, unless `premise_first` says otherwise. A pair that is too long
    loses the end of its longer text. From `complete` on, the probability of all accepted premises together says that
    they explain the query (None: it is not asked).
    Raises NotFound for a directory without these files, DataLoss for a malformed one, InvalidArgument for thresholds
    out of order or an unknown label, FailedPrecondition without the extra.
    """

    workers = 1  # onnxruntime has threads of its own

    def __init__(
        self,
        directory: Path | str,
        *,
        accept: float = 0.8,
        refuse: float = 0.2,
        label: str | None = None,
        premise_first: bool | None = None,
        threads: int | None = None,
        complete: float | None = None,
    ) -> None:
        if not 0 <= refuse < accept <= 1:
            raise InvalidArgument(f"accept {accept} and refuse {refuse} must satisfy 0 ≤ refuse < accept ≤ 1")
        root = Path(directory)
        max_tokens, labels = _read_config(root)
        self.name = f"model-{root.resolve().name}"
        if complete is not None and not 0 <= complete <= 1:
            raise InvalidArgument.field("complete", f"is {complete}; give a probability, or None not to ask")
        self._accept, self._refuse, self._complete = accept, refuse, complete
        self._tokenizer = _load_tokenizer(root, max_tokens)
        self._session = _load_session(root, threads or os.cpu_count() or 1)
        self._inputs = [put.name for put in self._session.get_inputs()]
        if unknown := set(self._inputs) - _INPUTS.keys():
            raise FailedPrecondition(f"{root} needs the inputs {sorted(unknown)}; only {', '.join(_INPUTS)} are known")
        outputs = self._probabilities_of([("a", "b")])
        several = outputs.shape[1] > 1
        self._column = _column(labels, outputs.shape[1], label) if several else 0
        self._premise_first = several if premise_first is None else premise_first

    def judge(self, task: Task) -> dict[str, Verdict] | Answer[dict[str, Verdict]]:
        """Returns a verdict with a grade for each candidate, and on the node where it is asked for one."""
        grades = self.probabilities(task.query, [candidate.text for candidate in task.candidates])
        verdicts = {c.id: self._verdict(grade) for c, grade in zip(task.candidates, grades, strict=True)}
        if self._complete is None:
            return verdicts
        explains = [one.text for one in task.candidates if verdicts[one.id].judgement == EXPLAINS]
        together = " ".join([*(one.text for one in task.accepted), *explains])
        is_complete = bool(together) and self.probabilities(task.query, [together])[0] >= self._complete
        return Answer(verdicts, node_verdict="complete" if is_complete else None)

    def probabilities(self, query: str, premises: Sequence[str]) -> list[float]:
        """Computes the probability that each premise explains the query."""
        pairs = [(text, query) if self._premise_first else (query, text) for text in premises]
        by_length = sorted(range(len(pairs)), key=lambda place: len(premises[place]))
        found = [0.0] * len(pairs)
        for start in range(0, len(pairs), BATCH):
            places = by_length[start : start + BATCH]
            column = self._probabilities_of([pairs[place] for place in places])[:, self._column]
            for place, value in zip(places, column.tolist(), strict=True):
                found[place] = value
        return found

    def _verdict(self, grade: float) -> Verdict:
        if not np.isfinite(grade):
            return Verdict(ABSTAINS)
        judgement = EXPLAINS if grade >= self._accept else REFUSES if grade <= self._refuse else ABSTAINS
        return Verdict(judgement, grade=grade)

    def _probabilities_of(self, pairs: Sequence[tuple[str, str]]) -> Array:
        """Runs the model; the result is (pairs, outputs)."""
        encodings = self._tokenizer.encode_batch(list(pairs))
        feeds = {name: np.array([getattr(e, _INPUTS[name]) for e in encodings], np.int64) for name in self._inputs}
        logits = np.asarray(self._session.run(None, feeds)[0], np.float64).reshape(len(pairs), -1)
        if logits.shape[1] == 1:
            return 1.0 / (1.0 + np.exp(-logits))
        powers = np.exp(logits - logits.max(1, keepdims=True))
        shares: Array = powers / powers.sum(1, keepdims=True)
        return shares


def _read_config(root: Path) -> tuple[int, dict[str, int]]:
    """Reads how many tokens the model takes, and the numbers of its labels by their names."""
    path = root / "config.json"
    if not path.is_file():
        raise NotFound(f"{path} is not there; give a directory with model.onnx, tokenizer.json and config.json")
    try:
        config: Any = json_file(path)
        most = int(config.get("max_position_embeddings") or MAX_TOKENS)
        if config.get("model_type") in _COUNTS_FROM_PADDING:
            most -= int(config.get("pad_token_id") or 0) + 1
        labels = {str(name): int(number) for number, name in (config.get("id2label") or {}).items()}
    except (InvalidArgument, AttributeError, TypeError, ValueError, OverflowError) as error:
        raise DataLoss(f"{path} is not a model's configuration ({error}); restore it") from None
    return min(most, MAX_TOKENS) if most > 0 else MAX_TOKENS, labels


def _load_tokenizer(root: Path, max_tokens: int) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise _without_extra(error) from None
    path = root / "tokenizer.json"
    if not path.is_file():
        raise NotFound(f"{path} is not there; export the model's fast tokenizer beside it")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for any malformed file
        raise DataLoss(f"{path} is not a tokenizer ({error}); restore it") from error
    padding = tokenizer.padding or {}
    tokenizer.enable_truncation(max_tokens, strategy="longest_first")
    tokenizer.enable_padding(
        pad_id=padding.get("pad_id", tokenizer.token_to_id("[PAD]") or 0), pad_token=padding.get("pad_token", "[PAD]")
    )
    return tokenizer


def _load_session(root: Path, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise _without_extra(error) from None
    path = next((path for path in (root / "model.onnx", root / "onnx" / "model.onnx") if path.is_file()), None)
    if path is None:
        raise NotFound(f"{root} holds no model.onnx; write one with `optimum-cli export onnx`")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no class of their own
        raise DataLoss(f"{path} cannot be loaded ({' '.join(str(error).split())[:200]}); restore it") from error


def _column(labels: Mapping[str, int], outputs: int, label: str | None) -> int:
    if label is None:
        fitting = [number for name, number in labels.items() if _ENTAILMENT.match(name)]
    else:
        fitting = [labels[label]] if label in labels else []
    if len(fitting) != 1 or fitting[0] >= outputs:
        wanted = "no single label starts with `entail`" if label is None else f"there is no label {label!r}"
        raise InvalidArgument(f"{wanted}; the model has {', '.join(labels) or 'no names'}: choose with label")
    return fitting[0]


def _without_extra(error: ImportError) -> FailedPrecondition:
    return FailedPrecondition(f"a model needs {error.name}: {install('oracle-model')}")
