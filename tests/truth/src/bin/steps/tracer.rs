// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! A traced program: its threads, mappings, and memory.
//!
//! One thread is stepped at a time, in turn; the others are stopped. A thread in a system call is
//! waited for only if no other thread can be stepped. Forked processes are not traced.

use std::{
    cell::RefCell,
    ffi::CString,
    io,
    os::fd::OwnedFd,
    rc::Rc,
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use sframe::{
    bytes::Fault,
    unwind::Memory, //
};
use walk::{
    process::{
        CodeRegion,
        Files,
        Process, //
    },
    registers::RegisterFile,
    walker, //
};

use crate::{
    loaded::LoadedCode,
    ptrace::{
        self,
        Status, //
        TaskId,
    }, //
};

/// The number of steps of a thread before the next thread's turn.
const TURN: u32 = 100;
/// How often it is asked whether a system call is over, before another thread goes on.
const PATIENCE: u32 = 100;

/// How often an instruction is waited for, 20 milliseconds each time, before another thread goes
/// on. It may need memory that another one has to provide; and a thread may sleep in a system call
/// that begins once more.
const WAITS: u32 = 2;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The numbers of the system calls that change mappings: mmap, mprotect, munmap, brk, mremap,
/// shmat, execve, shmdt, remap_file_pages, execveat, pkey_mprotect.
const MAPPING_CALLS: [u64; 11] = [9, 10, 11, 12, 25, 30, 59, 67, 216, 322, 329];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    /// Stopped, with this signal pending, if not 0.
    Ready(i32),
    /// Running, or in a system call.
    Running,
}

#[derive(Debug)]
struct Thread {
    id: TaskId,
    state: ThreadState,
    registers: RegisterFile,
}

/// A traced program.
pub(crate) struct Tracer {
    process_id: TaskId,
    threads: Vec<Thread>,
    /// The mappings; outdated if `stale` is set.
    process: Process,
    stale: bool,
    /// The regions of the code that the program makes; empty until its runtime has started.
    regions: Vec<CodeRegion>,
    /// The code with `.eh_frame` in memory.
    loaded: LoadedCode,
    /// The mappings with the present objects of such code, as if these were mapped from files.
    truth: Process,
    /// The pages that were read for the last step.
    pages: Rc<RefCell<Vec<Page>>>,
    turn: usize,
    left_of_turn: u32,
    deadline: Instant,
    /// The exit status, or minus the signal that killed the program.
    ended: Option<i32>,
}

/// The result of a step.
pub(crate) enum Stepped {
    /// An instruction was executed, or a signal delivered.
    Step {
        /// The thread.
        thread: TaskId,
        /// Its registers after it.
        registers: RegisterFile,
    },
    /// The program has ended, or is stuck until the time limit.
    Over,
}

impl Tracer {
    /// Starts a program, to its first instruction.
    pub(crate) fn start(
        program: &[CString],
        null: &OwnedFd,
        deadline: Instant,
    ) -> io::Result<Tracer> {
        let process_id = ptrace::start(program, null)?;
        let mut tracer = Tracer {
            process_id,
            threads: vec![Thread {
                id: process_id,
                state: ThreadState::Running,
                registers: RegisterFile::default(),
            }],
            process: Process::new(),
            stale: true,
            regions: Vec::new(),
            loaded: LoadedCode::default(),
            truth: Process::new(),
            pages: Rc::default(),
            turn: 0,
            left_of_turn: TURN,
            deadline,
            ended: None,
        };
        while tracer.ended.is_none() {
            let found = ptrace::wait(Some(process_id), true)?;
            let Some((id, status)) = found else {
                continue;
            };
            tracer.take(id, status)?;
            let Status::Stopped { event, signal } = status else {
                continue;
            };
            if event == libc::PTRACE_EVENT_EXEC {
                return Ok(tracer);
            }
            tracer.resume(process_id, if event == 0 { signal } else { 0 })?;
        }
        Err(io::Error::other("it cannot be executed"))
    }

    /// The exit status if the program has ended, or minus the signal that ended it.
    pub(crate) fn ended(&self) -> Option<i32> {
        self.ended
    }

    /// The present mappings.
    pub(crate) fn process(&mut self, files: &mut Files) -> io::Result<&Process> {
        if self.stale {
            self.process = Process::read(self.process_id as u32, files)?;
            self.find_regions();
            self.loaded.outdate();
            self.use_regions();
            self.stale = false;
        }
        Ok(&self.process)
    }

    /// The mappings for the walk and those for the truth, as of the last call of
    /// [`Tracer::process`].
    pub(crate) fn processes(&self) -> (&Process, &Process) {
        (&self.process, &self.truth)
    }

    /// Gives the regions to the walk, and the present objects to the truth.
    fn use_regions(&mut self) {
        let regions = self.regions.iter().chain(self.loaded.regions());
        self.process.set_regions(regions.cloned().collect());
        self.process
            .set_without_region(self.loaded.without_region().to_vec());
        self.truth = self.process.clone();
        for object in self.loaded.present() {
            self.truth.map(object.clone());
        }
    }

    /// Finds the code that was loaded at these run-time addresses, at which a walk has met
    /// anonymous code. The module asks in the same case, and the next walk has the regions.
    pub(crate) fn find_loaded(
        &mut self,
        addresses: impl Iterator<Item = u64>,
        files: &mut Files,
    ) -> io::Result<()> {
        let mut is_new = false;
        for address in addresses {
            let region = self.process.region_at(address);
            let holds = region.is_some_and(|region| {
                region.guard.is_none_or(|(guard, value)| {
                    let mut word = [0; 8];
                    ptrace::read(self.process_id, guard, &mut word) == 8
                        && u64::from_le_bytes(word) == value
                })
            });
            if region.is_some() && !holds {
                self.loaded.withdraw(address);
                is_new = true;
            }
            if self.loaded.is_unknown(&self.process, address) {
                (self.loaded).search(self.process_id, &self.process, address, !holds, files)?;
                is_new = true;
            }
        }
        if is_new {
            self.use_regions();
        }
        Ok(())
    }

    /// Finds the regions of the code of a program that has a runtime. The runtime may be starting.
    fn find_regions(&mut self) {
        let mut mappings = self.process.mappings().iter();
        // Java reserves the memory for its code once. Others map more as they make code.
        let is_java = mappings.any(|mapping| mapping.name.ends_with("/libjvm.so"));
        if self.regions.is_empty() || !is_java {
            self.regions = runtimes::regions(self.process_id as u32).unwrap_or_default();
        }
    }

    /// As [`Tracer::process`], but includes the stack that `sp` points into: stacks grow.
    pub(crate) fn process_with(&mut self, sp: u64, files: &mut Files) -> io::Result<&Process> {
        if self.process.at(sp).is_none() {
            self.stale = true;
        }
        self.process(files)
    }

    /// The program's memory as it is now.
    pub(crate) fn memory(&self, sp: u64) -> StoppedMemory {
        StoppedMemory::new(self.process_id, sp, &self.pages)
    }

    /// Runs all threads for some time. Signals are delivered.
    pub(crate) fn run(&mut self, time: Duration) -> io::Result<()> {
        let until = (Instant::now() + time).min(self.deadline);
        self.stale = true;
        for index in 0..self.threads.len() {
            if let ThreadState::Ready(signal) = self.threads[index].state {
                self.go_on(index, signal)?;
            }
        }
        loop {
            while let Some((id, status)) = self.poll()? {
                self.take(id, status)?;
                if let Some(index) = self.index_of(id) {
                    if let ThreadState::Ready(signal) = self.threads[index].state {
                        self.go_on(index, signal)?;
                    }
                }
            }
            let now = Instant::now();
            if self.ended.is_some() || now >= until {
                break;
            }
            thread::sleep((until - now).min(Duration::from_micros(200)));
        }
        self.stop()
    }

    /// Stops all threads.
    fn stop(&mut self) -> io::Result<()> {
        for thread in &self.threads {
            if thread.state == ThreadState::Running {
                // The thread may have exited; waiting for it reports that.
                let _ = ptrace::interrupt(thread.id);
            }
        }
        while self.ended.is_none()
            && self
                .threads
                .iter()
                .any(|it| it.state == ThreadState::Running)
        {
            // The first of several threads may have ended, which shows after all others have.
            if Instant::now() > self.deadline {
                return Ok(());
            }
            match self.poll()? {
                Some((id, status)) => self.take(id, status)?,
                None => thread::sleep(Duration::from_micros(50)),
            }
            if self.threads.len() > 1 && self.first_has_ended() {
                break;
            }
        }
        Ok(())
    }

    /// Whether all threads but the first are stopped, and the first has exited.
    fn first_has_ended(&self) -> bool {
        let others = self.threads.iter().filter(|it| it.id != self.process_id);
        let all_still = others.clone().all(|it| it.state != ThreadState::Running);
        all_still
            && std::fs::read_to_string(format!("/proc/{}/stat", self.process_id)).is_ok_and(
                |text| {
                    text.rsplit(") ")
                        .next()
                        .is_some_and(|it| it.starts_with('Z'))
                },
            )
    }

    /// Steps the thread whose turn it is.
    pub(crate) fn step(&mut self, files: &mut Files) -> io::Result<Stepped> {
        loop {
            if self.ended.is_some() || Instant::now() > self.deadline {
                return Ok(Stepped::Over);
            }
            let Some(index) = self.next_ready() else {
                match self.poll()? {
                    Some((id, status)) => {
                        if let Some(stepped) = self.after(id, status)? {
                            return Ok(stepped);
                        }
                    }
                    None => thread::sleep(Duration::from_micros(100)),
                }
                continue;
            };
            let ThreadState::Ready(signal) = self.threads[index].state else {
                continue;
            };
            let id = self.threads[index].id;
            // What was stopped otherwise than by a step may be in a system call, which then begins
            // once more.
            let pc = self.threads[index].registers.pc();
            let is_call = pc == 0 || walker::code_at(self.process(files)?, pc) == Some(SYSCALL);
            if let Err(error) = ptrace::step(id, signal) {
                self.gone(error)?;
                self.threads[index].state = ThreadState::Running;
                continue;
            }
            self.threads[index].state = ThreadState::Running;
            // Waiting for an instruction ends each 20 milliseconds, too.
            let mut patience = if is_call { PATIENCE } else { WAITS };
            loop {
                match ptrace::wait(Some(id), !is_call) {
                    Ok(Some((id, status))) => {
                        if let Some(stepped) = self.after(id, status)? {
                            return Ok(stepped);
                        }
                        break;
                    }
                    Ok(None) => {
                        patience -= 1;
                        if patience == 0 {
                            break;
                        }
                        thread::yield_now();
                    }
                    Err(error) => {
                        self.gone(error)?;
                        self.forget(id, 0);
                        break;
                    }
                }
            }
        }
    }

    /// Records a thread's change of state. Returns the step if it was one.
    fn after(&mut self, id: TaskId, status: Status) -> io::Result<Option<Stepped>> {
        self.take(id, status)?;
        let stepped = Status::Stopped {
            signal: libc::SIGTRAP,
            event: 0,
        };
        let Some(index) = self.index_of(id).filter(|_| status == stepped) else {
            return Ok(None);
        };
        if self.threads[index].state == ThreadState::Ready(libc::SIGTRAP) {
            return Ok(None);
        }
        let (registers, call) = ptrace::registers(id)?;
        // Outside of a system call the number is -1.
        if MAPPING_CALLS.contains(&call) {
            self.stale = true;
        }
        self.threads[index].registers = registers;
        Ok(Some(Stepped::Step {
            thread: id,
            registers,
        }))
    }

    /// The thread whose turn it is, or the next one that can be stepped.
    fn next_ready(&mut self) -> Option<usize> {
        let count = self.threads.len();
        self.left_of_turn = self.left_of_turn.saturating_sub(1);
        if self.left_of_turn == 0 {
            self.turn += 1;
        }
        let found = (0..count)
            .map(|add| (self.turn + add) % count)
            .find(|index| self.threads[*index].state != ThreadState::Running)?;
        if found != self.turn || self.left_of_turn == 0 {
            self.turn = found;
            self.left_of_turn = TURN;
        }
        Some(found)
    }

    fn poll(&mut self) -> io::Result<Option<(TaskId, Status)>> {
        match ptrace::wait(None, false) {
            Ok(found) => Ok(found),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                self.ended.get_or_insert(0);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Records a thread's change of state.
    fn take(&mut self, id: TaskId, status: Status) -> io::Result<()> {
        let (signal, event) = match status {
            Status::Ended(code) => {
                self.forget(id, code);
                return Ok(());
            }
            Status::Stopped { signal, event } => (signal, event),
        };
        if event == libc::PTRACE_EVENT_EXEC {
            // It is the only thread now, and has the first one's id.
            self.threads.retain(|thread| thread.id == id);
            self.stale = true;
            self.regions.clear();
            self.loaded = LoadedCode::default();
        }
        if event == libc::PTRACE_EVENT_CLONE {
            // The new thread may have shown itself before.
            let new = ptrace::message(id)?;
            self.add(new);
        }
        let index = self.add(id);
        // A thread that has been killed meanwhile reports its end later.
        let is_step =
            || signal == libc::SIGTRAP && !ptrace::is_at_breakpoint(id).unwrap_or_default();
        let is_passed_on = event == 0 && !is_step();
        let passed_on = if is_passed_on { signal } else { 0 };
        let thread = &mut self.threads[index];
        // Keeps a pending signal.
        if let (ThreadState::Ready(waiting), 0) = (thread.state, passed_on) {
            thread.state = ThreadState::Ready(waiting);
        } else {
            thread.state = ThreadState::Ready(passed_on);
        }
        thread.registers = RegisterFile::default();
        Ok(())
    }

    fn add(&mut self, id: TaskId) -> usize {
        self.index_of(id).unwrap_or_else(|| {
            self.threads.push(Thread {
                id,
                state: ThreadState::Running,
                registers: RegisterFile::default(),
            });
            self.threads.len() - 1
        })
    }

    fn forget(&mut self, id: TaskId, code: i32) {
        self.threads.retain(|thread| thread.id != id);
        if id == self.process_id || self.threads.is_empty() {
            self.ended = Some(code);
        }
    }

    fn index_of(&self, id: TaskId) -> Option<usize> {
        self.threads.iter().position(|thread| thread.id == id)
    }

    fn go_on(&mut self, index: usize, signal: i32) -> io::Result<()> {
        let id = self.threads[index].id;
        self.threads[index].state = ThreadState::Running;
        self.threads[index].registers = RegisterFile::default();
        self.resume(id, signal)
    }

    fn resume(&mut self, id: TaskId, signal: i32) -> io::Result<()> {
        ptrace::run(id, signal).or_else(|error| self.gone(error))
    }

    /// Ignores the error for a thread that has exited: waiting for it reports that.
    fn gone(&self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(libc::ESRCH | libc::ECHILD) => Ok(()),
            _ => Err(error),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if self.ended.is_some() {
            return;
        }
        ptrace::kill(self.process_id);
        // Until the last of its threads is gone; others have no children here.
        while ptrace::wait(None, true).is_ok() {}
    }
}

/// The range that is read at once around the stack pointer: the red zone of 128 bytes below it, and
/// the size of most stacks.
const NEAR: usize = 2048;
const BELOW: u64 = 128;
const PAGE: usize = 4096;

/// A page that was read.
pub(crate) struct Page {
    start: u64,
    /// The number of readable bytes.
    len: usize,
    bytes: Box<[u8; PAGE]>,
    /// Whether it was needed since the last step.
    is_used: bool,
}

/// The memory of a stopped program, cached.
pub(crate) struct StoppedMemory {
    process: TaskId,
    first: u64,
    len: usize,
    near: [u8; NEAR],
    pages: Rc<RefCell<Vec<Page>>>,
}

impl StoppedMemory {
    /// `pages` are those of the step before. The pages that were needed then are read at once.
    fn new(process: TaskId, sp: u64, pages: &Rc<RefCell<Vec<Page>>>) -> StoppedMemory {
        let pages = pages.clone();
        {
            let mut pages = pages.borrow_mut();
            pages.retain(|page| page.is_used && page.len == PAGE);
            let starts: Vec<u64> = pages.iter().map(|page| page.start).collect();
            let mut parts: Vec<&mut [u8]> =
                (pages.iter_mut()).map(|page| &mut page.bytes[..]).collect();
            let read = ptrace::read_parts(process, &starts, &mut parts);
            pages.truncate(read / PAGE);
            for page in &mut *pages {
                page.is_used = false;
            }
        }
        let first = sp.saturating_sub(BELOW);
        let mut near = [0; NEAR];
        let len = ptrace::read(process, first, &mut near);
        StoppedMemory {
            process,
            first,
            len,
            near,
            pages,
        }
    }
}

impl Memory for StoppedMemory {
    #[inline]
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        let at = address.wrapping_sub(self.first);
        if at < NEAR as u64 {
            if let Some(word) = self.near[at as usize..self.len.max(at as usize)].first_chunk() {
                return Ok(u64::from_le_bytes(*word));
            }
        }
        let start = address & !(PAGE as u64 - 1);
        let at = (address - start) as usize;
        if at > PAGE - 8 {
            // Of two pages.
            let mut word = [0; 8];
            return match ptrace::read(self.process, address, &mut word) {
                8 => Ok(u64::from_le_bytes(word)),
                _ => Err(Fault),
            };
        }
        let mut pages = self.pages.borrow_mut();
        let index = match pages.iter().position(|page| page.start == start) {
            Some(index) => index,
            None => {
                let mut bytes = Box::new([0; PAGE]);
                let len = ptrace::read(self.process, start, &mut bytes[..]);
                pages.push(Page {
                    start,
                    len,
                    bytes,
                    is_used: true,
                });
                pages.len() - 1
            }
        };
        let page = &mut pages[index];
        page.is_used = true;
        page.bytes[at..page.len.max(at)]
            .first_chunk()
            .map(|word| u64::from_le_bytes(*word))
            .ok_or(Fault)
    }
}
