-- One operation of the store that routers share, as one atomic step. See redis_store.py.
--
-- KEYS[1]: how all keys of this deployment and this epoch begin.
-- ARGV: a number that the answer repeats, the epoch, the operation, and what it needs.
-- Answer: {number, epoch, time in ms, totals, what the operation gives}, without the last one when
-- the epoch has changed: then nothing was done.
--
-- Keys, after KEYS[1]:
--   h:ID         hash: a handle without its tokens
--   t:ID         its tokens
--   x:SCOPE      sorted set, all scores 0: digests of a handle's pieces, then its ID
--   k:NAME       sorted set: handles of a conversation by age
--   a:BEGINNING  set: handles of conversations that begin so
--   s:DECODE     set: starts of a decode server
--   w:DECODE START  sorted set: handles of one start by worth
--   d            sorted set: entries by deadline, with all that totals need: ID, tokens, pinned
--                tokens, DECODE, START
--   n            hash: totals by decode server
--   q            how many handles there ever were, which is their age

-- As in redis_store.py and handle.py; a test compares them.
local PIECE_BYTES, DIGEST, ID, BATCH, HALF_LIFE_S = 512, 8, 24, 64, 120
local NEIGHBOURS, TIES, NAMESAKES = 4, 28, 4
-- Keys outlive deadlines by this much, so that a router sees what has expired. What no router
-- comes back for goes by itself.
local GRACE_MS = 600000

local base, operation = KEYS[1], ARGV[3]

-- The epoch: this start of this server (`run_id`), with this history of its data
-- (`master_replid`: new after a failover and after a data set came from elsewhere).
local server, replication = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'replication')
if type(server) ~= 'string' or type(replication) ~= 'string' then
  return redis.error_reply('NOINFO the user may not call INFO')
end
local run = string.match(server, '\nrun_id:(%x+)')
local history = string.match(replication, '\nmaster_replid:(%x+)')
if not run or not history then
  return redis.error_reply('NOINFO the server does not tell run_id and master_replid')
end
local epoch = string.sub(run, 1, 16) .. string.sub(history, 1, 16)
local time = redis.call('TIME')
-- Whole milliseconds: it is up to one later than this, so what is left is counted one less.
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function count(decode, sign, tokens, pinned)
  local n = base .. 'n'
  if redis.call('HINCRBY', n, 'h' .. decode, sign) <= 0 then
    redis.call('HDEL', n, 'h' .. decode, 't' .. decode, 'p' .. decode)
  else
    redis.call('HINCRBY', n, 't' .. decode, sign * tokens)
    redis.call('HINCRBY', n, 'p' .. decode, sign * pinned)
  end
end

local function pinned_of(entry)
  return tonumber(string.match(entry, '^%x+ %d+ (%d+)'))
end

-- Takes an entry out, if it is there.
local function uncount(entry)
  if redis.call('ZREM', base .. 'd', entry) == 0 then return end
  local id, tokens, pinned, decode, start = string.match(entry, '^(%x+) (%d+) (%d+) (%S+) (.*)$')
  local w = base .. 'w:' .. decode .. ' ' .. start
  redis.call('ZREM', w, id)
  if redis.call('EXISTS', w) == 0 then redis.call('SREM', base .. 's:' .. decode, start) end
  count(decode, -1, tokens, pinned)
end

-- Takes a handle out: what it was with its deadline, and what of it is pinned. Nil when it is gone.
local function remove(id)
  local h = base .. 'h:' .. id
  local f = redis.call('HMGET', h, 'entry', 'scope', 'name', 'beginning', 'chain', 'meta', 'raw', 'deadline', 'renewed')
  if not f[1] then return nil end
  redis.call('DEL', h, base .. 't:' .. id)
  redis.call('ZREM', base .. 'x:' .. f[2], f[5] .. id)
  redis.call('ZREM', base .. 'k:' .. f[3], id)
  redis.call('SREM', base .. 'a:' .. f[4], id)
  uncount(f[1])
  return {f[6], f[7], f[8] - now - 1, f[9] or ''}, pinned_of(f[1])
end

local function outlives(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end

-- Where the least worthy handle of a decode server is, and how much it is worth.
local function least_worthy(decode)
  local least, where
  for _, start in ipairs(redis.call('SMEMBERS', base .. 's:' .. decode)) do
    local w = base .. 'w:' .. decode .. ' ' .. start
    local head = redis.call('ZRANGE', w, 0, 0, 'WITHSCORES')
    if head[1] and (not least or tonumber(head[2]) < least) then
      least, where = tonumber(head[2]), w
    end
  end
  return least, where
end

local function remove_head(w)
  local id = redis.call('ZRANGE', w, 0, 0)[1]
  local gone, pinned = remove(id)
  redis.call('ZREM', w, id) -- it may have gone by itself
  return gone, pinned
end

-- Two ways to say the same; whatever a clock or a slow network did, the earlier one is safe.
local function earlier(deadline, left)
  local by_left = now + tonumber(left)
  return math.min(tonumber(deadline) or by_left, by_left)
end

local does = {}

function does.totals() return {} end

function does.knows(name, beginning)
  if name ~= '' and redis.call('EXISTS', base .. 'k:' .. name) == 1 then return 1 end
  return redis.call('EXISTS', base .. 'a:' .. beginning)
end

function does.put(id, scope, name, beginning, decode, start, tokens, pinned, worth,
                  deadline, left, branches, most, chain, meta, raw, renewed, held)
  remove(id)
  deadline = earlier(deadline, left)
  if deadline <= now then return 0 end
  local entry = id .. ' ' .. tokens .. ' ' .. pinned .. ' ' .. decode .. ' ' .. start
  local h, t, x, k = base .. 'h:' .. id, base .. 't:' .. id, base .. 'x:' .. scope, base .. 'k:' .. name
  local a, s, w = base .. 'a:' .. beginning, base .. 's:' .. decode, base .. 'w:' .. decode .. ' ' .. start
  local d, n, q = base .. 'd', base .. 'n', base .. 'q'
  redis.call('SET', t, held)
  redis.call('HSET', h, 'entry', entry, 'scope', scope, 'name', name, 'beginning', beginning,
    'chain', chain, 'meta', meta, 'raw', raw, 'renewed', renewed,
    'deadline', string.format('%.0f', deadline))
  redis.call('ZADD', x, 0, chain .. id)
  redis.call('ZADD', k, redis.call('INCR', q), id)
  redis.call('SADD', a, id)
  redis.call('SADD', s, start)
  redis.call('ZADD', w, string.format('%.17g', worth + now / 1000 / HALF_LIFE_S), id)
  redis.call('ZADD', d, string.format('%.0f', deadline), entry)
  count(decode, 1, tokens, pinned)
  local life = math.ceil(deadline - now) + GRACE_MS
  for _, key in ipairs({h, t, x, k, a, s, w, d, n, q}) do
    outlives(key, life)
  end
  local gone = {}
  if tonumber(branches) > 0 then
    local many = redis.call('ZCARD', k) - branches
    if many > 0 then
      for _, old in ipairs(redis.call('ZRANGE', k, 0, many - 1)) do
        gone[#gone + 1] = remove(old)
        redis.call('ZREM', k, old)
      end
    end
  end
  for _ = 1, math.min(redis.call('ZCARD', d) - most, BATCH) do
    local least, where
    for _, field in ipairs(redis.call('HKEYS', n)) do
      if string.sub(field, 1, 1) == 'h' then
        local worth_here, here = least_worthy(string.sub(field, 2))
        if here and (not least or worth_here < least) then least, where = worth_here, here end
      end
    end
    if where then gone[#gone + 1] = remove_head(where) end
  end
  return gone
end

function does.find(scope, name, prompt)
  local x = base .. 'x:' .. scope

  local function common(chain)
    local low, high = 0, math.floor(math.min(#chain, #prompt) / DIGEST)
    while low < high do
      local middle = math.ceil((low + high) / 2)
      if string.sub(chain, low * DIGEST + 1, middle * DIGEST)
        == string.sub(prompt, low * DIGEST + 1, middle * DIGEST) then
        low = middle
      else
        high = middle - 1
      end
    end
    return low
  end

  -- What shares the longest beginning with the prompt stands beside it. Namesakes come first, to
  -- be known as such.
  local found, best = {}, 0
  local k = base .. 'k:' .. name
  for _, id in ipairs(redis.call('ZREVRANGE', k, 0, NAMESAKES - 1)) do
    found[#found + 1] = {id}
  end
  local function side(command, from, to, first, number)
    local least
    for _, member in ipairs(redis.call(command, x, from, to, 'LIMIT', first, number)) do
      least = common(string.sub(member, 1, -ID - 1))
      found[#found + 1] = {string.sub(member, -ID), least, member}
      best = math.max(best, least)
      number = number - 1
    end
    return number == 0 and least
  end
  local up = side('ZRANGEBYLEX', '[' .. prompt, '+', 0, NEIGHBOURS)
  local down = side('ZREVRANGEBYLEX', '(' .. prompt, '-', 0, NEIGHBOURS)
  -- Those that share as many pieces are told apart by their tokens only.
  local looked = #found
  if up == best then side('ZRANGEBYLEX', '[' .. prompt, '+', NEIGHBOURS, TIES) end
  local left = TIES - (#found - looked)
  if down == best and left > 0 then
    side('ZREVRANGEBYLEX', '(' .. prompt, '-', NEIGHBOURS, left)
  end
  local seen, answer = {}, {}
  for _, one in ipairs(found) do
    local id, pieces, member = one[1], one[2], one[3]
    -- Who shares nothing is of no use beside one who does.
    if not seen[id] and (not member or pieces > 0 or best == 0) then
      local f = redis.call('HMGET', base .. 'h:' .. id, 'meta', 'scope', 'deadline')
      if not f[1] then -- it went by itself, since no router was there to see it
        if member then redis.call('ZREM', x, member) else redis.call('ZREM', k, id) end
      elseif f[2] == scope and tonumber(f[3]) > now then
        seen[id] = true
        pieces = pieces or common(redis.call('HGET', base .. 'h:' .. id, 'chain'))
        local at = pieces * PIECE_BYTES
        -- In one string: a client reads that several times faster than as many values.
        answer[#answer + 1] = struct.pack('>I4I4I4I4', #f[1], f[3] - now - 1, pieces, member and 0 or 1)
          .. f[1] .. redis.call('GETRANGE', base .. 't:' .. id, at, at + PIECE_BYTES - 1)
      end
    end
  end
  return answer
end

function does.take(id)
  local deadline = redis.call('HGET', base .. 'h:' .. id, 'deadline')
  if not deadline or tonumber(deadline) <= now then return {} end
  local held = redis.call('GET', base .. 't:' .. id)
  local gone = remove(id)
  return held and {gone, held} or {}
end

function does.take_conversation(name)
  local gone, k = {}, base .. 'k:' .. name
  local ids = redis.call('ZRANGE', k, 0, BATCH - 1)
  for _, id in ipairs(ids) do
    gone[#gone + 1] = remove(id)
    redis.call('ZREM', k, id)
  end
  return {gone, #ids}
end

function does.take_least(decode, tokens)
  local gone, freed = {}, 0
  while freed < tonumber(tokens) and #gone < BATCH do
    local _, where = least_worthy(decode)
    if not where then break end
    local handle, pinned = remove_head(where)
    if handle then
      gone[#gone + 1] = handle
      freed = freed + pinned
    end
  end
  return {gone, freed}
end

-- By deadline, from `first` on.
function does.list(first)
  local answer = {}
  local d = base .. 'd'
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', d, first, '+inf', 'LIMIT', 0, BATCH)) do
    local id = string.sub(entry, 1, ID)
    local meta = redis.call('HGET', base .. 'h:' .. id, 'meta')
    answer[#answer + 1] = {id, meta or '', redis.call('ZSCORE', d, entry)}
  end
  return answer
end

function does.take_these(...)
  local gone = {}
  for _, id in ipairs({...}) do
    gone[#gone + 1] = remove(id)
  end
  return gone
end

function does.take_expired(later)
  local gone, d = {}, base .. 'd'
  local entries = redis.call('ZRANGEBYSCORE', d, '-inf', string.format('%.0f', now + later), 'LIMIT', 0, BATCH)
  for _, entry in ipairs(entries) do
    local handle = remove(string.sub(entry, 1, ID))
    if handle then gone[#gone + 1] = handle else uncount(entry) end
  end
  return {gone, #entries}
end

function does.free(...)
  local answer = {}
  for _, id in ipairs({...}) do
    answer[#answer + 1] = redis.call('EXISTS', base .. 'h:' .. id)
  end
  return answer
end

function does.extend(id, deadline, left, renewed)
  local h = base .. 'h:' .. id
  local f = redis.call('HMGET', h, 'entry', 'scope', 'name', 'beginning', 'deadline')
  if not f[1] then return 0 end
  deadline = earlier(deadline, left)
  if deadline <= tonumber(f[5]) then return 1 end
  local shown = string.format('%.0f', deadline)
  redis.call('HSET', h, 'deadline', shown, 'renewed', renewed)
  redis.call('ZADD', base .. 'd', shown, f[1])
  local decode, start = string.match(f[1], '^%x+ %d+ %d+ (%S+) (.*)$')
  local life = math.ceil(deadline - now) + GRACE_MS
  for _, key in ipairs({'t:' .. id, 'x:' .. f[2], 'k:' .. f[3], 'a:' .. f[4], 's:' .. decode,
                        'w:' .. decode .. ' ' .. start, 'h:' .. id, 'd', 'n', 'q'}) do
    outlives(base .. key, life)
  end
  return 1
end

function does.forget_engine(decode, keep)
  local gone = 0
  for _, start in ipairs(redis.call('SMEMBERS', base .. 's:' .. decode)) do
    local w = base .. 'w:' .. decode .. ' ' .. start
    while start ~= keep and gone < BATCH and redis.call('EXISTS', w) == 1 do
      remove_head(w)
      gone = gone + 1
    end
  end
  return gone
end

if epoch ~= ARGV[2] then return {ARGV[1], epoch, now, {}} end
local result = does[operation](unpack(ARGV, 4))
return {ARGV[1], epoch, now, redis.call('HGETALL', base .. 'n'), result}
