// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The system calls for tracing. All unsafe code of `steps` is here.

use std::{
    ffi::CString,
    io,
    mem,
    os::{
        fd::{
            AsRawFd,
            OwnedFd, //
        },
        raw::c_int, //
    },
    ptr, //
};

use walk::registers::{
    RegisterFile,
    COUNT, //
};

/// The id of a thread, or of a process.
pub(crate) type TaskId = libc::pid_t;

/// A thread's change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Exited, with this status, or minus the signal that killed it.
    Ended(i32),
    /// Stopped by a signal or a ptrace event.
    Stopped {
        /// The signal.
        signal: c_int,
        /// `PTRACE_EVENT_*`, or 0.
        event: c_int,
    },
}

/// Starts a traced program, stopped at its first instruction by the exec event. Addresses are not
/// randomised, so that runs are reproducible. Its input is empty, its output discarded.
pub(crate) fn start(program: &[CString], null: &OwnedFd) -> io::Result<TaskId> {
    let mut arguments: Vec<_> = program.iter().map(|word| word.as_ptr()).collect();
    arguments.push(ptr::null());
    let mut pipe = [0; 2];
    // SAFETY: `pipe` is a local array of two ints; pipe2 writes two ints to it.
    check(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) })?;
    let [gate, key] = pipe;

    // SAFETY: This process has one thread, so the child may do anything.
    let child = check(unsafe { libc::fork() })?;
    if child == 0 {
        // SAFETY: The descriptors are open. `arguments` points to strings and ends with a null
        // pointer. read writes one byte, to a local variable. The exit status reports a call that
        // fails.
        unsafe {
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            libc::dup2(null.as_raw_fd(), 0);
            libc::dup2(null.as_raw_fd(), 1);
            // Until the parent has closed its end.
            libc::close(key);
            let mut byte = 0u8;
            libc::read(gate, (&raw mut byte).cast(), 1);
            libc::execvp(arguments[0], arguments.as_ptr());
            libc::_exit(127);
        }
    }
    let options = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
    let seized = request(libc::PTRACE_SEIZE, child, options as usize);
    // SAFETY: pipe2 above opened both descriptors. This process closes each of them here, and
    // nowhere else.
    unsafe {
        libc::close(gate);
        libc::close(key);
    }
    seized.map(|()| child)
}

/// Makes [`wait`] return each 20 milliseconds even if there is nothing, so that time limits are
/// seen: an instruction may wait for ever for the memory that it reads.
pub(crate) fn never_wait_long() -> io::Result<()> {
    extern "C" fn nothing(_: c_int) {}
    let pause = libc::timeval {
        tv_sec: 0,
        tv_usec: 20_000,
    };
    let timer = libc::itimerval {
        it_interval: pause,
        it_value: pause,
    };
    // SAFETY: The handler does nothing. The structures are local variables, which the calls only
    // read; all zeros are a valid `sigaction`. Without SA_RESTART, the signal ends a wait.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        check(libc::sigaction(
            libc::SIGALRM,
            &raw const action,
            ptr::null_mut(),
        ))?;
        check(libc::setitimer(
            libc::ITIMER_REAL,
            &raw const timer,
            ptr::null_mut(),
        ))?;
    }
    Ok(())
}

/// A change of a thread, or of any; `None` if there is none yet: at once if `block` is not set,
/// else after 20 milliseconds or less. `Err` if there are no more threads.
pub(crate) fn wait(thread: Option<TaskId>, block: bool) -> io::Result<Option<(TaskId, Status)>> {
    let mut status = 0;
    let flags = libc::__WALL | if block { 0 } else { libc::WNOHANG };
    // SAFETY: `status` is a local variable; waitpid writes one int to it.
    let found = unsafe { libc::waitpid(thread.unwrap_or(-1), &raw mut status, flags) };
    match check(found) {
        Ok(0) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    let status = if libc::WIFEXITED(status) {
        Status::Ended(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Status::Ended(-libc::WTERMSIG(status))
    } else {
        Status::Stopped {
            signal: libc::WSTOPSIG(status),
            event: status >> 16,
        }
    };
    Ok(Some((found, status)))
}

/// Steps a stopped thread by one instruction, with a signal to deliver if it is not 0.
pub(crate) fn step(thread: TaskId, signal: c_int) -> io::Result<()> {
    request(libc::PTRACE_SINGLESTEP, thread, signal as usize)
}

/// Resumes a stopped thread, with a signal to deliver if it is not 0.
pub(crate) fn run(thread: TaskId, signal: c_int) -> io::Result<()> {
    request(libc::PTRACE_CONT, thread, signal as usize)
}

/// Asks a running thread to stop; it reports an event.
pub(crate) fn interrupt(thread: TaskId) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, thread, 0)
}

/// Kills a process.
pub(crate) fn kill(process: TaskId) {
    // SAFETY: kill takes no pointer. It fails without effect if the process is gone.
    unsafe { libc::kill(process, libc::SIGKILL) };
}

/// What the kernel tells of a stopped thread.
///
/// # Safety
///
/// The request `what` writes one `T` to the address in its last argument. All zeros are a valid
/// `T`.
unsafe fn told<T>(what: libc::c_uint, thread: TaskId) -> io::Result<T> {
    // SAFETY: By the contract of this function.
    let mut found: T = unsafe { mem::zeroed() };
    // SAFETY: `found` is a local variable; by the contract of this function the request writes one
    // `T` to it.
    let done = unsafe {
        libc::ptrace(
            what,
            thread,
            ptr::null_mut::<libc::c_void>(),
            &raw mut found,
        )
    };
    check(done as c_int)?;
    Ok(found)
}

/// The message of an event: after a clone, the new thread's id.
pub(crate) fn message(thread: TaskId) -> io::Result<TaskId> {
    // SAFETY: PTRACE_GETEVENTMSG writes one long.
    let message: libc::c_ulong = unsafe { told(libc::PTRACE_GETEVENTMSG, thread)? };
    Ok(message as TaskId)
}

/// Whether a stop by SIGTRAP is for a breakpoint instruction of the program's own.
pub(crate) fn is_at_breakpoint(thread: TaskId) -> io::Result<bool> {
    /// `SI_KERNEL` of the kernel's headers. A step has `TRAP_TRACE` or `TRAP_BRKPT`.
    const BY_INSTRUCTION: c_int = 0x80;
    // SAFETY: PTRACE_GETSIGINFO writes one `siginfo_t`, for which all zeros are valid.
    let found: libc::siginfo_t = unsafe { told(libc::PTRACE_GETSIGINFO, thread)? };
    Ok(found.si_code == BY_INSTRUCTION)
}

/// The registers of a stopped thread, and the number of its system call, if any.
pub(crate) fn registers(thread: TaskId) -> io::Result<(RegisterFile, u64)> {
    // SAFETY: PTRACE_GETREGS writes one `user_regs_struct`, which has only integer fields.
    let found: libc::user_regs_struct = unsafe { told(libc::PTRACE_GETREGS, thread)? };
    let values: [u64; COUNT] = [
        found.rax, found.rdx, found.rcx, found.rbx, found.rsi, found.rdi, found.rbp, found.rsp,
        found.r8, found.r9, found.r10, found.r11, found.r12, found.r13, found.r14, found.r15,
        found.rip,
    ];
    Ok((RegisterFile::new(values), found.orig_rax))
}

/// Reads memory of another process into `bytes`. Returns the number of bytes read; the rest of
/// `bytes` is unchanged.
pub(crate) fn read(process: TaskId, address: u64, bytes: &mut [u8]) -> usize {
    read_parts(process, &[address], &mut [bytes])
}

/// Reads memory at several addresses, each into the part of the same index, up to the first part
/// that cannot be read. Returns the number of bytes read; the rest is unchanged.
pub(crate) fn read_parts(process: TaskId, addresses: &[u64], parts: &mut [&mut [u8]]) -> usize {
    let remote = addresses
        .iter()
        .zip(&*parts)
        .map(|(address, part)| libc::iovec {
            iov_base: *address as *mut libc::c_void,
            iov_len: part.len(),
        });
    let remote: Vec<libc::iovec> = remote.take(MOST_PARTS).collect();
    let local = parts.iter_mut().map(|part| libc::iovec {
        iov_base: part.as_mut_ptr().cast(),
        iov_len: part.len(),
    });
    let local: Vec<libc::iovec> = local.take(remote.len()).collect();
    let count = local.len() as libc::c_ulong;
    // SAFETY: `local` describes `parts`, which this function borrows mutably; `remote` has
    // addresses of the traced process, which the kernel checks. Both arrays have `count` elements.
    let read = unsafe {
        libc::process_vm_readv(process, local.as_ptr(), count, remote.as_ptr(), count, 0)
    };
    usize::try_from(read).unwrap_or(0)
}

/// The maximum number of parts of one read: IOV_MAX.
const MOST_PARTS: usize = 1024;

fn request(what: libc::c_uint, thread: TaskId, data: usize) -> io::Result<()> {
    // SAFETY: No caller of this function passes an address of this process in `data`.
    let done = unsafe {
        libc::ptrace(
            what,
            thread,
            ptr::null_mut::<libc::c_void>(),
            data as *mut libc::c_void,
        )
    };
    check(done as c_int).map(|_| ())
}

fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
