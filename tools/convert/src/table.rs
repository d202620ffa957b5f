// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Tables with memory of their own.

use sframe::{
    bytes::{
        Fault,
        Source, //
    },
    rule::Rule,
    section::Section,
    table::{
        self,
        Functions,
        Place,
        Rules,
        Table,
        TableError,
        MAX_RULES, //
    },
};

use crate::Code;

/// A table as the module would make it of a section.
#[derive(Clone, Debug)]
pub struct Owned {
    base: u64,
    pages: Vec<u32>,
    blocks: Vec<u8>,
    rules: Vec<Rule>,
}

impl Owned {
    /// Makes a table of a section that is as if at address 0, and of what follows it there, of
    /// functions that are code.
    ///
    /// # Errors
    ///
    /// See [`TableError`].
    pub fn new(bytes: &[u8], code: &Code<'_>) -> Result<Owned, TableError> {
        let section = Section::open(bytes, 0, bytes.len() as u64)?;
        let is_code = |first, last| code.holds(first, last);
        Owned::of(bytes, &section, code, is_code, MAX_RULES.min(bytes.len()))
    }

    /// Makes a table of all sections from the first one on, with room for `most` rules.
    ///
    /// # Errors
    ///
    /// See [`TableError`].
    pub fn of<S: Source + ?Sized, C: Source + ?Sized>(
        bytes: &S,
        first: &Section,
        code: &C,
        is_code: impl Fn(u64, u64) -> bool,
        most: usize,
    ) -> Result<Owned, TableError> {
        let mut places = vec![Place::default(); table::count(bytes, first)?];
        let functions = Functions::collect(bytes, first, &mut places, is_code)?;
        let mut rules = vec![Rule::OUTERMOST; most];
        let mut numbers = vec![0; 2 * most];
        let mut rules = Rules::new(&mut rules, &mut numbers);
        let plan = table::plan(bytes, code, &functions, &mut rules)?;
        let mut pages = vec![0; plan.pages];
        let mut blocks = vec![0; plan.blocks];
        table::fill(
            bytes,
            code,
            &functions,
            &mut rules,
            &plan,
            &mut pages,
            &mut blocks,
        )?;
        Ok(Owned {
            base: plan.base,
            pages,
            blocks,
            rules: rules.all().to_vec(),
        })
    }

    /// The table.
    pub fn table(&self) -> Table<'_> {
        Table {
            base: self.base,
            pages: &self.pages,
            blocks: &self.blocks,
            rules: &self.rules,
        }
    }

    /// How much memory it takes, in bytes.
    pub fn size(&self) -> usize {
        size_of_val(&*self.pages) + self.blocks.len() + size_of_val(&*self.rules)
    }
}

/// What is loaded as code, at link-time addresses.
impl Source for Code<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        self.segments
            .iter()
            .find_map(|(start, _, bytes)| {
                let at = usize::try_from(offset.checked_sub(*start)?).ok()?;
                bytes.get(at..)?.first_chunk().copied()
            })
            .ok_or(Fault)
    }
}
