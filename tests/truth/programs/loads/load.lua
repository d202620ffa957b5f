-- SPDX-License-Identifier: GPL-2.0-only
-- usage: load.lua TURNS
--
-- Closures, tables, coroutines, strings and patterns, errors that are caught, sorting by a
-- function.

local function walk(tree, visit)
	if tree then
		walk(tree.left, visit)
		visit(tree.value)
		walk(tree.right, visit)
	end
end

local function insert(tree, value)
	if not tree then
		return { value = value }
	end
	local side = value < tree.value and "left" or "right"
	tree[side] = insert(tree[side], value)
	return tree
end

local function values(tree)
	return coroutine.wrap(function() walk(tree, coroutine.yield) end)
end

local function fails(depth)
	if depth == 0 then error({ code = 7 }) end
	return fails(depth - 1) + 1
end

local counted = setmetatable({}, { __index = function(_, key) return #key end })

for turn = 1, tonumber(arg[1]) do
	local tree, last, number = nil, -1, 0
	for at = 1, 60 do
		tree = insert(tree, at * 7919 % 1009)
	end
	for value in values(tree) do
		assert(value >= last)
		last, number = value, number + 1
	end
	assert(number == 60)

	local text = ("the quick brown fox "):rep(5)
	local words = {}
	for word in text:gmatch("%a+") do
		words[#words + 1] = word:upper():reverse()
	end
	table.sort(words, function(left, right) return counted[left] < counted[right] end)
	assert(#table.concat(words, " ") == #text - 1)
	assert(text:gsub("(%a+) (%a+)", "%2 %1"):find("^quick the"))

	local fine, found = pcall(fails, 20)
	assert(not fine and found.code == 7)
end
