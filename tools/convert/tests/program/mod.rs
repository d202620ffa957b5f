// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Programs that tests make in memory, and what their conversion gives.
#![allow(dead_code, reason = "each test takes what it needs")]

use convert::{
    CodeBytes,
    Converted,
    DropReason,
    OwnedTable, //
};
use sframe::rule::{
    Base,
    Location,
    Rule, //
};

/// The link-time addresses of the code and of .eh_frame.
pub(crate) const TEXT: u64 = 0x40_0000;
const EH_FRAME: u64 = 0x4000_0000;

/// cfa=rsp+8, ra=c-8.
pub(crate) const PLAIN: &[u8] = &[0x0c, 7, 8, 0x90, 1];

/// A program in memory: one segment of code, and .eh_frame.
pub(crate) struct Program {
    pub(crate) text: Vec<u8>,
    eh_frame: Vec<u8>,
    /// The offset in .eh_frame of the last CIE.
    pub(crate) cie: usize,
    /// The numbers of program headers of the code, and of sections of the code.
    pub(crate) headers: usize,
    pub(crate) sections: usize,
    /// The name of the section of .eh_frame, and whether it is there.
    pub(crate) eh_frame_name: &'static str,
    pub(crate) has_eh_frame: bool,
    /// The file's own SFrame section, with addresses that count from the text; empty if there is
    /// none.
    pub(crate) sframe: Vec<u8>,
    /// The size that the code has in memory, if it is more than in the file.
    pub(crate) claimed: usize,
}

impl Program {
    /// A program with so many bytes of `nop`, and the usual CIE.
    pub(crate) fn new(len: usize) -> Program {
        let mut program = Program {
            text: vec![0x90; len],
            eh_frame: Vec::new(),
            cie: 0,
            headers: 1,
            sections: 1,
            eh_frame_name: ".eh_frame",
            has_eh_frame: true,
            sframe: Vec::new(),
            claimed: 0,
        };
        program.cie("zR", PLAIN);
        program
    }

    /// Adds an entry of .eh_frame, which consists of its length and of `body`.
    fn entry(&mut self, mut body: Vec<u8>) {
        body.resize(body.len().next_multiple_of(4), 0);
        self.eh_frame.extend((body.len() as u32).to_le_bytes());
        self.eh_frame.extend(body);
    }

    /// Adds a CIE, with pointers that are relative and have four bytes.
    pub(crate) fn cie(&mut self, augmentation: &str, instructions: &[u8]) {
        self.cie = self.eh_frame.len();
        let mut body = vec![0, 0, 0, 0, 1];
        body.extend(augmentation.as_bytes());
        // Code 1, data -8, return address 16.
        body.extend([0, 1, 0x78, 16]);
        body.extend([augmentation.len() as u8 - 1, 0x1b]);
        body.resize(body.len() + augmentation.len() - 2, 0);
        body.extend(instructions);
        self.entry(body);
    }

    /// Adds an FDE for code at an offset in the text.
    pub(crate) fn fde(&mut self, offset: u64, size: u32, instructions: &[u8]) {
        let at = self.eh_frame.len() + 4;
        let mut body = (at.wrapping_sub(self.cie) as u32).to_le_bytes().to_vec();
        let start = (TEXT + offset).wrapping_sub(EH_FRAME + at as u64 + 4);
        body.extend((start as u32).to_le_bytes());
        body.extend(size.to_le_bytes());
        body.push(0);
        body.extend(instructions);
        self.entry(body);
    }

    /// The file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let names = format!("\0.text\0.shstrtab\0{}\0", self.eh_frame_name);
        let text_at = 64 + 56 * self.headers;
        let eh_frame_at = text_at + self.text.len();
        let sframe_at = eh_frame_at + self.eh_frame.len();
        let names_at = sframe_at + self.sframe.len();
        let sections_at = (names_at + names.len()).next_multiple_of(8);
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        let words = |file: &mut Vec<u8>, words: &[u64]| {
            words
                .iter()
                .for_each(|word| file.extend(word.to_le_bytes()));
        };
        // ET_DYN, EM_X86_64
        file.extend([3, 0, 62, 0, 1, 0, 0, 0]);
        // Without sections, also without their headers.
        let has_sections = self.sections != 0;
        let sections = match has_sections {
            true => {
                let others = [self.has_eh_frame, !self.sframe.is_empty()];
                self.sections + 2 + others.into_iter().filter(|is_there| *is_there).count()
            }
            false => 0,
        };
        words(
            &mut file,
            &[0, 64, if has_sections { sections_at as u64 } else { 0 }],
        );
        let names_index = sections.saturating_sub(1);
        for half in [0, 0, 64, 56, self.headers, 64, sections, names_index] {
            file.extend((half as u16).to_le_bytes());
        }
        for header in 0..self.headers {
            // PT_LOAD, readable and executable; the first one has the code.
            file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
            let is_first = header == 0;
            let address = if is_first {
                TEXT
            } else {
                (header as u64) << 12
            };
            let len = if is_first { self.text.len() } else { 0 };
            let claimed = len.max(if is_first { self.claimed } else { 0 });
            let (len, claimed) = (len as u64, claimed as u64);
            words(
                &mut file,
                &[text_at as u64, address, address, len, claimed, 0x1000],
            );
        }
        file.extend(&self.text);
        file.extend(&self.eh_frame);
        file.extend(&self.sframe);
        file.extend(names.bytes());
        if !has_sections {
            return file;
        }
        file.resize(sections_at, 0);
        let mut section =
            |name: u32, kind: u32, flags: u64, address: u64, at: usize, len: usize| {
                file.extend(name.to_le_bytes());
                file.extend(kind.to_le_bytes());
                words(&mut file, &[flags, address, at as u64, len as u64, 0, 1, 0]);
            };
        section(0, 0, 0, 0, 0, 0);
        for _ in 0..self.sections {
            section(1, 1, 6, TEXT, text_at, self.text.len().max(self.claimed));
        }
        if self.has_eh_frame {
            section(17, 1, 2, EH_FRAME, eh_frame_at, self.eh_frame.len());
        }
        if !self.sframe.is_empty() {
            // SHT_GNU_SFRAME.
            section(0, 0x6fff_fff4, 2, TEXT, sframe_at, self.sframe.len());
        }
        section(7, 3, 0, 0, names_at, names.len());
        file
    }
}

/// The number of rows that are dropped for a reason.
pub(crate) fn dropped(converted: &Converted, reason: DropReason) -> u64 {
    let dropped = &converted.report.dropped;
    dropped.get(&reason).map_or(0, |(rows, _)| *rows)
}

/// The rules at offsets in the text.
pub(crate) fn rules(file: &[u8], converted: &Converted, offsets: &[u64]) -> Vec<Option<Rule>> {
    let code = CodeBytes::of(file).unwrap();
    let table = OwnedTable::new(&converted.section, &converted.extra_rows, &code).unwrap();
    let find = |offset: &u64| table.table().find(TEXT + offset);
    offsets.iter().map(find).map(without_rbx).collect()
}

/// A rule without what it says of rbx.
fn without_rbx(rule: Option<Rule>) -> Option<Rule> {
    rule.map(|rule| Rule {
        extra: sframe::rule::Extra::NONE,
        ..rule
    })
}

/// cfa=rsp plus an offset, for a function that does not change rbp.
pub(crate) fn plain(cfa: i32) -> Option<Rule> {
    Some(Rule::amd64(Base::Sp, cfa, Location::Unchanged))
}
