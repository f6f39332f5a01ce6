"""An OpenAI-compatible endpoint over loopback whose answers may be faulty in every way that real ones are.

It accepts a premise if its text has the word `iron`. `sent` remembers each answer: its fault ("" for a whole and valid
one), the premises that it refuses, and the tokens it charges for.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-secret-7f1b"
_NUMBERED = re.compile(r'^(\d+)\. (".*")$', re.MULTILINE)
STATUSES = {
    "rate limit": 429,
    "server error": 500,
    "unavailable": 503,
    "bad request": 400,
    "unauthorized": 401,
    "not found": 404,
}
CONTENTS: dict[str, Callable[[dict[str, str]], str | None]] = {
    "prose": lambda verdicts: f"I think that fact 1 {next(iter(verdicts.values()))}.",
    "no content": lambda verdicts: None,
    "half of the JSON": lambda verdicts: json.dumps(verdicts)[:-8],
    "a list": lambda verdicts: json.dumps(list(verdicts.values())),
    "a fact left out": lambda verdicts: json.dumps(dict(list(verdicts.items())[1:])),
    "a fact nobody asked about": lambda verdicts: json.dumps({**verdicts, "99": "does_not_explain"}),
    "another word": lambda verdicts: json.dumps({**verdicts, "1": "refused"}),
    "a number": lambda verdicts: json.dumps({**verdicts, "1": 0}),
    "a verdict twice": lambda verdicts: '{"1": "does_not_explain", ' + json.dumps(verdicts)[1:],
    "deep": lambda verdicts: "[" * 100_000,
}
FINISHES = {"truncated": "length", "filtered": "content_filter"}
THINKING_TOKENS = 1000
KINDS = ("no temperature", "thinks", "thinks apart", "fenced", "tool calls", "tool call and words", "no schema")
_REFUSED_BY = {"no temperature": ("max_tokens", "temperature"), "no schema": ("response_format",)}
BODIES = {
    "html": b"<html>Bad gateway</html>",
    "empty": b"",
    "no choices": b'{"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": []}',
    "null": b"null",
}


@dataclass
class Sent:
    """One answer of the endpoint."""

    fault: str
    refused: list[str]
    tokens: int
    request: dict[str, Any]


@dataclass
class ModelEndpoint:
    """`fault` names the fault of the answer with this number, counted from 0; "" makes it whole.

    A request with the field `unsupported` is refused, and a bad request with `code` as the error's code. Each answer
    takes `delay_s`. `kind` behaves like a kind of model: one that refuses a temperature and the older name of the
    limit, thinks before it answers, aloud or apart, fences its JSON, answers by a tool call, perhaps with words beside
    it, or knows no schema and answers in prose unless the prompt asks for JSON.
    """

    fault: Callable[[int], str] = lambda number: ""
    verdict: Callable[[str, int], str] = lambda text, number: "explains" if "iron" in text else "does_not_explain"
    hang_s: float = 0.5
    unsupported: str = ""
    code: str = ""
    said: str = ""  # by a refusal; else it quotes the key
    kind: str = ""
    retry_after: str = "0"
    delay_s: float = 0.0
    url: str = ""
    asking: dict[str, Any] = field(default_factory=dict)  # the request of the moment, for `fault`
    sent: list[Sent] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def served(self) -> Iterator[ModelEndpoint]:
        """Serves until the end of the block."""
        server = _Server(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Says nothing of callers who have left."""


def _handler(endpoint: ModelEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompt = request["messages"][0]["content"]
            asked = {number: json.loads(text) for number, text in _NUMBERED.findall(prompt)}
            with endpoint.lock:
                number = len(endpoint.sent)
                endpoint.asking = request
                unsupported = _refused_field(endpoint, request)
                fault = "unsupported" if unsupported else endpoint.fault(number)
                verdicts = {one: endpoint.verdict(text, number) for one, text in asked.items()}
                refused = [text for one, text in asked.items() if verdicts[one] == "does_not_explain"]
                tokens = 0 if fault in {*STATUSES, "unsupported"} else len(prompt) // 4 + 4 * len(asked)
                endpoint.sent.append(Sent(fault, refused, tokens, request))
            time.sleep(endpoint.delay_s)
            if fault in STATUSES:
                said = endpoint.said or f"Incorrect API key provided: {self.headers['authorization']}"
                error = {"message": said, "code": endpoint.code or None, "param": KEY}
                self._answer(json.dumps({"error": error}).encode(), STATUSES[fault])
            elif fault == "unsupported":
                said = f"Unsupported parameter: '{unsupported}' is not supported with this model."
                error = {"message": said, "code": "unsupported_parameter", "param": unsupported}
                self._answer(json.dumps({"error": error}).encode(), 400)
            elif fault in BODIES:
                self._answer(BODIES[fault])
            elif fault == "hang up":
                self.close_connection = True
            else:
                if fault == "hang":
                    time.sleep(endpoint.hang_s)
                answer = _completion(fault, verdicts, len(prompt) // 4)
                self._answer(json.dumps(_in_manner(endpoint.kind, answer, request, prompt)).encode())

        def _answer(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.send_header("retry-after", endpoint.retry_after)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _completion(fault: str, verdicts: dict[str, str], prompt_tokens: int) -> dict[str, Any]:
    content = CONTENTS.get(fault, json.dumps)(verdicts)
    message = {"role": "assistant", "content": content, "refusal": None}
    if fault == "refusal":
        message = {"role": "assistant", "content": content, "refusal": "I cannot judge this."}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": FINISHES.get(fault, "stop")}],
        "usage": {
            "prompt_tokens": 10**30 if fault == "too many tokens" else prompt_tokens,
            "completion_tokens": 4 * len(verdicts),
            "total_tokens": prompt_tokens + 4 * len(verdicts),
        },
    }


def _refused_field(endpoint: ModelEndpoint, request: dict[str, Any]) -> str:
    refused = (endpoint.unsupported, *_REFUSED_BY.get(endpoint.kind, ()))
    return next((name for name in refused if name in request), "")


def _in_manner(kind: str, answer: dict[str, Any], request: dict[str, Any], prompt: str) -> dict[str, Any]:
    """The answer as a kind of model gives it."""
    choice = answer["choices"][0]
    content = choice["message"]["content"]
    if kind.startswith("thinks"):
        thought = '<think>Is fact 1 needed? Perhaps {"1": "cannot_say"}. No: it follows.</think>'
        is_cut = request.get("max_tokens", request.get("max_completion_tokens", 10**6)) < THINKING_TOKENS
        if kind == "thinks apart":
            choice["message"] |= {"reasoning_content": thought, "content": None if is_cut else content}
        else:
            choice["message"]["content"] = thought[:40] if is_cut else f"{thought}\n\n{content}"
        choice["finish_reason"] = "length" if is_cut else "stop"
    elif kind == "fenced":
        choice["message"]["content"] = f"Here are the verdicts:\n\n```JSON\n{content}\n```\n\nEach was judged alone."
    elif kind.startswith("tool call"):
        call = {"id": "call", "type": "function", "function": {"name": "verdicts", "arguments": content}}
        words = "I pass the verdicts on." if kind == "tool call and words" else None
        choice["message"] = {"role": "assistant", "content": words, "tool_calls": [call]}
        choice["finish_reason"] = "tool_calls"
    elif kind == "no schema" and "JSON" not in prompt:
        choice["message"]["content"] = "Fact 1 explains the statement."
    return answer
