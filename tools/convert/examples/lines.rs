// SPDX-License-Identifier: GPL-2.0-only

//! Counts the cache lines of a file's table that a lookup touches.
//!
//! usage: lines FILE <ADDRESSES
//!
//! ADDRESSES are link-time return addresses in FILE, in hexadecimal digits, one on each line.
//! Prints the mean, and the percentage of lookups that touch at most three lines.

use std::{
    collections::BTreeSet,
    env,
    error::Error,
    fs,
    io, //
};

use convert::{
    CodeBytes,
    OwnedTable, //
};
use sframe::table::{
    CHUNK,
    NUMBER,
    PAGE, //
};

const LINE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1);
    let bytes = fs::read(path.ok_or("usage: lines FILE <ADDRESSES")?)?;
    let converted = convert::convert(&bytes).map_err(|error| error.to_string())?;
    let code = CodeBytes::of(&bytes).map_err(|error| error.to_string())?;
    let owned = OwnedTable::new(&converted.section, &converted.extra_rows, &code)
        .map_err(|error| format!("{error:?}"))?;
    let table = owned.table();

    let (mut looked_up, mut all, mut few) = (0usize, 0usize, 0usize);
    for line in io::stdin().lines() {
        let pc = u64::from_str_radix(line?.trim(), 16)?.wrapping_sub(1);
        let distance = pc.wrapping_sub(table.base).wrapping_add(1);
        let Some(block) = table.block(distance) else {
            continue;
        };
        let at = block;
        let last = table.row(block, distance).ok_or("the table is invalid")?;
        let number = last - NUMBER;
        let rule = u16::from_le_bytes([table.blocks[number], table.blocks[number + 1]]);
        let page = (distance / PAGE) as usize;
        // As in the kernel, each part starts at a cache line boundary.
        let places = [
            (0, page * size_of_val(&table.pages[page])),
            (3, page / CHUNK * size_of_val(&table.chunks[0])),
            (1, number),
            (1, at),
            (1, last),
            (2, usize::from(rule) * size_of_val(&table.compact[0])),
        ];
        let lines: BTreeSet<_> = places.map(|(part, at)| (part, at / LINE)).into();
        looked_up += 1;
        all += lines.len();
        few += usize::from(lines.len() <= 3);
    }
    println!(
        "{:.2} {:.1}",
        all as f64 / looked_up as f64,
        100.0 * few as f64 / looked_up as f64
    );
    Ok(())
}
