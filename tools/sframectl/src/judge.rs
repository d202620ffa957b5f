// SPDX-License-Identifier: GPL-2.0-only

//! Judges stacks of the demo program by the chain of calls that the program itself records.
//!
//! Register r12 of each sample names a node of a tree of calls, which the program writes to a file
//! (samples/demo/chain.h). tests/lib/judge.py has equal rules, and judges more kinds of recordings.

use std::collections::HashMap;

/// `CHAIN_MAGIC`.
const MAGIC: u64 = 0xc4_a14e;
/// The fields of `perf script` that [`samples`] reads.
pub(crate) const PERF_FIELDS: &str = "comm,pid,tid,time,event,ip,sym,dso,uregs";

/// One call: the node of the caller, the address that the callee returns to, and the callee's name.
struct Node {
    parent: u64,
    address: u64,
    name: String,
}

/// The calls that the program made.
pub(crate) struct Tree {
    nodes: HashMap<u64, Node>,
    children: HashMap<u64, Vec<u64>>,
}

/// A frame as perf prints it.
#[derive(Clone, Debug)]
pub(crate) struct RecordedFrame {
    pub(crate) address: u64,
    pub(crate) symbol: String,
    pub(crate) object: String,
}

/// A sample: its user frames, innermost first, and register r12.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerfSample {
    pub(crate) frames: Vec<RecordedFrame>,
    r12: Option<u64>,
    /// Whether perf recorded only the placeholder of a deferred stack, and not the stack.
    is_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SampleVerdict {
    /// The stack has all frames up to main, and all are true.
    Complete,
    /// All frames are true, but the stack ends before main.
    Short,
    /// A frame before main differs from the truth.
    False,
    /// The stack has no user frame.
    Empty,
    /// Register r12 does not name a node, as during start-up and exit of the program.
    NoTruth,
    /// The deferred stack was not recorded.
    Lost,
}

impl Tree {
    /// The tree of a program's file: lines of `tree node parent return-address name`.
    pub(crate) fn read(text: &str) -> Option<Tree> {
        let mut tree = Tree {
            nodes: HashMap::new(),
            children: HashMap::new(),
        };
        for line in text.lines() {
            let mut words = line.split(' ');
            let base = (MAGIC << 40) | (words.next()?.parse::<u64>().ok()? << 16);
            let node = base | words.next()?.parse::<u64>().ok()?;
            let parent = base | words.next()?.parse::<u64>().ok()?;
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let name = words.next()?.to_owned();
            tree.children.entry(parent).or_default().push(node);
            tree.nodes.insert(
                node,
                Node {
                    parent,
                    address,
                    name,
                },
            );
        }
        Some(tree)
    }

    /// The return addresses from a node outwards, without the root's.
    fn chain(&self, mut node: u64) -> Vec<u64> {
        let mut addresses = Vec::new();
        while let Some(here) = self.nodes.get(&node) {
            if !self.nodes.contains_key(&here.parent) {
                break;
            }
            addresses.push(here.address);
            node = here.parent;
        }
        addresses
    }

    /// The possible nodes of a sample with this r12 in this function. At the two ends of a
    /// function, and in the PLT stub that leads to the function, r12 is the caller's.
    fn candidates(&self, r12: u64, symbol: &str) -> Vec<u64> {
        let name = symbol.split(['.', '@', '+']).next().unwrap_or_default();
        let fits = |node: &u64| {
            matches!(name, "" | "[unknown]")
                || self.nodes.get(node).is_some_and(|node| node.name == name)
        };
        let children = self.children.get(&r12).into_iter().flatten().copied();
        [r12].into_iter().chain(children).filter(fits).collect()
    }

    /// Judges a sample.
    pub(crate) fn judge(&self, sample: &PerfSample) -> SampleVerdict {
        let Some(r12) = sample.r12.filter(|r12| self.nodes.contains_key(r12)) else {
            return SampleVerdict::NoTruth;
        };
        let Some((first, callers)) = sample.frames.split_first() else {
            return if sample.is_lost {
                SampleVerdict::Lost
            } else {
                SampleVerdict::Empty
            };
        };
        let mut verdict = SampleVerdict::False;
        for candidate in self.candidates(r12, &first.symbol) {
            let truth = self.chain(candidate);
            let common = truth
                .iter()
                .zip(callers)
                .take_while(|(truth, caller)| **truth == caller.address)
                .count();
            if common == truth.len() {
                return SampleVerdict::Complete;
            }
            if common == callers.len() {
                verdict = SampleVerdict::Short;
            }
        }
        verdict
    }
}

/// A mapping of a file's code.
struct PerfMapping<'a> {
    start: u64,
    size: u64,
    offset: u64,
    path: &'a str,
}

/// The mapping in a line of `perf script --show-mmap-events`:
/// `... PERF_RECORD_MMAP2 7/7: [0x5500(0x1000) @ 0x2000 fe:01 12 0]: r-xp /path`.
fn mapping(line: &str) -> Option<PerfMapping<'_>> {
    let hexadecimal =
        |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let (_, rest) = line.split_once(": [")?;
    let (start, rest) = rest.split_once('(')?;
    let (size, rest) = rest.split_once(") @ ")?;
    let offset = rest.split([' ', ']']).next()?;
    let (_, path) = rest.split_once("]: ")?.1.split_once(' ')?;
    Some(PerfMapping {
        start: hexadecimal(start)?,
        size: hexadecimal(size)?,
        offset: hexadecimal(offset)?,
        path,
    })
}

/// The run-time address of a frame. Some versions of perf, for example 6.1, print offsets in the
/// file instead.
fn run_time_address(frame: &RecordedFrame, mappings: &[PerfMapping<'_>]) -> u64 {
    let address = frame.address;
    let is_in = |from: u64, size: u64| address.checked_sub(from).is_some_and(|by| by < size);
    if mappings
        .iter()
        .any(|mapping| is_in(mapping.start, mapping.size))
    {
        return address;
    }
    let mapping = mappings
        .iter()
        .find(|mapping| mapping.path == frame.object && is_in(mapping.offset, mapping.size));
    mapping.map_or(address, |mapping| address - mapping.offset + mapping.start)
}

/// The samples in the text of `perf script --no-inline --show-mmap-events -F PERF_FIELDS`.
pub(crate) fn samples(text: &str) -> Vec<PerfSample> {
    let mut samples: Vec<PerfSample> = Vec::new();
    let mut mappings = Vec::new();
    for line in text.lines() {
        if line.contains("PERF_RECORD_MMAP") {
            mappings.extend(mapping(line));
            continue;
        }
        let is_head = is_head(line);
        if is_head {
            samples.push(PerfSample::default());
        }
        let Some(sample) = samples.last_mut() else {
            continue;
        };
        let register = line.split_once(" R12:0x").map(|(_, rest)| {
            let digits = rest.split(|c: char| !c.is_ascii_hexdigit()).next();
            u64::from_str_radix(digits.unwrap_or_default(), 16)
        });
        if let Some(Ok(r12)) = register {
            sample.r12 = Some(r12);
        } else if let Some(mut frame) = (!is_head).then(|| frame(line)).flatten() {
            frame.address = run_time_address(&frame, &mappings);
            sample.add(frame);
        }
    }
    samples
}

/// Whether a line begins a sample: `comm pid/tid time: event:`.
fn is_head(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(head, _)| {
        let mut words = head.split_whitespace().rev();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_time = words
            .next()
            .and_then(|time| time.split_once('.'))
            .is_some_and(|(left, right)| is_number(left) && is_number(right));
        let is_task = words
            .next()
            .and_then(|task| task.split_once('/'))
            .is_some_and(|(left, right)| is_number(left) && is_number(right));
        is_time && is_task && words.next().is_some()
    })
}

/// A line of `address symbol (object)`, with white space before it.
fn frame(line: &str) -> Option<RecordedFrame> {
    let text = line.trim_end();
    if !text.starts_with(char::is_whitespace) {
        return None;
    }
    let (address, rest) = text.trim_start().split_once(' ')?;
    let (symbol, object) = match rest.split_once(" (") {
        Some((symbol, object)) => (symbol, object.strip_suffix(')')?),
        None => (rest, ""),
    };
    if symbol.contains(' ') {
        return None;
    }
    Some(RecordedFrame {
        address: u64::from_str_radix(address, 16).ok()?,
        symbol: symbol.to_owned(),
        object: object.to_owned(),
    })
}

impl PerfSample {
    fn add(&mut self, frame: RecordedFrame) {
        let is_first = self.frames.is_empty();
        let low = frame.address & 0xffff_ffff;
        // The placeholder: the stack's number in the high 32 bits, the CPU's number plus 1 in the
        // low 32 bits.
        let is_number =
            frame.symbol == "[unknown]" && frame.address >> 32 != 0 && (1..=4096).contains(&low);
        if frame.symbol == "(cookie)" || is_first && is_number {
            self.is_lost = true;
        } else if !is_first || frame.address >> 47 == 0 {
            // Kernel frames come first. Later frames with addresses in the kernel's half are false
            // user frames.
            self.frames.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// main calls run, run calls walk, which calls itself and then leaf.
    const TREE: &str = "\
        7 1 0 100 main\n\
        7 2 1 200 run\n\
        7 3 2 300 walk\n\
        7 4 3 310 walk\n\
        7 5 4 310 walk\n\
        7 6 5 320 leaf\n";

    fn r12(node: u64) -> u64 {
        (MAGIC << 40) | (7 << 16) | node
    }

    fn verdict_with(r12: Option<u64>, frames: &[(u64, &str)]) -> SampleVerdict {
        let mut text = String::from("demo 77/77 1.5:   cpu-clock:u: \n");
        for (address, symbol) in frames {
            text.push_str(&format!("\t{address:16x} {symbol} (/tmp/a demo)\n"));
        }
        if let Some(r12) = r12 {
            text.push_str(&format!(" ABI:2    R12:0x{r12:x}\n"));
        }
        let samples = samples(&text);
        assert_eq!(samples.len(), 1);
        Tree::read(TREE)
            .expect("the tree is read")
            .judge(&samples[0])
    }

    fn verdict(node: u64, frames: &[(u64, &str)]) -> SampleVerdict {
        verdict_with(Some(r12(node)), frames)
    }

    const LEAF: (u64, &str) = (0x500, "leaf");
    const WALK: (u64, &str) = (0x310, "walk");
    const TRUE: [(u64, &str); 6] = [
        LEAF,
        (0x320, "walk"),
        WALK,
        WALK,
        (0x300, "run"),
        (0x200, "main"),
    ];

    #[test]
    fn all_kinds() {
        assert_eq!(verdict(6, &TRUE), SampleVerdict::Complete);
        // Frames beyond main are not judged.
        let beyond = [&TRUE[..], &[(0x9999, "__libc_start")]].concat();
        assert_eq!(verdict(6, &beyond), SampleVerdict::Complete);
        assert_eq!(verdict(6, &TRUE[..4]), SampleVerdict::Short);
        assert_eq!(verdict(6, &[LEAF]), SampleVerdict::Short);
        assert_eq!(verdict(6, &[LEAF, TRUE[4]]), SampleVerdict::False);
        assert_eq!(verdict(6, &[]), SampleVerdict::Empty);
        assert_eq!(verdict(9, &TRUE), SampleVerdict::NoTruth);
        assert_eq!(verdict_with(None, &TRUE), SampleVerdict::NoTruth);
        assert_eq!(verdict_with(Some(0), &TRUE), SampleVerdict::NoTruth);
    }

    #[test]
    fn one_wrong_frame_of_each_is_found() {
        for wrong in 1..TRUE.len() {
            let mut frames = TRUE;
            frames[wrong].0 += 1;
            assert_eq!(verdict(6, &frames), SampleVerdict::False, "{wrong}");
        }
        for missing in 1..TRUE.len() - 1 {
            let mut frames = TRUE.to_vec();
            frames.remove(missing);
            // Two of the frames are equal: the stack is the same without either.
            assert_eq!(verdict(6, &frames), SampleVerdict::False, "{missing}");
        }
    }

    #[test]
    fn kernel_frames_come_first_and_a_lost_stack_is_told() {
        let kernel = (0xffff_ffff_8100_0000, "asm_sysvec_apic_timer_interrupt");
        assert_eq!(
            verdict(6, &[&[kernel], &TRUE[..]].concat()),
            SampleVerdict::Complete
        );
        assert_eq!(verdict(6, &[LEAF, kernel]), SampleVerdict::False);
        assert_eq!(verdict(6, &[kernel]), SampleVerdict::Empty);
        assert_eq!(verdict(6, &[kernel, (5, "(cookie)")]), SampleVerdict::Lost);
        assert_eq!(
            verdict(6, &[(0x7_0000_0001, "[unknown]")]),
            SampleVerdict::Lost
        );
    }

    #[test]
    fn at_the_ends_of_a_function_r12_is_the_callers() {
        assert_eq!(verdict(5, &TRUE), SampleVerdict::Complete);
        assert_eq!(
            verdict(5, &[&[(0x400, "leaf@plt")], &TRUE[1..]].concat()),
            SampleVerdict::Complete
        );
        assert_eq!(
            verdict(5, &[&[(0x400, "[unknown]")], &TRUE[1..]].concat()),
            SampleVerdict::Complete
        );
        assert_eq!(
            verdict(6, &[&[(0x500, "leaf.cold")], &TRUE[1..]].concat()),
            SampleVerdict::Complete
        );
        assert_eq!(
            verdict(5, &[&[(0x700, "helper")], &TRUE[1..]].concat()),
            SampleVerdict::False
        );
        assert_eq!(
            verdict(6, &[&[(0x700, "helper")], &TRUE[1..]].concat()),
            SampleVerdict::False
        );
        // The stack by frame pointers: the caller is missing.
        assert_eq!(
            verdict(5, &[&[LEAF], &TRUE[2..]].concat()),
            SampleVerdict::False
        );
    }

    #[test]
    fn offsets_in_the_file_become_run_time_addresses() {
        let text = "demo 77/77 1.4: PERF_RECORD_MMAP2 77/77: [0x550000001000(0x3000) @ 0x1000 fe:00 12 0]: r-xp /tmp/a demo\n\
            demo 77/77 1.4: PERF_RECORD_MMAP 77/77: [0x7f0000000000(0x1000) @ 0]: x /lib/libc.so.6\n\
            demo 77/77 1.5: cpu-clock:\n\
            \t    1010 leaf (/tmp/a demo)\n\
            \t550000001020 run (/tmp/a demo)\n\
            \t      20 [unknown] (/lib/libc.so.6)\n\
            \t    5000 [unknown] (/tmp/a demo)\n";
        let addresses: Vec<_> = samples(text)[0]
            .frames
            .iter()
            .map(|frame| frame.address)
            .collect();
        assert_eq!(
            addresses,
            [0x5500_0000_1010, 0x5500_0000_1020, 0x7f00_0000_0020, 0x5000]
        );
    }

    #[test]
    fn the_text_of_perf() {
        // Without a stack perf prints the sampled address on the first line.
        let text = format!(
            "demo 77/77 1.5: cpu-clock:      500 leaf (/tmp/demo) ABI:2 R12:0x{:x}\n",
            r12(6)
        );
        let found = samples(&text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].r12, Some(r12(6)));
        assert!(found[0].frames.is_empty());
        assert!(!is_head("\t     500 leaf (/tmp/demo)"));
        assert!(is_head("a b 1/22 3.4: raw_syscalls:sys_enter: NR 1 (1, 2)"));
        assert!(Tree::read("7 1 0 xyz main").is_none());
        assert!(Tree::read("").is_some());
    }
}
