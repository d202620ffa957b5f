// SPDX-License-Identifier: GPL-2.0-only
// The load of Node.js, in workerd, which has no setImmediate, and ends a worker that only waits.
globalThis.setImmediate = resolve => resolve();

export default {
	async test() {
		await import('jit');
	},
};
