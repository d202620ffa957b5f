<?php
// SPDX-License-Identifier: GPL-2.0-only
// Another load for PHP, without an end: trees of objects, text, JSON, sorting with callbacks,
// exceptions with a cause, matrices and counts of parts of a text.
class Node {
	public ?Node $left = null;
	public ?Node $right = null;
	public function __construct(public int $key) {}
	public function insert(int $key): void {
		$side = $key < $this->key ? 'left' : 'right';
		if ($this->$side) $this->$side->insert($key);
		else $this->$side = new Node($key);
	}
	public function keys(): Generator {
		if ($this->left) yield from $this->left->keys();
		yield $this->key;
		if ($this->right) yield from $this->right->keys();
	}
}
function trees(): int {
	$root = new Node(500);
	for ($i = 0; $i < 200; $i++) $root->insert($i * 7919 % 1009);
	return array_sum(iterator_to_array($root->keys(), false));
}
function text(): int {
	$words = array_map(fn($i) => sprintf('%04x-%d', $i * 7919 % 65536, $i), range(1, 300));
	$joined = implode(';', $words);
	preg_match_all('/([0-9a-f]{2})+-(\d+)/', $joined, $found);
	$turned = preg_replace_callback('/\d+/', fn($part) => strrev($part[0]), $joined);
	return count($found[2]) + count(explode(';', strtoupper($turned))) + crc32($turned) % 7;
}
function records(): int {
	$rows = array_map(fn($i) => ['id' => $i, 'name' => 'n' . $i * 7919 % 1009, 'tag' => $i % 7],
		range(0, 199));
	$again = json_decode(json_encode($rows), true);
	usort($again, fn($a, $b) => $a['tag'] <=> $b['tag'] ?: strcmp($a['name'], $b['name']));
	$groups = [];
	foreach ($again as ['tag' => $tag, 'name' => $name]) $groups[$tag][$name] = true;
	return array_sum(array_map('count', $groups));
}
function failing(int $depth): int {
	if ($depth == 0) return count(json_decode('[1,', true, 8, JSON_THROW_ON_ERROR));
	try {
		return failing($depth - 1);
	} catch (Exception $cause) {
		throw new RuntimeException("level $depth", 1, $cause);
	}
}
function errors(): int {
	$count = 0;
	try {
		failing(12);
	} catch (Exception $error) {
		for (; $error; $error = $error->getPrevious()) $count += count($error->getTrace());
	}
	return $count;
}
function matrix(int $n): float {
	$a = $b = [];
	for ($i = 0; $i < $n; $i++)
		for ($j = 0; $j < $n; $j++) {
			$a[$i][$j] = 1.0 / ($i + $j + 1);
			$b[$i][$j] = $i * 0.5 - $j;
		}
	$sum = 0.0;
	for ($i = 0; $i < $n; $i++)
		for ($j = 0; $j < $n; $j++) {
			$cell = 0.0;
			for ($k = 0; $k < $n; $k++) $cell += $a[$i][$k] * $b[$k][$j];
			$sum += abs($cell);
		}
	return $sum;
}
function letters(int $length): int {
	$text = '';
	for ($i = 0, $state = 42; $i < $length; $i++)
		$text .= 'acgt'[($state = ($state * 3877 + 29573) % 139968) % 4];
	$counts = [];
	for ($i = 0; $i + 4 <= $length; $i++) {
		$part = substr($text, $i, 4);
		$counts[$part] = ($counts[$part] ?? 0) + 1;
	}
	arsort($counts);
	return current($counts) + strlen(strtr(strrev($text), 'acgt', 'tgca'));
}
while (true) {
	trees(); text(); records(); errors(); matrix(30); letters(1500);
}
