-- SPDX-License-Identifier: GPL-2.0-only
-- Another load for Lua, without an end: trees, text, sorting, errors with values, closures,
-- matrices, and counts of parts of a text.
local Node = {}
Node.__index = Node
local function node(key) return setmetatable({ key = key }, Node) end
function Node:insert(key)
  local side = key < self.key and 'left' or 'right'
  if self[side] then self[side]:insert(key) else self[side] = node(key) end
end
function Node:each(visit)
  if self.left then self.left:each(visit) end
  visit(self.key)
  if self.right then self.right:each(visit) end
end

local function trees()
  local root, sum = node(500), 0
  for i = 1, 300 do root:insert(i * 7919 % 1009) end
  root:each(function(key) sum = sum + key end)
  return sum
end

local function text()
  local words = {}
  for i = 1, 300 do words[i] = ('%04x-%d'):format(i * 7919 % 65536, i) end
  local joined, count = table.concat(words, ';'), 0
  for _, digits in joined:gmatch('(%x+)-(%d+)') do count = count + tonumber(digits) end
  local turned = joined:gsub('%d+', string.reverse)
  table.sort(words, function(a, b) if #a ~= #b then return #a < #b end return a < b end)
  return count + #turned:upper()
end

local function failing(depth)
  if depth == 0 then error({ depth = 0 }) end
  local ok, cause = pcall(failing, depth - 1)
  if not ok then error({ depth = depth, cause = cause }) end
end

local function errors()
  local _, value = pcall(failing, 12)
  local count = 0
  while value do value, count = value.cause, count + 1 end
  return count
end

local function adders(count)
  local list, sum = {}, 0
  for i = 1, count do list[i] = function(value) return value + i end end
  for _, add in ipairs(list) do sum = add(sum) end
  return sum
end

local function matrix(size)
  local a, sum = {}, 0
  for i = 1, size do a[i] = {} for j = 1, size do a[i][j] = 1 / (i + j) end end
  for i = 1, size do
    for j = 1, size do
      local cell = 0
      for k = 1, size do cell = cell + a[i][k] * a[k][j] end
      sum = sum + math.abs(cell)
    end
  end
  return sum
end

local function letters(length)
  local parts, state, counts = {}, 42, {}
  for i = 1, length do
    state = (state * 3877 + 29573) % 139968
    local at = state % 4 + 1
    parts[i] = ('acgt'):sub(at, at)
  end
  local all = table.concat(parts)
  for i = 1, length - 3 do
    local part = all:sub(i, i + 3)
    counts[part] = (counts[part] or 0) + 1
  end
  local most = 0
  for _, count in pairs(counts) do most = math.max(most, count) end
  return most + #all:reverse()
end

while true do
  trees() text() errors() adders(200) matrix(30) letters(1500)
end
