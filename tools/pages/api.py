"""`python -m tools.pages.api`: writes the tables of docs/api.md; a test proves that they are fresh.

The calls come from the protos and the table of roles, the limits from the constants that hold them, the statuses from
the errors. Each stands between `<!-- NAME: … -->` and `<!-- end -->`; the rest of the page is written by hand.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from aeenc import errors
from services.corpus.moves import KEPT as MOVES_KEPT
from services.encoder.batching.encoder import MAX_KEY_BYTES
from services.index.building.folding import ID_BYTES, TAG_BYTES
from services.index.catalogue.served import EXPLANATIONS_BYTES
from services.index.ranking.stages import RETRIEVE_HIT_BYTES, SEARCH_HIT_BYTES
from services.index.settings import IndexSettings
from services.index.values import CLAUSES, ENSEMBLE
from services.kit.calls.bounds import SHARE, WHOLE
from services.kit.credentials.roles import role_for
from services.kit.settings import ServiceSettings
from services.sampler.convert import START_BYTES
from services.sampler.oracles.answers import MAX_ADDED, MAX_ALTERNATIVES, MAX_WRITTEN
from services.sampler.people.queue import MAX_TASKS
from services.sampler.people.steps import MAX_HELD_S
from services.sampler.people.task_store import EVENTS_KEPT as TASK_EVENTS
from services.sampler.servicer import MAX_PAGE
from services.sampler.settings import SamplerSettings
from services.store.life_cycles import EVENTS_KEPT
from services.store.requests import REQUEST_TTL_S
from services.trainer.evaluation.evaluator import MAX_BYTES, MAX_GOLD, MAX_QUERIES, MAX_WAITING
from services.trainer.registry.publishing import MAX_WAIT_S
from tools.docs import proto_files, sentences
from tools.pinned_venv import ROOT

PATH = ROOT / "docs" / "api.md"
_PART = re.compile(r"(<!-- (\w+): .*? -->\n).*?(<!-- end -->)", re.DOTALL)
_RETRIES = {"RESOURCE_EXHAUSTED": "after RetryInfo's delay", "UNAVAILABLE": "after a growing pause"}
# Not the name of any error of ours, but of what a caller meets on the way.
_AGAIN = {
    "ABORTED": "after reading again",
    "CANCELLED": "after a growing pause, if you did not cancel it",
    "DEADLINE_EXCEEDED": "with more time",
    "INTERNAL": "no: a fault; tell the operator",
}


def render(page: str) -> str:
    """Returns the page with its tables written anew."""
    parts = {"limits": _limits(), "statuses": _statuses(), **_calls()}
    return _PART.sub(lambda part: f"{part[1]}\n{parts[part[2]]}\n\n{part[3]}", page)


def _calls() -> dict[str, str]:
    """The table of each service's calls."""
    rows: defaultdict[str, list[str]] = defaultdict(lambda: ["| call | role | |", "|---|---|---|"])
    files: dict[str, str] = {}
    for file, service, method, told in sentences(proto_files()):
        sides = [side for side, on in (("sent", method.client_streaming), ("answered", method.server_streaming)) if on]
        stream = f" *Streams: {' and '.join(sides)}.*" if sides else ""
        role = role_for(f"/aeenc.v1.{service}/{method.name}").name.lower() if service != "OracleService" else "yours"
        rows[service].append(f"| `{method.name}` | {role} | {told}.{stream} |")
        files[service] = f"[{file}](../protos/aeenc/v1/{file})"
    return {service: "\n".join([f"In {files[service]}.", "", *table]) for service, table in rows.items()}


def _statuses() -> str:
    """Each status with the reasons that have a class, and whether to call again."""
    reasons: dict[str, list[str]] = {}
    for one in vars(errors).values():
        if isinstance(one, type) and issubclass(one, errors.AeencError):
            reasons.setdefault(one.code, []).append(f"`{one.default_reason}`")
    rows = [
        f"| {code} | {', '.join(dict.fromkeys(names))} | {(_RETRIES | _AGAIN).get(code, 'no')} |"
        for code, names in reasons.items()
    ]
    return "\n".join(["| status | reasons, among others | call again? |", "|---|---|---|", *rows])


def _limits() -> str:
    """What one call may ask and be answered."""
    return "\n".join(["| what | most | beyond it |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in _rows())])


def _rows() -> Iterator[tuple[str, str, str]]:
    common, index, sampler = (one.model_fields for one in (ServiceSettings, IndexSettings, SamplerSettings))
    refused, waits = "INVALID_ARGUMENT (`OVER_LIMIT`)", "RESOURCE_EXHAUSTED with RetryInfo"
    message_bytes, items = common["message_bytes"].default, f"{common['max_items'].default:,} (`MAX_ITEMS`)"
    text, k = f"{_size(common['text_bytes'].default)} (`TEXT_BYTES`)", f"{index['k_max'].default:,} (`K_MAX`)"
    hits, found = message_bytes // RETRIEVE_HIT_BYTES, message_bytes // SEARCH_HIT_BYTES
    yield (
        "a message to a service",
        f"{_size(message_bytes)} (`MESSAGE_BYTES`)",
        "RESOURCE_EXHAUSTED by gRPC, without details",
    )
    yield "an answer to a unary call", "the same", f"{refused}; a page ends before"
    yield "texts, vectors, premises to score, ids to look up, pairs to import", items, refused
    yield "`exclude_ids`, `only_ids`, `any_split`; accepted ids of one text", items, refused
    yield "`any_clause`; tags of one clause", f"{CLAUSES}; {CLAUSES}", "INVALID_ARGUMENT"
    yield "a text; the `note` of a job", text, refused
    yield (
        "a text for the model",
        "`Limits.tokens` of the encoder's GetInfo",
        "INVALID_ARGUMENT, unless `truncate` is END",
    )
    yield "`k`, `rerank`", k, "INVALID_ARGUMENT"
    yield "texts, times the larger of `k` and `rerank` of Retrieve, `k` at most all premises", f"{hits:,}", refused
    yield "vectors, times `k`, of Search", f"{found:,}", refused
    yield "texts of Encode, times 4 bytes and the length of a vector", "an answer; no limit in EncodeStream", refused
    yield "cross-encoders of one Retrieve", f"{ENSEMBLE}", "INVALID_ARGUMENT"
    yield "`routing_key` of Encode", f"{MAX_KEY_BYTES} bytes", "INVALID_ARGUMENT"
    yield "a premise's id; a tag or split", f"{ID_BYTES} bytes; {TAG_BYTES} bytes", "INVALID_ARGUMENT"
    yield "one call of PutExplanations; all explanations of a corpus", _size(EXPLANATIONS_BYTES), refused
    most = f"{sampler['max_hypotheses'].default:,} (`MAX_HYPOTHESES`), {_size(START_BYTES)}"
    yield "hypotheses of StartRun, in all its messages", most, refused
    most = f"{MAX_QUERIES:,} each; {MAX_GOLD:,}; {_size(MAX_BYTES)}"
    yield "queries of Evaluate, training queries, inner nodes of trees; gold premises; all messages", most, refused
    yield "evaluations that wait", f"{MAX_WAITING}", waits
    yield "a page: `page_size`", f"{items}; of tasks, answers and changes {MAX_PAGE}", "the page has that many"
    yield "tasks of LeaseTask", f"{MAX_TASKS}, and what an answer holds", "INVALID_ARGUMENT; fewer come"
    yield "a lease, renewed or not", f"{MAX_HELD_S / 60:.0f} minutes", "FAILED_PRECONDITION (`LEASE_EXPIRED`)"
    yield (
        "additions, facts, intermediates of an answer; alternatives",
        f"{MAX_ADDED} each; {MAX_ALTERNATIVES}",
        "INVALID_ARGUMENT",
    )
    yield "a written fact, intermediate or inference", f"{MAX_WRITTEN:,} characters", "INVALID_ARGUMENT"
    yield (
        "events that a watch can replay",
        f"{EVENTS_KEPT:,} of a run or job, {TASK_EVENTS:,} of tasks",
        "begins later; `EVENTS_GONE`",
    )
    yield "`wait` of Publish and Rollback", f"{MAX_WAIT_S:.0f} s", "waits that long"
    kept_s = index["request_keep_s"].default
    kept = f"{REQUEST_TTL_S / 3600:.0f} hours; by the index {kept_s / 86_400:.0f} days for builds (`REQUEST_KEEP_S`)"
    kept += f", else {MOVES_KEPT} changes of the corpus; an import of pairs by its run"
    yield "time for which a `request_id` is known", kept, "the call is a new one"
    streams = common["max_streams"].default
    yield (
        "streams and watches of all callers; of one, and on one connection",
        f"{streams:,} (`MAX_STREAMS`); {streams // SHARE:,}",
        waits,
    )
    yield "connections to a process", f"{common['max_connections'].default} (`MAX_CONNECTIONS`)", "closed at once"
    most_bytes = common["max_request_bytes"].default
    yield "requests in work, all callers", f"{_size(most_bytes)} (`MAX_REQUEST_BYTES`)", waits
    yield (
        "StartRun, PutExplanations, Evaluate in work",
        f"{_size(most_bytes // WHOLE)}, apart",
        waits,
    )
    yield (
        "vectors that wait in the index; tokens in the encoder",
        f"{index['max_queued'].default:,} (`MAX_QUEUED`); `QUEUED_TOKENS`",
        waits,
    )


def _size(size_bytes: int) -> str:
    return f"{size_bytes // 2**20} MiB" if size_bytes >= 2**20 else f"{size_bytes // 2**10} KiB"


if __name__ == "__main__":
    PATH.write_text(render(PATH.read_text(encoding="utf-8")), encoding="utf-8")
