"""The costs of a language model: a budget, what was spent of it, and valid answers that need not be paid twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aeenc.errors import FailedPrecondition, InvalidArgument


@dataclass(frozen=True)
class Budget:
    """The most that may be spent, all starts of the oracle over the same cache together; 0 sets no limit.

    `tokens` counts those of prompts and answers. `cost` is in the currency of the prices, which are per million tokens.
    """

    tokens: int = 0
    cost: float = 0.0
    prompt_price: float = 0.0
    answer_price: float = 0.0

    def __post_init__(self) -> None:
        if not all(one >= 0 for one in (self.tokens, self.cost, self.prompt_price, self.answer_price)):
            raise InvalidArgument("a budget and its prices are numbers from 0 on; 0 sets no limit")
        if self.cost and not (self.prompt_price or self.answer_price):
            raise InvalidArgument("a budget in money needs the prices of a million tokens")

    def price(self, prompt_tokens: int, answer_tokens: int) -> float:
        """The cost of these tokens."""
        return (prompt_tokens * self.prompt_price + answer_tokens * self.answer_price) / 1e6


@dataclass(frozen=True)
class Usage:
    """What has been spent: `calls` that were answered, tokens, and their cost by the budget's prices."""

    calls: int
    prompt_tokens: int
    answer_tokens: int
    cost: float


class Ledger:
    """Valid answers and what was spent, in one SQLite file, or in memory. Reservations keep spending in the budget.

    Raises FailedPrecondition for a file of something else, and for one that another process uses.
    """

    def __init__(self, path: Path | str | None, budget: Budget) -> None:
        self._budget, self._lock = budget, threading.Lock()
        self._reserved = [0, 0]
        place = path or ":memory:"
        try:
            self._file = sqlite3.connect(place, timeout=0.2, check_same_thread=False, isolation_level=None)
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")  # two processes would each spend the same rest
            self._file.execute("CREATE TABLE IF NOT EXISTS answers (asked TEXT PRIMARY KEY, verdicts TEXT NOT NULL)")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS spent (calls INTEGER, prompt_tokens INTEGER, answer_tokens INTEGER)"
            )
            self._file.execute("INSERT INTO spent SELECT 0, 0, 0 WHERE NOT EXISTS (SELECT * FROM spent)")
        except sqlite3.DatabaseError as error:
            raise FailedPrecondition(
                f"{path} cannot be the oracle's cache ({error}); choose another file, or end the oracle that uses it"
            ) from None

    @property
    def usage(self) -> Usage:
        """What has been spent."""
        calls, prompt, answer = self._file.execute("SELECT * FROM spent").fetchone()
        return Usage(calls, prompt, answer, self._budget.price(prompt, answer))

    def answer(self, asked: str) -> list[str] | None:
        """A valid answer from before."""
        with self._lock:
            row = self._file.execute("SELECT verdicts FROM answers WHERE asked = ?", [_digest(asked)]).fetchone()
        return list(json.loads(row[0])) if row else None

    def keep(self, asked: str, verdicts: Sequence[str]) -> None:
        """Stores a valid answer."""
        with self._lock:
            self._file.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?)", [_digest(asked), json.dumps(list(verdicts))]
            )

    def reserve(self, prompt_tokens: int, answer_tokens: int) -> bool:
        """Sets tokens aside for a call. False when the calls under way may need them.

        Raises FailedPrecondition when what is spent leaves too little.
        """
        with self._lock:
            used, budget = self.usage, self._budget
            prompt = used.prompt_tokens + self._reserved[0] + prompt_tokens
            answer = used.answer_tokens + self._reserved[1] + answer_tokens
            too_many = budget.tokens and prompt + answer > budget.tokens
            if too_many or (budget.cost and budget.price(prompt, answer) > budget.cost):
                if any(self._reserved):
                    return False
                limit = f"{budget.tokens:,} tokens (--max-tokens" if too_many else f"{budget.cost:g} (--max-cost"
                spent = f"{used.prompt_tokens + used.answer_tokens:,} tokens are spent"
                raise FailedPrecondition(f"the budget of {limit}) does not allow another call: {spent}; raise it")
            self._reserved[0] += prompt_tokens
            self._reserved[1] += answer_tokens
            return True

    def spend(self, reserved: tuple[int, int], used: tuple[int, int], *, calls: int) -> None:
        """Gives a reservation back and stores what was used, both tokens of prompt and answer, by `calls` answers."""
        with self._lock:
            self._reserved = [held - given for held, given in zip(self._reserved, reserved, strict=True)]
            self._file.execute(
                "UPDATE spent SET calls = calls + ?, prompt_tokens = prompt_tokens + ?, "
                "answer_tokens = answer_tokens + ?",
                (calls, *used),
            )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
