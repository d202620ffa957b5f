// SPDX-License-Identifier: GPL-2.0-only
/*
 * A load for Java virtual machines from version 21 on, without an end: virtual threads that do the
 * work of Load. Each thread yields at the bottom of a deep stack, and works there, and on its way
 * back. So most of its frames were frozen and are thawed a few at a time, while the thread returns
 * to them.
 */
public class Virtual {
    static volatile long sum;

    static long down(int level, int what) {
        if (level == 0) {
            Thread.yield();
            return Load.down(what, what);
        }
        long all = down(level - 1, what) + level;
        return level % 5 == 0 ? all + Load.fibonacci(14) : all;
    }

    static void work(int seed) {
        try {
            for (int turn = seed;; turn++) {
                sum += down(turn % 40, turn % 7);
                if (turn % 16 == 0)
                    Thread.sleep(1);
            }
        } catch (InterruptedException exception) {
            throw new AssertionError(exception);
        }
    }

    public static void main(String[] args) throws InterruptedException {
        int threads = args.length > 0 ? Integer.parseInt(args[0]) : 4;
        for (int i = 1; i < threads; i++) {
            int seed = i;
            Thread.ofVirtual().start(() -> work(seed));
        }
        Thread.ofVirtual().start(() -> work(0)).join();
    }
}
