// SPDX-License-Identifier: GPL-2.0-only

//! The architecture: all that an architecture provides, and the choice of the module's Rust part.
//!
//! An architecture is one folder in each layer, with the name of Rust's `target_arch`. Names that
//! are not in these folders do not depend on the architecture (`tests/test_arch.py`). `Kbuild`
//! chooses the folder of C and the file of the shim, by the kernel's configuration. This file, the
//! shim's `lib.rs`, and the core's `mod.rs` choose theirs by `target_arch`.
//!
//! # C: `rust/c/NAME/`
//!
//! `machine.h` and `machine.c` have the functions of `rust/c/arch.h` and, from `helpers.h`,
//! `sfu_register` and `sfu_in_sigreturn`:
//!
//! * registers of a hooked call by their DWARF numbers (`sfu_register`); whether the module can
//!   walk a stack with them (`is_unwindable`); whether the task is in a system call
//!   (`is_in_system_call`, `sfu_in_sigreturn`);
//! * whether an NMI came while the kernel saved the task's registers (`nmi_is_saving_registers`);
//! * the identity of an address space (`sfu_mm_id`): no other address space has it, or has ever had
//!   it. Regions are found by it, so it should not change;
//! * whether the loaded page tables are the task's (`sfu_has_own_page_tables`); addresses without
//!   tags (`sfu_untagged`); the state of the processor around reads (`sfu_begin_reads`,
//!   `sfu_end_reads`);
//! * the PC at the breakpoint of a uprobe (`sfu_breakpoint_pc`);
//! * the vDSO and its image (`sfu_vdso_address`, `sfu_vdso_image`);
//! * assertions about what the assembler of the Rust part writes into tables of the kernel.
//!
//! `sfu_is_readable` and `sfu_read_user` read only if the current task's page tables are loaded.
//! They ask `nmi_uaccess_okay()` and `sfu_has_own_page_tables`.
//! `rust/c/compat.h` has the redirection of a hooked call on kernels before 6.2. Where it does not
//! work, `machine.h` replaces it.
//!
//! # Rust: `rust/NAME/`
//!
//! * `asm`, below all other modules: per-CPU counters (`add_to_counter`, `increment_counter`);
//!   reads of user memory one by one (`get_user`), and many in a row (`UserAccess`); the bits of a
//!   return address that are bits of the address (`code_mask`);
//! * [`is_ordinary`]: whether the fast path may begin at a PC, by the code there;
//! * [`uprobes`]: undoes what uprobes change on the stack and in the registers.
//!   `rust/uretprobes.rs` undoes what uretprobes change.
//!
//! # Core: `rust/sframe/src/NAME/`, as `crate::sframe::arch`
//!
//! * `machine::NATIVE`: the only ABI whose sections the module reads. `format/abi.rs` has the parts
//!   of the format that depend on the ABI;
//! * `machine::ELF_MACHINE`: the machine in ELF headers;
//! * `machine::usual_rule`, `machine::HAS_COMPACT_RULES` and `machine::RA_BELOW_CFA`: the rules
//!   that compact rules and the fast path know, if there are any;
//! * `registers`: `SP`, `FP`, `RETURN_ADDRESS`, `RESULT`, `FOLLOWED` and `COUNT`, as DWARF numbers;
//! * `signal`: signal trampolines, the registers in signal frames, and the code behind a system
//!   call that starts a thread;
//! * `plt`: rules of PLT stubs, and of other code that never has rows (`rule_without_rows`);
//! * `insn`: instructions that load the stack pointer;
//! * `fallback`: the step from code without rows, by the instructions at the PC; and the test
//!   whether a PC is behind a call;
//! * `unknown`: the step from code without rows whose function is not known;
//! * `uprobe`: the code of the kernel's trampolines for uprobes, for `uprobes` above; and the place
//!   of the stack pointer as `struct return_instance` has it (`KEY_BELOW_SP`).
//!
//! `rust/sframe/src/runtimes/` decodes code of AMD64 only. A new architecture begins without
//! regions (`machine::HAS_REGIONS`).
//!
//! # Shim: `rust/kernel-shim/NAME.rs` and `rust/kernel-shim/NAME.mk`
//!
//! * `PAGE_SIZE`;
//! * the compiler's target, the flags of the kernel's mitigations, and the linker's emulation.

#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod machine;

pub(crate) use self::machine::{
    asm,
    is_ordinary,
    uprobes, //
};
