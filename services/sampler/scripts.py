"""The Lua scripts of the sampler's records. Each is one step of a run: it happens whole or not at all, and once.

`emit` writes the event of a step together with the step, so that a watcher sees neither without the other.
"""

from __future__ import annotations

from services.sampler.runs import COUNTERS

_NAMES = ", ".join(f"'{name}'" for name in COUNTERS)

_EMIT = f"""
local NAMES = {{'state', 'error', 'ended_at', {_NAMES}}}
local function emit(run, events, now)
  local seq = redis.call('HINCRBY', run, 'event_seq', 1)
  local values = redis.call('HMGET', run, unpack(NAMES))
  local entry = {{'format_version', 1, 'at', now}}
  for i, name in ipairs(NAMES) do
    entry[#entry + 1] = name
    entry[#entry + 1] = values[i] or ''
  end
  redis.call('XADD', events, seq .. '-0', unpack(entry))
end
"""

# A worker may write only while it holds the run's lease and the run is running.
_FENCE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 'LOST' end
if redis.call('HGET', KEYS[1], 'state') ~= 'RUNNING' then return 'STOPPED' end
"""

# KEYS: run, idempotency key, runs, active, events, hypotheses, open, number of runs
# ARGV: run id, whether there is an idempotency key, now, whether it waits for work, then the run's fields and values
CREATE = (
    _EMIT
    + """
if ARGV[2] == '1' then
  local existing = redis.call('GET', KEYS[2])
  if existing then return existing end
  redis.call('SET', KEYS[2], ARGV[1])
end
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
redis.call('ZADD', KEYS[3], redis.call('INCR', KEYS[8]), ARGV[1])
if ARGV[4] == '1' then redis.call('SADD', KEYS[4], ARGV[1]) end
redis.call('PERSIST', KEYS[6])
redis.call('PERSIST', KEYS[7])
emit(KEYS[1], KEYS[5], ARGV[3])
return ARGV[1]
"""
)

# KEYS: run, lease, active, events
# ARGV: owner or '', run id, now, allowed states, state, error, whether it is an end, the request that asks for it or ''
TRANSITION = (
    _EMIT
    + """
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 'MISSING' end
if ARGV[1] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[1] then return 'LOST' end
if not string.find(ARGV[4], ' ' .. state .. ' ', 1, true) then
  local again = state == ARGV[5] and ARGV[8] ~= '' and redis.call('HGET', KEYS[1], 'request') == ARGV[8]
  return again and 'OK' or state
end
redis.call('HSET', KEYS[1], 'request', ARGV[8])
redis.call('HSET', KEYS[1], 'state', ARGV[5], 'error', ARGV[6], 'ended_at', ARGV[7] == '1' and ARGV[3] or '')
if ARGV[7] == '1' then redis.call('SREM', KEYS[3], ARGV[2]) else redis.call('SADD', KEYS[3], ARGV[2]) end
if ARGV[5] == 'SUCCEEDED' then redis.call('HSET', KEYS[1], 'nodes_pending', 0) end
emit(KEYS[1], KEYS[4], ARGV[3])
return 'OK'
"""
)

# KEYS: run, lease, tree, pairs, events, answers
# ARGV: owner, now, field of the tree, its value, whether that completes the node, query key, answers, positives,
#       negatives, filtered, skipped, judgements, failed, then pairs
COMMIT = (
    _EMIT
    + _FENCE
    + """
if redis.call('HSETNX', KEYS[3], ARGV[3], ARGV[4]) == 0 then return 'DONE' end
if ARGV[7] ~= '' then redis.call('HSET', KEYS[6], ARGV[6], ARGV[7]) end
for i = 14, #ARGV do
  local seq = redis.call('HINCRBY', KEYS[1], 'pair_seq', 1)
  redis.call('XADD', KEYS[4], seq .. '-0', 'pair', ARGV[i])
end
redis.call('HINCRBY', KEYS[1], 'nodes_judged', ARGV[5] - ARGV[13])
redis.call('HINCRBY', KEYS[1], 'nodes_failed', ARGV[13])
redis.call('HINCRBY', KEYS[1], 'nodes_pending', 0 - ARGV[5])
for i, name in ipairs({'positives', 'negatives', 'filtered', 'skipped', 'judgements'}) do
  redis.call('HINCRBY', KEYS[1], name, ARGV[7 + i])
end
emit(KEYS[1], KEYS[5], ARGV[2])
return 'OK'
"""
)

# KEYS: what the oracle was asked in all, what of it for which node (both by oracle and by run)
# ARGV: budget, then node and candidates by turns.  Answers 1 for each node that may be asked; each is counted once.
RESERVE = """
local spent = tonumber(redis.call('GET', KEYS[1]) or '0')
local granted = {}
for i = 2, #ARGV, 2 do
  local again = redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1
  if not again and spent + ARGV[i + 1] <= tonumber(ARGV[1]) then
    spent = spent + ARGV[i + 1]
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
    again = true
  end
  granted[#granted + 1] = again and 1 or 0
end
redis.call('SET', KEYS[1], spent)
return granted
"""

# KEYS: run, lease, tree, events, open.  ARGV: owner, now, tree index, its depth, then ordinal and node by turns
ADVANCE = (
    _EMIT
    + _FENCE
    + """
if (redis.call('HGET', KEYS[3], 'depth') or '0') ~= ARGV[4] then return 'DONE' end
if not redis.call('ZSCORE', KEYS[5], ARGV[3]) then return 'DONE' end
if #ARGV == 4 then
  redis.call('ZREM', KEYS[5], ARGV[3])
  redis.call('HINCRBY', KEYS[1], 'trees_done', 1)
  emit(KEYS[1], KEYS[4], ARGV[2])
  return 'OK'
end
redis.call('HSET', KEYS[3], 'depth', ARGV[4] + 1)
for i = 5, #ARGV, 2 do redis.call('HSET', KEYS[3], 'n:' .. ARGV[i], ARGV[i + 1]) end
redis.call('HINCRBY', KEYS[1], 'nodes_pending', (#ARGV - 4) / 2)
return 'OK'
"""
)

# KEYS: run, request, pairs, events, amended.  ARGV: now, whether there is a request id, then pairs
IMPORT = (
    _EMIT
    + """
if ARGV[2] == '1' and redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
for i = 3, #ARGV do
  local seq = redis.call('HINCRBY', KEYS[1], 'pair_seq', 1)
  redis.call('XADD', KEYS[3], seq .. '-0', 'pair', ARGV[i])
  local pair = cjson.decode(ARGV[i])
  if pair.amended then redis.call('HSET', KEYS[5], cjson.encode({pair.query, pair.premise_id}), ARGV[i]) end
  local counter = ({POSITIVE = 'positives', NEGATIVE = 'negatives', SKIPPED = 'skipped'})[pair.sign]
  redis.call('HINCRBY', KEYS[1], counter, 1)
end
if ARGV[2] == '1' then redis.call('SET', KEYS[2], #ARGV - 2) end
emit(KEYS[1], KEYS[4], ARGV[1])
return #ARGV - 2
"""
)
