// SPDX-License-Identifier: GPL-2.0-only
// Templates of the standard library: a compiler is busy with them for a while.
#include <regex>

template <int number> struct traits : std::regex_traits<char> {
};

template <int number> bool matches(const char *text)
{
	std::basic_regex<char, traits<number>> pattern("a(b|c)*d");

	if constexpr (number > 0)
		return std::regex_match(text, pattern) || matches<number - 1>(text);
	return false;
}

int main(int, char **arguments)
{
	return matches<20>(arguments[0]);
}
