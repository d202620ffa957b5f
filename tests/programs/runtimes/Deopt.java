// SPDX-License-Identifier: GPL-2.0-only
/**
 * Computes below compiled methods that are deoptimised: a class is loaded that overrides a method
 * which is inlined in them. Stays there for the seconds that the argument gives, or for ever.
 */
public class Deopt {
	static volatile long sum;
	static Base base = new Base();
	static long nanoseconds;

	static class Base {
		long leaf(int depth) {
			return depth == 0 ? compute() : down(depth - 1);
		}
	}

	static class Derived extends Base {
		long leaf(int depth) {
			return -1;
		}
	}

	static long down(int depth) {
		return base.leaf(depth) + depth;
	}

	static long compute() {
		if (nanoseconds != 0) {
			new Derived();
			for (long end = System.nanoTime() + nanoseconds; System.nanoTime() < end;)
				spin();
		}
		return spin();
	}

	static long spin() {
		long result = 0;

		for (long i = 0; i < 10; i++)
			result += i ^ (result >> 3);
		return result;
	}

	public static void main(String[] arguments) {
		for (int i = 0; i < 200000; i++)
			sum += down(20);
		nanoseconds = arguments.length > 0 ?
			Long.parseLong(arguments[0]) * 1000000000 : Long.MAX_VALUE / 2;
		sum += down(30);
	}
}
