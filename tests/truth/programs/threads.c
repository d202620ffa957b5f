// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threads, whose start is an end of the stack as main()'s caller is: their own work, a queue with a
 * lock and a condition, and an end by return, by pthread_exit() deep inside, and by cancellation.
 */
#include <pthread.h>
#include "load.h"

#define THREADS 3
#define ITEMS 64

const unsigned int rounds = 3;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static long queue[ITEMS];
static int queued, taken, cleaned;
static _Thread_local long mine;

static APART long mix(long value, int depth)
{
	volatile long frame[3] = {value, depth, 1};

	if (depth == 0)
		return frame[0] * 5 + frame[2];
	return mix(value + 1, depth - 1) ^ frame[1];
}

static void clean(void *argument)
{
	(void)argument;
	__atomic_add_fetch(&cleaned, 1, __ATOMIC_RELAXED);
}

static APART void __attribute__((noreturn)) leave(int depth)
{
	if (depth == 0)
		pthread_exit((void *)mine);
	leave(depth - 1);
}

static long take(void)
{
	long item;

	pthread_mutex_lock(&lock);
	while (taken == queued)
		pthread_cond_wait(&change, &lock);
	item = queue[taken++ % ITEMS];
	pthread_mutex_unlock(&lock);
	return item;
}

static void *worker(void *argument)
{
	for (;;) {
		long item = take();

		if (item < 0)
			break;
		mine += mix(item, 30);
	}
	if (argument)
		leave(5);
	return (void *)mine;
}

static void *waits_for_ever(void *argument)
{
	pthread_cleanup_push(clean, argument);
	for (;;) {
		pthread_testcancel();
		sink += (unsigned long)mix(1, 10);
	}
	pthread_cleanup_pop(1);
	return NULL;
}

static void give(long item)
{
	pthread_mutex_lock(&lock);
	queue[queued++ % ITEMS] = item;
	pthread_cond_signal(&change);
	pthread_mutex_unlock(&lock);
}

void work(unsigned int round)
{
	pthread_t threads[THREADS], victim;
	long expected = 0, sum = 0;
	void *result;

	(void)round;
	queued = taken = cleaned = 0;
	for (int at = 0; at < THREADS; at++)
		if (pthread_create(&threads[at], NULL, worker, at & 1 ? &mine : NULL))
			wrong("pthread_create");
	for (long item = 0; item < ITEMS - THREADS; item++) {
		expected += mix(item, 30);
		give(item);
	}
	for (int at = 0; at < THREADS; at++)
		give(-1);
	for (int at = 0; at < THREADS; at++) {
		pthread_join(threads[at], &result);
		sum += (long)result;
	}
	if (sum != expected)
		wrong("threads");

	if (pthread_create(&victim, NULL, waits_for_ever, NULL))
		wrong("pthread_create");
	pthread_cancel(victim);
	pthread_join(victim, &result);
	if (result != PTHREAD_CANCELED || cleaned > 1)
		wrong("cancellation");
}
