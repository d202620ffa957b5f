// SPDX-License-Identifier: GPL-2.0-only
// Another load for JavaScript, without an end, of the kinds of work that programs do most: classes,
// closures, generators, promises, maps, text, regular expressions, JSON, sorting, and errors.
let seed = 7;
const random = limit => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) % limit;

class Node {
	constructor(key) { this.key = key; this.left = this.right = null; }

	insert(key) {
		const side = key < this.key ? 'left' : 'right';
		if (this[side]) this[side].insert(key);
		else this[side] = new Node(key);
	}

	*[Symbol.iterator]() {
		if (this.left) yield* this.left;
		yield this.key;
		if (this.right) yield* this.right;
	}
}

function trees() {
	const root = new Node(500);
	for (let i = 0; i < 300; i++) root.insert(random(1000));
	let sum = 0;
	for (const key of root) sum += key;
	return sum;
}

function text() {
	const words = Array.from({ length: 300 }, (_, i) => `${random(65536).toString(16)}-${i}`);
	const joined = words.join(';');
	const found = [...joined.matchAll(/([0-9a-f]{2})+-(\d+)/g)].map(match => +match[2]);
	const turned = joined.replace(/\d+/g, digits => [...digits].reverse().join(''));
	words.sort((a, b) => a.localeCompare(b));
	const parts = turned.toUpperCase().split(';');
	return found.length + parts.length + (words[3] < words[4] ? 1 : 0);
}

function records() {
	const rows = [];
	for (let id = 0; id < 200; id++)
		rows.push({ id, name: `n${id * 7919 % 1009}`, tags: [id % 7] });
	const again = JSON.parse(JSON.stringify(rows));
	again.sort((a, b) => a.tags[0] - b.tags[0] || (a.name < b.name ? -1 : 1));
	const groups = new Map();
	for (const { name, tags: [tag] } of again) {
		if (!groups.has(tag)) groups.set(tag, new Set());
		groups.get(tag).add(name);
	}
	return [...groups.values()].reduce((sum, names) => sum + names.size, 0);
}

function failing(depth) {
	if (depth === 0) return JSON.parse('[1,');
	try {
		return failing(depth - 1);
	} catch (cause) {
		throw new Error(`level ${depth}`, { cause });
	}
}

function errors() {
	let count = 0;
	try {
		failing(12);
	} catch (error) {
		for (let cause = error; cause; cause = cause.cause) count += cause.message.length;
	}
	return count;
}

function adders(count) {
	const adder = number => value => value + number;
	return Array.from({ length: count }, (_, i) => adder(i)).reduce((sum, add) => add(sum), 0);
}

function numbers() {
	let product = 1n;
	for (let i = 1n; i < 60n; i++) product *= i;
	const row = new Float64Array(400);
	for (let turn = 0; turn < 20; turn++)
		for (let i = 1; i < row.length; i++) row[i] = Math.sqrt(row[i - 1] * 1.5 + i);
	return product.toString().length + row[399];
}

async function later(depth) {
	if (depth === 0) return text();
	await null;
	return await later(depth - 1) + 1;
}

async function work() {
	let sum = 0;
	for (;;) {
		for (const task of [trees, text, records, errors, () => adders(200), numbers])
			sum += task();
		sum += (await Promise.all([later(5), later(3)])).length;
		// Other tasks of the program's loop get their turn.
		await new Promise(resolve => setTimeout(resolve, 0));
	}
}
work();
