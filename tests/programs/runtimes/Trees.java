// SPDX-License-Identifier: GPL-2.0-only
/*
 * Another load for Java virtual machines, without an end, of the kinds of work that programs do
 * most: ordered and hashed maps with comparators, text, regular expressions, streams, exceptions
 * with a cause, and queues between threads.
 */
import java.math.BigInteger;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

public class Trees {
    static volatile long sum;

    record Point(int x, int y) {
    }

    /* Maps and queues whose comparators are inlined into the methods of the library. */
    static long ordered(Random random) {
        TreeMap<Point, Integer> points =
            new TreeMap<>((a, b) -> a.x != b.x ? Integer.compare(a.x, b.x) : a.y - b.y);
        TreeMap<String, Integer> names = new TreeMap<>(Comparator.reverseOrder());
        PriorityQueue<int[]> queue = new PriorityQueue<>((a, b) -> a[0] - b[0]);
        long found = 0;
        for (int i = 0; i < 2000; i++) {
            int number = random.nextInt(500);
            points.put(new Point(number, number % 7), i);
            names.merge("name" + number, 1, Integer::sum);
            queue.add(new int[] {number, i});
            if (i % 3 == 0)
                found += points.headMap(new Point(number, 0)).size();
            if (i % 5 == 0)
                points.remove(new Point(random.nextInt(500), number % 7));
        }
        while (!queue.isEmpty())
            found += queue.poll()[0];
        for (Map.Entry<String, Integer> entry : names.entrySet())
            found += entry.getKey().length() * entry.getValue();
        return found;
    }

    /* A parser of nested lists, by recursion. */
    static Object parse(String text, int[] at) {
        if (text.charAt(at[0]) == '[') {
            List<Object> list = new ArrayList<>();
            at[0]++;
            while (text.charAt(at[0]) != ']') {
                list.add(parse(text, at));
                if (text.charAt(at[0]) == ',')
                    at[0]++;
            }
            at[0]++;
            return list;
        }
        int from = at[0];
        while (Character.isDigit(text.charAt(at[0])))
            at[0]++;
        if (from == at[0])
            throw new IllegalArgumentException("no number at " + from);
        return Integer.valueOf(text.substring(from, at[0]));
    }

    static String nested(int depth) {
        return depth == 0 ? "7" : "[" + nested(depth - 1) + "," + depth + "," + depth + "]";
    }

    static long text(Random random) {
        StringBuilder builder = new StringBuilder();
        for (int i = 0; i < 200; i++)
            builder.append(String.format("%04x-%d;", random.nextInt(65536), i));
        long found = 0;
        Matcher matcher = Pattern.compile("([0-9a-f]{2})+-(\\d+);").matcher(builder);
        while (matcher.find())
            found += Integer.parseInt(matcher.group(2));
        found += parse(nested(30), new int[1]).hashCode();
        String[] words = builder.toString().split(";");
        Map<Character, Integer> counts = new HashMap<>();
        for (String word : words)
            for (char c : word.toCharArray())
                counts.merge(c, 1, Integer::sum);
        return found + counts.size() + String.join(",", words).toUpperCase().indexOf("FF");
    }

    static long streams() {
        Map<Integer, Long> groups = IntStream.range(0, 3000).boxed()
            .filter(i -> i % 3 != 1)
            .collect(Collectors.groupingBy(i -> i % 17, Collectors.counting()));
        List<String> sorted = IntStream.range(0, 300).mapToObj(i -> "s" + i * 7919 % 1009)
            .sorted(Comparator.comparing(String::length).thenComparing(Comparator.naturalOrder()))
            .collect(Collectors.toList());
        Collections.shuffle(sorted, new Random(1));
        Collections.sort(sorted);
        return groups.values().stream().mapToLong(Long::longValue).sum() + sorted.get(7).length();
    }

    static long failing(int depth) {
        if (depth == 0)
            return parse("[1,x]", new int[1]).hashCode();
        try {
            return failing(depth - 1);
        } catch (IllegalArgumentException exception) {
            throw new IllegalArgumentException("level " + depth, exception);
        }
    }

    static long exceptions() {
        try {
            return failing(10);
        } catch (IllegalArgumentException exception) {
            long count = 0;
            for (Throwable cause = exception; cause != null; cause = cause.getCause())
                count += cause.getStackTrace().length;
            return count;
        }
    }

    static long numbers() {
        BigInteger product = BigInteger.ONE;
        for (int i = 1; i < 120; i++)
            product = product.multiply(BigInteger.valueOf(i));
        double[] row = new double[400];
        for (int turn = 0; turn < 50; turn++)
            for (int i = 1; i < row.length; i++)
                row[i] = Math.sqrt(row[i - 1] * 1.5 + i);
        return product.bitLength() + (long) row[399];
    }

    static void work(int number, BlockingQueue<Long> queue) throws InterruptedException {
        Random random = new Random(number);
        ArrayDeque<Long> last = new ArrayDeque<>();
        while (true) {
            last.add(ordered(random));
            last.add(text(random));
            last.add(streams());
            last.add(exceptions());
            last.add(numbers());
            while (last.size() > 3)
                queue.put(last.poll());
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        BlockingQueue<Long> queue = new ArrayBlockingQueue<>(16);
        for (int i = 0; i < 3; i++) {
            int number = i;
            Thread thread = new Thread(() -> {
                try {
                    work(number, queue);
                } catch (InterruptedException exception) {
                    throw new IllegalStateException(exception);
                }
            }, "work-" + i);
            thread.setDaemon(true);
            thread.start();
        }
        while (true)
            sum += queue.take();
    }
}
