// SPDX-License-Identifier: GPL-2.0-only
/*
 * A load for Java virtual machines, without an end: four threads that recurse, allocate, call
 * interfaces and lambdas, throw, lock, sort with a comparator that recurses, and call native code
 * that calls back. Each thread's work starts in work(), and each deep stack has `level` frames of
 * down().
 */
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntBinaryOperator;

public class Load {
    interface Shape {
        long area(int n);
    }

    record Square(int side) implements Shape {
        public long area(int n) {
            return (long) side * side + n;
        }
    }

    record Circle(int radius) implements Shape {
        public long area(int n) {
            return (long) (Math.PI * radius * radius) + n;
        }
    }

    record Line(int length) implements Shape {
        public long area(int n) {
            return fibonacci(length % 7) + n;
        }
    }

    static final Shape[] SHAPES = {new Square(3), new Circle(4), new Line(5)};
    static volatile long sum;
    static final Object LOCK = new Object();

    static int fibonacci(int n) {
        return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
    }

    static long down(int level, int what) {
        if (level > 0)
            return down(level - 1, what) + level;
        switch (what) {
        case 0:
            return fibonacci(17);
        case 1:
            return allocate();
        case 2:
            return shapes();
        case 3:
            return sort();
        case 4:
            return throwing(20);
        case 5:
            return reflected();
        default:
            return locked();
        }
    }

    static long allocate() {
        Map<String, List<Integer>> map = new HashMap<>();
        for (int i = 0; i < 600; i++)
            map.computeIfAbsent("key" + i % 50, key -> new ArrayList<>()).add(i);
        StringBuilder text = new StringBuilder();
        for (var entry : map.entrySet())
            text.append(entry.getKey()).append(entry.getValue().size());
        return text.toString().hashCode();
    }

    static long shapes() {
        long all = 0;
        for (int i = 0; i < 4000; i++)
            all += SHAPES[i % SHAPES.length].area(i);
        IntBinaryOperator operator = (a, b) -> fibonacci(a % 8) + b;
        for (int i = 0; i < 300; i++)
            all += operator.applyAsInt(i, i);
        return all;
    }

    static long sort() {
        Integer[] numbers = new Integer[300];
        for (int i = 0; i < numbers.length; i++)
            numbers[i] = i * 7919 % 1009;
        Arrays.sort(numbers, (a, b) -> Integer.compare(fibonacci(a % 6) + a, fibonacci(b % 6) + b));
        return numbers[0];
    }

    static long throwing(int n) {
        try {
            return thrower(n);
        } catch (IllegalStateException exception) {
            return exception.getStackTrace().length;
        }
    }

    static long thrower(int n) {
        if (n == 0)
            throw new IllegalStateException("zero");
        return thrower(n - 1) + 1;
    }

    static long reflected() {
        long all = 0;
        try {
            var method = Load.class.getDeclaredMethod("fibonacci", int.class);
            for (int i = 0; i < 40; i++)
                all += (Integer) method.invoke(null, 10);
        } catch (ReflectiveOperationException exception) {
            throw new AssertionError(exception);
        }
        return all;
    }

    static long locked() {
        long all = 0;
        for (int i = 0; i < 300; i++)
            synchronized (LOCK) {
                all += fibonacci(i % 9);
            }
        return all;
    }

    static void work(int seed) {
        for (int turn = seed;; turn++)
            sum += down(turn % 40, turn % 7);
    }

    public static void main(String[] args) throws InterruptedException {
        int threads = args.length > 0 ? Integer.parseInt(args[0]) : 4;
        for (int i = 1; i < threads; i++) {
            int seed = i;
            Thread thread = new Thread(() -> work(seed));
            thread.setDaemon(true);
            thread.start();
        }
        work(0);
    }
}
