# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
# usage: load.sh TURNS
#
# What shells do without help of other programs: functions that call themselves, loops, patterns,
# arithmetic, expansions, a trap, and now and then a child.

gcd() {
	if [ "$2" -eq 0 ]; then
		result=$1
	else
		gcd "$2" $(($1 % $2))
	fi
}

kind_of() {
	case $1 in
	*[!0-9]*) kind=word ;;
	*0 | *5) kind=round ;;
	[1-9]) kind=digit ;;
	*) kind=number ;;
	esac
}

reverse() {
	rest=$1 reversed=
	while [ -n "$rest" ]; do
		reversed=${rest%"${rest#?}"}$reversed
		rest=${rest#?}
	done
}

trap 'caught=yes' USR1
turn=0
while [ "$turn" -lt "$1" ]; do
	turn=$((turn + 1))
	words='the quick brown fox 10 jumps over 25 lazy dogs 7'
	sum=0
	for word in $words; do
		kind_of "$word"
		case $kind in
		word)
			reverse "$word"
			[ "${#reversed}" = "${#word}" ] || exit 1
			;;
		*) sum=$((sum + word)) ;;
		esac
	done
	[ "$sum" = 42 ] || exit 1
	gcd $((turn * 1071)) $((turn * 462))
	[ "$result" = $((turn * 21)) ] || exit 1
	if [ $((turn % 50)) = 1 ]; then
		caught=no
		kill -s USR1 $$
		[ "$caught" = yes ] || exit 1
		[ "$(echo "$turn"; :)" = "$turn" ] || exit 1
	fi
done
