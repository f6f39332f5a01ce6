"""The scripts that change tasks of people in Redis, each whole or not at all. `people.task_store` calls them."""

from __future__ import annotations

_APPEND = """
local function append(key, ...)
  local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  local number = last and tonumber(string.match(last[1], '^%d+')) + 1 or 1
  redis.call('XADD', key, string.format('%d-0', number), 'format_version', 1, ...)
end
-- an event of a run's queue, and of all, of which so many are kept
local function note(of_run, of_all, kept, event, run, task, annotator, at)
  for _, key in ipairs({of_run, of_all}) do
    append(key, 'event', event, 'run', run, 'task', task, 'annotator', annotator, 'at', at)
  end
  redis.call('XTRIM', of_all, 'MAXLEN', '~', kept)
end
-- a task has its place in a sorted set, or none
local function place(key, score, task)
  if score ~= '' then redis.call('ZADD', key, score, task) else redis.call('ZREM', key, task) end
end
"""

# KEYS: task, index, waiting, events, all events, run, asked
# ARGV: task id, run id, task, record, now, whether people may take it, how many events of all are kept, query
PUT = (
    _APPEND
    + """
if redis.call('EXISTS', KEYS[6]) == 0 then return 0 end
if ARGV[6] == '1' then redis.call('HSET', KEYS[7], ARGV[8], ARGV[1]) end
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local number = redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'format_version', 1, 'task', ARGV[3], 'record', ARGV[4], 'revision', 0, 'place', number)
if ARGV[6] == '1' then redis.call('ZADD', KEYS[3], number, ARGV[1]) end
note(KEYS[4], KEYS[5], ARGV[7], 'QUEUED', ARGV[2], ARGV[1], '', ARGV[5])
return 1
"""
)

# KEYS: task, waiting, leases, decided, verdicts, events, all events, pace, the person's answers, request, corrections,
#       amended
# ARGV: revision, record, plan (JSON, see `TaskStore.write`)
WRITE = (
    _APPEND
    + """
if redis.call('HGET', KEYS[1], 'revision') ~= ARGV[1] then return 0 end
local plan = cjson.decode(ARGV[3])
redis.call('HSET', KEYS[1], 'revision', ARGV[1] + 1, 'record', ARGV[2])
if plan.asks ~= '' then redis.call('HSET', KEYS[1], 'task', plan.asks) end
place(KEYS[2], plan.waiting, plan.task)
for _, lease in ipairs(plan.leases) do redis.call('ZADD', KEYS[3], lease[2], lease[1]) end
for _, lease in ipairs(plan.ended) do redis.call('ZREM', KEYS[3], lease) end
place(KEYS[4], plan.decided, plan.task)
for _, entry in ipairs(plan.log) do append(KEYS[5], 'task', plan.task, 'entry', entry) end
for _, event in ipairs(plan.events) do
  note(KEYS[6], KEYS[7], plan.events_kept, event[1], plan.run, plan.task, event[2], plan.at)
end
if plan.elapsed_ms ~= '' then
  redis.call('HINCRBY', KEYS[8], 'answers', 1)
  redis.call('HINCRBY', KEYS[8], 'elapsed_ms', plan.elapsed_ms)
end
if plan.undone ~= '' and plan.answered ~= '' then
  redis.call('LINSERT', KEYS[9], 'BEFORE', plan.undone, plan.answered)
elseif plan.answered ~= '' then
  redis.call('RPUSH', KEYS[9], plan.answered)
end
if plan.undone ~= '' then redis.call('LREM', KEYS[9], -1, plan.undone) end
if plan.corrects ~= '' then
  redis.call('HSET', KEYS[11], plan.run .. '.' .. plan.task, plan.corrects)
  redis.call('HSET', KEYS[12], plan.task, ARGV[1] + 1)
end
if plan.request ~= '' then redis.call('SET', KEYS[10], plan.request, 'EX', plan.request_ttl_s) end
return 1
"""
)


# KEYS: run, failed.  ARGV: annotator
FAIL = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('SADD', KEYS[2], ARGV[1]) end"

# KEYS: corrections or amended.  ARGV: task, what it says
DONE = "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end"
