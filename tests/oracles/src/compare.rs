// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The comparison of one file with all oracles, and what it comes to.

use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    fs,
    path::Path, //
};

use object::Architecture;
use sframe::{
    code::{
        self,
        STUB, //
    },
    error::Error,
    fde::Function,
    header::Starts,
    rule::Rule,
    section::{
        Search,
        Section, //
    }, //
};

use crate::{
    eh_frame,
    image::{
        Image,
        APART, //
    },
    kinds::{
        self,
        Case, //
    },
    said::{
        self,
        Said, //
    },
    simple,
};

/// Of how many rows one may be judged otherwise by an oracle.
const ROWS_PER_DISAGREEMENT: u64 = 10_000;

/// .eh_frame again, of PLTs alone.
const STUBS: &str = "eh_frame-plt";

/// .eh_frame once more: whether it describes code that has no row. Each of its ranges is asked for
/// once. (Programs hold parts of libc, which has no .sframe.)
const GAPS: &str = "eh_frame-gaps";

/// How many disagreements of a kind are shown for each file and oracle, if the kind is not known.
const SHOWN: usize = 4;

/// A function, as the core has it.
pub(crate) struct Ours {
    pub(crate) function: Function,
    /// Where each row starts, in bytes, and what it says.
    pub(crate) rows: Vec<(u64, Rule)>,
    /// What is found at each of its addresses.
    pub(crate) found: Vec<Option<Rule>>,
    /// The same, but by the instructions where they are those of a PLT.
    pub(crate) corrected: Vec<Option<Rule>>,
}

/// What the core says of a section.
fn ask(path: &Path, image: &Image) -> (Section, Vec<Ours>) {
    let bytes = &*image.sframe.bytes;
    let mut section = Section::open(bytes, image.sframe.address, bytes.len() as u64)
        .expect("the core: a section");
    if image.relocatable {
        // As the linker does, who knows what its own flags in such a file are worth.
        section = section.with_starts(Starts::Field);
    }
    section
        .verify(bytes)
        .unwrap_or_else(|error| panic!("the core on {}: {error}", path.display()));
    let ours: Vec<Ours> = section
        .functions(bytes)
        .map(|function| {
            let function = function.expect("the core: a function");
            let rows = section.rows(bytes, &function).map(|row| {
                let row = row.expect("the core: a row");
                (u64::from(row.start), row.rule)
            });
            let rows = rows.collect();
            let addresses = (0..u64::from(function.size())).map(|at| function.start() + at);
            let find = |pc| {
                // Unsorted functions are searched for one by one: once for each is enough.
                if !section.is_sorted() && pc != function.start() {
                    return section.find_rule(bytes, &function, pc, Search::Thorough);
                }
                match section.find(bytes, pc, Search::Bounded) {
                    Err(Error::TooLong) => section.find(bytes, pc, Search::Thorough),
                    other => other,
                }
            };
            let found: Vec<_> = addresses
                .clone()
                .map(|pc| find(pc).expect("the core: a correct section"))
                .collect();
            let corrected = addresses
                .zip(&found)
                .map(|(pc, found)| by_stub(image, &function, pc).or(*found))
                .collect();
            Ours {
                function,
                rows,
                found,
                corrected,
            }
        })
        .collect();
    nothing_outside(&section, bytes, &ours);
    (section, ours)
}

/// Right in front of and behind each function nothing is found, unless another one lies there.
fn nothing_outside(section: &Section, bytes: &[u8], ours: &[Ours]) {
    for function in ours.iter().map(|ours| &ours.function) {
        let end = function.start() + u64::from(function.size());
        for pc in [function.start().wrapping_sub(1), end] {
            if ours.iter().any(|other| other.function.covers(pc)) {
                continue;
            }
            let found = section
                .find(bytes, pc, Search::Thorough)
                .expect("the core: a correct section");
            assert_eq!(
                found, None,
                "the core has a rule for {pc:#x}, where no function is"
            );
        }
    }
}

/// What the instructions say, where they are those of a PLT: as the kernel module asks.
fn by_stub(image: &Image, function: &Function, pc: u64) -> Option<Rule> {
    if image.architecture != Architecture::X86_64 {
        return None;
    }
    let (stub, offset) = function.stub(pc)?;
    let mut code = [0; STUB];
    let bytes = image.bytes_at(stub, STUB);
    code[..bytes.len()].copy_from_slice(bytes);
    code::rule_of_stub(&code, offset)
}

/// What came out of comparing with one oracle.
#[derive(Default)]
struct Count {
    files: u64,
    functions: u64,
    rows: u64,
    addresses: u64,
    /// Rows and addresses that disagree, by kind.
    kinds: BTreeMap<&'static str, (u64, u64)>,
}

impl Count {
    /// How many rows the oracle has read, and in how many of them it disagrees.
    fn rows_read(&self) -> (u64, u64) {
        let (unread, _) = self.kinds.get(kinds::UNREAD).copied().unwrap_or_default();
        let against: u64 = self.kinds.values().map(|(rows, _)| rows).sum();
        (self.rows - unread, against - unread)
    }

    fn add(&mut self, other: &Count) {
        self.files += other.files;
        self.functions += other.functions;
        self.rows += other.rows;
        self.addresses += other.addresses;
        for (kind, (rows, addresses)) in &other.kinds {
            let sum = self.kinds.entry(kind).or_default();
            sum.0 += rows;
            sum.1 += addresses;
        }
    }
}

/// What came out of comparing all files.
#[derive(Default)]
pub(crate) struct Totals {
    by_oracle: BTreeMap<String, Count>,
    /// How many addresses in PLTs have a wrong row, and a right rule by their instructions.
    mended: u64,
    failed: bool,
}

/// One comparison under way.
struct Comparison<'a> {
    writer: &'a str,
    file: &'a str,
    oracle: &'a str,
    image: &'a Image,
    section: &'a Section,
    count: Count,
    /// What does not agree and is of no known kind.
    unknown: Vec<String>,
    /// The addresses where the oracle says otherwise.
    against: BTreeSet<u64>,
    /// At how many addresses the instructions say something else than the row does.
    mended: u64,
}

impl Comparison<'_> {
    /// Adds what the oracle says of an address to what was counted.
    fn judge(
        &mut self,
        ours: &Ours,
        address: u64,
        row: bool,
        we_say: Option<Rule>,
        it_says: Option<Rule>,
    ) {
        if row {
            self.count.rows += 1;
        } else {
            self.count.addresses += 1;
        }
        if we_say == it_says {
            return;
        }
        let case = Case {
            writer: self.writer,
            oracle: self.oracle,
            image: self.image,
            section: self.section,
            ours,
            address,
            row,
            we_say,
            it_says,
        };
        let kind = kinds::kind(&case);
        let sum = self.count.kinds.entry(kind).or_default();
        if row {
            sum.0 += 1;
        } else {
            sum.1 += 1;
            self.against.insert(address);
        }
        if kind == kinds::UNKNOWN {
            self.unknown.push(case.to_string());
        }
    }

    /// Compares with an oracle that reads the section.
    fn with(&mut self, ours: &[Ours], said: &Said) {
        self.count.functions = ours.len() as u64;
        if ours.len() != said.functions.len() {
            self.unknown.push(format!(
                "{} functions, it says {}",
                ours.len(),
                said.functions.len()
            ));
            return;
        }
        for (ours, theirs) in ours.iter().zip(&said.functions) {
            let function = &ours.function;
            let start = function.start();
            // Object files are relocated here alone.
            let same_start = self.image.relocatable
                && (theirs.start == start % APART || !kinds::relocates(self.oracle, self.section))
                || theirs.start == start;
            let alike = same_start
                && theirs.size == u64::from(function.size())
                && theirs.masked == function.repeat().is_some()
                && (theirs.signal == function.is_signal() || self.oracle == "llvm-22")
                && theirs.rows.len() == ours.rows.len();
            if !alike {
                self.unknown.push(format!(
                    "{function:x?} with {} rows, it says {theirs:x?}",
                    ours.rows.len()
                ));
                continue;
            }
            for ((offset, we_say), (at, it_says)) in ours.rows.iter().zip(&theirs.rows) {
                if offset != at {
                    self.unknown
                        .push(format!("{start:#x}: a row at {offset:#x}, it says {at:#x}"));
                }
                self.judge(ours, start + offset, true, Some(*we_say), Some(*it_says));
            }
            for (offset, we_say) in ours.found.iter().enumerate() {
                let offset = offset as u64;
                let it_says = match (&said.found, function.repeat()) {
                    (Some(_), _) => said.find(start + offset),
                    (None, Some(block)) => theirs.rule(offset % u64::from(block.get())),
                    (None, None) => theirs.rule(offset),
                };
                self.judge(ours, start + offset, false, *we_say, it_says);
            }
        }
    }

    /// Looks for code that .eh_frame describes and that has no row.
    fn gaps(&mut self, ranges: &[eh_frame::Range]) {
        let bytes = &*self.image.sframe.bytes;
        for range in ranges {
            self.count.addresses += 1;
            let function = self
                .section
                .find_function(bytes, range.first, Search::Thorough)
                .expect("the core: a correct section");
            if function.is_some() {
                continue;
            }
            let kind = kinds::gap(self.image, self.section, range, ranges);
            self.count.kinds.entry(kind).or_default().1 += 1;
            if kind == kinds::UNKNOWN {
                self.unknown.push(format!(
                    "{:#x} to {:#x} have no row, .eh_frame says {:?}",
                    range.first, range.end, range.rule
                ));
            }
        }
    }

    /// Compares with .eh_frame. `plt` asks for PLTs alone, or for all.
    fn with_eh_frame(&mut self, ours: &[Ours], ranges: &[eh_frame::Range], plt: bool) {
        for ours in ours {
            let start = ours.function.start();
            let in_plt = self
                .image
                .code_at(start)
                .is_some_and(|part| part.name.starts_with(".plt") || part.name == ".iplt");
            if plt && !in_plt {
                continue;
            }
            self.count.functions += 1;
            for (offset, (we_say, row)) in ours.corrected.iter().zip(&ours.found).enumerate() {
                self.mended += u64::from(we_say != row);
                let pc = start + offset as u64;
                let index = ranges.partition_point(|range| range.first <= pc);
                let range = index.checked_sub(1).map(|index| &ranges[index]);
                let it_says = range
                    .filter(|range| pc < range.end)
                    .and_then(|range| range.rule);
                let offset = offset as u64;
                if ours.rows.iter().any(|(row, _)| *row == offset) {
                    self.judge(ours, pc, true, *we_say, it_says);
                }
                self.judge(ours, pc, false, *we_say, it_says);
            }
        }
    }
}

impl Totals {
    /// Compares one file with all oracles.
    pub(crate) fn file(&mut self, writer: &str, file: &Path, said_of: &str, document: &str) {
        let image = Image::load(file).unwrap_or_else(|| panic!("{}: no .sframe", file.display()));
        let name = file.file_name().expect("a name").to_string_lossy();
        let (section, ours) = ask(file, &image);

        let mut all: Vec<(String, Said)> = Vec::new();
        for oracle in kinds::ORACLES {
            let Ok(text) = fs::read_to_string(format!("{said_of}.{oracle}")) else {
                continue;
            };
            let said = match *oracle {
                "llvm-22" => said::llvm(&text),
                "libsframe-2.47" => said::libsframe(&text, &section),
                _ => said::binutils(&text, &section),
            };
            all.push(((*oracle).into(), said));
        }
        all.push((
            "simple-frame-rs".into(),
            simple::said(&image.sframe, &section),
        ));
        let ranges = eh_frame::ranges(&image, section.abi());
        let new = |oracle| Comparison {
            writer,
            file: &name,
            oracle,
            image: &image,
            section: &section,
            count: Count {
                files: 1,
                ..Count::default()
            },
            unknown: Vec::new(),
            against: BTreeSet::new(),
            mended: 0,
        };
        let mut comparisons = Vec::new();
        for (oracle, said) in &all {
            let mut comparison = new(oracle);
            comparison.with(&ours, said);
            comparisons.push(comparison);
        }
        if !ranges.is_empty() {
            for (oracle, plt) in [("eh_frame", false), (STUBS, true)] {
                let mut comparison = new(oracle);
                comparison.with_eh_frame(&ours, &ranges, plt);
                if comparison.count.addresses != 0 {
                    comparisons.push(comparison);
                }
            }
        }
        if image.relocatable || name.ends_with(".so") {
            let mut comparison = new(GAPS);
            comparison.gaps(&ranges);
            if comparison.count.addresses != 0 {
                comparisons.push(comparison);
            }
        }
        for comparison in &comparisons {
            // Whoever disagrees has to have another one against him.
            let alone = comparison.against.iter().find(|address| {
                !comparisons.iter().any(|other| {
                    other.oracle != comparison.oracle
                        && ![STUBS, GAPS].contains(&other.oracle)
                        && !other.against.contains(address)
                })
            });
            self.report(comparison, document, alone.copied());
        }
    }

    fn report(&mut self, comparison: &Comparison<'_>, document: &str, alone: Option<u64>) {
        let count = &comparison.count;
        let unlisted: Vec<_> = count
            .kinds
            .keys()
            .filter(|kind| !document.contains(&format!("``{kind}``")))
            .collect();
        let good = comparison.unknown.is_empty() && unlisted.is_empty() && alone.is_none();
        self.failed |= !good;
        let disagreements: u64 = count.kinds.values().map(|(rows, pcs)| rows + pcs).sum();
        println!(
            "{}ok - oracle: {}/{} {} \
             ({} functions, {} rows, {} addresses, {disagreements} disagreements)",
            if good { "" } else { "not " },
            comparison.writer,
            comparison.file,
            comparison.oracle,
            count.functions,
            count.rows,
            count.addresses,
        );
        for line in comparison.unknown.iter().take(SHOWN) {
            println!("# {line}");
        }
        if let Some(address) = alone {
            println!("# nobody agrees with us at {address:#x}");
        }
        for kind in unlisted {
            println!("# kind `{kind}` is not in the document");
        }
        if comparison.oracle == STUBS {
            self.mended += comparison.mended;
        }
        let oracle = comparison.oracle.to_owned();
        self.by_oracle.entry(oracle).or_default().add(count);
    }

    /// Prints the table, and says whether all is as it should be.
    pub(crate) fn judge(&mut self) -> bool {
        println!(
            "# {:16} {:>5} {:>9} {:>9} {:>10}  disagreements: kind, rows, addresses",
            "oracle", "files", "functions", "rows", "addresses"
        );
        for (oracle, count) in &self.by_oracle {
            println!(
                "# {oracle:16} {:>5} {:>9} {:>9} {:>10}",
                count.files, count.functions, count.rows, count.addresses
            );
            for (kind, (rows, addresses)) in &count.kinds {
                println!("# {:54}  {kind}, {rows}, {addresses}", "");
            }
        }
        for (oracle, count) in &self.by_oracle {
            let (rows, against) = count.rows_read();
            let good = against * ROWS_PER_DISAGREEMENT <= rows;
            self.failed |= !good;
            println!(
                "{}ok - oracle: {oracle} agrees, in {} files ({rows} rows, {against} disagreements)",
                if good { "" } else { "not " },
                count.files,
            );
        }
        for oracle in kinds::ORACLES
            .iter()
            .chain(&["simple-frame-rs", "eh_frame", STUBS])
        {
            if self
                .by_oracle
                .get(*oracle)
                .is_none_or(|count| count.rows == 0)
            {
                self.failed = true;
                println!("not ok - oracle: {oracle} was not asked: run tests/oracles/run");
            }
        }
        println!(
            "{}ok - oracle: the instructions of PLTs mend wrong rows ({} addresses)",
            if self.mended != 0 { "" } else { "not " },
            self.mended
        );
        !self.failed && self.mended != 0
    }
}
