# SPDX-License-Identifier: GPL-2.0-only
#
# What the own build has to know about x86-64. build.mk includes this file.

# The linker's emulation.
arch-emulation := elf_x86_64

# The target: a file that build.mk writes.
arch-target = $(abspath $(own)/target.json)

# The options' names before 6.9, and from 6.9 on.
retpoline := $(CONFIG_RETPOLINE)$(CONFIG_MITIGATION_RETPOLINE)
rethunk := $(CONFIG_RETHUNK)$(CONFIG_MITIGATION_RETHUNK)
sls := $(CONFIG_SLS)$(CONFIG_MITIGATION_SLS)

# The target, equal to that of scripts/generate_rust_target.rs in a kernel with Rust.
comma := ,
target-features := -mmx,+soft-float
target-features := $(target-features)$(if $(retpoline),$(comma)+retpoline-external-thunk)
target-features := $(target-features)$(if $(retpoline),$(comma)+retpoline-indirect-branches)
target-features := $(target-features)$(if $(retpoline),$(comma)+retpoline-indirect-calls)
target-features := $(target-features)$(if $(sls),$(comma)+harden-sls-ijmp$(comma)+harden-sls-ret)
target-abi := $(if $(call from-rustc,108600),x86-softfloat)
target-abi := $(if $(call from-rustc,109800),softfloat,$(target-abi))
define target
{
	"arch": "x86_64",
	"data-layout":
		"e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128",
	"emit-debug-gdb-scripts": false,
	"features": "$(target-features)",
	"frame-pointer": "may-omit",
	"llvm-target": "x86_64-linux-gnu",
	$(if $(target-abi),"rustc-abi": "$(target-abi)"$(comma))
	"stack-probes": {"kind": "none"},
	"supported-sanitizers": ["kcfi", "kernel-address"],
	"target-pointer-width": $(if $(call from-rustc,109100),64,"64")
}
endef

# Flags of mitigations. With kCFI they are more than that: a kernel with FineIBT writes to the place
# of the hash in front of each function whose ENDBR64 it removes, whether there is a hash or not.
arch-rustflags = $(if $(rethunk),-Zfunction-return=thunk-extern) \
	$(if $(CONFIG_X86_KERNEL_IBT),-Zcf-protection=branch) \
	$(if $(retpoline)$(CONFIG_X86_KERNEL_IBT), \
		$(if $(call from-rustc,109300),-Cjump-tables=n,-Zno-jump-tables))

# For rust/x86_64/asm/user_access.rs, by the answer of rust/c/probes.c.
arch-cfg = --check-cfg=cfg\(sfu_short_alternatives\) \
	$(if $(shell grep -w 'SFU_HAS_LONG_ALTERNATIVES 0' $(sfu-probes)), \
		--cfg sfu_short_alternatives)
