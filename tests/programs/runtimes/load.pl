# SPDX-License-Identifier: GPL-2.0-only
# Recursion, strings, regular expressions and a sort, without end.
use strict;
my %h;
sub f { my $n = shift; $n < 2 ? $n : f($n - 1) + f($n - 2) }
while (1) {
	f(14);
	my $s = join "", map { "k$_=" . ($_ * 7 % 97) . ";" } 1 .. 300;
	$h{$1} += $2 while $s =~ /(\w+)=(\d+);/g;
	my @s = sort { $h{$a} <=> $h{$b} || $a cmp $b } keys %h;
}
