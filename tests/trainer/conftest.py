"""The tiny space and the corpus in it as fixtures."""

from trainer_world import corpus, make_job, space

__all__ = ["corpus", "make_job", "space"]
