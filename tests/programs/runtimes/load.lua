-- SPDX-License-Identifier: GPL-2.0-only
-- Recursion, tables, objects, errors, coroutines, callbacks and strings, without end; and a loop
-- with many live values.
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
local function tree(d) if d == 0 then return nil end return { tree(d - 1), tree(d - 1) } end
local function depth(t) if not t then return 0 end return 1 + math.max(depth(t[1]), depth(t[2])) end
local Shape = {}; Shape.__index = Shape
function Shape.new(r) return setmetatable({ r = r }, Shape) end
function Shape:area() return 3.14159 * self.r * self.r end
local function shapes(n) local s = 0.0 for i = 1, n do s = s + Shape.new(i):area() end return s end
local function words(n) local m = {}
  for i = 1, n do local k = 'k' .. (i % 97) m[k] = (m[k] or 0) + 1 end
  local l = {} for k in pairs(m) do l[#l + 1] = k end table.sort(l) return #l end
local function thrower(n) if n == 0 then error('x') end return 1 + thrower(n - 1) end
local function spill(a, b, c, d, e, f, g, h) local x = 0.5
  for i = 1, 200 do
    a, b, c, d, e, f, g, h = b + i, c * 1.5, d - a, e + f * 0.5, f - g, g + h * 0.25, h + a, a - b
    x = x + a * b - c * d + e * f - g * h
    if x > 1e200 then x = 0 end end return x end
while true do
  fib(20) depth(tree(10)) shapes(3000) words(2000)
  for i = 1, 50 do pcall(thrower, 20) spill(1, 2, 3, 4, 5, 6, 7, 8) end
  local l = {} for i = 1, 500 do l[i] = i * 7919 % 1009 end
  table.sort(l, function(a, b) return a < b end)
  local co = coroutine.wrap(function() for i = 1, 100 do coroutine.yield(fib(i % 8)) end end)
  for i = 1, 100 do co() end
  for a, b in (('ab-12 cd-34 '):rep(50)):gmatch('(%w+)-(%d+)') do local _ = a .. b end
end
