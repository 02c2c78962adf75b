//! Stands for the binary `tombolo` in this crate's tests: it has this crate's roles and no other.

fn main() {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    match enforce::role_main(&arguments) {
        Some(code) => std::process::exit(code),
        None => {
            eprintln!("usage: enforce-roles internal-dispatcher|internal-guardian ...");
            std::process::exit(2);
        }
    }
}
