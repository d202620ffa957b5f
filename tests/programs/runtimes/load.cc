// SPDX-License-Identifier: GPL-2.0-only
// Templates of the standard library, for the compiler.
#include <bits/stdc++.h>

int main(int, char **arguments)
{
	std::map<std::string, int> matches;
	matches[arguments[0]] = std::regex_match(arguments[0], std::regex("a(b|c)*d"));
	return matches.size();
}
