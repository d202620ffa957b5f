# SPDX-License-Identifier: GPL-2.0-only

# The kernel tree to build against. A Debian headers package has no Rust metadata;
# scripts/prepare-kernel makes a tree that has, in one of the first two places.
KDIR ?= $(firstword $(wildcard \
	/var/cache/sframe_unwind/linux-$(shell uname -r) \
	$(HOME)/.cache/sframe_unwind/kernels/linux-$(shell uname -r)) \
	/lib/modules/$(shell uname -r)/build)

all: modules

help:
	@echo 'In QEMU, on any Debian or Ubuntu machine (what is missing is installed):'
	@echo '  make demo      - stacks without and with the module, on Debian'"'"'s own kernel'
	@echo '  make test      - all tests but the long ones'
	@echo '  make test-all  - all tests: also the debug kernel and reload storms'
	@echo '  make truth     - what is true of the stacks, sample by sample and step by step'
	@echo '  make fuzz      - fuzz the core, FUZZ_SECONDS (600) for each of three targets'
	@echo '  make bench     - what walks take in the kernel, in instructions'
	@echo '  make bench-host - what a look-up costs, here and in other readers (no QEMU)'
	@echo
	@echo 'On this machine'"'"'s kernel:'
	@echo '  make           - build the module against KDIR, by default for the running kernel'
	@echo '                   (scripts/prepare-kernel makes the tree for a Debian kernel)'
	@echo '  make install   - install the module, and sframectl if it was built'
	@echo '  make clean     - remove what was built'
	@echo '  make rust-analyzer - describe the module to rust-analyzer'
	@echo '  make tools     - build sframectl, which shows what files hold and makes what they lack, as build/tools/sframectl'
	@echo '  scripts/selftest - load the module, check a stack, unload it'

modules:
	@test -e '$(KDIR)/rust/libkernel.rmeta' || { \
		echo 'make: $(KDIR) has no Rust metadata (rust/libkernel.rmeta).'; \
		echo 'make: for a Debian kernel, run scripts/prepare-kernel first; otherwise give KDIR=...'; \
		exit 1; } >&2
	$(MAKE) -C '$(KDIR)' M='$(CURDIR)' modules

# Not modules_install: it would sign with a key that only Debian has, and skip depmod.
install: modules
	release=$$(modinfo -F vermagic sframe_unwind.ko | cut -d' ' -f1) && \
	install -D -m 644 sframe_unwind.ko \
		"$(INSTALL_MOD_PATH)/lib/modules/$$release/updates/sframe_unwind.ko" && \
	depmod $(if $(INSTALL_MOD_PATH),-b '$(INSTALL_MOD_PATH)') "$$release"
	[ ! -e build/tools/sframectl ] || { \
		install -D build/tools/sframectl '$(INSTALL_MOD_PATH)/usr/local/sbin/sframectl' && \
		install -D -m 644 tools/sframectl/sframectl.service \
			'$(INSTALL_MOD_PATH)/usr/local/lib/systemd/system/sframectl.service' && \
		install -D -m 644 -t '$(INSTALL_MOD_PATH)/usr/local/share/man/man1' build/tools/man/*; }

# In the prepared root, for its Rust and its C library.
tools:
	@bash -c '. scripts/lib.sh && in_root sh -ec " \
		CARGO_TARGET_DIR=/var/cache/sframe_unwind/target cargo build --quiet --release --locked \
			--manifest-path /src/Cargo.toml -p sframectl; \
		install -D /var/cache/sframe_unwind/target/release/sframectl /src/build/tools/sframectl; \
		mkdir -p /src/build/tools/man; /src/build/tools/sframectl man /src/build/tools/man"'

# rust-project.json, which tells rust-analyzer of the module; of the workspace Cargo.toml tells.
rust-analyzer:
	$(MAKE) -C '$(KDIR)' M='$(CURDIR)' rust-analyzer

clean:
	rm -rf build target
	[ ! -e '$(KDIR)/Makefile' ] || $(MAKE) -C '$(KDIR)' M='$(CURDIR)' clean

demo:
	@scripts/demo

test:
	@tests/run

test-all:
	@tests/run --all

truth:
	@tests/truth/run

fuzz:
	@scripts/fuzz

bench:
	@tools/bench/run

bench-host:
	@tools/bench-host/run

.PHONY: all help modules install tools rust-analyzer clean demo test test-all truth fuzz bench bench-host
