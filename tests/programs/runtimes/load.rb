# SPDX-License-Identifier: GPL-2.0-only
# Recursion, arrays, objects, exceptions, blocks, fibers and threads, without end.
def fib(n) = n < 2 ? n : fib(n - 1) + fib(n - 2)
def tree(d) = d == 0 ? nil : [tree(d - 1), tree(d - 1)]
def depth(t) = t.nil? ? 0 : 1 + [depth(t[0]), depth(t[1])].max
class Shape; def initialize(r); @r = r; end; def area = 3.14159 * @r * @r; end
def shapes(n) = (0...n).sum { |i| Shape.new(i).area }
def thrower(n) = n == 0 ? raise('x') : 1 + thrower(n - 1)
def caught; thrower(20); rescue RuntimeError; 1; end
def words(n); m = Hash.new(0); n.times { |i| m["k#{i % 97}"] += 1 }; m.sort.size; end
def work
  loop do
    fib(18); depth(tree(10)); shapes(2000); words(1000)
    30.times { caught }
    (1..500).sort_by { |a| a * 7919 % 1009 }
    Fiber.new { 10.times { |i| Fiber.yield i } }.then { |f| 5.times { f.resume } }
    ('ab-12 cd-34 ' * 50).scan(/(\w+)-(\d+)/)
  end
end
[1, 2].map { Thread.new { work } }.each(&:join)
