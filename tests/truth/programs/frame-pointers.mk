# SPDX-License-Identifier: GPL-2.0-only
# Builds perl and the dynamic programs of real.mk, and the libc and ld.so that they run with, from
# Debian's sources in SOURCES into OUT, with the flags for frame pointers of distributions whose
# packages have them; and their table, OUT/programs. libm is Debian's. What is in between lies in
# WORK. See `build`.
CC = gcc
OUT = .
WORK = work
SOURCES =

flags := -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer
# The directory of the modules that load.pl uses, of Debian's perl.
modules := /usr/lib/x86_64-linux-gnu/perl-base

others := $(addprefix $(OUT)/,bash bzip2 dash gzip lua lz4 mujs pigz sqlite3 xz zstd)
link := -Wl,-rpath,$(OUT)/lib -Wl,--dynamic-linker=$(OUT)/lib/ld-linux-x86-64.so.2

all: $(OUT)/perl $(OUT)/programs

# glibc's own makefiles call gawk, which the prepared root lacks.
$(WORK)/gawk/gawk:
	cp -a $(SOURCES)/gawk $(WORK)
	cd $(@D) && ./configure --disable-nls --disable-mpfr --without-readline CC='$(CC)'
	$(MAKE) -C $(@D)/support
	$(MAKE) -C $(@D) gawk

# Debian's source has no manual, which the makefiles enter all the same.
libc := $(WORK)/glibc/build
$(OUT)/lib: $(WORK)/gawk/gawk
	cp -a $(SOURCES)/glibc $(WORK)
	sed -i 's/ manual / /' $(WORK)/glibc/Makeconfig
	mkdir $(libc)
	cd $(libc) && export PATH=$(WORK)/gawk:$$PATH && \
		../configure --prefix=/usr --disable-werror --disable-mathvec \
			CC='$(CC) $(flags)' CFLAGS=-O2 && \
		$(MAKE) lib
	mkdir -p $@
	cp $(libc)/libc.so $@/libc.so.6
	cp $(libc)/elf/ld.so $@/ld-linux-x86-64.so.2

# Linked to Debian's C library, which is of the same version.
$(OUT)/perl: $(OUT)/lib
	cp -a $(SOURCES)/perl $(WORK)
	cd $(WORK)/perl && ./Configure -des -Dcc='$(CC)' -Doptimize='-O2 $(flags)' -Dlibs=-lm \
		-Dprivlib=$(modules) -Dman1dir=none -Dman3dir=none \
		-Dldflags='$(link)'
	$(MAKE) -C $(WORK)/perl perl
	cp $(WORK)/perl/perl $@

# real.mk makes the table of its programs, too; some of them are static.
$(OUT)/programs: $(OUT)/lib
	$(MAKE) -f real.mk OUT=$(OUT) WORK=$(WORK) SOURCES=$(SOURCES) CC='$(CC) $(link)' \
		rows='$(flags)' $(others) $@
	sed -i '/-musl/d' $@
	printf 'perl\t-\t./perl load.pl\n' >>$@

.PHONY: all
