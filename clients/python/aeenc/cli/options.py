"""Options that several commands have, written once: as the parameters of a function, which makes one value of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any


def taking(**makers: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of each maker in the place of the parameter so named, which gets what it makes."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        shared = {name: inspect.signature(make, eval_str=True).parameters for name, make in makers.items()}
        options = [
            option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
            for option in shared.get(name, {name: parameter}).values()
        ]

        @wraps(command)
        def taken(**given: Any) -> None:
            made = {name: make(**{one: given.pop(one) for one in shared[name]}) for name, make in makers.items()}
            command(**given, **made)

        vars(taken)["__signature__"] = inspect.Signature(options)
        taken.__annotations__ = {option.name: option.annotation for option in options}
        return taken

    return decorate


def collected(options: Callable[..., None]) -> Callable[..., dict[str, Any]]:
    """Makes a maker of a function that has parameters alone: it returns by name all values but None and empty lists."""

    @wraps(options)
    def collect(**values: Any) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value not in (None, [])}

    return collect
