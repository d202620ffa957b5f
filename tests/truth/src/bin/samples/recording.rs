// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Reads the recordings of `tests/truth/recorder.c`: samples, each with the kernel's chain and the
//! module's walk for it, and changes of mappings.
//!
//! Records are those of perf_event_open(2), `include/uapi/linux/perf_event.h`.

use std::{
    collections::HashMap,
    fmt, //
};

use walk::registers::{
    self,
    RegisterFile, //
};

/// The magic bytes of a recording.
const MAGIC: &[u8] = b"SFUTRUT1";

// The types of records: perf's and the recorder's.
const MMAP2: u32 = 10;
const LOST: u32 = 2;
const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const DEFERRED: u32 = 22;
const NOTE: u32 = 1000;
const FORMAT: u32 = 1001;
const VDSO: u32 = 1002;
const TOTALS: u32 = 1003;

/// Flag in `misc`: the name is that of a new program.
const MISC_COMM_EXEC: u16 = 1 << 13;
const PROT_EXEC: u32 = 4;

// Markers in call chains.
const CONTEXT_USER: u64 = -512i64 as u64;
const CONTEXT_USER_DEFERRED: u64 = -640i64 as u64;
const CONTEXT_MAX: u64 = -4095i64 as u64;

const REGISTERS_ABI_NONE: u64 = 0;
const REGISTERS_ABI_64: u64 = 2;

/// The DWARF numbers of the registers in a sample, in their order there (asm/perf_regs.h): rax,
/// rbx, rcx, rdx, rsi, rdi, rbp, rsp, rip, r8 to r15.
const REGISTERS: [u8; registers::COUNT] = [
    0,
    3,
    2,
    1,
    4,
    5,
    registers::RBP,
    registers::RSP,
    registers::PC,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
];

/// The fault of a recording.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// Its offset in the file, in bytes.
    at: usize,
    what: &'static str,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at offset {:#x}; was the recorder ended before its end?",
            self.what, self.at
        )
    }
}

/// The context in which the kernel took a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SampleContext {
    /// With the sample.
    Immediate,
    /// On the way back to user space.
    Deferred,
}

impl SampleContext {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            SampleContext::Immediate => "immediate",
            SampleContext::Deferred => "deferred",
        }
    }
}

/// A walk of the module, from its tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    /// "irq", "deferred" and so on.
    pub(crate) context: String,
    /// The number of frames.
    pub(crate) frames: u32,
    /// The stop reason.
    pub(crate) reason: String,
}

/// The stack that the kernel reported for a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The context in which it was taken.
    pub(crate) context: SampleContext,
    /// The user frames, from the innermost outwards; empty if a deferred stack is missing.
    pub(crate) frames: Option<Vec<u64>>,
    /// The module's walk for it, if any.
    pub(crate) walk: Option<Walk>,
}

/// A sample.
#[derive(Clone, Debug)]
pub(crate) struct RecordedSample<'a> {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// The user registers, if any, of 64-bit code.
    pub(crate) registers: Option<RegisterFile>,
    /// The user stack, from the stack pointer upwards.
    pub(crate) stack: &'a [u8],
    pub(crate) chain: Chain,
}

/// An event. Events are in order of time.
#[derive(Clone, Debug)]
pub(crate) enum Event<'a> {
    /// A mapping of a file or of anonymous memory was added or changed.
    Map {
        pid: u32,
        start: u64,
        end: u64,
        offset: u64,
        executable: bool,
        name: String,
    },
    /// A process has forked: it has a copy of its parent's mappings.
    Fork { pid: u32, parent: u32 },
    /// A process has executed another program; it has no mappings.
    Exec { pid: u32 },
    /// A sample.
    Sample(Box<RecordedSample<'a>>),
}

/// A whole recording.
#[derive(Debug, Default)]
pub(crate) struct Recording<'a> {
    /// The program's name, if recorded.
    pub(crate) name: Option<String>,
    /// The command's words.
    pub(crate) command: Vec<String>,
    /// The kernel's release.
    pub(crate) release: String,
    /// Whether the module was loaded.
    pub(crate) module: bool,
    /// The maximum number of frames of a stack that is taken with a sample.
    pub(crate) max_stack: usize,
    /// The vDSO's pages.
    pub(crate) vdso: &'a [u8],
    /// All that happened.
    pub(crate) events: Vec<Event<'a>>,
    /// The number of records that were lost because a ring buffer was full.
    pub(crate) lost: u64,
    /// The number of walks whose number of frames differs from the sample's chain.
    pub(crate) walks_that_differ: u64,
}

/// The rest of the bytes that are being read.
#[derive(Clone, Copy)]
struct RecordReader<'a> {
    bytes: &'a [u8],
    /// The offset of `bytes` in the file.
    at: usize,
}

impl<'a> RecordReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(Broken {
            at: self.at,
            what: "a record ends early",
        })?;
        self.bytes = rest;
        self.at += len;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, Broken> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into().expect("two")))
    }

    fn u32(&mut self) -> Result<u32, Broken> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four")))
    }

    fn u64(&mut self) -> Result<u64, Broken> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight")))
    }

    fn text(&self) -> String {
        let end = self.bytes.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(&self.bytes[..end.unwrap_or(self.bytes.len())]).into_owned()
    }
}

/// The offsets of fields in the tracepoint's data, in bytes.
#[derive(Default)]
struct Fields {
    frames: usize,
    context: usize,
    reason: usize,
}

impl Fields {
    /// Reads tracefs's `format`: `field:unsigned int frames; offset:12; size:4; signed:0;`.
    fn parse(format: &str) -> Option<Fields> {
        let offset_of = |name: &str| {
            format.lines().find_map(|line| {
                let mut parts = line.trim().split(';');
                let field = parts.next()?.strip_prefix("field:")?;
                if field.rsplit([' ', '\t']).next() != Some(name) {
                    return None;
                }
                parts.next()?.trim().strip_prefix("offset:")?.parse().ok()
            })
        };
        Some(Fields {
            frames: offset_of("frames")?,
            context: offset_of("context")?,
            reason: offset_of("reason")?,
        })
    }

    fn walk(&self, data: &[u8]) -> Option<Walk> {
        let word = |at: usize| {
            let bytes = data.get(at..)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes))
        };
        // A text field: its offset in the lower half, its length in the upper half.
        let text = |at| {
            let place = word(at)?;
            let (start, len) = ((place & 0xffff) as usize, (place >> 16) as usize);
            let bytes = data.get(start..start.checked_add(len)?)?;
            let end = bytes.iter().position(|byte| *byte == 0)?;
            Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
        };
        Some(Walk {
            context: text(self.context)?,
            frames: word(self.frames)?,
            reason: text(self.reason)?,
        })
    }
}

/// The fields at the end of all records but samples.
struct RecordId {
    tid: u32,
    time: u64,
    cpu: u32,
}

impl RecordId {
    const SIZE: usize = 32;

    fn read(record: &RecordReader<'_>) -> Result<RecordId, Broken> {
        let start = record
            .bytes
            .len()
            .checked_sub(RecordId::SIZE)
            .ok_or(Broken {
                at: record.at,
                what: "a record is too short",
            })?;
        let mut end = RecordReader {
            bytes: &record.bytes[start..],
            at: record.at + start,
        };
        let _pid = end.u32()?;
        Ok(RecordId {
            tid: end.u32()?,
            time: end.u64()?,
            cpu: end.u32()?,
        })
    }
}

/// A record, with the numbers that connect it to others.
enum LinkedRecord<'a> {
    Event(Event<'a>),
    /// A sample whose stack is deferred, with its cookie.
    Promised(Box<RecordedSample<'a>>, u64),
    Walk(u32, Walk),
    Deferred(u32, u64, Vec<u64>),
}

/// The maximum number of frames of a deferred stack: one page, without the page's header.
const MAX_DEFERRED: usize = 510;

impl<'a> Recording<'a> {
    /// The maximum number of frames of a stack.
    pub(crate) fn most_frames(&self, context: SampleContext) -> usize {
        match context {
            SampleContext::Immediate => self.max_stack,
            SampleContext::Deferred => MAX_DEFERRED,
        }
    }

    /// Reads a file.
    pub(crate) fn parse(file: &'a [u8]) -> Result<Recording<'a>, Broken> {
        let mut recording = Recording::default();
        let mut reader = RecordReader { bytes: file, at: 0 };
        if reader.take(MAGIC.len()).ok() != Some(MAGIC) {
            return Err(Broken {
                at: 0,
                what: "this is no recording of tests/truth/recorder.c",
            });
        }
        let mut clocks = Vec::new();
        let mut walks = Vec::new();
        let mut fields = Fields::default();
        let mut whole = false;
        // Each with its time.
        let mut items: Vec<(u64, LinkedRecord<'a>)> = Vec::new();
        // By CPU: the walk in the record in front.
        let mut in_front: HashMap<u32, (u32, Walk)> = HashMap::new();

        while !reader.bytes.is_empty() {
            let kind = reader.u32()?;
            let misc = reader.u16()?;
            let size = usize::from(reader.u16()?);
            let at = reader.at;
            let broken = |what| Broken { at, what };
            let bytes = reader.take(size.checked_sub(8).ok_or(broken("a record has no size"))?)?;
            let mut record = RecordReader { bytes, at };
            match kind {
                NOTE => {
                    for line in record.text().lines() {
                        let Some((name, value)) = line.split_once('=') else {
                            continue;
                        };
                        match name {
                            "release" => value.clone_into(&mut recording.release),
                            "name" => recording.name = Some(value.to_owned()),
                            "module" => recording.module = value == "1",
                            "max_stack" => recording.max_stack = value.parse().unwrap_or(127),
                            "clock" => clocks.push(value.parse().unwrap_or(0)),
                            "walk" => walks.push(value.parse().unwrap_or(0)),
                            "argument" => recording.command.push(value.to_owned()),
                            _ => {}
                        }
                    }
                }
                FORMAT => {
                    fields = Fields::parse(&record.text())
                        .ok_or(broken("the tracepoint has other fields than those known"))?;
                }
                VDSO => recording.vdso = bytes,
                TOTALS => whole = true,
                SAMPLE => {
                    let id = record.u64()?;
                    let _ip = record.u64()?;
                    let (pid, tid) = (record.u32()?, record.u32()?);
                    let time = record.u64()?;
                    let cpu = record.u32()?;
                    let _reserved = record.u32()?;
                    let walk_in_front = in_front.remove(&cpu);
                    if walks.contains(&id) {
                        let len = record.u32()?;
                        let walk = fields
                            .walk(record.take(len as usize)?)
                            .ok_or(broken("a walk's fields are not where they should be"))?;
                        in_front.insert(cpu, (tid, walk.clone()));
                        items.push((time, LinkedRecord::Walk(tid, walk)));
                    } else if clocks.contains(&id) {
                        let walk = walk_in_front
                            .filter(|(of, walk)| *of == tid && walk.context != "deferred")
                            .map(|(_, walk)| walk);
                        let (sample, cookie) = read_sample(&mut record, pid, tid, walk)?;
                        let item = match cookie {
                            Some(cookie) => LinkedRecord::Promised(sample, cookie),
                            None => LinkedRecord::Event(Event::Sample(sample)),
                        };
                        items.push((time, item));
                    } else {
                        return Err(broken("a sample is of no event that was opened"));
                    }
                }
                DEFERRED => {
                    let id = RecordId::read(&record)?;
                    in_front.remove(&id.cpu);
                    let (cookie, count) = (record.u64()?, record.u64()?);
                    let mut frames = Vec::new();
                    for _ in 0..count {
                        frames.push(record.u64()?);
                    }
                    frames.retain(|frame| *frame < CONTEXT_MAX);
                    items.push((id.time, LinkedRecord::Deferred(id.tid, cookie, frames)));
                }
                LOST => {
                    let id = RecordId::read(&record)?;
                    in_front.remove(&id.cpu);
                    let _id = record.u64()?;
                    recording.lost += record.u64()?;
                }
                MMAP2 | COMM | FORK => {
                    let id = RecordId::read(&record)?;
                    in_front.remove(&id.cpu);
                    if let Some(event) = read_change(kind, misc, &mut record)? {
                        items.push((id.time, LinkedRecord::Event(event)));
                    }
                }
                _ => {}
            }
        }
        if !whole {
            return Err(Broken {
                at: file.len(),
                what: "the last record is missing",
            });
        }
        // A stable sort: events with equal times stay in the order of the file.
        items.sort_by_key(|(time, _)| *time);
        recording.settle(items);
        Ok(recording)
    }

    /// Gives each sample its stack, and each stack its walk.
    fn settle(&mut self, items: Vec<(u64, LinkedRecord<'a>)>) {
        // By thread: the last walk on return to user space.
        let mut walks: HashMap<u32, Walk> = HashMap::new();
        // By thread and cookie: the deferred stacks. A stack may be reported more than once; only
        // the first report has a walk.
        let mut kept: HashMap<(u32, u64), (Vec<u64>, Option<Walk>)> = HashMap::new();
        let mut promised: Vec<(usize, u64)> = Vec::new();
        for (_, item) in items {
            match item {
                LinkedRecord::Walk(tid, walk) => {
                    if walk.context == "deferred" {
                        walks.insert(tid, walk);
                    }
                }
                LinkedRecord::Deferred(tid, cookie, frames) => {
                    let walk = walks.remove(&tid);
                    kept.entry((tid, cookie)).or_insert((frames, walk));
                }
                LinkedRecord::Promised(sample, cookie) => {
                    promised.push((self.events.len(), cookie));
                    self.events.push(Event::Sample(sample));
                }
                LinkedRecord::Event(event) => self.events.push(event),
            }
        }
        for (index, cookie) in promised {
            if let Event::Sample(sample) = &mut self.events[index] {
                if let Some((frames, walk)) = kept.get(&(sample.tid, cookie)) {
                    sample.chain.frames = Some(frames.clone());
                    sample.chain.walk.clone_from(walk);
                }
            }
        }
        for event in &self.events {
            if let Event::Sample(sample) = event {
                if let (Some(frames), Some(walk)) = (&sample.chain.frames, &sample.chain.walk) {
                    self.walks_that_differ += u64::from(frames.len() != walk.frames as usize);
                }
            }
        }
    }
}

/// Reads the fields of a sample after the CPU: the sample, and the cookie if its stack was
/// deferred.
fn read_sample<'a>(
    record: &mut RecordReader<'a>,
    pid: u32,
    tid: u32,
    walk: Option<Walk>,
) -> Result<(Box<RecordedSample<'a>>, Option<u64>), Broken> {
    let mut frames = Vec::new();
    let mut cookie = None;
    let mut is_user = false;
    let mut is_cookie = false;
    for _ in 0..record.u64()? {
        let entry = record.u64()?;
        if is_cookie {
            cookie = Some(entry);
            is_cookie = false;
        } else if entry >= CONTEXT_MAX {
            is_user = entry == CONTEXT_USER;
            is_cookie = entry == CONTEXT_USER_DEFERRED;
        } else if is_user {
            frames.push(entry);
        }
    }
    let abi = record.u64()?;
    let mut registers = None;
    if abi != REGISTERS_ABI_NONE {
        let mut values = [0; registers::COUNT];
        for number in REGISTERS {
            values[usize::from(number)] = record.u64()?;
        }
        if abi == REGISTERS_ABI_64 {
            registers = Some(RegisterFile::new(values));
        }
    }
    let size = record.u64()? as usize;
    let mut stack: &[u8] = &[];
    if size != 0 {
        let copied = record.take(size)?;
        let len = record.u64()? as usize;
        stack = copied.get(..len).ok_or(Broken {
            at: record.at,
            what: "a copy of the stack is longer than its space",
        })?;
    }
    let chain = Chain {
        context: if cookie.is_some() {
            SampleContext::Deferred
        } else {
            SampleContext::Immediate
        },
        frames: cookie.is_none().then_some(frames),
        walk: walk.filter(|_| cookie.is_none()),
    };
    let sample = RecordedSample {
        pid,
        tid,
        registers,
        stack,
        chain,
    };
    Ok((Box::new(sample), cookie))
}

/// Reads a change of mappings.
fn read_change<'a>(
    kind: u32,
    misc: u16,
    record: &mut RecordReader<'_>,
) -> Result<Option<Event<'a>>, Broken> {
    let pid = record.u32()?;
    Ok(match kind {
        MMAP2 => {
            let _tid = record.u32()?;
            let (start, len, offset) = (record.u64()?, record.u64()?, record.u64()?);
            let _device_and_inode = record.take(24)?;
            let protection = record.u32()?;
            let _flags = record.u32()?;
            let name = record.text();
            Some(Event::Map {
                pid,
                start,
                end: start.saturating_add(len),
                offset,
                executable: protection & PROT_EXEC != 0,
                name: if name == "//anon" {
                    String::new()
                } else {
                    name
                },
            })
        }
        FORK => {
            let parent = record.u32()?;
            (pid != parent).then_some(Event::Fork { pid, parent })
        }
        _ => (misc & MISC_COMM_EXEC != 0).then_some(Event::Exec { pid }),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Writes recordings, record by record.
    pub(crate) struct Writer(pub(crate) Vec<u8>);

    const CLOCK: u64 = 70;
    const WALK: u64 = 71;

    impl Writer {
        pub(crate) fn new(note: &str) -> Writer {
            let mut writer = Writer(MAGIC.to_vec());
            writer.record(
                NOTE,
                0,
                format!("{note}clock={CLOCK}\nwalk={WALK}\n").as_bytes(),
            );
            let format = "name: walk\nformat:\n\tfield:unsigned short common_type;\toffset:0;\n\
                \tfield:pid_t pid;\toffset:8;\tsize:4;\tsigned:1;\n\
                \tfield:unsigned int frames;\toffset:12;\tsize:4;\n\
                \tfield:__data_loc char[] context;\toffset:16;\tsize:4;\n\
                \tfield:__data_loc char[] reason;\toffset:20;\tsize:4;\n";
            writer.record(FORMAT, 0, format.as_bytes());
            writer
        }

        fn record(&mut self, kind: u32, misc: u16, body: &[u8]) {
            self.0.extend(kind.to_le_bytes());
            self.0.extend(misc.to_le_bytes());
            let size = 8 + body.len().next_multiple_of(8);
            self.0.extend((size as u16).to_le_bytes());
            self.0.extend(body);
            self.0.resize(self.0.len().next_multiple_of(8), 0);
        }

        fn words(words: &[u64]) -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        }

        fn with_id(&mut self, kind: u32, misc: u16, mut body: Vec<u8>, tid: u32, time: u64) {
            body.resize(body.len().next_multiple_of(8), 0);
            body.extend(Writer::words(&[(u64::from(tid) << 32) | 1, time, 0, CLOCK]));
            self.record(kind, misc, &body);
        }

        pub(crate) fn walk(&mut self, tid: u32, time: u64, context: &str, frames: u32, why: &str) {
            let mut data = vec![0; 12];
            data.extend(frames.to_le_bytes());
            let start = 24u32;
            let second = start + context.len() as u32 + 1;
            data.extend((start | ((context.len() as u32 + 1) << 16)).to_le_bytes());
            data.extend((second | ((why.len() as u32 + 1) << 16)).to_le_bytes());
            data.extend(format!("{context}\0{why}\0").as_bytes());
            let mut body = Writer::words(&[WALK, 0, (u64::from(tid) << 32) | 1, time, 0]);
            body.extend((data.len() as u32).to_le_bytes());
            body.extend(data);
            self.record(SAMPLE, 0, &body);
        }

        /// A sample of process 1, with registers that hold `registers`.
        pub(crate) fn sample(
            &mut self,
            tid: u32,
            time: u64,
            chain: &[u64],
            registers: &[u64; registers::COUNT],
            stack: &[u8],
        ) {
            let mut body = Writer::words(&[CLOCK, 0, (u64::from(tid) << 32) | 1, time, 0]);
            body.extend(Writer::words(&[chain.len() as u64]));
            body.extend(Writer::words(chain));
            body.extend(Writer::words(&[REGISTERS_ABI_64]));
            for number in REGISTERS {
                body.extend(registers[usize::from(number)].to_le_bytes());
            }
            let size = stack.len().next_multiple_of(8);
            body.extend(Writer::words(&[size as u64]));
            if size != 0 {
                body.extend(stack);
                body.resize(body.len() + size - stack.len(), 0);
                body.extend(Writer::words(&[stack.len() as u64]));
            }
            self.record(SAMPLE, 0, &body);
        }

        pub(crate) fn deferred(&mut self, tid: u32, time: u64, cookie: u64, frames: &[u64]) {
            let mut body = Writer::words(&[cookie, frames.len() as u64]);
            body.extend(Writer::words(frames));
            self.with_id(DEFERRED, 0, body, tid, time);
        }

        pub(crate) fn map(&mut self, time: u64, start: u64, len: u64, offset: u64, name: &str) {
            let mut body = Writer::words(&[(1 << 32) | 1, start, len, offset, 0, 0, 0]);
            body.extend(5u32.to_le_bytes());
            body.extend(2u32.to_le_bytes());
            body.extend(name.as_bytes());
            body.push(0);
            self.with_id(MMAP2, 0, body, 1, time);
        }

        pub(crate) fn end(mut self) -> Vec<u8> {
            self.record(TOTALS, 0, b"lost=0\n");
            self.0
        }
    }

    fn samples<'a>(recording: &'a Recording<'_>) -> Vec<&'a RecordedSample<'a>> {
        let samples = recording.events.iter();
        samples
            .filter_map(|event| match event {
                Event::Sample(sample) => Some(&**sample),
                _ => None,
            })
            .collect()
    }

    fn registers() -> [u64; registers::COUNT] {
        std::array::from_fn(|number| 0x100 + number as u64)
    }

    #[test]
    fn a_sample_has_its_chain_registers_stack_and_walk() {
        let mut writer = Writer::new("release=7\nmodule=1\nmax_stack=9\nargument=a\nargument=b\n");
        writer.walk(5, 20, "irq", 3, "no_rows");
        writer.sample(
            5,
            10,
            &[CONTEXT_USER, 0x110, 0x20, 0x30],
            &registers(),
            b"0123456789a",
        );
        // Walks in front: for the sample before; of another thread; on return to user space.
        writer.sample(5, 30, &[CONTEXT_USER], &registers(), b"");
        writer.walk(6, 40, "irq", 3, "full");
        writer.sample(5, 41, &[CONTEXT_USER], &registers(), b"");
        writer.walk(5, 42, "deferred", 3, "full");
        writer.sample(5, 43, &[CONTEXT_USER], &registers(), b"");
        let file = writer.end();
        let recording = Recording::parse(&file).unwrap();
        assert_eq!(recording.command, ["a", "b"]);
        assert_eq!((&*recording.release, recording.max_stack), ("7", 9));
        assert!(recording.module);
        assert_eq!(recording.walks_that_differ, 0);
        let samples = samples(&recording);
        let first = samples[0];
        assert_eq!(first.stack, b"0123456789a");
        assert_eq!(
            first.chain.frames.as_deref(),
            Some(&[0x110, 0x20, 0x30][..])
        );
        assert_eq!(first.chain.context, SampleContext::Immediate);
        assert_eq!(first.chain.walk.as_ref().unwrap().reason, "no_rows");
        let found = first.registers.unwrap();
        assert_eq!((found.pc(), found.sp()), (0x110, 0x107));
        assert_eq!(found.get(3), Some(0x103));
        assert!(samples[1..]
            .iter()
            .all(|sample| sample.chain.walk.is_none()));
    }

    #[test]
    fn deferred_stacks_come_by_number() {
        let mut writer = Writer::new("module=1\n");
        let promise = |cookie| [CONTEXT_USER_DEFERRED, cookie];
        writer.sample(5, 10, &promise(7), &registers(), b"");
        writer.sample(5, 11, &promise(7), &registers(), b"");
        writer.sample(6, 12, &promise(7), &registers(), b"");
        writer.sample(5, 13, &promise(9), &registers(), b"");
        writer.walk(5, 20, "deferred", 2, "outermost");
        writer.deferred(5, 21, 7, &[1, 2]);
        // Reported again: the kernel has cached it and did not walk.
        writer.deferred(5, 22, 7, &[1, 2]);
        writer.walk(5, 30, "deferred", 5, "full");
        writer.deferred(5, 31, 9, &[3]);
        let file = writer.end();
        let recording = Recording::parse(&file).unwrap();
        let samples = samples(&recording);
        for sample in &samples[..2] {
            assert_eq!(sample.chain.context, SampleContext::Deferred);
            assert_eq!(sample.chain.frames.as_deref(), Some(&[1, 2][..]));
            assert_eq!(sample.chain.walk.as_ref().unwrap().reason, "outermost");
        }
        assert_eq!(samples[2].chain.frames, None);
        assert_eq!(samples[3].chain.frames.as_deref(), Some(&[3][..]));
        assert_eq!(samples[3].chain.walk.as_ref().unwrap().reason, "full");
        assert_eq!(recording.walks_that_differ, 1);
    }

    #[test]
    fn mappings_come_in_the_order_of_time() {
        let mut writer = Writer::new("");
        writer.sample(5, 30, &[CONTEXT_USER, 1], &registers(), b"");
        writer.map(20, 0x1000, 0x2000, 0x3000, "/a b");
        writer.map(40, 0x1000, 0x1000, 0, "//anon");
        writer.with_id(FORK, 0, Writer::words(&[(1 << 32) | 2, 0, 0]), 1, 50);
        writer.with_id(FORK, 0, Writer::words(&[(1 << 32) | 1, 0, 0]), 1, 51);
        writer.with_id(
            COMM,
            MISC_COMM_EXEC,
            Writer::words(&[(2 << 32) | 2, 0x61]),
            2,
            60,
        );
        writer.with_id(COMM, 0, Writer::words(&[(2 << 32) | 2, 0x61]), 2, 61);
        let file = writer.end();
        let recording = Recording::parse(&file).unwrap();
        let seen: Vec<String> = recording
            .events
            .iter()
            .map(|event| match event {
                Event::Map {
                    pid,
                    start,
                    end,
                    offset,
                    executable,
                    name,
                } => format!("{pid}: {start:x}-{end:x} {offset:x} {executable} {name:?}"),
                Event::Fork { pid, parent } => format!("{pid}: from {parent}"),
                Event::Exec { pid } => format!("{pid}: exec"),
                Event::Sample(sample) => format!("{}: sample", sample.pid),
            })
            .collect();
        assert_eq!(
            seen,
            [
                "1: 1000-3000 3000 true \"/a b\"",
                "1: sample",
                "1: 1000-2000 0 true \"\"",
                "2: from 1",
                "2: exec",
            ]
        );
    }

    #[test]
    fn a_file_that_ends_early_is_refused() {
        let mut writer = Writer::new("");
        writer.sample(5, 30, &[CONTEXT_USER, 1], &registers(), b"abc");
        let file = writer.end();
        assert!(Recording::parse(&file).is_ok());
        for len in 0..file.len() {
            assert!(Recording::parse(&file[..len]).is_err(), "{len} bytes");
        }
        assert!(Recording::parse(b"PERFILE2").is_err());
    }
}
