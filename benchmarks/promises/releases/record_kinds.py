"""The kinds of records that outlive a process, as `records` names them. A new kind fails until it stands here.

Not among them: `fleet.json`, `VERSION` and a loop's journal, which no service reads; their tests are finding 12's.
"""

KINDS = (
    "file artifacts/checkpoints/*/manifest.json",
    "file artifacts/generations/science/*/manifest.json",
    "file artifacts/generations/science/.active.json",
    "file artifacts/generations/science/.build-*/progress.json",
    "file artifacts/generations/science/.explanations.json",
    "file artifacts/generations/science/.moves/*.json",
    "file artifacts/generations/science/.requests/*.json",
    "file artifacts/replicas/*.json",
    "file encoder-0/labels.json",
    "file trainer-0/jobs/*/epoch.safetensors",
    "file trainer-0/jobs/*/inputs.json",
    "file trainer-0/jobs/*/job.json",
    "redis ack:*:canary",
    "redis ack:*:previous",
    "redis ack:*:stable",
    "redis checkpoint:*",
    "redis import:*",
    "redis job:*:events",
    "redis job:*:record",
    "redis job:*:validation",
    "redis label:*:canary",
    "redis label:*:previous",
    "redis label:*:stable",
    "redis request-done:*",
    "redis run:*:answers",
    "redis run:*:events",
    "redis run:*:record",
    "redis run:*:task-events",
    "redis run:*:task:*",
    "redis run:*:tree:*",
    "redis run:*:verdicts",
    "redis task-events",
)
# What no call of the probes reads: answers only while their run works, verdicts are a record for people, a job's
# validation only as long as it has no inputs on disk.
UNREAD = ("redis job:*:validation", "redis run:*:answers", "redis run:*:verdicts")
# What its owner writes again at its start, before anybody reads it; with Redis up, an encoder does not read its labels.
REWRITTEN = (
    "file encoder-0/labels.json",
    "file trainer-0/jobs/*/job.json",
    "redis ack:*:canary",
    "redis ack:*:previous",
    "redis ack:*:stable",
)
