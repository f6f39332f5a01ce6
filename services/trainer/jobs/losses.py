"""The losses side by side: each one's formula, what that is over, its defaults and its conditions. Without torch.

A further loss over pairs: its value of `Loss` in trainer.proto, its row here, its formula in `train/losses.py`, a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Literal, get_args

from aeenc.errors import InvalidArgument, NotFound

Batching = Literal["QUERIES", "ITEMS"]
Mode = Literal["SINGLE", "SIAMESE", "DUAL", "CROSS_ENCODER"]
# What a formula is computed over, `OBJECTIVES` in `train/objectives.py` and, for `scores`, `train/reranking.py`.
Over = Literal["corpus", "triplets", "pairs", "classes", "candidates", "positives", "quadruples", "scores"]

# What the losses over a kind have of the options that not all losses have.
_OPTIONS: Mapping[Over, Set[str]] = {
    "corpus": {"temperature", "refused_weight"},
    "triplets": {"margin"},
    "pairs": {"margin"},
    "classes": set(),
    "candidates": {"temperature"},
    "positives": {"temperature", "hard_negatives"},
    "quadruples": {"margin", "prototypes"},
    "scores": {"hard_negatives", "targets", "candidates", "negatives", "base_model"},
}
_OF_ENCODERS = frozenset({"batching", "regularization"})
_OF_GUIDES = frozenset({"guide_version", "guide_margin"})
OPTIONS = frozenset().union(_OF_ENCODERS, _OF_GUIDES, *_OPTIONS.values())
FORMULAS = "services.trainer.train.losses"
BASE_MODELS = "AEENC_TRAINER_BASE_MODELS"
ITEMS_LEARNING_RATE = 2e-5  # lower: an epoch has many times as many steps


@dataclass(frozen=True)
class LossSpec:
    """A loss. `formula` is the dotted name of a function; the numbers are for what a configuration leaves out."""

    formula: str
    over: Over
    learning_rate: float = 1e-4
    temperature: float = 0.05
    margin: float = 0.1
    regularization: float = 0.0
    further: frozenset[str] = frozenset()  # options beside those of its kind

    @property
    def options(self) -> frozenset[str]:
        """The names of all OPTIONS that it has."""
        return self.further.union(_OPTIONS[self.over], () if self.over == "scores" else _OF_ENCODERS)

    @property
    def needs_refused(self) -> bool:
        """Whether it learns nothing without refused premises."""
        return self.over in {"triplets", "pairs", "classes", "quadruples"}

    def by(self, batching: Batching) -> LossSpec:
        """Returns the spec with the defaults of a batching; over a whole corpus or batch it makes no difference."""
        whole = self.over in {"corpus", "candidates"}
        return self if batching == "QUERIES" or whole else replace(self, learning_rate=ITEMS_LEARNING_RATE)

    def adds_up(self, mode: Mode, batching: Batching, regularization: float) -> bool:
        """Whether the gradients of a batch's parts surely add up to its own, and no part lacks what it compares with.

        The penalty does so where each of its texts is in one part.
        """
        has_parts = self.formula.startswith(FORMULAS) and self.over not in {"candidates", "positives"}
        apart = mode == "SINGLE" and batching == "QUERIES" and self.over != "quadruples"
        return has_parts and (apart or not regularization)

    def conflict(self, mode: Mode, name: str) -> str:
        """Says why a mode cannot train with it, and what to do instead; empty if it can."""
        if (mode == "CROSS_ENCODER") != (self.over == "scores"):
            return (
                f"is {name}, but mode {mode} does not train with it: mode CROSS_ENCODER takes only REGRESSION, other "
                "modes never do; leave the loss out, or change the mode"
            )
        if mode in {"SINGLE", "CROSS_ENCODER"} or self.over != "corpus":
            return ""
        return (
            f"is {name}, which compares with every vector of the frozen corpus, but mode {mode} trains the premise "
            "encoder and would have to encode the whole corpus in every step; give MULTIPLE_NEGATIVES_RANKING or "
            "another loss over pairs, or mode SINGLE"
        )


LOSSES: Mapping[str, LossSpec] = {
    "FULL_CORPUS_SOFTMAX": LossSpec(f"{FORMULAS}.full_corpus_softmax", "corpus", temperature=0.03),
    "TRIPLET_MARGIN": LossSpec(f"{FORMULAS}.triplet_margin", "triplets", regularization=0.1),
    "PAIRWISE_CONTRASTIVE": LossSpec(f"{FORMULAS}.pairwise_contrastive", "pairs", margin=0.5, regularization=0.1),
    "SUPERVISED_CONTRASTIVE": LossSpec(f"{FORMULAS}.supervised_contrastive", "candidates"),
    "MULTIPLE_NEGATIVES_RANKING": LossSpec(f"{FORMULAS}.multiple_negatives_ranking", "positives"),
    "GIST": LossSpec(f"{FORMULAS}.gist", "positives", further=_OF_GUIDES),
    "NLI_CLASSIFICATION": LossSpec(f"{FORMULAS}.NliClassification", "classes", learning_rate=2e-5),
    "REGRESSION": LossSpec(f"{FORMULAS}.regression", "scores"),
    "ANALOGY": LossSpec(f"{FORMULAS}.analogy", "quadruples"),
}


def loss_of_ones_own(dotted: str) -> LossSpec:
    """Reads a loss of a user's own, `module.function` of pairs or, for another kind, `triplets:module.function`.

    Raises InvalidArgument for a kind that formulas are not computed over.
    """
    kind, _, formula = dotted.rpartition(":")
    for over in get_args(Over)[:-1]:
        if over == (kind or "pairs") and "." in formula:
            return LossSpec(formula, over, further=frozenset({"temperature", "margin", "guide_margin"}))
    raise InvalidArgument(
        f"a loss must be MODULE.FUNCTION or KIND:MODULE.FUNCTION, with a kind of {', '.join(get_args(Over)[:-1])}, "
        f"got {dotted!r}"
    )


@dataclass(frozen=True)
class Configured:
    """The losses (dotted names of formulas) and base models that the operator's settings name, for jobs to use."""

    losses: Mapping[str, str]
    base_models: Mapping[str, str]

    def loss(self, name: str) -> str:
        """Looks the dotted name of a loss up; empty for no name. Raises NotFound for an unknown one."""
        return _configured("loss", "AEENC_TRAINER_LOSSES", self.losses, name)

    def base_model(self, name: str) -> str:
        """Looks the name, directory or hub id of a model up, likewise."""
        return _configured("base model", BASE_MODELS, self.base_models, name)


NOTHING_CONFIGURED = Configured({}, {})


def _configured(what: str, setting: str, values: Mapping[str, str], name: str) -> str:
    if name and name not in values:
        raise NotFound(f"there is no {what} {name!r}; {setting} names: {', '.join(sorted(values)) or 'none'}")
    return values[name] if name else ""
