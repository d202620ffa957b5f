# SPDX-License-Identifier: GPL-2.0-only

# The kernel tree to build against: that of a headers package; or one that scripts/prepare-kernel
# has made, in one of the first two places, where the module can be built with the kernel's own
# `kernel` crate. Kbuild says which of the two it takes, and why; RUST=own and RUST=kernel choose.
KDIR ?= $(firstword $(wildcard \
	/var/cache/sframe_unwind/linux-$(shell uname -r) \
	$(HOME)/.cache/sframe_unwind/kernels/linux-$(shell uname -r)) \
	/lib/modules/$(shell uname -r)/build)

all: modules

help:
	@echo 'In QEMU, on any Debian or Ubuntu machine (missing packages are installed):'
	@echo '  make demo      - stacks without and with the module, on a kernel of Debian'"'"'s;'
	@echo '                   KERNEL=trixie for another'
	@echo '  make test      - the tests that pass before each change; 40 minutes at most'
	@echo '  make test-night - the tests of each night: all kernels, packages, the debug kernel'
	@echo '  make truth     - judges stacks, sample by sample and step by step'
	@echo '  make fuzz      - fuzzes the core, FUZZ_SECONDS (600) for each of four targets'
	@echo '  make fuzz-kernel - fuzzes the module in a guest: hostile files, random commands;'
	@echo '                   SECONDS (300)'
	@echo '  make soak      - everything that disturbs the module, at once; HOURS (1)'
	@echo '  make bench     - instructions of walks in the kernel; and of other tools'
	@echo '  make bench-host - cost of a lookup, in the core and in other readers (no QEMU)'
	@echo
	@echo 'On this machine'"'"'s kernel:'
	@echo '  make           - builds the module against KDIR, by default for the running kernel'
	@echo '                   (RUST=own: with an own core; RUST=kernel: with the kernel'"'"'s)'
	@echo '  make install   - installs the module, and sframectl if it was built'
	@echo '  make clean     - removes build output'
	@echo '  make rust-analyzer - describes the module to rust-analyzer'
	@echo '  make tools     - builds sframectl, as build/tools/sframectl, in a Debian root'
	@echo '  make local-tools - the same, with the compilers of this machine'
	@echo '  make deb       - builds Debian packages, in build/deb/'
	@echo '  sframectl selftest - checks the stacks on this machine'

modules:
	@test -e '$(KDIR)/Makefile' || { \
		echo 'make: there is no kernel tree at $(KDIR).'; \
		echo 'make: install the headers of your kernel (Debian:' \
			'linux-headers-$(shell uname -r)); or give KDIR=...'; \
		exit 1; } >&2
	$(MAKE) -C '$(KDIR)' M='$(CURDIR)' modules

# Not modules_install: it would sign with a key that only Debian has, and skip depmod.
install: modules
	release=$$(modinfo -F vermagic sframe_unwind.ko | cut -d' ' -f1) && \
	install -D -m 644 sframe_unwind.ko \
		"$(INSTALL_MOD_PATH)/lib/modules/$$release/updates/sframe_unwind.ko" && \
	depmod $(if $(INSTALL_MOD_PATH),-b '$(INSTALL_MOD_PATH)') "$$release"
	[ ! -e build/tools/sframectl ] || $(MAKE) install-tools DESTDIR='$(INSTALL_MOD_PATH)'

# sframectl, in build/tools, and its demo, by this machine's compilers: for packages, too.
local-tools:
	cargo build --quiet --release --locked -p sframectl
	install -D -t build/tools "$${CARGO_TARGET_DIR:-target}/release/sframectl"
	mkdir -p build/tools/man build/tools/completions
	build/tools/sframectl man build/tools/man
	build/tools/sframectl completions build/tools/completions
	$(MAKE) -C samples/demo OUT='$(CURDIR)/build/demo'
	install -D -t build/libexec/sframectl build/demo/demo build/demo/libdemo.so

# The same in a Debian root, for its Rust and its C library.
tools:
	@bash -c '. scripts/lib.sh && in_root env \
		CARGO_TARGET_DIR=/var/cache/sframe_unwind/target make -s -C /src local-tools'

# Installs what either of the two has built, below DESTDIR. Packages choose other directories.
PREFIX = /usr/local
SBINDIR = $(PREFIX)/sbin
install-tools: to = $(DESTDIR)$(PREFIX)
install-tools: completions = build/tools/completions
install-tools:
	install -D -t '$(DESTDIR)$(SBINDIR)' build/tools/sframectl
	install -D -t '$(to)/libexec/sframectl' build/libexec/sframectl/*
	install -D -m 644 -t '$(to)/share/man/man1' build/tools/man/*
	install -D -m 644 -t '$(to)/share/man/man5' tools/sframectl/sframectl.toml.5
	install -D -m 644 $(completions)/sframectl.bash \
		'$(to)/share/bash-completion/completions/sframectl'
	install -D -m 644 -t '$(to)/share/zsh/site-functions' $(completions)/_sframectl
	install -D -m 644 -t '$(to)/share/fish/vendor_completions.d' $(completions)/sframectl.fish
	mkdir -p '$(to)/lib/systemd/system'
	sed 's:/usr/local/sbin:$(SBINDIR):' tools/sframectl/sframectl.service \
		>'$(to)/lib/systemd/system/sframectl.service'

# Debian packages, in a root of their own.
deb:
	@scripts/make-deb

# rust-project.json describes the module to rust-analyzer; Cargo.toml describes the workspace.
rust-analyzer:
	$(MAKE) -C '$(KDIR)' M='$(CURDIR)' rust-analyzer

clean:
	rm -rf build target
	[ ! -e '$(KDIR)/Makefile' ] || $(MAKE) -C '$(KDIR)' M='$(CURDIR)' clean

demo:
	@scripts/demo

test:
	@tests/run

test-night:
	@tests/run --night

truth:
	@tests/truth/run

fuzz:
	@scripts/fuzz

fuzz-kernel:
	@scripts/fuzz-kernel $(if $(KERNEL),--kernel $(KERNEL)) $(SECONDS)

soak:
	@scripts/soak $(if $(KERNEL),--kernel $(KERNEL)) $(HOURS)

bench:
	@tools/bench/run
	@tools/bench/peers

bench-host:
	@tools/bench-host/run

.PHONY: all help modules install local-tools tools install-tools deb rust-analyzer clean demo test \
	test-night truth fuzz fuzz-kernel soak bench bench-host
