//! Kernel modules by name, with those that they need, in the order in which they have to be loaded.
//!
//! Debian's package has no `modules.dep` (depmod writes it when the package is installed), so each
//! module is asked itself: its `.modinfo` says `depends=`.

use crate::elf;
use crate::error::{At as _, ImageError};
use crate::kernel::Kernel;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Module files that one kernel may have: ten times what Debian's has.
const MAX_MODULES: usize = 50_000;
/// Deepest nesting of directories of modules that is looked into.
const MAX_DEPTH: usize = 16;

/// The modules of one kernel.
#[derive(Debug)]
pub(crate) struct Modules {
    version: String,
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
}

impl Modules {
    /// Lists them.
    pub fn of(kernel: &Kernel) -> Result<Self, ImageError> {
        let mut files = BTreeMap::new();
        walk(&kernel.modules.join("kernel"), MAX_DEPTH, &mut files)?;
        let list = kernel.modules.join("modules.builtin");
        let builtin = std::fs::read_to_string(&list).at("read", &list)?;
        let builtin = builtin.lines().filter_map(|line| module_name(Path::new(line))).collect();
        Ok(Self { version: kernel.version.clone(), files, builtin })
    }

    /// The files of `names` and of what they need, each once, and each after those that it needs;
    /// then those of `optional`, as far as the kernel has them, and the names of those that it has
    /// not.
    pub fn in_order(
        &self,
        names: &[String],
        optional: &[String],
    ) -> Result<(Vec<PathBuf>, Vec<String>), ImageError> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            self.visit(name, None, &mut seen, &mut order)?;
        }
        let mut missing = Vec::new();
        for name in optional {
            let before = (seen.clone(), order.len());
            match self.visit(name, None, &mut seen, &mut order) {
                Err(ImageError::NoModule { .. }) => {
                    seen = before.0;
                    order.truncate(before.1);
                    missing.push(name.clone());
                }
                other => other?,
            }
        }
        Ok((order, missing))
    }

    /// Seen before its needs are: a circle (which no kernel has) ends there.
    fn visit(
        &self,
        name: &str,
        by: Option<&str>,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<PathBuf>,
    ) -> Result<(), ImageError> {
        let name = normal(name);
        if self.builtin.contains(&name) || !seen.insert(name.clone()) {
            return Ok(());
        }
        let file = self.files.get(&name).ok_or_else(|| ImageError::NoModule {
            name: name.clone(),
            version: self.version.clone(),
            by: by.map(str::to_owned),
        })?;
        if file.extension().is_none_or(|extension| extension != "ko") {
            return Err(ImageError::CompressedModule { path: file.clone() });
        }
        let data = elf::read(file)?;
        for list in elf::module_facts(file, &data, "depends")? {
            for need in list.split(',').filter(|need| !need.is_empty()) {
                self.visit(need, Some(&name), seen, order)?;
            }
        }
        order.push(file.clone());
        Ok(())
    }
}

fn walk(folder: &Path, depth: usize, files: &mut BTreeMap<String, PathBuf>) -> Result<(), ImageError> {
    for entry in std::fs::read_dir(folder).at("read", folder)? {
        let entry = entry.at("read", folder)?;
        let (path, kind) = (entry.path(), entry.file_type().at("read", folder)?);
        if kind.is_dir() && depth > 0 {
            walk(&path, depth - 1, files)?;
        } else if kind.is_file()
            && let Some(name) = module_name(&path)
        {
            files.insert(name, path);
        }
        if files.len() > MAX_MODULES {
            return Err(ImageError::TooBig {
                what: folder.display().to_string(),
                found: format!("more than {MAX_MODULES} modules"),
                most: format!("{MAX_MODULES} modules"),
            });
        }
    }
    Ok(())
}

/// `kernel/fs/fuse/fuse.ko` is `fuse`, compressed or not.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, rest) = file.split_once(".ko")?;
    (rest.is_empty() || rest.starts_with('.')).then(|| normal(name))
}

/// The kernel takes `-` and `_` in names of modules for one.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::write::{Object, StandardSegment};
    use object::{Architecture, BinaryFormat, Endianness, SectionKind};

    fn module(facts: &str) -> Vec<u8> {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let segment = object.segment_name(StandardSegment::Data).to_vec();
        let section = object.add_section(segment, b".modinfo".to_vec(), SectionKind::ReadOnlyData);
        object.append_section_data(section, facts.as_bytes(), 1);
        object.write().expect("an object file")
    }

    fn kernel(folder: &Path, modules: &[(&str, &str)]) -> Kernel {
        let tree = folder.join("lib/modules/1");
        for (path, facts) in modules {
            let path = tree.join("kernel").join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, module(facts)).expect("a module");
        }
        std::fs::write(tree.join("modules.builtin"), "kernel/lib/crc16.ko\nkernel/fs/ext-four.ko\n")
            .expect("a list");
        Kernel { version: "1".into(), image: folder.join("boot/vmlinuz-1"), modules: tree }
    }

    fn order(kernel: &Kernel, names: &[&str]) -> Result<Vec<String>, ImageError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let (files, _) = Modules::of(kernel)?.in_order(&names, &[])?;
        Ok(files.iter().filter_map(|file| module_name(file)).collect())
    }

    #[test]
    fn what_a_module_needs_is_loaded_before_it_and_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let kernel = kernel(
            folder.path(),
            &[
                ("drivers/virtio/virtio-pci.ko", "license=GPL\0depends=virtio_ring,virtio\0"),
                ("drivers/virtio/virtio_ring.ko", "depends=virtio\0"),
                ("drivers/virtio/virtio.ko", "depends=\0"),
                ("fs/fuse.ko", "depends=crc16,ext_four\0"),
            ],
        );
        let found = order(&kernel, &["virtio_pci", "fuse", "virtio", "crc16"]).expect("all there");
        assert_eq!(found, ["virtio", "virtio_ring", "virtio_pci", "fuse"]);
    }

    #[test]
    fn what_is_missing_is_named_with_who_needs_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let kernel = kernel(folder.path(), &[("a.ko", "depends=b\0")]);
        let error = order(&kernel, &["a"]).expect_err("b is not there").to_string();
        assert_eq!(error, "kernel 1 has no module `b`, which `a` needs");
        let error = order(&kernel, &["c"]).expect_err("c is not there").to_string();
        assert_eq!(error, "kernel 1 has no module `c`");
    }

    #[test]
    fn what_is_optional_and_missing_is_left_out_as_a_whole_and_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let kernel = kernel(
            folder.path(),
            &[
                ("vfio.ko", "depends=\0"),
                ("vfio-pci.ko", "depends=vfio,no_such\0"),
                ("ext.ko", "depends=vfio\0"),
            ],
        );
        let optional = ["vfio-pci", "ext", "pvpanic"].map(str::to_owned);
        let (files, missing) =
            Modules::of(&kernel).expect("a list").in_order(&[], &optional).expect("nothing is needed");
        let names: Vec<_> = files.iter().filter_map(|file| module_name(file)).collect();
        assert_eq!(names, ["vfio", "ext"]);
        assert_eq!(missing, ["vfio-pci", "pvpanic"]);
    }

    #[test]
    fn compressed_and_broken_modules_are_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let kernel = kernel(folder.path(), &[("a.ko.xz", ""), ("b.ko", "")]);
        std::fs::write(kernel.modules.join("kernel/c.ko"), "no module").expect("a file");
        assert!(matches!(order(&kernel, &["a"]), Err(ImageError::CompressedModule { .. })));
        assert_eq!(order(&kernel, &["b"]).expect("it needs nothing"), ["b"]);
        assert!(matches!(order(&kernel, &["c"]), Err(ImageError::Elf { .. })));
    }

    #[test]
    fn modules_that_need_each_other_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let kernel = kernel(folder.path(), &[("a.ko", "depends=b\0"), ("b.ko", "depends=a\0")]);
        assert_eq!(order(&kernel, &["a"]).expect("an end"), ["b", "a"]);
    }
}
