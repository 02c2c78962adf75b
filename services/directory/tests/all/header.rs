//! `include/tombolo/dns.h` says the same as `wire::directory`, to C and to C++.

use std::path::Path;
use std::process::Command;
use wire::directory::{
    FLAG_TRACE, FORMAT_JSON, FORMAT_TEXT, SEARCH_BYTES, SETTINGS_BYTES, UPSTREAM_BYTES, ioctl,
};

const PROGRAM: &str = r#"
#include <tombolo/dns.h>
#include <stddef.h>
#include <stdio.h>
#define SHOW(x) printf("%s %llu\n", #x, (unsigned long long)(x))
int main(void) {
    SHOW(TOMBOLO_DNS_GET_SETTINGS); SHOW(TOMBOLO_DNS_SET_SETTINGS); SHOW(TOMBOLO_DNS_CLEAR_UPSTREAMS);
    SHOW(TOMBOLO_DNS_ADD_UPSTREAM); SHOW(TOMBOLO_DNS_CLEAR_SEARCH); SHOW(TOMBOLO_DNS_ADD_SEARCH);
    SHOW(TOMBOLO_DNS_GET_SESSION); SHOW(TOMBOLO_DNS_FORMAT_TEXT); SHOW(TOMBOLO_DNS_FORMAT_JSON);
    SHOW(TOMBOLO_DNS_FLAG_TRACE);
    SHOW(sizeof(struct tombolo_dns_settings)); SHOW(sizeof(struct tombolo_dns_upstream));
    SHOW(sizeof(struct tombolo_dns_search));
    SHOW(offsetof(struct tombolo_dns_settings, retries)); SHOW(offsetof(struct tombolo_dns_settings, format));
    SHOW(offsetof(struct tombolo_dns_settings, flags)); SHOW(offsetof(struct tombolo_dns_settings, reserved));
    SHOW(offsetof(struct tombolo_dns_upstream, port)); SHOW(offsetof(struct tombolo_dns_upstream, reserved));
    SHOW(offsetof(struct tombolo_dns_upstream, address));
    return 0;
}
"#;

fn compiled(compiler: &str, standard: &str, file: &str, folder: &Path) -> Option<Vec<u64>> {
    if Command::new(compiler).arg("--version").output().is_err() {
        println!("skipped: no {compiler} on this machine; it is in Debian's package build-essential");
        return None;
    }
    let (source, program) = (folder.join(file), folder.join(format!("{file}.out")));
    std::fs::write(&source, PROGRAM).expect("written");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let build = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-pedantic", "-Werror", "-I"])
        .arg(include)
        .arg("-o")
        .args([&program, &source])
        .output()
        .expect("the compiler runs");
    assert!(build.status.success(), "{compiler}: {}", String::from_utf8_lossy(&build.stderr));
    let output = Command::new(program).output().expect("the program runs").stdout;
    let text = String::from_utf8(output).expect("text");
    Some(
        text.lines()
            .map(|line| line.rsplit(' ').next().expect("a word").parse().expect("a number"))
            .collect(),
    )
}

#[test]
fn the_header_agrees_with_the_code_in_c_and_cpp() {
    let folder = tempfile::tempdir().expect("a folder");
    let expected = [
        ioctl::GET_SETTINGS,
        ioctl::SET_SETTINGS,
        ioctl::CLEAR_UPSTREAMS,
        ioctl::ADD_UPSTREAM,
        ioctl::CLEAR_SEARCH,
        ioctl::ADD_SEARCH,
        ioctl::GET_SESSION,
        FORMAT_TEXT,
        FORMAT_JSON,
        FLAG_TRACE,
        SETTINGS_BYTES,
        UPSTREAM_BYTES,
        SEARCH_BYTES,
        4,
        8,
        12,
        16,
        2,
        4,
        8,
    ]
    .map(u64::from);
    for (compiler, standard, file) in
        [("cc", "-std=c99", "c99.c"), ("cc", "-std=c17", "c17.c"), ("c++", "-std=c++17", "cpp.cc")]
    {
        if let Some(found) = compiled(compiler, standard, file, folder.path()) {
            assert_eq!(found, expected, "{compiler} {standard}");
        }
    }
}
