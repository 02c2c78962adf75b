//! Stands for the binary `tombolo` in this crate's tests: it has this crate's role and no other.

fn main() -> std::process::ExitCode {
    match std::env::args().nth(1) {
        Some(role) if role == storage::ROLE => std::process::ExitCode::from(storage::role_main()),
        _ => {
            eprintln!("usage: storage-roles {}", storage::ROLE);
            std::process::ExitCode::from(2)
        }
    }
}
