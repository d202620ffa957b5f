# SPDX-License-Identifier: GPL-2.0-only
# usage: load.bash TURNS
#
# What bash has of its own: arrays, regular expressions, local variables, printf -v.

sort_array() { # by exchange, of the array named by $1
	local -n values=$1
	local at other value
	for ((at = 0; at < ${#values[@]}; at++)); do
		for ((other = at + 1; other < ${#values[@]}; other++)); do
			if ((values[at] > values[other])); then
				value=${values[at]}
				values[at]=${values[other]}
				values[other]=$value
			fi
		done
	done
}

fibonacci() {
	local number=$1 first
	if ((number < 2)); then
		result=$number
		return
	fi
	fibonacci $((number - 1))
	first=$result
	fibonacci $((number - 2))
	((result += first))
}

for ((turn = 0; turn < $1; turn++)); do
	numbers=()
	for ((at = 0; at < 8; at++)); do
		numbers+=($((at * 7919 % 101)))
	done
	sort_array numbers
	[[ ${numbers[*]} =~ ^0( [0-9]+){7}$ ]] || exit 1
	fibonacci 5
	((result == 5)) || exit 1
	declare -A count=()
	for word in a rose is a rose is a rose; do
		((count[$word] += 1))
	done
	printf -v text '%s=%d,' a "${count[a]}" rose "${count[rose]}"
	[[ ${text^^} == A=3,ROSE=3, && ${text//rose/x} == a=3,x=3, ]] || exit 1
done
