//! The facts of an ELF file: the libraries of a program, the facts of a kernel module.

use crate::error::{At as _, ImageError};
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader as _};
use object::{Endianness, Object, ObjectSection};
use std::path::{Path, PathBuf};

/// Largest program, library or module that is read, in bytes: several times the largest that a
/// guest needs.
pub(crate) const MAX_BINARY_BYTES: u64 = 256 << 20;

/// The demands of a dynamic program or library on its loader.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The loader itself; `None` for a static program and for a library.
    pub interpreter: Option<PathBuf>,
    /// Libraries by name, in order.
    pub libraries: Vec<String>,
    /// Directories of its own that come before the machine's, `$ORIGIN` resolved.
    pub paths: Vec<PathBuf>,
    /// Debian's name of the architecture, as directories of libraries are called.
    pub triplet: Option<&'static str>,
    /// The part of the file that is worth having in a guest; `None`: all of it.
    pub loaded: Option<Loaded>,
}

/// A file without its tail that no loader reads: symbols and debugging information, which in a
/// debug build are most of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// The file's first bytes, which name no sections any more.
    pub header: [u8; HEADER_BYTES],
    /// Bytes of the file that stay, its header among them.
    pub length: u64,
}

/// Of a 64-bit ELF header.
pub(crate) const HEADER_BYTES: usize = 64;
/// Least saving that is worth another content than the file's own.
const MIN_SAVING_BYTES: u64 = 1 << 20;
/// The header's fields about sections (ELF-64 object file format, version 1.5): where they are, how
/// many, and which has the names.
const SECTION_FIELDS: [(usize, usize); 2] = [(40, 8), (60, 4)];

/// Reads a whole file, within bounds.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    let length = std::fs::metadata(path).at("read", path)?.len();
    if length > MAX_BINARY_BYTES {
        return Err(ImageError::TooBig {
            what: path.display().to_string(),
            found: format!("{length} bytes"),
            most: format!("{MAX_BINARY_BYTES} bytes"),
        });
    }
    std::fs::read(path).at("read", path)
}

/// The demands of the program or library at `path`.
pub(crate) fn needs(path: &Path) -> Result<Needs, ImageError> {
    let data = read(path)?;
    let broken = |error: object::Error| elf_error(path, &error);
    let header = FileHeader64::<Endianness>::parse(data.as_slice()).map_err(broken)?;
    let endian = header.endian().map_err(broken)?;
    let mut needs = Needs { triplet: triplet(header.e_machine.get(endian)), ..Needs::default() };
    for segment in header.program_headers(endian, data.as_slice()).map_err(broken)? {
        if let Some(name) = segment.interpreter(endian, data.as_slice()).map_err(broken)? {
            needs.interpreter = Some(PathBuf::from(text(name)));
        }
    }
    let sections = header.sections(endian, data.as_slice()).map_err(broken)?;
    needs.loaded = loaded(&data, header, endian, MIN_SAVING_BYTES).map_err(broken)?;
    let table = sections.dynamic_table(endian, data.as_slice()).map_err(broken)?;
    let origin = path.parent().unwrap_or(Path::new("/")).display().to_string();
    for entry in table.iter() {
        match entry.tag {
            DT_NEEDED => needs.libraries.push(text(table.string(entry).map_err(broken)?)),
            DT_RUNPATH | DT_RPATH => {
                let paths = text(table.string(entry).map_err(broken)?);
                let resolved = paths.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin);
                needs.paths.extend(resolved.split(':').filter(|p| p.starts_with('/')).map(PathBuf::from));
            }
            _ => {}
        }
    }
    Ok(needs)
}

/// The part of a program without its sections, where that saves at least so many bytes. A file with
/// something behind its sections (a program that unpacks itself) stays as it is.
fn loaded(
    data: &[u8],
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    min_saving_bytes: u64,
) -> object::Result<Option<Loaded>> {
    let mut length = HEADER_BYTES as u64;
    for segment in header.program_headers(endian, data)? {
        length = length.max(segment.p_offset(endian).saturating_add(segment.p_filesz(endian)));
    }
    let entry = u64::from(header.e_phentsize.get(endian)) * u64::from(header.e_phnum.get(endian));
    length = length.max(header.e_phoff.get(endian).saturating_add(entry));
    let mut end = u64::from(header.e_shentsize.get(endian)) * u64::from(header.e_shnum.get(endian));
    end = end.saturating_add(header.e_shoff.get(endian));
    for section in header.section_headers(endian, data)? {
        let bytes = section.file_range(endian).map_or(0, |(from, bytes)| from.saturating_add(bytes));
        end = end.max(bytes);
    }
    let whole = data.len() as u64;
    if end < whole || length.saturating_add(min_saving_bytes) > whole {
        return Ok(None);
    }
    let Some(mut header) = data.first_chunk::<HEADER_BYTES>().copied() else { return Ok(None) };
    for (from, bytes) in SECTION_FIELDS {
        header.iter_mut().skip(from).take(bytes).for_each(|byte| *byte = 0);
    }
    Ok(Some(Loaded { header, length }))
}

/// The values of `key` in a kernel module's `.modinfo`: NUL-terminated texts `key=value`.
pub(crate) fn module_facts(path: &Path, data: &[u8], key: &str) -> Result<Vec<String>, ImageError> {
    let file = object::File::parse(data).map_err(|error| elf_error(path, &error))?;
    let section = file.section_by_name(".modinfo").ok_or_else(|| ImageError::Elf {
        path: path.to_path_buf(),
        reason: "it has no section .modinfo, so it is no kernel module".into(),
    })?;
    let facts = section.data().map_err(|error| elf_error(path, &error))?;
    let values = facts.split(|&byte| byte == 0).map(text);
    Ok(values.filter_map(|fact| fact.strip_prefix(key)?.strip_prefix('=').map(str::to_owned)).collect())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn elf_error(path: &Path, error: &object::Error) -> ImageError {
    ImageError::Elf { path: path.to_path_buf(), reason: error.to_string() }
}

fn triplet(machine: object::elf::Machine) -> Option<&'static str> {
    match machine {
        object::elf::EM_X86_64 => Some("x86_64-linux-gnu"),
        object::elf::EM_AARCH64 => Some("aarch64-linux-gnu"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_names_its_loader_and_libraries() {
        let needs = needs(&std::env::current_exe().expect("this test")).expect("an ELF file");
        assert!(needs.interpreter.is_some_and(|loader| loader.is_absolute()));
        assert!(needs.libraries.iter().any(|library| library.starts_with("libc.so")));
    }

    /// This very test, without what its loader does not read, is run.
    #[test]
    fn a_program_runs_without_its_sections() {
        let folder = tempfile::tempdir().expect("a folder");
        let whole = std::env::current_exe().expect("this test");
        let data = std::fs::read(&whole).expect("this test");
        // Whatever the build leaves out of it, its symbols are there.
        let loaded = without_sections(&data, 1).expect("a test has symbols to lose");
        let mut short = data[..usize::try_from(loaded.length).expect("a length")].to_vec();
        short[..HEADER_BYTES].copy_from_slice(&loaded.header);
        let path = folder.path().join("short");
        std::fs::write(&path, &short).expect("a file");
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        let output = std::process::Command::new(&path).arg("--list").output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && said.contains("a_program_runs_without_its_sections"),
            "{output:?}"
        );
        // Something behind the sections may be the program's own.
        assert_eq!(without_sections(&[data.as_slice(), b"an archive"].concat(), 1), None);
        // What saves little is left as it is.
        assert_eq!(without_sections(&data, data.len() as u64), None);
    }

    fn without_sections(data: &[u8], min_saving_bytes: u64) -> Option<Loaded> {
        let header = FileHeader64::<Endianness>::parse(data).expect("an ELF file");
        loaded(data, header, header.endian().expect("a byte order"), min_saving_bytes).expect("an ELF file")
    }

    #[test]
    fn what_is_no_elf_file_is_said_to_be_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("script");
        for content in
            [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 9, 9]]
        {
            std::fs::write(&path, content).expect("a file");
            assert!(matches!(needs(&path), Err(ImageError::Elf { .. })), "{content:?}");
            assert!(module_facts(&path, content, "depends").is_err(), "{content:?}");
        }
    }

    #[test]
    fn every_cut_of_a_program_is_an_answer_and_no_panic() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cut");
        let whole = std::fs::read(std::env::current_exe().expect("this test")).expect("this test");
        for length in (0..4096.min(whole.len())).step_by(61).chain([whole.len() / 2, whole.len() - 1]) {
            std::fs::write(&path, &whole[..length]).expect("a file");
            // Either is fine; what counts is that there is an answer.
            let _answer = needs(&path);
        }
    }
}
