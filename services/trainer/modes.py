"""What goes together with which mode: single (premises frozen), siamese (one encoder), dual (two), cross-encoder."""

from __future__ import annotations

from services.trainer.jobs import Loss, Mode

_ON_A_FROZEN_MATRIX: tuple[Loss, ...] = ("FULL_CORPUS_SOFTMAX",)


def why_not(mode: Mode, loss: Loss) -> str:
    """Why a loss cannot be trained in a mode, and what to do instead; empty: it can."""
    if (mode == "CROSS_ENCODER") != (loss == "REGRESSION"):
        return (
            f"is {loss}, but mode {mode} does not train with it: REGRESSION is for the scores of mode CROSS_ENCODER, "
            "and nothing else is; leave the loss out, or change the mode"
        )
    if mode in {"SINGLE", "CROSS_ENCODER"} or loss not in _ON_A_FROZEN_MATRIX:
        return ""
    return (
        f"is {loss}, which compares with every vector of the frozen corpus, but mode {mode} trains the premise encoder "
        "and would have to encode the whole corpus in every step; give MULTIPLE_NEGATIVES_RANKING or another loss over "
        "pairs, or mode SINGLE"
    )
