<?php
// SPDX-License-Identifier: GPL-2.0-only
// Recursion, arrays, objects, exceptions, generators, closures, and C functions that call back,
// without end.
function fib($n) { return $n < 2 ? $n : fib($n - 1) + fib($n - 2); }
function tree($d) { return $d == 0 ? null : [tree($d - 1), tree($d - 1)]; }
function depth($t) { return $t === null ? 0 : 1 + max(depth($t[0]), depth($t[1])); }
class Shape {
	public function __construct(private float $r) {}
	public function area(): float { return 3.14159 * $this->r * $this->r; }
}
function shapes($n) {
	$sum = 0.0;
	for ($i = 0; $i < $n; $i++) { $s = new Shape($i); $sum += $s->area(); }
	return $sum;
}
function thrower($n) { if ($n == 0) { throw new Exception("x"); } return 1 + thrower($n - 1); }
function caught() { try { thrower(20); } catch (Exception $e) { return 1; } return 0; }
function words($n) {
	$m = [];
	for ($i = 0; $i < $n; $i++) { $k = 'k' . ($i % 97); $m[$k] = ($m[$k] ?? 0) + 1; }
	ksort($m);
	return count($m);
}
function gen($n) { for ($i = 0; $i < $n; $i++) { yield $i * $i; } }
while (true) {
	fib(18); depth(tree(10)); shapes(2000); words(1000);
	for ($i = 0; $i < 30; $i++) { caught(); }
	$x = range(1, 500); usort($x, fn($a, $b) => ($a * 7919 % 1009) <=> ($b * 7919 % 1009));
	$s = 0; foreach (gen(300) as $v) { $s += $v; }
	array_map(fn($v) => fib($v % 6), $x);
	preg_match_all('/(\w+)-(\d+)/', str_repeat('ab-12 cd-34 ', 50), $m);
}
