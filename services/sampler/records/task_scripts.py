"""The scripts that change tasks of people in Redis, each whole or not at all. `people.task_store` calls them."""

from __future__ import annotations

from services.sampler.records.run_store import ADD_PAIRS
from services.store.requests import NOTE

_SHARED = """
local function append(key, ...)
  local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  local number = last and tonumber(string.match(last[1], '^%d+')) + 1 or 1
  redis.call('XADD', key, string.format('%d-0', number), 'format_version', 1, ...)
end
-- an event of a run's queue, and of all, of which so many are kept
local function tell(of_run, of_all, kept, event, run, task, annotator, at)
  for _, key in ipairs({of_run, of_all}) do
    append(key, 'event', event, 'run', run, 'task', task, 'annotator', annotator, 'at', at)
  end
  redis.call('XTRIM', of_all, 'MAXLEN', '~', kept)
end
-- a member has its place in a sorted set, or none
local function place(key, score, member)
  if score ~= '' then redis.call('ZADD', key, score, member) else redis.call('ZREM', key, member) end
end
-- a run's tasks are counted by state, but those without one: control items, and what is withdrawn
local function count(key, task, state)
  local was = redis.call('HGET', task, 'state') or ''
  if was == state then return end
  if was ~= '' then redis.call('HINCRBY', key, was, -1) end
  if state ~= '' then redis.call('HINCRBY', key, state, 1) end
  redis.call('HSET', task, 'state', state)
end
"""

# KEYS: task, all events, index, waiting, events, run, asked, counts
# ARGV: task id, run id, task, record, now, its state, how many events of all are kept, query
PUT = (
    _SHARED
    + """
if redis.call('EXISTS', KEYS[6]) == 0 then return 0 end
if ARGV[6] ~= '' then redis.call('HSET', KEYS[7], ARGV[8], ARGV[1]) end
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local number = redis.call('RPUSH', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[1], 'format_version', 1, 'task', ARGV[3], 'record', ARGV[4], 'revision', 0, 'place', number)
if ARGV[6] ~= '' then redis.call('ZADD', KEYS[4], number, ARGV[1]) end
count(KEYS[8], KEYS[1], ARGV[6])
tell(KEYS[5], KEYS[2], ARGV[7], 'QUEUED', ARGV[2], ARGV[1], '', ARGV[5])
return 1
"""
)

# KEYS: task, all events, pace, request, the person's answers, those to control items, waiting, leases, decided,
#       verdicts, events, the run's answers of the last hour, growing, counts, run, pairs, the run's events, amended
# ARGV: revision, record, plan (JSON, see `TaskStore.write`)
WRITE = (
    ADD_PAIRS
    + NOTE
    + _SHARED
    + """
if redis.call('HGET', KEYS[1], 'revision') ~= ARGV[1] then return 0 end
local plan = cjson.decode(ARGV[3])
if redis.call('EXISTS', KEYS[15]) == 0 then return 0 end
if plan.request ~= '' and redis.call('EXISTS', KEYS[4]) == 1 then return 0 end
if #plan.pairs > 0 then
  add_pairs(KEYS[15], KEYS[16], KEYS[18], plan.pairs, 1, {})
  emit(KEYS[15], KEYS[17], plan.at)
end
redis.call('HSET', KEYS[1], 'revision', ARGV[1] + 1, 'record', ARGV[2])
if plan.asks ~= '' then redis.call('HSET', KEYS[1], 'task', plan.asks) end
count(KEYS[14], KEYS[1], plan.state)
redis.call('HSET', KEYS[15], 'disputed', redis.call('HGET', KEYS[14], 'CONFLICT') or 0)
place(KEYS[7], plan.waiting, plan.task)
for _, lease in ipairs(plan.leases) do place(KEYS[8], lease[2], lease[1]) end
place(KEYS[9], plan.decided, plan.task)
for _, entry in ipairs(plan.log) do append(KEYS[10], 'task', plan.task, 'entry', entry) end
for _, event in ipairs(plan.events) do
  tell(KEYS[11], KEYS[2], plan.events_kept, event[1], plan.run, plan.task, event[2], plan.at)
end
if plan.elapsed_ms ~= '' then
  redis.call('HINCRBY', KEYS[3], 'answers', 1)
  redis.call('HINCRBY', KEYS[3], 'elapsed_ms', plan.elapsed_ms)
end
if plan.person ~= '' then
  place(KEYS[5], plan.answered, plan.task)
  if plan.control then
    place(KEYS[6], plan.answered, plan.task)
  else
    place(KEYS[12], plan.answered, plan.task .. ' ' .. plan.person)
    redis.call('ZREMRANGEBYSCORE', KEYS[12], '-inf', plan.hour_ago)
  end
end
if plan.corrects then redis.call('HSET', KEYS[13], plan.task, ARGV[1] + 1) end
note(KEYS[4], plan.request, plan.request_ttl_s, 'made', plan.made)
return 1
"""
)

# KEYS: leases, decided.  ARGV: milliseconds in which a decision can be taken back
# Returns the leases whose time is over, the tasks whose decision stands, and the milliseconds until the next such (-1:
# there is none).
DUE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found, soonest = {}, -1
for number, at in ipairs({now, now - ARGV[1]}) do
  found[number] = redis.call('ZRANGEBYSCORE', KEYS[number], '-inf', at)
  local later = redis.call('ZRANGEBYSCORE', KEYS[number], string.format('(%d', at), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if later[2] and (soonest < 0 or later[2] - at < soonest) then soonest = later[2] - at end
end
return {found[1], found[2], soonest}
"""

# KEYS: run, failed.  ARGV: annotator
FAIL = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('SADD', KEYS[2], ARGV[1]) end"

# KEYS: growing.  ARGV: task, revision
DONE = "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end"
