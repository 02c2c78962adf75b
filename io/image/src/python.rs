//! The Python package `tombolo`, as every binary of ours carries it for domains and guests.

macro_rules! package {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../python/tombolo/", $name)))),+]
    };
}

/// The Python package: names and texts of its files.
pub const PYTHON: &[(&str, &str)] = package![
    "__init__.py",
    "_channel.py",
    "_end.py",
    "_endpoint.py",
    "_endpoint_errors.py",
    "_library.py",
    "_memory.py",
    "_offer.py",
    "_service_calls.py",
    "_service_consumer.py",
    "_service_files.py",
    "_service_folder.py",
    "_service_loop.py",
    "_service_offer.py",
    "_service_stream.py",
    "_service_tree.py",
    "_service_wire.py",
    "_stream.py",
    "py.typed",
    "service.py",
    "sync.py",
];

#[cfg(test)]
mod tests {
    use super::PYTHON;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn each_file_of_the_package_is_carried() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tombolo");
        let there = std::fs::read_dir(folder).expect("the package").map(|entry| entry.expect("an entry"));
        let there: BTreeSet<String> = there
            .map(|entry| entry.file_name().into_string().expect("a name"))
            .filter(|name| name.ends_with(".py") || name == "py.typed")
            .collect();
        let carried: BTreeSet<String> = PYTHON.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(carried, there);
    }
}
