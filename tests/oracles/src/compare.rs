// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Compares the core with all oracles on one file, and accumulates the results.

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
    error::Error,
    fde::Function,
    header::Starts,
    rule::{
        Rule,
        SavedRbx, //
    },
    section::{
        Search,
        Section, //
    },
    x86_64::{
        self,
        STUB, //
    }, //
};

use crate::{
    answers::{
        self,
        Answers, //
    },
    gimli_oracle,
    image::{
        Image,
        APART, //
    },
    kinds::{
        self,
        Disagreement, //
    },
    simple_frame_rs,
};

/// At most one row in this many may disagree with an oracle.
const ROWS_PER_DISAGREEMENT: u64 = 10_000;

/// The name of the comparison with .eh_frame of PLTs only.
const STUBS: &str = "eh_frame-plt";

/// The name of the search for code that .eh_frame covers and .sframe does not. Each range of
/// .eh_frame is looked up once. (Statically linked programs contain parts of libc, which has no
/// .sframe.)
const GAPS: &str = "eh_frame-gaps";

/// The maximum number of unknown disagreements that are printed for each file and oracle.
const SHOWN: usize = 4;

/// A function as the core reads it.
pub(crate) struct Ours {
    pub(crate) function: Function,
    /// Each row's start, in bytes from the function's start, and its rule.
    pub(crate) rows: Vec<(u64, Rule)>,
    /// The result of the lookup at each address of the function.
    pub(crate) found: Vec<Option<Rule>>,
    /// As `found`, but with the rule from the instructions in PLT stubs.
    pub(crate) corrected: Vec<Option<Rule>>,
}

/// Reads a section with the core.
fn read_section(path: &Path, image: &Image) -> (Section, Vec<Ours>) {
    let bytes = &*image.sframe.bytes;
    let mut section = Section::open(bytes, image.sframe.address, bytes.len() as u64)
        .expect("the core: a section");
    if image.relocatable {
        // As the linker does, which ignores its own flags in object files.
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
                // In unsorted sections each lookup reads all functions: one lookup for each
                // function is enough.
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
                .map(|(pc, found)| stub_rule(image, &function, pc).or(*found))
                .collect();
            Ours {
                function,
                rows,
                found,
                corrected,
            }
        })
        .collect();
    assert_no_rule_outside(&section, bytes, &ours);
    (section, ours)
}

/// Asserts that a lookup finds no rule directly before and after each function, unless another
/// function lies there.
fn assert_no_rule_outside(section: &Section, bytes: &[u8], ours: &[Ours]) {
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

/// The rule from the instructions of a PLT stub, as in the kernel module.
fn stub_rule(image: &Image, function: &Function, pc: u64) -> Option<Rule> {
    if image.architecture != Architecture::X86_64 {
        return None;
    }
    let (stub, offset) = function.stub(pc)?;
    let mut code = [0; STUB];
    let bytes = image.bytes_at(stub, STUB);
    code[..bytes.len()].copy_from_slice(bytes);
    let mut rule = x86_64::rule_of_stub(&code, offset)?;
    // No oracle tells where rbx is.
    rule.extra.rbx = SavedRbx::UNKNOWN;
    Some(rule)
}

/// The results of the comparison with one oracle.
#[derive(Default)]
struct ComparisonCount {
    files: u64,
    functions: u64,
    rows: u64,
    addresses: u64,
    /// Rows and addresses that disagree, by kind.
    kinds: BTreeMap<&'static str, (u64, u64)>,
}

impl ComparisonCount {
    /// The number of rows that the oracle reads, and of those that disagree.
    fn rows_read(&self) -> (u64, u64) {
        let (unread, _) = self.kinds.get(kinds::UNREAD).copied().unwrap_or_default();
        let against: u64 = self.kinds.values().map(|(rows, _)| rows).sum();
        (self.rows - unread, against - unread)
    }

    fn add(&mut self, other: &ComparisonCount) {
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

/// The results for all files.
#[derive(Default)]
pub(crate) struct Totals {
    by_oracle: BTreeMap<String, ComparisonCount>,
    /// The number of addresses in PLTs whose row is wrong, and whose rule from the instructions is
    /// right.
    corrected: u64,
    failed: bool,
}

/// A comparison of one file with one oracle.
struct Comparison<'a> {
    writer: &'a str,
    file: &'a str,
    oracle: &'a str,
    image: &'a Image,
    section: &'a Section,
    count: ComparisonCount,
    /// The disagreements of unknown kind.
    unknown: Vec<String>,
    /// The addresses at which the oracle disagrees.
    disagreeing: BTreeSet<u64>,
    /// The number of addresses at which the rule from the instructions differs from the row's.
    corrected: u64,
}

impl Comparison<'_> {
    /// Compares one rule with the oracle's, and counts the result.
    fn judge(
        &mut self,
        ours: &Ours,
        address: u64,
        row: bool,
        our_rule: Option<Rule>,
        oracle_rule: Option<Rule>,
    ) {
        if row {
            self.count.rows += 1;
        } else {
            self.count.addresses += 1;
        }
        if our_rule == oracle_rule {
            return;
        }
        let case = Disagreement {
            writer: self.writer,
            oracle: self.oracle,
            image: self.image,
            section: self.section,
            ours,
            address,
            row,
            our_rule,
            oracle_rule,
        };
        let kind = kinds::kind(&case);
        let sum = self.count.kinds.entry(kind).or_default();
        if row {
            sum.0 += 1;
        } else {
            sum.1 += 1;
            self.disagreeing.insert(address);
        }
        if kind == kinds::UNKNOWN {
            self.unknown.push(case.to_string());
        }
    }

    /// Compares with the answers of an oracle that reads the section.
    fn with(&mut self, ours: &[Ours], answers: &Answers) {
        self.count.functions = ours.len() as u64;
        if ours.len() != answers.functions.len() {
            self.unknown.push(format!(
                "{} functions, the oracle has {}",
                ours.len(),
                answers.functions.len()
            ));
            return;
        }
        for (ours, theirs) in ours.iter().zip(&answers.functions) {
            let function = &ours.function;
            let start = function.start();
            // Most oracles do not relocate object files.
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
                    "{function:x?} with {} rows, the oracle has {theirs:x?}",
                    ours.rows.len()
                ));
                continue;
            }
            for ((offset, our_rule), (at, oracle_rule)) in ours.rows.iter().zip(&theirs.rows) {
                if offset != at {
                    self.unknown.push(format!(
                        "{start:#x}: a row at {offset:#x}, the oracle has {at:#x}"
                    ));
                }
                self.judge(
                    ours,
                    start + offset,
                    true,
                    Some(*our_rule),
                    Some(*oracle_rule),
                );
            }
            for (offset, our_rule) in ours.found.iter().enumerate() {
                let offset = offset as u64;
                let oracle_rule = match (&answers.found, function.repeat()) {
                    (Some(_), _) => answers.find(start + offset),
                    (None, Some(block)) => theirs.rule(offset % u64::from(block.get())),
                    (None, None) => theirs.rule(offset),
                };
                self.judge(ours, start + offset, false, *our_rule, oracle_rule);
            }
        }
    }

    /// Finds code that .eh_frame covers and that has no row.
    fn gaps(&mut self, ranges: &[gimli_oracle::Range]) {
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
                    "{:#x} to {:#x} have no row, .eh_frame has {:?}",
                    range.first, range.end, range.rule
                ));
            }
        }
    }

    /// Compares with .eh_frame. `plt` restricts the comparison to PLTs.
    fn with_eh_frame(&mut self, ours: &[Ours], ranges: &[gimli_oracle::Range], plt: bool) {
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
            for (offset, (our_rule, row)) in ours.corrected.iter().zip(&ours.found).enumerate() {
                self.corrected += u64::from(our_rule != row);
                let pc = start + offset as u64;
                let index = ranges.partition_point(|range| range.first <= pc);
                let range = index.checked_sub(1).map(|index| &ranges[index]);
                let oracle_rule = range
                    .filter(|range| pc < range.end)
                    .and_then(|range| range.rule);
                let offset = offset as u64;
                if ours.rows.iter().any(|(row, _)| *row == offset) {
                    self.judge(ours, pc, true, *our_rule, oracle_rule);
                }
                self.judge(ours, pc, false, *our_rule, oracle_rule);
            }
        }
    }
}

impl Totals {
    /// Compares one file with all oracles.
    pub(crate) fn file(&mut self, writer: &str, file: &Path, answers_path: &str, document: &str) {
        let image = Image::load(file).unwrap_or_else(|| panic!("{}: no .sframe", file.display()));
        let name = file.file_name().expect("a name").to_string_lossy();
        let (section, ours) = read_section(file, &image);

        let mut all: Vec<(String, Answers)> = Vec::new();
        for oracle in kinds::ORACLES {
            let Ok(text) = fs::read_to_string(format!("{answers_path}.{oracle}")) else {
                continue;
            };
            let parsed = match *oracle {
                "llvm-22" => answers::llvm(&text),
                "libsframe-2.47" => answers::libsframe(&text, &section),
                _ => answers::binutils(&text, &section),
            };
            all.push(((*oracle).into(), parsed));
        }
        all.push((
            "simple-frame-rs".into(),
            simple_frame_rs::answers(&image.sframe, &section),
        ));
        let ranges = gimli_oracle::ranges(&image, section.abi());
        let new = |oracle| Comparison {
            writer,
            file: &name,
            oracle,
            image: &image,
            section: &section,
            count: ComparisonCount {
                files: 1,
                ..ComparisonCount::default()
            },
            unknown: Vec::new(),
            disagreeing: BTreeSet::new(),
            corrected: 0,
        };
        let mut comparisons = Vec::new();
        for (oracle, answers) in &all {
            let mut comparison = new(oracle);
            comparison.with(&ours, answers);
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
            // For each address that an oracle disagrees on, another oracle must agree with the
            // core.
            let alone = comparison.disagreeing.iter().find(|address| {
                !comparisons.iter().any(|other| {
                    other.oracle != comparison.oracle
                        && ![STUBS, GAPS].contains(&other.oracle)
                        && !other.disagreeing.contains(address)
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
            println!("# no oracle agrees with the core at {address:#x}");
        }
        for kind in unlisted {
            println!("# kind `{kind}` is not in the document");
        }
        if comparison.oracle == STUBS {
            self.corrected += comparison.corrected;
        }
        let oracle = comparison.oracle.to_owned();
        self.by_oracle.entry(oracle).or_default().add(count);
    }

    /// Prints the table and the totals. Returns whether all checks passed.
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
                println!("not ok - oracle: {oracle} has no answers: run tests/oracles/run");
            }
        }
        println!(
            "{}ok - oracle: the instructions of PLTs correct wrong rows ({} addresses)",
            if self.corrected != 0 { "" } else { "not " },
            self.corrected
        );
        !self.failed && self.corrected != 0
    }
}
