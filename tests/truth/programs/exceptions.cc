// SPDX-License-Identifier: GPL-2.0-only
/*
 * Exceptions in flight: thrown many calls deep, through destructors that call and throw themselves,
 * caught and thrown again, carried from a thread to another; and what else C++ has: virtual calls,
 * thunks, lambdas, sorting with a function object.
 */
#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include "load.h"

const unsigned int rounds = 1;

namespace {

struct Oops : std::runtime_error {
	explicit Oops(int depth) : std::runtime_error("oops"), depth(depth) {}
	int depth;
};

int ended;

APART long mix(long value, int depth)
{
	volatile long frame[3] = {value, depth, 1};

	return depth == 0 ? frame[0] * 5 + frame[2] : mix(value + 1, depth - 1) ^ frame[1];
}

/* Runs while an exception passes by; some throw one of their own, which ends within. */
struct Guard {
	explicit Guard(int number) : number(number) {}
	APART ~Guard()
	{
		sink += static_cast<unsigned long>(mix(number, 4));
		if (number % 4 == 0) {
			try {
				throw number;
			} catch (int found) {
				if (found != number)
					wrong("an exception in a destructor");
			}
		}
		ended++;
	}
	int number;
};

APART int descend(int depth)
{
	Guard guard(depth);

	if (depth == 0)
		throw Oops(7);
	return descend(depth - 1) + 1;
}

/* Has no handler of its own, nor anything to clean up. */
APART int pass(int depth)
{
	volatile char frame[40];

	frame[depth % 40] = 1;
	return descend(depth) + frame[depth % 40];
}

APART int rethrow(int depth)
{
	try {
		return pass(depth);
	} catch (const Oops &oops) {
		if (oops.depth == 7)
			throw;
		return -1;
	} catch (...) {
		return -2;
	}
}

APART void __attribute__((noreturn)) always()
{
	std::string text(40, 'x');

	throw std::out_of_range(text);
}

APART int does_not_throw(int value) noexcept
{
	try {
		if (value & 1)
			always();
		return value;
	} catch (const std::logic_error &error) {
		return static_cast<int>(std::char_traits<char>::length(error.what()));
	}
}

struct Shape {
	virtual ~Shape() = default;
	virtual long area(long scale) const = 0;
};
struct Named {
	virtual ~Named() = default;
	virtual long length() const = 0;
};
/* Called as a Named it goes through a thunk, which has moved `this`. */
struct Square : Shape, Named {
	explicit Square(long side) : side(side) {}
	APART long area(long scale) const override { return mix(side, 3) * scale; }
	APART long length() const override { return area(4) + side; }
	long side;
};

APART long virtual_calls(const Shape &shape, const Named &named)
{
	return shape.area(2) + named.length();
}

void across_threads()
{
	std::exception_ptr carried;
	std::thread thread([&carried] {
		try {
			pass(5);
		} catch (...) {
			carried = std::current_exception();
		}
	});

	thread.join();
	try {
		std::rethrow_exception(carried);
	} catch (const Oops &oops) {
		if (oops.depth != 7)
			wrong("an exception of another thread");
	}
}

} // namespace

void work(unsigned int round)
{
	ended = 0;
	for (int depth = 0; depth < 20; depth++) {
		try {
			rethrow(depth);
			wrong("nothing was thrown");
		} catch (const std::exception &) {
		}
	}
	if (ended != 20 * 21 / 2)
		wrong("destructors");
	if (does_not_throw(2) != 2 || does_not_throw(3) != 40)
		wrong("noexcept");

	Square square(round);
	sink += static_cast<unsigned long>(virtual_calls(square, square));

	std::map<std::string, std::unique_ptr<Shape>> shapes;
	std::vector<long> values;
	for (long at = 0; at < 100; at++) {
		shapes[std::to_string(at * 7919 % 100)] = std::make_unique<Square>(at);
		values.push_back(at * 7919 % 1009);
	}
	std::function<bool(long, long)> more = [](long left, long right) {
		return mix(left, 1) > mix(right, 1);
	};
	std::sort(values.begin(), values.end(), more);
	if (!std::is_sorted(values.begin(), values.end(), more) || shapes.size() != 100)
		wrong("containers");
	across_threads();
}
