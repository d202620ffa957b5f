// SPDX-License-Identifier: GPL-2.0-only
/*
 * java Deep DEPTH - computes without an end, DEPTH calls of compiled methods deep.
 */
public class Deep {
    static volatile long sum;

    static long down(int level) {
        return level > 0 ? down(level - 1) + level : compute();
    }

    static long compute() {
        long all = sum;
        for (int i = 0; i < 100000; i++)
            all += i ^ (all >> 3);
        return all;
    }

    public static void main(String[] arguments) {
        int depth = Integer.parseInt(arguments[0]);
        for (;;)
            sum += down(depth);
    }
}
