# SPDX-License-Identifier: GPL-2.0-only
# Without end: hashes, sorting with a function, patterns, strings, closures, exceptions, recursion.
use strict;
use warnings;

sub ackermann {
	my ($m, $n) = @_;
	return $n + 1 if $m == 0;
	return ackermann($m - 1, 1) if $n == 0;
	return ackermann($m - 1, ackermann($m, $n - 1));
}

my (%counts, %words);
for (my $turn = 0;; $turn++) {
	my @numbers = map { $_ * 7919 % 1009 } 1 .. 50;
	my @sorted = sort { $a <=> $b or $b cmp $a } @numbers;
	my $text = join ",", grep { $_ & 1 } @sorted;
	$counts{$1}++ while $text =~ /(\d{2,3})(?:,|$)/g;
	(my $other = $text) =~ s/(\d)(\d)/$2$1/g;
	my $add = sub { my $by = shift; sub { $_[0] + $by } }->($turn);
	$words{$add->(length $other)} = sprintf "%05.2f %s", $turn / 3,
		unpack "H*", substr $other, 0, 9;
	eval { die { at => $turn } if $turn % 3 == 0; ackermann(2, 3) };
	%words = %counts = () if $turn % 100 == 99;
}
