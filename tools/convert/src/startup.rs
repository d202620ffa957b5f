// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rows for code that starts and ends a program, which is written in assembly and has no .eh_frame
//! entry.

use sframe::rule::{
    Base,
    Location,
    Rule, //
};

use crate::{
    code::CodeBytes,
    function::{
        insert,
        ConvertedFunction, //
    }, //
};

/// The first instructions of an entry point, which passes the initial stack pointer on: in ld.so,
/// and in musl, which clears the frame pointer first.
const ENTRY_POINTS: [&[u8]; 3] = [
    b"\x48\x89\xe7",             // mov %rsp,%rdi
    b"\x31\xed\x48\x89\xe7",     // xor %ebp,%ebp; mov %rsp,%rdi
    b"\x48\x31\xed\x48\x89\xe7", // xor %rbp,%rbp; mov %rsp,%rdi
];

/// The first instructions of glibc's entry point, perhaps after `endbr64`: xor %ebp,%ebp; mov
/// %rdx,%r9; pop %rsi; mov %rsp,%rdx; and $-16,%rsp; push %rax; push %rsp. It ends with a call and
/// `hlt`.
const GLIBC: &[u8] = b"\x31\xed\x49\x89\xd1\x5e\x48\x89\xe2\x48\x83\xe4\xf0\x50\x54";
const HLT: u8 = 0xf4;

/// The maximum size of an entry point's code, in bytes. The code of ld.so has 61 bytes.
pub const MAX_ENTRY_POINT: u64 = 96;

/// Adds an outermost row for an entry point without an .eh_frame entry. An entry point has no
/// caller. Such entry points are written in assembly.
pub(crate) fn add_entry_point(
    functions: &mut Vec<ConvertedFunction>,
    entry: u64,
    code: &CodeBytes<'_>,
) {
    let bytes = code.at(entry);
    let bytes = &bytes[..bytes.len().min(MAX_ENTRY_POINT as usize)];
    let size = match ENTRY_POINTS.iter().any(|first| bytes.starts_with(first)) {
        true => Some(bytes.len()),
        false => size_of_glibcs(bytes),
    };
    if let Some(size) = size {
        insert(functions, entry, size as u32, vec![(0, Rule::OUTERMOST)]);
    }
}

/// The size of glibc's entry point, in bytes; `None` if `bytes` begin with other code.
fn size_of_glibcs(bytes: &[u8]) -> Option<usize> {
    let code = bytes.strip_prefix(b"\xf3\x0f\x1e\xfa").unwrap_or(bytes);
    if !code.starts_with(GLIBC) {
        return None;
    }
    // call *N(%rip), or call N
    let is_end = |end: &[u8]| {
        matches!(
            end,
            [0xff, 0x15, _, _, _, _, HLT] | [_, 0xe8, _, _, _, _, HLT]
        )
    };
    let end = bytes.windows(7).position(is_end)?;
    Some(end + 7)
}

/// Adds rows for `_init` or `_fini` of crti.o and crtn.o, which have no .eh_frame entry: `sub
/// $8,%rsp`, calls, `add $8,%rsp; ret`.
pub(crate) fn add_init_or_fini(
    functions: &mut Vec<ConvertedFunction>,
    address: u64,
    code: &CodeBytes<'_>,
) {
    let bytes = code.at(address);
    let pushed = if bytes.starts_with(b"\xf3\x0f\x1e\xfa") {
        8
    } else {
        4
    };
    if !bytes[..bytes.len().min(pushed)].ends_with(b"\x48\x83\xec\x08") {
        return;
    }
    let mut at = pushed;
    loop {
        at += match bytes.get(at..).unwrap_or_default() {
            [0x48, 0x83, 0xc4, 0x08, 0xc3, ..] => break,
            [0x48, 0x8b, 0x05, ..] => 7,       // mov ...(%rip),%rax
            [0x48, 0xc7, 0xc0, ..] => 7,       // mov $...,%rax
            [0x48, 0x85, 0xc0, ..] => 3,       // test %rax,%rax
            [0x74, 0x02, 0xff, 0xd0, ..] => 4, // jz over it; call *%rax
            [0xe8, ..] => 5,                   // call ...
            _ => return,
        };
    }
    let row = |from: usize, cfa| (from as u32, Rule::amd64(Base::Sp, cfa, Location::Unchanged));
    let rows = vec![row(0, 8), row(pushed, 16), row(at + 4, 8)];
    insert(functions, address, at as u32 + 5, rows);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::{
        sort_and_trim,
        tests::{
            function,
            plain, //
        }, //
    };

    #[test]
    fn entry_points_have_outermost_rows() {
        let mut text = vec![0x90; 0x200];
        text[0x80..0x83].copy_from_slice(b"\x48\x89\xe7");
        text[0x180..0x186].copy_from_slice(b"\x48\x31\xed\x48\x89\xe7");
        let code = CodeBytes {
            segments: vec![(0x1000, 0x1200, &text)],
        };
        let rule = Rule::amd64(Base::Sp, 8, Location::Unchanged);
        let others = [
            function(0x1000, 0x40, &[(0, rule)]),
            function(0x10a0, 0x20, &[(0, rule)]),
        ];
        let begun = |entry| {
            let mut functions = others.to_vec();
            add_entry_point(&mut functions, entry, &code);
            sort_and_trim(&mut functions);
            functions
                .into_iter()
                .find(|function| function.rows[0].1.is_outermost())
                .map(|function| (function.start, function.size))
        };
        assert_eq!(begun(0x1080), Some((0x1080, 0x20)));
        assert_eq!(begun(0x1180), Some((0x1180, 0x60)));
        // No rows for: other instructions, an address that a function covers, an address outside of
        // the code.
        assert_eq!(begun(0x1081), None);
        assert_eq!(begun(0x1000), None);
        assert_eq!(begun(0), None);
        text[..3].copy_from_slice(b"\x48\x89\xe7");
        let code = CodeBytes {
            segments: vec![(0x1000, 0x1200, &text)],
        };
        let mut functions = others.to_vec();
        add_entry_point(&mut functions, 0x1000, &code);
        assert_eq!(functions, others);
    }

    #[test]
    fn the_entry_point_of_glibc_ends_with_hlt() {
        let direct =
            b"\x31\xed\x49\x89\xd1\x5e\x48\x89\xe2\x48\x83\xe4\xf0\x50\x54\x4c\x8d\x05\xf4\
            \0\0\0\x67\xe8\x02\0\0\0\xf4\xcc\x55";
        assert_eq!(size_of_glibcs(direct), Some(29));
        let branch = [
            &b"\xf3\x0f\x1e\xfa"[..],
            &direct[..15],
            b"\xff\x15\x01\x02\x03\x04\xf4\x55",
        ];
        assert_eq!(size_of_glibcs(&branch.concat()), Some(26));
        assert_eq!(size_of_glibcs(&direct[1..]), None);
        assert_eq!(size_of_glibcs(&direct[..28]), None);
    }

    #[test]
    fn init_and_fini_have_rows() {
        // The bytes of Debian 13's libcrypto, and the bytes of code compiled with endbr64.
        let init = b"\x48\x83\xec\x08\x48\x8b\x05\x01\x02\x03\x04\x48\x85\xc0\x74\x02\xff\xd0\
            \xe8\x01\x02\x03\x04\x48\x83\xc4\x08\xc3";
        let fini = b"\xf3\x0f\x1e\xfa\x48\x83\xec\x08\x48\x83\xc4\x08\xc3";
        let made = |text: &[u8]| {
            let code = CodeBytes {
                segments: vec![(0x1000, 0x1000 + text.len() as u64, text)],
            };
            let mut functions = Vec::new();
            add_init_or_fini(&mut functions, 0x1000, &code);
            functions
        };
        let rows = [(0, plain(8)), (4, plain(16)), (27, plain(8))];
        assert_eq!(made(init), [function(0x1000, 28, &rows)]);
        let rows = [(0, plain(8)), (8, plain(16)), (12, plain(8))];
        assert_eq!(made(fini), [function(0x1000, 13, &rows)]);
        // A change of any byte, or truncation, prevents rows.
        for byte in (0..4).chain(4..7).chain(11..19).chain(23..28) {
            let mut other = *init;
            other[byte] ^= 0x10;
            assert_eq!(made(&other), [], "{byte}");
            assert_eq!(made(&init[..byte]), [], "{byte}");
        }
        // An existing function is not replaced.
        let mut functions = vec![function(0xff0, 0x11, &[(0, plain(24))])];
        let code = CodeBytes {
            segments: vec![(0x1000, 0x101c, init)],
        };
        add_init_or_fini(&mut functions, 0x1000, &code);
        assert_eq!(functions.len(), 1);
    }
}
