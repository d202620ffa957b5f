// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Prints the functions and rows of an ELF file's SFrame section.
//!
//! usage: dump_rows FILE

use std::{
    env,
    error::Error,
    fs, //
};

use sframe::{
    elf,
    section::Section, //
};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args_os().nth(1).ok_or("usage: dump_rows FILE")?;
    let file = fs::read(path)?;
    let Some(place) = elf::section_of_file(&file[..])? else {
        println!("no SFrame section");
        return Ok(());
    };
    let start = usize::try_from(place.offset)?;
    let end = start.saturating_add(usize::try_from(place.filesz)?);
    let bytes = file.get(start..end).ok_or("the file is cut short")?;
    // The section is opened at its link-time address. All addresses of functions are link-time
    // addresses.
    let section = Section::open(bytes, place.vaddr, bytes.len() as u64)?;
    println!("version {}", section.version().number());
    for function in section.functions(bytes) {
        let function = function?;
        println!("{:#x}, {} bytes", function.start(), function.size());
        for row in section.rows(bytes, &function) {
            let row = row?;
            println!("    +{:#x} {:?}", row.start, row.rule);
        }
    }
    Ok(())
}
