// SPDX-License-Identifier: GPL-2.0-only
/*
 * A thread, "witness", whose stack stands still while it is looked at. Each round calls a chain of
 * methods that a seed chooses, in the ways in which Java code calls. The method at the end prints
 * "ready ROUND" and waits for a line on the standard input. In between the chains run without a
 * wait, so that methods are compiled one after the other.
 */
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.function.IntBinaryOperator;

public class Witness {
    interface Link {
        int call(Random random, int left);
    }

    record First() implements Link {
        public int call(Random random, int left) {
            return next(random, left) + 1;
        }
    }

    record Second() implements Link {
        public synchronized int call(Random random, int left) {
            return next(random, left) + 2;
        }
    }

    record Third() implements Link {
        public int call(Random random, int left) {
            try {
                return next(random, left) + 3;
            } finally {
                calls++;
            }
        }
    }

    static final Link[] LINKS = {new First(), new Second(), new Third()};
    static final Object LOCK = new Object();
    static final MethodHandle HANDLE;
    static final Method METHOD;
    static volatile boolean waits;
    static int round, released = -1;
    static long calls;

    static {
        try {
            MethodType type = MethodType.methodType(int.class, Random.class, int.class);
            HANDLE = MethodHandles.lookup().findStatic(Witness.class, "byHandle", type);
            METHOD = Witness.class.getDeclaredMethod("byReflection", Random.class, int.class);
        } catch (ReflectiveOperationException exception) {
            throw new IllegalStateException(exception);
        }
    }

    static int byHandle(Random random, int left) {
        return next(random, left) + 4;
    }

    static int byReflection(Random random, int left) {
        return next(random, left) + 5;
    }

    static int many(Random random, int left, long a, long b, double c, int d, int e, long f,
                    double g, long h) {
        return next(random, left) + (int) (a + b + c + d + e + f + g + h);
    }

    static int plain(Random random, int left) {
        return left % 3 == 0 ? next(random, left) : plain(random, left - 1) + 1;
    }

    static int next(Random random, int left) {
        if (left <= 0)
            return end();
        int rest = left - 1;
        try {
            switch (random.nextInt(8)) {
            case 0:
                return plain(random, rest);
            case 1:
                IntBinaryOperator lambda = (a, b) -> next(random, a) + b;
                return lambda.applyAsInt(rest, 1);
            case 2:
                return (int) HANDLE.invokeExact(random, rest);
            case 3:
                return (int) METHOD.invoke(null, random, rest);
            case 4:
                Integer[] two = {2, 1};
                boolean[] once = {false};
                Arrays.sort(two, (a, b) -> {
                    if (!once[0]) {
                        once[0] = true;
                        next(random, rest);
                    }
                    return a - b;
                });
                return two[0];
            case 5:
                return List.of(rest).stream().mapToInt(n -> next(random, n)).sum();
            case 6:
                return many(random, rest, 1, 2, 3, 4, 5, 6, 7, 8);
            default:
                return LINKS[random.nextInt(LINKS.length)].call(random, rest);
            }
        } catch (Throwable throwable) {
            throw new IllegalStateException(throwable);
        }
    }

    static int end() {
        calls++;
        if (!waits)
            return 1;
        synchronized (LOCK) {
            System.out.println("ready " + round);
            while (released < round) {
                try {
                    LOCK.wait();
                } catch (InterruptedException exception) {
                    throw new IllegalStateException(exception);
                }
            }
        }
        return 1;
    }

    static void work() {
        for (round = 0;; round++) {
            waits = true;
            next(new Random(round), 4 + round % 12);
            waits = false;
            for (int i = 0; i < 20 * round; i++)
                next(new Random(i), 4 + i % 12);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread thread = new Thread(Witness::work, "witness");
        thread.setDaemon(true);
        thread.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null;) {
            synchronized (LOCK) {
                released = Integer.parseInt(line);
                LOCK.notifyAll();
            }
        }
    }
}
