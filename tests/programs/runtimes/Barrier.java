// SPDX-License-Identifier: GPL-2.0-only
/**
 * Stores references to young objects in an old array, so that G1's barrier calls the virtual
 * machine, with -XX:+UseG1GC -XX:G1UpdateBufferSize=1. The compiled code saves registers below its
 * frame for the call.
 */
class Barrier {
	static final Object[] old = new Object[4 << 20];
	static double sum;

	static double fill(int from, double x) {
		double y = x * 3, z = x + 7;
		for (int i = from; i < old.length; i += 128) {
			old[i] = new double[] {x + i};
			y += z * i;
			z -= 1;
		}
		return y + z;
	}

	public static void main(String[] arguments) {
		System.gc();
		for (int turn = 0;; turn++) {
			sum += fill(turn & 127, turn);
		}
	}
}
