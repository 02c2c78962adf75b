//! The environment of a run: without it a figure can't be compared with another.

use serde::Serialize;
use std::fs;
use std::process::Command;

/// The fingerprint of the machine and of the programs.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    /// Version of this build.
    pub tombolo: &'static str,
    /// Model of the processors.
    pub processor: String,
    /// How many of them this process may use.
    pub processors: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// The distribution, as it calls itself.
    pub distribution: String,
    /// How the processors' speed is governed; `none` where the machine does not say.
    pub governor: String,
    /// Whether a hypervisor is below.
    pub virtualised: bool,
    /// Versions of the peers, as they say it themselves.
    pub peers: Vec<String>,
    /// Load of the last minute before the run: above about 0.5, others were at work.
    pub load: f64,
    /// Round trip of a cache line between the first two processors, in ns.
    pub core_line_ns: Option<f64>,
}

impl Environment {
    /// Reads it all; what can't be read is said to be unknown. `peers` are commands that print a
    /// version.
    #[must_use]
    pub fn read(peers: &[&[&str]]) -> Self {
        let processors = read("/proc/cpuinfo");
        Self {
            tombolo: env!("CARGO_PKG_VERSION"),
            processor: field(&processors, "model name").unwrap_or_else(|| "unknown".into()),
            processors: sys::processor::allowed().map_or(0, |allowed| allowed.len()),
            memory_mib: field(&read("/proc/meminfo"), "MemTotal")
                .map_or(0, |text| first_number(&text) / 1024),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            distribution: distribution(&read("/etc/os-release")),
            governor: governor(),
            virtualised: field(&processors, "flags").is_some_and(|flags| flags.contains(" hypervisor")),
            peers: peers.iter().filter_map(|command| version(command)).collect(),
            load: read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
            core_line_ns: crate::core_line::round_trip_ns(),
        }
    }

    /// One paragraph for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let kind = if self.virtualised { "virtual" } else { "real" };
        let line = self
            .core_line_ns
            .map_or_else(|| "one processor".to_owned(), |ns| format!("core to core {ns:.0} ns"));
        format!(
            "{} x {} ({kind}), {} MiB, Linux {}, {}, governor {}, load {}, {line}; tombolo {}, {}",
            self.processors,
            self.processor,
            self.memory_mib,
            self.kernel,
            self.distribution,
            self.governor,
            self.load,
            self.tombolo,
            self.peers.join(", ")
        )
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .into_iter()
        .find(|(found, _)| found.trim() == name)
        .map(|(_, value)| value.trim_end().to_owned())
        .map(|value| {
            // The leading blank stays: it lets a flag be found as a whole word.
            if name == "flags" { value } else { value.trim_start().to_owned() }
        })
}

fn first_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn distribution(text: &str) -> String {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "unknown".into(), |name| name.trim_matches('"').to_owned())
}

fn governor() -> String {
    let name = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    if name.is_empty() { "none".into() } else { name.trim().to_owned() }
}

/// The first line that a program prints about itself, without its copyright; `None` where there is
/// no such program.
fn version(command: &[&str]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let output = Command::new(program).args(arguments).output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(|line| {
        let end = line.find("  ").unwrap_or(line.len());
        line[..end].trim().to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_the_kernels_tables() {
        let text = "processor\t: 0\nmodel name\t: A Processor\nflags\t\t: fpu hypervisor sse\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A Processor"));
        assert!(field(text, "flags").is_some_and(|flags| flags.contains(" hypervisor")));
        assert_eq!(field(text, "bogus"), None);
        assert_eq!(first_number("123 kB"), 123);
        assert_eq!(distribution("NAME=x\nPRETTY_NAME=\"A Linux 1\"\n"), "A Linux 1");
    }

    #[test]
    fn this_machine_has_a_fingerprint() {
        let environment = Environment::read(&[&["no-such-program-here"]]);
        assert!(environment.processors > 0 && environment.memory_mib > 0 && !environment.kernel.is_empty());
        assert!(environment.peers.is_empty());
        assert!(environment.describe().contains(&environment.kernel));
    }
}
