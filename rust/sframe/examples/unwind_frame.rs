// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Takes one step from a frame to its caller, by a rule and a copy of a stack.

use sframe::{
    abi::Abi,
    bytes::Fault,
    rule::{
        Base,
        Location,
        Rule, //
    },
    unwind::{
        self,
        Frame,
        Memory,
        NoRegisters,
        Step, //
    }, //
};

/// A copy of a stack, from the run-time address `start` on.
struct StackImage {
    start: u64,
    words: [u64; 4],
}

impl Memory for StackImage {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        let offset = address.checked_sub(self.start).ok_or(Fault)?;
        let index = usize::try_from(offset / 8).map_err(|_| Fault)?;
        match offset % 8 {
            0 => self.words.get(index).copied().ok_or(Fault),
            _ => Err(Fault),
        }
    }
}

fn main() {
    // The rule of a function that has pushed rbp and called another function: CFA = rsp + 16, rbp
    // at CFA - 16, the return address at CFA - 8. `Section::find` returns such a rule for a lookup
    // address.
    let rule = Rule::amd64(Base::Sp, 16, Location::AtCfa(-16));
    let stack = StackImage {
        start: 0x7000,
        words: [0x7100, 0x40_1234, 0, 0],
    };
    let frame = Frame {
        pc: 0x40_2000,
        sp: 0x7000,
        fp: 0,
    };
    let step = unwind::step(Abi::Amd64, &rule, &frame, &NoRegisters, &stack);
    let caller = Frame {
        pc: 0x40_1234,
        sp: 0x7010,
        fp: 0x7100,
    };
    assert_eq!(step, Ok(Step::Caller(caller)));
    println!("{frame:x?} was called by {caller:x?}");
}
