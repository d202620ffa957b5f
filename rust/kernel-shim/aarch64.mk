# SPDX-License-Identifier: GPL-2.0-only
#
# What the own build has to know about AArch64. build.mk includes this file.

# The linker's emulation.
arch-emulation := aarch64linux

# The target, which the compiler knows.
arch-target := aarch64-unknown-none-softfloat

# Flags that arch/arm64/Makefile of a kernel with Rust sets: the kernel's own stacks are walked by
# frame pointers, and return addresses are signed. Kernels before 6.9 have no Rust on AArch64.
arch-rustflags = -Cforce-frame-pointers=y -Cforce-unwind-tables=n \
	$(if $(CONFIG_ARM64_PTR_AUTH_KERNEL), \
		-Zbranch-protection=$(if $(CONFIG_ARM64_BTI_KERNEL),bti$(comma))pac-ret) \
	$(if $(CONFIG_SHADOW_CALL_STACK),-Zfixed-x18)
comma := ,
