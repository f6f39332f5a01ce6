"""A browser workbench for people who build entailment trees: `aeenc-workbench`, or `make_app` in a server of yours."""

from aeenc_workbench.app import make_app
from aeenc_workbench.sign_in import Links, Person

__all__ = ["Links", "Person", "make_app"]
