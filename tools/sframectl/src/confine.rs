// SPDX-License-Identifier: GPL-2.0-only

//! Confines this process before it reads hostile data: it loses its privileges, and a filter of system calls leaves it
//! memory, the files that are open for writing, and the bytes of one file.

use std::{
    fs::File,
    os::fd::{
        AsFd,
        AsRawFd,
        BorrowedFd, //
    }, //
};

use nix::{
    libc::{
        self,
        sock_filter, //
    },
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
    /// The time after which it is killed, in seconds; 0 if there is no limit. Not even its parent process may be able
    /// to kill it: a process without CAP_KILL kills none of another user.
    pub(crate) alarm: u32,
}

/// Confines this process, which must have only one thread. Threads that it starts later are confined, too.
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
    // Another process of this user must not read through an open file, or change what this process says. A process that
    // changes its user is in no moment open to the processes of the new user.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(with("prctl"))?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(with("capset"))?;
    set_no_new_privs(true).map_err(with("prctl"))?;
    // A change of the user cancels an earlier call. A read may block for ever, on a file system that does not respond.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(with("prctl"))?;
    if confinement.alarm != 0 {
        alarm::set(confinement.alarm);
    }
    install(&filter(confinement.reads))
}

/// As [`confine`], for the reader of the memory of a process.
///
/// # Errors
///
/// As those of [`confine`].
pub(crate) fn confine_reader(memory: &File) -> Result<(), String> {
    /// The reader takes copies of at most 64 MiB of the memory, and of as much code.
    const MEMORY: u64 = 1 << 30;
    confine(&Confinement {
        memory: MEMORY,
        reads: Some(memory.as_fd()),
        alarm: READER_SECONDS,
    })
}

/// The time that the reader of a process's memory may take, in seconds. A read may block for ever: a process decides
/// when the pages of its memory are there.
pub(crate) const READER_SECONDS: u32 = 60;

/// The system calls that are always allowed. None takes an address that leads out of this process, opens a file, or
/// changes what a signal does.
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

/// `AUDIT_ARCH_X86_64`
const ARCHITECTURE: u32 = 0xc000_003e;
/// Offsets in `struct seccomp_data`, in bytes.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IS_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const HAS_BITS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// An instruction; `jt` and `jf` are the numbers of instructions that it skips if its test is true, and if not.
fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    let code = code as u16;
    sock_filter { code, jt, jf, k }
}

fn load(at: u32) -> sock_filter {
    instruction(LOAD, at, 0, 0)
}

fn fails(errno: libc::c_int) -> sock_filter {
    instruction(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0)
}

/// The filter. Every system call that it does not allow fails with `EPERM`.
fn filter(reads: Option<BorrowedFd<'_>>) -> Vec<sock_filter> {
    let allow = || instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);
    let mut program = vec![
        load(ARCHITECTURE_AT),
        instruction(IS_EQUAL, ARCHITECTURE, 1, 0),
        instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        load(NUMBER_AT),
    ];
    for number in ALLOWED {
        program.push(instruction(IS_EQUAL, number as u32, 0, 1));
        program.push(allow());
    }
    // A call with a condition: its number, the argument, and the test of the argument's low half.
    let mut conditional = |number: libc::c_long, argument: u32, test: sock_filter| {
        program.push(instruction(IS_EQUAL, number as u32, 0, 4));
        program.push(load(ARGUMENTS_AT + 8 * argument));
        program.push(test);
        program.push(fails(libc::EPERM));
        program.push(allow());
    };
    if let Some(file) = reads {
        let is_file = instruction(IS_EQUAL, file.as_raw_fd() as u32, 1, 0);
        conditional(libc::SYS_pread64, 0, is_file);
    }
    // No memory becomes code.
    let is_data = instruction(HAS_BITS, libc::PROT_EXEC as u32, 0, 1);
    conditional(libc::SYS_mmap, 2, is_data);
    conditional(libc::SYS_mprotect, 2, is_data);
    // Threads are allowed, processes are not.
    let is_thread = instruction(HAS_BITS, libc::CLONE_THREAD as u32, 1, 0);
    conditional(libc::SYS_clone, 0, is_thread);
    // The flags of this call are in memory. The C library takes the other one if this one does not exist.
    program.push(instruction(IS_EQUAL, libc::SYS_clone3 as u32, 0, 1));
    program.push(fails(libc::ENOSYS));
    program.push(fails(libc::EPERM));
    program
}

/// Installs the filter for this thread and all that it starts. A kernel without filters goes without.
#[expect(unsafe_code)]
fn install(program: &[sock_filter]) -> Result<(), String> {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: The kernel reads `len` instructions at `filter` during the call, and does not write to them. They are
    // those of `program`, which outlives the call.
    let installed = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &filter,
            0,
            0,
        )
    };
    match (
        installed,
        Errno::from_io_error(&std::io::Error::last_os_error()),
    ) {
        (0, _) | (_, Some(Errno::INVAL)) => Ok(()),
        (_, error) => Err(format!("prctl: {error:?}")),
    }
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
                install(&filter(Some(file.as_fd()))).unwrap();
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
