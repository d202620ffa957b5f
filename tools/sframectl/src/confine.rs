// SPDX-License-Identifier: GPL-2.0-only

//! Confines this process before it reads hostile data: it loses its privileges, and a filter of
//! system calls leaves it memory, the files that are open for writing, and the bytes of one file.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::{
        AsFd,
        AsRawFd,
        BorrowedFd, //
    },
    process, //
};

use crate::config;
use nix::{
    libc,
    unistd::alarm, //
};
use rustix::{
    io::Errno,
    process::{
        geteuid,
        set_dumpable_behavior,
        set_parent_process_death_signal,
        setrlimit,
        DumpableBehavior,
        Gid,
        Resource,
        Rlimit,
        Signal,
        Uid, //
    },
    thread::{
        set_capabilities,
        set_no_new_privs,
        set_thread_gid,
        set_thread_groups,
        set_thread_uid,
        CapabilitySet,
        CapabilitySets, //
    }, //
};
use seccompiler::{
    BackendError,
    BpfProgram,
    SeccompAction,
    SeccompCmpArgLen,
    SeccompCmpOp,
    SeccompCondition,
    SeccompFilter,
    SeccompRule,
    TargetArch, //
};

const NOBODY: u32 = 65534;
/// The limit for the CPU time, in seconds. The conversion of a program of 100 MB takes one second.
const SECONDS: u64 = 120;
/// The maximum size of a file that is written, in bytes.
const MAX_WRITTEN: u64 = 2 << 30;

/// What a confined process may do.
pub(crate) struct Confinement<'a> {
    /// The limit for its address space, in bytes.
    pub(crate) memory: u64,
    /// The file that it may read bytes of, if any. Files that are mapped stay mapped.
    pub(crate) reads: Option<BorrowedFd<'a>>,
    /// The time after which it is killed, in seconds. Its parent process may not be able to kill
    /// it: a process without CAP_KILL kills none of another user.
    pub(crate) alarm: u32,
}

/// Confines this process, which must have only one thread. Threads that it starts later are
/// confined, too.
///
/// # Errors
///
/// A limit cannot be set; the text says which. Then the process must not go on.
pub(crate) fn confine(confinement: &Confinement<'_>) -> Result<(), String> {
    let with = |what: &'static str| move |error: Errno| format!("{what}: {error}");
    // With a limit of 0 no further file or socket can be opened; open ones stay open.
    for (resource, value) in [
        (Resource::As, confinement.memory),
        (Resource::Cpu, SECONDS),
        (Resource::Core, 0),
        // The process cannot raise its priority.
        (Resource::Nice, 0),
        (Resource::Fsize, MAX_WRITTEN),
        (Resource::Nofile, 0),
    ] {
        let limit = Rlimit {
            current: Some(value),
            maximum: Some(value),
        };
        setrlimit(resource, limit).map_err(with("setrlimit"))?;
    }
    if geteuid().is_root() {
        set_thread_groups(&[]).map_err(with("setgroups"))?;
        set_thread_gid(Gid::from_raw(NOBODY)).map_err(with("setgid"))?;
        set_thread_uid(Uid::from_raw(NOBODY)).map_err(with("setuid"))?;
    }
    // Another process of this user must not read through an open file, or change what this process
    // says. A process that changes its user is in no moment open to the processes of the new user.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(with("prctl"))?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(with("capset"))?;
    set_no_new_privs(true).map_err(with("prctl"))?;
    // A change of the user cancels an earlier call. A read may block for ever, on a file system
    // that does not respond.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(with("prctl"))?;
    alarm::set(confinement.alarm);
    let filters = filters(confinement.reads).map_err(|error| error.to_string())?;
    install(&filters)
}

/// As [`confine`], for the reader of the memory of a process.
///
/// # Errors
///
/// As those of [`confine`].
pub(crate) fn confine_reader(memory: &File) -> Result<(), String> {
    // The reader takes copies of at most 64 MiB of the memory, and of as much code, and converts.
    confine(&Confinement {
        memory: config::conversion_bytes(),
        reads: Some(memory.as_fd()),
        alarm: READER_SECONDS,
    })
}

/// The time that the reader of a process's memory may take, in seconds. A read may block for ever:
/// a process decides when the pages of its memory are there.
pub(crate) const READER_SECONDS: u32 = 60;

/// The time that a conversion may take, in seconds. It is longer than the limit of CPU time,
/// because other programs may use the CPU.
pub(crate) const CONVERSION_SECONDS: u32 = 300;

/// The system calls that are always allowed. None takes an address that leads out of this process,
/// opens a file, or changes what a signal does.
const ALLOWED: [libc::c_long; 21] = [
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
];

/// The filters, in the order in which they are installed. The strictest answer of all counts, and
/// every system call that they do not allow fails with `EPERM`; one of another architecture kills
/// the process.
fn filters(reads: Option<BorrowedFd<'_>>) -> Result<[BpfProgram; 2], BackendError> {
    // The conditions are of the low half of an argument, as the kernel takes no more of these
    // arguments.
    let only_if = |argument, test, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, test, value)?;
        Ok(vec![SeccompRule::new(vec![condition])?])
    };
    let has_bit = |argument, bit: libc::c_int, value| {
        let bit = u64::from(bit.unsigned_abs());
        only_if(argument, SeccompCmpOp::MaskedEq(bit), bit * value)
    };
    let mut allowed = BTreeMap::from(ALLOWED.map(|number| (number, Vec::new())));
    if let Some(file) = reads {
        let file = u64::from(file.as_raw_fd().unsigned_abs());
        allowed.insert(libc::SYS_pread64, only_if(0, SeccompCmpOp::Eq, file)?);
    }
    // No memory becomes code.
    allowed.insert(libc::SYS_mmap, has_bit(2, libc::PROT_EXEC, 0)?);
    allowed.insert(libc::SYS_mprotect, has_bit(2, libc::PROT_EXEC, 0)?);
    // A process without memory ends by `abort`. Without this signal to itself, the C library would
    // make a fault, and Rust's handler of faults, which cannot be removed any more, would take that
    // fault again and again.
    let is = |argument, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
    };
    let (own, signal) = (process::id(), libc::SIGABRT.unsigned_abs());
    let aborts = vec![is(0, own.into())?, is(2, signal.into())?];
    allowed.insert(libc::SYS_tgkill, vec![SeccompRule::new(aborts)?]);
    // Threads are allowed, processes are not.
    allowed.insert(libc::SYS_clone, has_bit(0, libc::CLONE_THREAD, 1)?);
    // The first filter has refused this call: its flags are in memory. The C library takes the
    // other call if this one does not exist.
    allowed.insert(libc::SYS_clone3, Vec::new());
    let missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let fails = |errno: libc::c_int| SeccompAction::Errno(errno.unsigned_abs());
    let (allow, target) = (SeccompAction::Allow, TargetArch::x86_64);
    Ok([
        SeccompFilter::new(missing, allow.clone(), fails(libc::ENOSYS), target)?.try_into()?,
        SeccompFilter::new(allowed, fails(libc::EPERM), allow, target)?.try_into()?,
    ])
}

/// Installs the filters for this thread and all that it starts. A kernel without filters goes
/// without.
fn install(filters: &[BpfProgram]) -> Result<(), String> {
    for filter in filters {
        match seccompiler::apply_filter(filter) {
            Err(seccompiler::Error::Seccomp(error)) if is_missing(&error) => return Ok(()),
            done => done.map_err(|error| error.to_string())?,
        }
    }
    Ok(())
}

/// Whether the error says that the kernel has no filters, or no such system call.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{
        sigprocmask,
        SigSet,
        SigmaskHow, //
    };
    use std::{
        env,
        io::ErrorKind,
        net::UdpSocket,
        os::unix::{
            fs::FileExt,
            process::ExitStatusExt, //
        },
        process::{
            Command,
            Stdio, //
        },
        thread,
        time::{
            Duration,
            Instant, //
        }, //
    };

    #[test]
    fn a_confined_process_that_hangs_is_killed() {
        let started = Instant::now();
        let ended = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "confine::tests::hangs"])
            .env("CONFINED_HANGS", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGALRM), "{ended}");
        assert!(started.elapsed() < Duration::from_secs(60));
    }

    #[test]
    #[ignore = "runs in a process of its own"]
    fn hangs() {
        // All ignored tests may have been asked for.
        if env::var_os("CONFINED_HANGS").is_none() {
            return;
        }
        confine(&Confinement {
            memory: 4 << 30,
            reads: None,
            alarm: 1,
        })
        .unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            thread::yield_now();
        }
    }

    #[test]
    fn the_filter_leaves_memory_and_the_bytes_of_one_file() {
        let open = || File::open("/proc/self/exe").unwrap();
        let (file, other) = (open(), open());
        let mut bytes = [0; 4];
        // The filter is of this thread, and of those that it starts.
        thread::scope(|scope| {
            let confined = scope.spawn(|| {
                set_no_new_privs(true).unwrap();
                install(&filters(Some(file.as_fd())).unwrap()).unwrap();
                let is_denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
                file.read_exact_at(&mut bytes, 0).unwrap();
                assert!(other.read_exact_at(&mut [0; 4], 0).is_err_and(is_denied));
                assert!(File::open("/proc/self/exe").is_err_and(is_denied));
                assert!(UdpSocket::bind("127.0.0.1:0").is_err_and(is_denied));
                assert!(Command::new("/bin/true").status().is_err());
                // The signal of the alarm.
                let blocked = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None);
                assert_eq!(blocked, Err(nix::Error::EPERM));
                let large = memmap2::MmapMut::map_anon(1 << 24).unwrap();
                assert!(large.make_exec().is_err_and(is_denied));
                let sum =
                    thread::spawn(|| vec![1u8; 1 << 24].iter().map(|byte| u64::from(*byte)).sum());
                assert_eq!(sum.join().ok(), Some(1u64 << 24));
            });
            confined.join().unwrap();
        });
        assert_eq!(&bytes, b"\x7fELF");
        // This thread is not confined.
        open();
    }
}
