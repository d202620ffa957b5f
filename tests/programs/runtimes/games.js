// SPDX-License-Identifier: GPL-2.0-only
// A third load for JavaScript, without an end: small numeric programs and programs of arrays.
function bodies(steps) {
	const all = [];
	for (let i = 1; i <= 5; i++)
		all.push({ x: i, y: i * i % 7, z: i % 3,
			u: 0.1 * i, v: 0.2, w: 0.3 / i, mass: 1 / i });
	for (let step = 0; step < steps; step++) {
		for (let i = 0; i < all.length; i++)
			for (let j = i + 1; j < all.length; j++) pull(all[i], all[j], 0.01);
		for (const body of all) {
			body.x += 0.01 * body.u;
			body.y += 0.01 * body.v;
			body.z += 0.01 * body.w;
		}
	}
	return all[0].x;
}

function pull(a, b, time) {
	const x = a.x - b.x, y = a.y - b.y, z = a.z - b.z;
	const square = x * x + y * y + z * z + 0.01;
	const share = time / (square * Math.sqrt(square));
	a.u -= x * b.mass * share; a.v -= y * b.mass * share; a.w -= z * b.mass * share;
	b.u += x * a.mass * share; b.v += y * a.mass * share; b.w += z * a.mass * share;
}

const entry = (i, j) => 1 / ((i + j) * (i + j + 1) / 2 + i + 1);
function norm(n) {
	let u = new Float64Array(n).fill(1), v = u;
	const times = (vector, at) => vector.map((_, i) => {
		let sum = 0;
		for (let j = 0; j < n; j++) sum += at(i, j) * vector[j];
		return sum;
	});
	for (let turn = 0; turn < 3; turn++) {
		v = times(times(u, entry), (i, j) => entry(j, i));
		u = times(times(v, entry), (i, j) => entry(j, i));
	}
	return Math.sqrt(u.reduce((sum, x, i) => sum + x * v[i], 0));
}

function flips(n) {
	const order = Array.from({ length: n }, (_, i) => i);
	let most = 0;
	const permute = from => {
		if (from === n) {
			const copy = order.slice();
			let count = 0;
			for (; copy[0]; count++) {
				const end = copy[0] + 1;
				copy.splice(0, end, ...copy.slice(0, end).reverse());
			}
			most = Math.max(most, count);
			return;
		}
		for (let i = from; i < n; i++) {
			[order[from], order[i]] = [order[i], order[from]];
			permute(from + 1);
			[order[from], order[i]] = [order[i], order[from]];
		}
	};
	permute(0);
	return most;
}

function inside(size) {
	let count = 0;
	for (let row = 0; row < size; row++)
		for (let column = 0; column < size; column++) {
			let x = 0, y = 0, turn = 0;
			for (; turn < 50 && x * x + y * y < 4; turn++)
				[x, y] = [x * x - y * y + 2 * column / size - 1.5,
					2 * x * y + 2 * row / size - 1];
			count += turn === 50;
		}
	return count;
}

function letters(length) {
	let text = '', state = 42;
	for (let i = 0; i < length; i++) {
		state = (state * 3877 + 29573) % 139968;
		text += 'acgt'[state % 4];
	}
	const counts = {};
	for (let i = 0; i + 4 <= length; i++) {
		const part = text.substring(i, i + 4);
		counts[part] = (counts[part] || 0) + 1;
	}
	const other = { a: 't', c: 'g', g: 'c', t: 'a' };
	const turned = text.split('').reverse().map(letter => other[letter]).join('');
	return Object.entries(counts).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))[0][1] +
		turned.indexOf('gatt');
}

const tree = depth => depth ? { left: tree(depth - 1), right: tree(depth - 1) } : null;
const nodes = node => node ? 1 + nodes(node.left) + nodes(node.right) : 0;

for (;;) {
	bodies(500);
	norm(60);
	flips(6);
	inside(60);
	letters(2000);
	nodes(tree(11));
}
