# SPDX-License-Identifier: GPL-2.0-only
# Builds real programs of the corpus, from Debian's sources in SOURCES, into OUT, and their table,
# OUT/programs. What is in between lies in WORK. Nothing depends on anything: see `build`.
CC = gcc
OUT = .
WORK = work
SOURCES =

# gnu17, for some of the sources are older than what forky's gcc takes C for.
rows := -fomit-frame-pointer -fasynchronous-unwind-tables -Wa,--gsframe
flags := -O2 -std=gnu17 -w $(rows)
cc = $(CC) $(flags)
musl = $(OUT)/musl/bin/musl-gcc $(flags) -static
# A copy of the source, as configure and make write where it is; as old as it was, or make would
# make anew what came with it.
copied = rm -rf $(WORK)/$(1) && cp -a $(SOURCES)/$(1) $(WORK)/$(1) && cd $(WORK)/$(1)

programs := bash bzip2 dash gzip lua lz4 mujs pigz sqlite3 xz zstd bzip2-musl lua-musl lz4-musl

all: $(addprefix $(OUT)/,$(programs) programs)

# The one that takes longest comes first.
$(OUT)/sqlite3:
	$(cc) -DSQLITE_OMIT_LOAD_EXTENSION -o $@ $(addprefix $(SOURCES)/sqlite3/,shell.c sqlite3.c) -lm

$(OUT)/bash:
	$(call copied,bash) && ./configure --without-bash-malloc --disable-readline --disable-nls \
		CC='$(CC)' CFLAGS='$(flags)' && $(MAKE) bash && cp bash $@

$(OUT)/gzip:
	$(call copied,gzip) && ./configure CC='$(CC)' CFLAGS='$(flags)' && $(MAKE) -C lib && \
		$(MAKE) version.c version.h && $(MAKE) gzip && cp gzip $@

$(OUT)/xz:
	$(call copied,xz) && ./configure --disable-shared --disable-nls --disable-doc --disable-scripts \
		CC='$(CC)' CFLAGS='$(flags)' && $(MAKE) -C src/liblzma && $(MAKE) -C src/xz && cp src/xz/xz $@

$(OUT)/dash:
	$(call copied,dash) && ./configure CC='$(CC)' CFLAGS='$(flags)' && $(MAKE) && cp src/dash $@

$(OUT)/zstd:
	$(call copied,zstd) && $(MAKE) -C programs zstd CC='$(CC)' CFLAGS='$(flags)' HAVE_ZLIB=0 \
		HAVE_LZMA=0 HAVE_LZ4=0 ZSTD_LEGACY_SUPPORT=0 && cp programs/zstd $@

# zlib is in pigz.
zlib := $(wildcard $(SOURCES)/zlib/*.c)
pigz := $(addprefix $(SOURCES)/pigz/,pigz.c yarn.c try.c)
$(OUT)/pigz:
	$(cc) -DNOZOPFLI -DHAVE_UNISTD_H -I$(SOURCES)/zlib -o $@ $(pigz) $(zlib) -pthread -lm

lua := $(filter-out %/luac.c,$(wildcard $(SOURCES)/lua/src/*.c))
$(OUT)/lua: ; $(cc) -DLUA_USE_POSIX -o $@ $(lua) -lm
$(OUT)/lua-musl: $(OUT)/musl ; $(musl) -DLUA_USE_POSIX -o $@ $(lua) -lm

bzip2 := $(addprefix $(SOURCES)/bzip2/,bzip2.c blocksort.c huffman.c crctable.c randtable.c \
	compress.c decompress.c bzlib.c)
$(OUT)/bzip2: ; $(cc) -D_FILE_OFFSET_BITS=64 -o $@ $(bzip2)
$(OUT)/bzip2-musl: $(OUT)/musl ; $(musl) -o $@ $(bzip2)

lz4 := -DLZ4IO_MULTITHREAD=1 -I$(SOURCES)/lz4/lib -pthread \
	$(wildcard $(SOURCES)/lz4/lib/*.c $(SOURCES)/lz4/programs/*.c)
$(OUT)/lz4: ; $(cc) -o $@ $(lz4)
$(OUT)/lz4-musl: $(OUT)/musl ; $(musl) -o $@ $(lz4)

$(OUT)/mujs: ; $(cc) -o $@ $(SOURCES)/mujs/one.c $(SOURCES)/mujs/main.c -lm

# A whole C library with rows. Without -g its configure would ask for no unwind tables at all, and
# leave out the script that puts CFI into its assembler sources, which it does for debuggers alone.
$(OUT)/musl:
	$(call copied,musl) && \
		sed -i 's/cfi_sections .debug_frame/cfi_sections .eh_frame/' tools/*.awk && \
		./configure --prefix=$@ --disable-shared CC='$(CC)' CFLAGS='-g $(rows)' && \
		$(MAKE) && $(MAKE) install

# Text to be compressed; and the loads.
$(OUT)/loads: $(wildcard loads/*)
	mkdir -p $@
	cp loads/load.* $@
	sed 's/TURNS/3/' loads/sqlite3.sql >$@/short.sql
	sed 's/TURNS/1000000000/' loads/sqlite3.sql >$@/endless.sql
	cat $(SOURCES)/sqlite3/sqlite3.c | head -c 4000000 >$@/text
	head -c 12000 $@/text >$@/text-short
	touch $@

# NAME, a short run, and one that is over when it is ended, or at least in many seconds. Words are
# parted by blanks, and nothing is quoted.
many := $(foreach ten,0 1 2 3 4 5 6 7 8 9,$(foreach one,0 1 2 3 4 5 6 7 8 9,loads/text loads/text))
line = printf '%s\t%s\t%s\n' '$(1)' './$(1) $(2)' './$(1) $(3)'
$(OUT)/programs: $(OUT)/loads
	{ $(call line,bash,loads/load.bash 1,loads/load.bash 1000000000); \
	$(call line,bzip2,-c loads/text-short,-c $(many)); \
	$(call line,bzip2-musl,-c loads/text-short,-c $(many)); \
	$(call line,dash,loads/load.sh 3,loads/load.sh 1000000000); \
	$(call line,gzip,-c loads/text-short,-c $(many)); \
	$(call line,lua,loads/load.lua 4,loads/load.lua 1000000000); \
	$(call line,lua-musl,loads/load.lua 4,loads/load.lua 1000000000); \
	$(call line,lz4,-9 -c loads/text-short,-b9 -i86400 loads/text); \
	$(call line,lz4-musl,-9 -c loads/text-short,-b9 -i86400 loads/text); \
	$(call line,mujs,loads/load.js 4,loads/load.js 1000000000); \
	$(call line,pigz,-c loads/text-short,-c $(many)); \
	$(call line,sqlite3,-batch -init loads/short.sql :memory: .quit,$(strip \
		-batch -init loads/endless.sql :memory: .quit)); \
	$(call line,xz,-0 -c loads/text-short,-c $(many)); \
	$(call line,zstd,-q -c loads/text-short,-q -b5 -i86400 loads/text); } >$@

.PHONY: all
