// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rows for stubs of a PLT that .eh_frame does not cover: LLVM's linker writes none.

use sframe::{
    rule::{
        Base,
        Location,
        Rule,
        SavedRbx, //
    },
    x86_64::{
        rule_of_stub,
        STUB, //
    }, //
};

use crate::{
    code::CodeBytes,
    function::ConvertedFunction, //
};

/// The names of sections of stubs.
pub(crate) const SECTIONS: [&str; 4] = [".plt", ".plt.sec", ".plt.got", ".iplt"];
/// The size of a stub in bytes.
pub(crate) const STUB_SIZE: u8 = STUB as u8;

/// Adds rows for a section of stubs with the address `start` and a size in bytes, unless a function
/// covers a part of it. The rows tell the size of a stub; the module derives the rule from each
/// stub's instructions.
pub(crate) fn add_stubs(
    functions: &mut Vec<ConvertedFunction>,
    start: u64,
    size: u64,
    code: &CodeBytes<'_>,
) {
    let bytes = code.at(start);
    let size = size.min(bytes.len() as u64) / STUB as u64 * STUB as u64;
    let is_stub = bytes
        .first_chunk()
        .is_some_and(|stub| rule_of_stub(stub, 0).is_some());
    let (Some(end), Ok(size)) = (start.checked_add(size), u32::try_from(size)) else {
        return;
    };
    let is_covered = functions
        .iter()
        .any(|function| function.start < end && start < function.end());
    if size == 0 || start % STUB as u64 != 0 || !is_stub || is_covered {
        return;
    }
    let row = |cfa| Rule::amd64(Base::Sp, cfa, Location::Unchanged);
    let next = functions.partition_point(|function| function.start <= start);
    functions.insert(
        next,
        ConvertedFunction {
            start,
            size,
            repeat: Some(STUB_SIZE),
            signal: false,
            rbx: SavedRbx::UNKNOWN,
            rows: vec![(0, row(8)), (11, row(16))],
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::tests::{
        function,
        plain, //
    };

    #[test]
    fn stubs_without_an_entry_have_rows() {
        // push x(%rip); jmp *x(%rip); nop. jmp *x(%rip); push $0; jmp
        let mut text = *b"\xff\x35\x01\x02\x03\x04\xff\x25\x01\x02\x03\x04\x0f\x1f\x40\0\
            \xff\x25\x01\x02\x03\x04\x68\0\0\0\0\xe9\xe0\xff\xff\xff\x90\x90";
        let made = |text: &[u8], functions: &[ConvertedFunction]| {
            let code = CodeBytes {
                segments: vec![(0x1000, 0x1000 + text.len() as u64, text)],
            };
            let mut functions = functions.to_vec();
            add_stubs(&mut functions, 0x1000, text.len() as u64, &code);
            functions
        };
        let found = made(&text, &[]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].start, found[0].size), (0x1000, 32));
        assert_eq!(found[0].repeat, Some(16));
        // A part has an entry; and other code.
        let covered = [function(0x1010, 0x10, &[(0, plain(8))])];
        assert_eq!(made(&text, &covered), covered);
        text[0] = 0x90;
        assert_eq!(made(&text, &[]), []);
    }
}
