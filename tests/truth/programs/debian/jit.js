// SPDX-License-Identifier: GPL-2.0-only
// usage: jit.js
//
// Runs without end, in functions that V8 compiles: classes, maps, regular expressions, JSON,
// sorting, exceptions, generators, promises, proxies, big and floating numbers. Arguments are
// passed in other numbers than declared.

'use strict';

class Shape {
	constructor(size) {
		this.size = size;
		this.tags = new Map();
	}

	area() {
		return this.size * this.size;
	}
}

class Circle extends Shape {
	area() {
		return super.area() * 3;
	}

	get half() {
		return this.size / 2;
	}

	set half(value) {
		this.size = value * 2;
	}
}

function nest(depth, inner) {
	return depth === 0 ? inner() : 1 + nest(depth - 1, inner);
}

function strings(turn) {
	let text = '';
	for (let at = 0; at < 40; at++)
		text += String.fromCharCode(97 + (at + turn) % 26);
	const words = text.split('c').map(word => word.toUpperCase());
	return words.join('-').replace(/[A-F]+/g, match => match.length).length;
}

function json(turn) {
	const text = JSON.stringify({ list: [1, 2, { turn }], text: 'x' + turn, third: turn / 3 });
	const copy = JSON.parse(text);
	return copy.list[2].turn + copy.text.length;
}

function maps(turn) {
	const map = new Map(), set = new Set();
	for (let at = 0; at < 50; at++) {
		map.set('key' + at, at + turn);
		set.add(at * turn % 17);
	}
	let total = set.size;
	for (const [key, value] of map)
		total += value + key.length;
	map.delete('key3');
	return total;
}

function exceptions(turn) {
	try {
		nest(5, () => {
			if (turn % 3 === 0)
				throw new Error('turn ' + turn);
		});
	} catch (error) {
		return error.message.length;
	}
	return 0;
}

function sorting(turn) {
	const list = Array.from({ length: 60 }, (_, at) => (at * 7919 + turn) % 101);
	list.sort((left, right) => left - right);
	return list.filter(value => value & 1).reduce((sum, value) => sum + value, 0) +
		list.indexOf(50);
}

function numbers(turn) {
	const list = new Float64Array(64);
	for (let at = 0; at < 64; at++)
		list[at] = Math.sin(at + turn) * Math.sqrt(at);
	const big = BigInt(turn) * 123456789012345678901234567890n % 1000007n;
	return list.reduce((sum, value) => sum + value, 0) + Number(big);
}

function shapes(turn) {
	let total = 0;
	for (const shape of [new Shape(turn), new Circle(turn), new Circle(turn + 1)]) {
		shape.tags.set('turn', turn);
		total += shape.area();
		if (shape instanceof Circle)
			shape.half = shape.half + 1;
	}
	return total;
}

function variadic() {
	return Array.prototype.slice.call(arguments, 1).concat([...arguments]).length;
}

function proxies(turn) {
	const proxy = new Proxy({}, { get: (target, key) => key.length + turn });
	return proxy.hello + Reflect.get(proxy, 'abc');
}

function groups(turn) {
	const match = /(\d+)-(?<word>[a-z]+)/.exec('abc 123-' + 'xyz'.repeat(1 + turn % 3));
	return match.groups.word.length + match[1].length;
}

function* even(count) {
	for (let at = 0; at < count; at++)
		yield at * 2;
}

async function promises(turn) {
	let total = 0;
	for (let at = 0; at < 5; at++)
		total += await Promise.resolve(at + turn);
	await new Promise(resolve => setImmediate(resolve));
	return total;
}

const parts = [
	strings, json, maps, exceptions, sorting, numbers, shapes, variadic, proxies, groups,
];

(async () => {
	let total = 0;
	for (let turn = 0; ; turn++) {
		total += nest(10, () =>
			parts.reduce((sum, part) => sum + part(turn, part, sum), 0));
		for (const value of even(10))
			total += value;
		if (turn % 100 === 0)
			total += await promises(turn);
	}
})();
