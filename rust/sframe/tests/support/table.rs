// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! A table with memory of its own.

use sframe::{
    bytes::Source,
    rule::Rule,
    section::Section,
    table::{
        self,
        Functions,
        Place,
        Plan,
        Rules,
        Table,
        TableError, //
    }, //
};

pub(crate) struct Made {
    pub(crate) plan: Plan,
    pages: Vec<u32>,
    blocks: Vec<u8>,
    rules: Vec<Rule>,
}

impl Made {
    /// Makes one of all sections, with room for `room` rules.
    pub(crate) fn new<S: Source + ?Sized, C: Source + ?Sized>(
        bytes: &S,
        section: &Section,
        code: &C,
        room: usize,
    ) -> Result<Made, TableError> {
        let mut places = vec![Place::default(); table::count(bytes, section)?];
        let functions = Functions::collect(bytes, section, &mut places, |_, _| true)?;
        let mut rules = vec![Rule::OUTERMOST; room];
        let mut numbers = vec![0; room + room / 2 + 1];
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
        Ok(Made {
            plan,
            pages,
            blocks,
            rules: rules.all().to_vec(),
        })
    }

    pub(crate) fn table(&self) -> Table<'_> {
        Table {
            base: self.plan.base,
            pages: &self.pages,
            blocks: &self.blocks,
            rules: &self.rules,
        }
    }
}
