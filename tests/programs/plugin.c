// SPDX-License-Identifier: GPL-2.0-only
/* Linked in place of work.c, which is loaded as a plugin. */
#include "chain.h"
#include "work.h"

#include <dlfcn.h>
#include <stdlib.h>

static void (*plugin_work)(int depth, void (*act)(void));

/* Before main, so that the loader is not part of the chain. */
static __attribute__((constructor)) void load(void)
{
	void *plugin = dlopen("libwork-plugin.so", RTLD_NOW);

	if (!plugin)
		abort();
	plugin_work = (void (*)(int, void (*)(void)))dlsym(plugin, "work");
	if (!plugin_work)
		abort();
}

CHAINED void work(int depth, void (*act)(void))
{
	CHAIN_ENTER();
	plugin_work(depth, act);
}
