// SPDX-License-Identifier: GPL-2.0-only

//! The configuration file, /etc/sframectl.toml. sframectl.toml(5) documents it.

use std::{
    env,
    fs,
    io::ErrorKind,
    ops::RangeInclusive,
    path::{
        Path,
        PathBuf, //
    },
    sync::OnceLock, //
};

use serde::{
    de::Error,
    Deserialize,
    Deserializer, //
};

use crate::{
    device::Request,
    exit::{
        CommandError,
        ExitReason, //
    }, //
};

/// The place of the file.
pub(crate) const PATH: &str = "/etc/sframectl.toml";
/// The variable that tells a confined child its memory, in MiB.
pub(crate) const CONVERSION_MIB: &str = "SFRAMECTL_CONVERSION_MIB";

/// The configuration. Each field that the file lacks has its default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The limit for the cache, in MiB. By default all programs and libraries of a large system
    /// fit.
    #[serde(deserialize_with = "cache_mib")]
    pub(crate) cache_mib: u64,
    /// The address space limit for a conversion, in MiB, in addition to the mapped file. A
    /// conversion takes about ten times the size of `.eh_frame`.
    #[serde(deserialize_with = "conversion_mib")]
    pub(crate) conversion_mib: u64,
    /// The number of threads that answer requests; `None`: one more than there are CPUs, because
    /// some wait for disks.
    #[serde(deserialize_with = "workers")]
    pub(crate) workers: Option<u64>,
    /// Whether only files are converted that root alone can write, and only processes of root are
    /// read.
    pub(crate) root_only: bool,
    /// What is left out.
    pub(crate) exclude: Exclusions,
}

/// Files and processes that get no rows.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Exclusions {
    /// Files, and directories with all that is below them.
    #[serde(deserialize_with = "absolute")]
    pub(crate) paths: Vec<PathBuf>,
    /// The charged users of processes.
    pub(crate) users: Vec<u32>,
    /// Groups of processes with all that is below them, as in /proc/PID/cgroup.
    #[serde(deserialize_with = "absolute")]
    pub(crate) cgroups: Vec<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cache_mib: 1024,
            conversion_mib: 2048,
            workers: None,
            root_only: false,
            exclude: Exclusions::default(),
        }
    }
}

fn within<'de, D: Deserializer<'de>>(
    value: D,
    range: RangeInclusive<u64>,
) -> Result<u64, D::Error> {
    let value = u64::deserialize(value)?;
    let (least, most) = (range.start(), range.end());
    match range.contains(&value) {
        true => Ok(value),
        false => Err(D::Error::custom(format!(
            "{value} is not from {least} to {most}"
        ))),
    }
}

fn cache_mib<'de, D: Deserializer<'de>>(value: D) -> Result<u64, D::Error> {
    within(value, 1..=1 << 20)
}

fn conversion_mib<'de, D: Deserializer<'de>>(value: D) -> Result<u64, D::Error> {
    within(value, 64..=1 << 16)
}

fn workers<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    within(value, 1..=1024).map(Some)
}

fn absolute<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<PathBuf>, D::Error> {
    let paths = Vec::<PathBuf>::deserialize(value)?;
    match paths.iter().find(|path| !path.is_absolute()) {
        None => Ok(paths),
        Some(path) => Err(D::Error::custom(format!(
            "\"{}\" does not begin with /",
            path.display()
        ))),
    }
}

impl Config {
    /// Reads a file. One that does not exist gives the defaults.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is invalid. The text has the line, and what is wrong.
    pub(crate) fn read(path: &Path) -> Result<Config, CommandError> {
        let invalid = |what: String| {
            let text = format!("{}{what}", path.display());
            CommandError::new(ExitReason::Configuration, text)
        };
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Config::default()),
            text => text.map_err(|error| invalid(format!(": {error}")))?,
        };
        toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = 1 + before.unwrap_or_default().matches('\n').count();
            let what = error.message();
            invalid(format!(":{line}: {what}; sframectl.toml(5) has all keys"))
        })
    }

    /// Whether the file or the process of a request is left out, as far as the request tells.
    pub(crate) fn excludes(&self, request: &Request) -> bool {
        self.root_only && request.is_made_code() && request.user != 0 || self.exclude.has(request)
    }

    /// The limit for the cache, in bytes.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_mib << 20
    }
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Reads the configuration of this process, once.
///
/// # Errors
///
/// As those of [`Config::read`].
pub(crate) fn load(path: &Path) -> Result<(), CommandError> {
    let config = Config::read(path)?;
    CONFIG.get_or_init(|| config);
    Ok(())
}

/// The configuration of this process: the defaults, if it was not read.
pub(crate) fn get() -> &'static Config {
    CONFIG.get_or_init(Config::default)
}

/// In a confined child: the address space limit for a conversion, in bytes, as its parent says.
pub(crate) fn conversion_bytes() -> u64 {
    let mib = env::var(CONVERSION_MIB)
        .ok()
        .and_then(|mib| mib.parse().ok());
    mib.unwrap_or(get().conversion_mib) << 20
}

impl Exclusions {
    /// Whether a file is left out.
    pub(crate) fn has_path(&self, path: &Path) -> bool {
        self.paths.iter().any(|left_out| path.starts_with(left_out))
    }

    /// Whether the group of a process is left out, by the text of /proc/PID/cgroup. A process that
    /// cannot be read may be in any group.
    fn has_group(&self, text: Option<&str>) -> bool {
        if self.cgroups.is_empty() {
            return false;
        }
        let Some(text) = text else { return true };
        // Each line is NUMBER:CONTROLLERS:GROUP.
        let mut groups = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        groups.any(|group| {
            let mut left_out = self.cgroups.iter();
            left_out.any(|left_out| Path::new(group).starts_with(left_out))
        })
    }

    /// Whether the file or the process of a request is left out.
    fn has(&self, request: &Request) -> bool {
        let pid = request.pid;
        let is_program_left_out = || {
            let program = fs::read_link(format!("/proc/{pid}/exe"));
            program.is_ok_and(|program| self.has_path(&program))
        };
        let group = || fs::read_to_string(format!("/proc/{pid}/cgroup")).ok();
        self.users.contains(&request.user)
            || self.has_path(Path::new(&request.path))
            || request.is_made_code() && !self.paths.is_empty() && is_program_left_out()
            || !self.cgroups.is_empty() && self.has_group(group().as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process;

    fn read(text: &str) -> Result<Config, String> {
        let path = env::temp_dir().join(format!(
            "config-{}-{:?}",
            process::id(),
            std::thread::current().id()
        ));
        fs::write(&path, text).unwrap();
        let config = Config::read(&path);
        fs::remove_file(&path).unwrap();
        config.map_err(|error| {
            assert_eq!(error.reason, ExitReason::Configuration);
            error.text
        })
    }

    /// All keys, with values that are no defaults. The manual page has the same lines.
    const ALL: &str = "\
cache_mib = 512
conversion_mib = 1024
workers = 4
root_only = true

[exclude]
paths = [\"/opt/secret\", \"/srv/build/tool\"]
users = [1000]
cgroups = [\"/user.slice\"]
";

    #[test]
    fn each_key_is_read() {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
        let expected = Config {
            cache_mib: 512,
            conversion_mib: 1024,
            workers: Some(4),
            root_only: true,
            exclude: Exclusions {
                paths: paths(&["/opt/secret", "/srv/build/tool"]),
                users: vec![1000],
                cgroups: paths(&["/user.slice"]),
            },
        };
        assert_eq!(read(ALL), Ok(expected));
        assert_eq!(read(""), Ok(Config::default()));
        let missing = Config::read(Path::new("/does/not/exist"));
        assert_eq!(missing.ok(), Some(Config::default()));
    }

    #[test]
    fn the_manual_page_has_each_key() {
        let page = include_str!("../sframectl.toml.5");
        assert!(page.contains(ALL), "{ALL}");
        for line in ALL.lines() {
            if let Some((key, _)) = line.split_once(" = ") {
                assert!(page.contains(&format!("\n.BR {key} ")), "{key}");
            }
        }
    }

    #[test]
    fn errors_name_the_line_and_what_to_do() {
        for (text, expected) in [
            (
                "\ncahe_mib = 1\n",
                ":2: unknown field `cahe_mib`, expected one of `cache_mib`",
            ),
            (
                "root_only = true\nworkers = 0\n",
                ":2: 0 is not from 1 to 1024",
            ),
            ("cache_mib = \"1\"", ":1: invalid type"),
            (
                "[exclude]\n\npaths = [\"opt\"]",
                ":3: \"opt\" does not begin with /",
            ),
            ("[exclude]\nuser = [1]", ":2: unknown field `user`"),
            ("workers = ", ":1: "),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(
                error.ends_with("; sframectl.toml(5) has all keys"),
                "{error}"
            );
        }
    }

    #[test]
    fn files_and_processes_are_left_out() {
        let exclude = read(ALL).unwrap().exclude;
        let request = |path: &str, user| Request {
            // No process has this number.
            pid: i32::MAX,
            start: 1,
            end: 2,
            device: (1, 1),
            inode: 1,
            build_id: String::new(),
            user,
            path: path.to_owned(),
        };
        let without_groups = Exclusions {
            cgroups: Vec::new(),
            ..exclude.clone()
        };
        for (path, user, expected) in [
            ("/opt/secret/bin/a", 0, true),
            ("/opt/secrets/a", 0, false),
            ("/srv/build/tool", 0, true),
            ("/usr/bin/a", 1000, true),
            ("/usr/bin/a", 1001, false),
        ] {
            let has = without_groups.has(&request(path, user));
            assert_eq!(has, expected, "{path} {user}");
        }
        // The process has ended, so its group is unknown.
        assert!(exclude.has(&request("/usr/bin/a", 0)));
        for (group, expected) in [
            ("0::/user.slice/a\n", true),
            ("0::/user.slices\n", false),
            ("4:memory:/user.slice\n0::/\n", true),
            ("0::/system.slice\n", false),
        ] {
            assert_eq!(exclude.has_group(Some(group)), expected, "{group}");
        }
        assert!(!Exclusions::default().has(&request("/usr/bin/a", 0)));
    }
}
