// SPDX-License-Identifier: GPL-2.0-only
// usage: load.js TURNS
//
// Objects, closures, regular expressions, JSON, exceptions, sorting by a function.

function check(right, what) {
	if (!right)
		throw new Error(what);
}

function fails(depth) {
	try {
		if (depth === 0)
			throw { code: 7 };
		return fails(depth - 1) + 1;
	} finally {
		fails.ended++;
	}
}

function fold(list, each, start) {
	return list.length === 0 ? start : fold(list.slice(1), each, each(start, list[0]));
}

for (var turn = 0; turn < Number(scriptArgs[0]); turn++) {
	var numbers = [];
	for (var at = 0; at < 30; at++)
		numbers.push(at * 7919 % 1009);
	numbers.sort(function (left, right) { return left - right; });
	check(numbers[0] === 0, "sort");
	check(fold(numbers, Math.max, 0) === numbers[29], "fold");

	var text = JSON.stringify({ turn: turn, words: "the quick brown fox".split(/\s+/) });
	check(JSON.parse(text).words.length === 4, "JSON");
	check(text.replace(/[aeiou](\w)/g, "$1").length < text.length, "replace");

	fails.ended = 0;
	try {
		fails(10);
		check(false, "no exception");
	} catch (error) {
		check(error.code === 7 && fails.ended === 11, "finally");
	}
}
