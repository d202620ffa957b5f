# SPDX-License-Identifier: GPL-2.0-only
#
# The own build of the module's Rust: `core` from the compiler's source, the shim of the `kernel`
# crate, and the module, linked to one object, rust/main.o. Like any C module, it needs a headers
# package of the kernel. Kbuild includes this file, which includes the architecture's.

sframe_unwind-y += rust/main.o rust/kernel-shim/glue.o

shim := $(src)/rust/kernel-shim
own := $(obj)/rust/own
# 1.85.1 is 108501.
rustc-version := $(shell $(RUSTC) -vV 2>/dev/null | awk -F '[ .-]' \
	'$$1 == "release:" { print $$2 * 100000 + $$3 * 100 + $$4 }')
from-rustc = $(shell test '$(rustc-version)' -ge $(1) && echo y)
compilers-source = $(shell $(RUSTC) --print sysroot)/lib/rustlib/src/rust/library
core-source = $(or $(RUST_LIB_SRC),$(compilers-source))/core/src/lib.rs

# The target, and what else depends on the architecture; for `make clean` there is none.
ifneq ($(sfu-arch),)
include $(shim)/$(sfu-arch).mk
endif

# The kernel's flags, without lints, without flags that are set differently here, and without debug
# information, because BTF takes debug information of C only. A kernel without Rust does not set all
# flags of its mitigations, so they are set here and by the architecture.
# The compiler accepts a flag twice, but not each old name of a flag.
own-rustflags = $(filter-out -A% -D% -W% --edition=% --target=% -Coverflow-checks=% \
		-Cdebuginfo=% -Zbinary_dep_depinfo=% -Zfunction-sections=% \
		-Zbranch-protection=% \
		$(if $(call from-rustc,109300),-Zno-jump-tables), \
		$(KBUILD_RUSTFLAGS) $(KBUILD_RUSTFLAGS_MODULE)) \
	$(if $(CONFIG_CFI_CLANG)$(CONFIG_CFI),-Zsanitizer=kcfi) \
	$(if $(CONFIG_CFI_ICALL_NORMALIZE_INTEGERS),-Zsanitizer-cfi-normalize-integers) \
	$(arch-rustflags) \
	-Zunstable-options -Zfunction-sections=y -Cdebuginfo=0 \
	--target=$(arch-target) -L $(abspath $(own))

# The lints of Linux 7.3, on all kernels. `core` is compiled without them.
own-lints := -Dnon_ascii_idents -Dunsafe_op_in_unsafe_fn -Wmissing_docs -Wrust_2018_idioms \
	-Wunreachable_pub -Aunused_features -Astable_features \
	-Wclippy::all -Wclippy::as_ptr_cast_mut -Wclippy::as_underscore -Wclippy::cast_lossless \
	-Aclippy::collapsible_if -Aclippy::collapsible_match -Wclippy::ignored_unit_patterns \
	-Aclippy::incompatible_msrv -Wclippy::mut_mut -Wclippy::needless_bitwise_bool \
	-Aclippy::needless_lifetimes -Wclippy::no_mangle_with_rust_abi -Wclippy::ptr_as_ptr \
	-Wclippy::ptr_cast_constness -Wclippy::ref_as_ptr -Wclippy::undocumented_unsafe_blocks \
	-Aclippy::uninlined_format_args -Wclippy::unnecessary_safety_comment \
	-Wclippy::unnecessary_safety_doc -Aclippy::unwrap_or_default \
	--check-cfg=cfg\(test\) --check-cfg=cfg\(CONFIG_KUNIT,values\(none\(\),\"y\"\)\) \
	$(if $(CONFIG_WERROR),-Dwarnings)

# MAKEFLAGS is removed, or the compiler would look for make's job server. RUSTC_BOOTSTRAP permits
# unstable flags to a rustc that is not a nightly build.
own-rustc = MAKEFLAGS= RUSTC_BOOTSTRAP=1 $(1) $(own-rustflags) --emit=dep-info=$(depfile) \
	--emit=obj=$@

quiet_cmd_own_target = GEN     $@
      cmd_own_target = printf '%s\n' '$(subst $(newline),' ',$(target))' >$@
define newline


endef

$(own)/target.json: FORCE
	$(call if_changed,own_target)

# The version of the source must be the compiler's version. A distribution has them in two packages.
own_check = test '$(rustc-version)' -ge 108500 || { \
		echo 'rustc 1.85 or later is needed, and' \
			'$(or $(shell $(RUSTC) --version),none) is there' >&2; exit 1; }; \
	test -e '$(core-source)' || { \
		echo 'the source of core is missing: $(core-source);' \
			'Debian and Ubuntu have it in the package rust-src' >&2; exit 1; }

quiet_cmd_own_core = RUSTC L $@
      cmd_own_core = $(own_check); \
	$(call own-rustc,$(RUSTC)) --emit=metadata=$(own)/libcore.rmeta --crate-type rlib \
		--crate-name core --edition=$(if $(call from-rustc,108700),2024,2021) \
		--cfg no_fp_fmt_parse --cap-lints allow -Coverflow-checks=n $(core-source)
$(own)/core.o: $(own)/target.json FORCE
	+$(call if_changed_dep,own_core)

# own-crate NAME - compiles a crate of this project.
own-crate = $(call own-rustc,$(if $(CLIPPY),clippy-driver,$(RUSTC))) $(own-lints) \
	--crate-name $(1) --crate-type rlib --edition=2021 -Coverflow-checks=y

quiet_cmd_own_compiler_builtins = RUSTC L $@
      cmd_own_compiler_builtins = $(call own-crate,compiler_builtins) \
		--emit=metadata=$(own)/libcompiler_builtins.rmeta $<
$(own)/compiler_builtins.o: $(shim)/compiler_builtins.rs $(own)/core.o FORCE
	+$(call if_changed_dep,own_compiler_builtins)

# The macros run in the compiler, so they are built with the host's own flags.
quiet_cmd_own_macros = RUSTC P $@
      cmd_own_macros = MAKEFLAGS= $(RUSTC) $(own-lints) --emit=dep-info=$(depfile) --emit=link=$@ \
		--crate-name macros --crate-type proc-macro --edition=2021 $<
$(own)/libmacros.so: $(shim)/macros.rs FORCE
	+$(call if_changed_dep,own_macros)

quiet_cmd_own_kernel = RUSTC L $@
      cmd_own_kernel = $(call own-crate,kernel) --emit=metadata=$(own)/libkernel.rmeta \
		--extern macros=$(own)/libmacros.so $<
$(own)/kernel.o: $(shim)/lib.rs $(own)/compiler_builtins.o $(own)/libmacros.so FORCE
	+$(call if_changed_dep,own_kernel)

quiet_cmd_own_module = RUSTC [M] $@
      cmd_own_module = $(call own-crate,sframe_unwind) $(arch-cfg) $(for-size) \
		--check-cfg=cfg\(sfu_compare\) $(if $(filter compare,$(RUST)),--cfg sfu_compare) \
		-Zcrate-attr=no_std --extern kernel $<
$(own)/sframe_unwind.o: $(src)/rust/main.rs $(own)/kernel.o $(sfu-probes) FORCE
	+$(call if_changed_dep,own_module)

# A function that runs once for a file is compiled for size. The kernel permits no crate to do so.
for-size := --check-cfg=cfg\(sfu_size\) --cfg sfu_size '-Zcrate-attr=feature(optimize_attribute)'

# All functions that C calls. The linker drops functions that these do not need.
own-entries := sfk_module_init sfk_module_exit sfk_show sframe_unwind_scan \
	sframe_unwind_immediate sframe_unwind_deferred sframe_unwind_free_rows \
	sframe_unwind_index_file sframe_unwind_control
own-objects := $(addprefix $(own)/,sframe_unwind.o kernel.o compiler_builtins.o core.o)

# objtool runs here, as for any object of the kernel; or later, if the kernel leaves objtool to the
# last link.
quiet_cmd_own_link = LD [M]  $@
      cmd_own_link = $(LD) -m $(arch-emulation) -z noexecstack -r --gc-sections \
		$(own-entries:%=-u %) -T $(shim)/link.lds -o $@ $(own-objects) \
		$(if $(CONFIG_OBJTOOL), \
			$(if $(delay-objtool),,; $(objtool) $(objtool-args) --link $@))
$(obj)/rust/main.o: $(own-objects) $(shim)/link.lds FORCE
	$(call if_changed,own_link)

targets += $(patsubst $(obj)/%,%,$(own-objects) $(own)/target.json $(own)/libmacros.so)
