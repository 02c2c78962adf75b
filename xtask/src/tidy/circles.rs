//! The top-level modules of a crate import each other without a circle. Modules in a circle can
//! only be read, tested and changed together.
//!
//! Tests may see everything, so what is compiled for tests alone is not looked at.

use super::Violation;
use super::tree::Tree;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::{ImplItem, Item, UseTree};

/// Circles that stand today: the folder of the crate, and the modules that reach each other. This
/// list only gets shorter: a circle that is not exactly as it stands here, be it larger or smaller,
/// is a violation.
const KNOWN: [(&str, &[&str]); 23] = [
    ("bench", &["channel", "ipc", "links"]),
    ("bench", &["choice", "report", "scenario"]),
    (
        "bin/libtombolo",
        &["buffer", "failure", "member", "naming", "offering", "ongoing", "polling", "refusals", "whole"],
    ),
    ("bin/tombolo", &["cli", "commands"]),
    ("conformance", &["closing", "messages"]),
    ("io/channel", &["kinds", "large", "memory", "receiver", "sender", "shared", "stream"]),
    ("io/domain", &["error", "hostroot", "image", "layout", "privilege", "root", "spec"]),
    ("io/domain", &["exec", "exec_machine", "exec_process"]),
    ("io/domain", &["machine", "status"]),
    (
        "io/endpoint",
        &["copy", "crossing", "endpoint", "granting", "interrupt", "loans", "member", "steps", "waiting"],
    ),
    ("io/enforce", &["deadline", "room"]),
    ("io/enforce", &["enforcer", "error", "jobs", "plan"]),
    ("io/frontend", &["daemon", "link", "shared"]),
    ("io/transport", &["connect", "ethernet", "listener", "quic", "shake", "tcp", "tipc", "tls"]),
    ("io/trust", &["authority", "identity", "verify"]),
    ("logic/ipc", &["endpoint", "peer", "search"]),
    ("logic/link", &["connection", "link"]),
    ("logic/link", &["pairs", "schedule", "table"]),
    ("logic/reserve", &["deadlines", "means"]),
    ("logic/reserve", &["fixed_priority", "refusal", "task"]),
    ("logic/ring", &["producer", "slot"]),
    ("services/agent", &["agent", "services"]),
    ("services/directory", &["lookups", "service", "session_table", "settling"]),
];

/// Where one module first imports another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Import {
    file: PathBuf,
    line: usize,
}

/// The top-level modules of one crate: from which to which there is an import.
#[derive(Debug, Default)]
struct Crate {
    modules: BTreeSet<String>,
    /// Names that the root has from a module: `pub use change::look`.
    from_root: BTreeMap<String, String>,
    imports: BTreeMap<String, BTreeMap<String, Import>>,
}

/// Checks all packages.
pub fn check(tree: &Tree) -> Vec<Violation> {
    check_against(tree, &KNOWN)
}

fn check_against(tree: &Tree, known: &[(&str, &[&str])]) -> Vec<Violation> {
    let folders = tree
        .with_extension("toml")
        .filter(|(file, text)| file.ends_with("Cargo.toml") && text.contains("[package]"))
        .filter_map(|(file, _)| file.parent());
    folders.flat_map(|folder| check_crate(tree, folder, known)).collect()
}

fn check_crate(tree: &Tree, folder: &Path, known: &[(&str, &[&str])]) -> Vec<Violation> {
    let found = Crate::read(tree, folder);
    let circles = found.circles();
    let listed: Vec<BTreeSet<String>> = known
        .iter()
        .filter(|(of, _)| Path::new(of) == folder)
        .map(|(_, modules)| modules.iter().map(|module| (*module).to_owned()).collect())
        .collect();
    let new = circles.iter().filter(|circle| !listed.contains(circle)).map(|circle| {
        let way = found.way_around(circle);
        let arrows: Vec<String> = way
            .iter()
            .map(|(from, to, import)| {
                format!("{from} → {to} ({}:{})", import.file.display(), import.line)
            })
            .collect();
        let (file, line) =
            way.first().map_or((folder.to_path_buf(), 0), |(_, _, import)| (import.file.clone(), import.line));
        Violation {
            file,
            line,
            what: format!("modules of `{}` import each other in a circle: {}", folder.display(), arrows.join(", ")),
            why: "modules in a circle can only be read, tested and changed together",
            mend: format!(
                "move what is needed to a module below both, or hand it in as a trait or a channel; the whole circle: {}",
                names(circle)
            ),
        }
    });
    let gone = listed.iter().filter(|listed| !circles.contains(listed)).map(|listed| Violation {
        file: Path::new("xtask/src/tidy/circles.rs").to_path_buf(),
        line: 0,
        what: format!(
            "a circle of `{}` is listed that is not there as listed: {}",
            folder.display(),
            names(listed)
        ),
        why: "the list of known circles only gets shorter",
        mend: "list the circle that is left, if it is smaller than this one, or strike the line".into(),
    });
    new.chain(gone).collect()
}

fn names(modules: &BTreeSet<String>) -> String {
    modules.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

impl Crate {
    fn read(tree: &Tree, folder: &Path) -> Self {
        let source = folder.join("src");
        let files: Vec<(&Path, Vec<String>, syn::File)> = tree
            .with_extension("rs")
            .filter_map(|(file, text)| {
                let module = module_of(file.strip_prefix(&source).ok()?)?;
                // What is no Rust is found by another rule.
                Some((file, module, syn::parse_file(text).ok()?))
            })
            .collect();
        let mut tests = Vec::new();
        let mut found = Self::default();
        for (_, module, parsed) in &files {
            find_test_modules(module, &parsed.items, &mut tests);
            if module.is_empty() {
                found.read_root(&parsed.items);
            }
        }
        for (file, module, parsed) in &files {
            if !module.is_empty() && !tests.iter().any(|test| module.starts_with(test)) {
                found.read_items(file, module, &parsed.items);
            }
        }
        found
    }

    fn read_root(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Mod(module) if !is_for_tests(&module.attrs) => {
                    self.modules.insert(module.ident.to_string());
                }
                Item::Use(found) => match &found.tree {
                    UseTree::Path(path) if path.ident == "crate" || path.ident == "self" => {
                        self.read_root_use(&path.tree);
                    }
                    tree => self.read_root_use(tree),
                },
                _ => {}
            }
        }
    }

    fn read_root_use(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                let mut leaves = Vec::new();
                leaf_names(&path.tree, &mut leaves);
                let module = path.ident.to_string();
                self.from_root.extend(leaves.into_iter().map(|leaf| (leaf, module.clone())));
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.read_root_use(tree)),
            UseTree::Rename(name) => {
                self.from_root.insert(name.rename.to_string(), name.ident.to_string());
            }
            UseTree::Name(_) | UseTree::Glob(_) => {}
        }
    }

    fn read_items(&mut self, file: &Path, module: &[String], items: &[Item]) {
        use quote::ToTokens;
        for item in items.iter().filter(|item| !attributes(item).is_some_and(is_for_tests)) {
            match item {
                Item::Mod(inner) if inner.content.is_some() => {
                    let items = inner.content.as_ref().map_or(&[][..], |(_, items)| items);
                    let module = [module, &[inner.ident.to_string()]].concat();
                    self.read_items(file, &module, items);
                }
                Item::Impl(found) => {
                    let mut found = found.clone();
                    found
                        .items
                        .retain(|item| !matches!(item, ImplItem::Fn(item) if is_for_tests(&item.attrs)));
                    self.read_tokens(file, module, found.to_token_stream());
                }
                item => self.read_tokens(file, module, item.to_token_stream()),
            }
        }
    }

    /// Finds all paths that lead to the root of the crate, in macros too.
    fn read_tokens(&mut self, file: &Path, module: &[String], stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.read_tokens(file, module, group.stream()),
                TokenTree::Ident(word) if word == "crate" => self.read_path(file, module, &tokens[at + 1..]),
                TokenTree::Ident(word) if word == "super" && !follows_colon(&tokens[..at]) => {
                    let mut rest = &tokens[at + 1..];
                    let mut depth = module.len().saturating_sub(1);
                    while let Some(TokenTree::Ident(word)) = after_colons(rest).and_then(<[_]>::first)
                        && word == "super"
                    {
                        rest = &rest[3..];
                        depth = depth.saturating_sub(1);
                    }
                    if depth == 0 {
                        self.read_path(file, module, rest);
                    }
                }
                _ => {}
            }
        }
    }

    /// Reads what follows the root of the crate in a path: `::a::b`, `::{a, b::c}`.
    fn read_path(&mut self, file: &Path, module: &[String], tokens: &[TokenTree]) {
        match after_colons(tokens).and_then(<[_]>::first) {
            Some(TokenTree::Ident(word)) => self.enter(file, module, word),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let mut is_first = true;
                for token in group.stream() {
                    match token {
                        TokenTree::Ident(word) if is_first => {
                            self.enter(file, module, &word);
                            is_first = false;
                        }
                        TokenTree::Punct(sign) if sign.as_char() == ',' => is_first = true,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn enter(&mut self, file: &Path, module: &[String], word: &proc_macro2::Ident) {
        let name = word.to_string();
        let to = if self.modules.contains(&name) { Some(&name) } else { self.from_root.get(&name) };
        let (Some(from), Some(to)) = (module.first(), to) else { return };
        if from != to && self.modules.contains(to) {
            let import = Import { file: file.to_path_buf(), line: word.span().start().line };
            self.imports.entry(from.clone()).or_default().entry(to.clone()).or_insert(import);
        }
    }

    /// The modules that a module reaches by its imports, and theirs, and so on; itself only where
    /// it is in a circle.
    fn reached(&self, from: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut todo = vec![from];
        while let Some(module) = todo.pop() {
            for to in self.imports.get(module).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(to.as_str()) {
                    todo.push(to);
                }
            }
        }
        reached
    }

    /// The sets of modules that all reach each other.
    fn circles(&self) -> BTreeSet<BTreeSet<String>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.modules.iter().map(|module| (module.as_str(), self.reached(module))).collect();
        let circle = |module: &&str| -> BTreeSet<String> {
            let back = reached[module].iter().filter(|other| reached[**other].contains(*module));
            back.map(|other| (*other).to_owned()).collect()
        };
        reached.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
    }

    /// A shortest way through a circle, from its first module back to it.
    fn way_around<'a>(&'a self, circle: &'a BTreeSet<String>) -> Vec<(&'a str, &'a str, &'a Import)> {
        let Some(start) = circle.first() else { return Vec::new() };
        let mut came: BTreeMap<&'a str, (&'a str, &'a Import)> = BTreeMap::new();
        let mut todo = std::collections::VecDeque::from([start.as_str()]);
        while let Some(module) = todo.pop_front() {
            for (to, import) in self.imports.get(module).into_iter().flatten() {
                if !came.contains_key(to.as_str()) {
                    came.insert(to, (module, import));
                    todo.push_back(to);
                }
            }
        }
        let mut way = Vec::new();
        let mut at = start.as_str();
        while let Some((from, import)) = came.get(at) {
            way.push((*from, at, *import));
            at = from;
            if at == start {
                break;
            }
        }
        way.reverse();
        way
    }
}

/// The path of the module that a file is, seen from `src`; none for the root. `None`: a program of
/// its own.
fn module_of(file: &Path) -> Option<Vec<String>> {
    let mut module: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.first().is_some_and(|first| first == "bin") {
        return None;
    }
    let last = module.last()?;
    if last == "mod" || (module.len() == 1 && (last == "lib" || last == "main")) {
        module.pop();
    }
    Some(module)
}

/// Modules in files of their own that are compiled for tests alone.
fn find_test_modules(module: &[String], items: &[Item], found: &mut Vec<Vec<String>>) {
    for item in items {
        if let Item::Mod(inner) = item {
            let path = [module, &[inner.ident.to_string()]].concat();
            if is_for_tests(&inner.attrs) {
                found.push(path);
            } else if let Some((_, items)) = &inner.content {
                find_test_modules(&path, items, found);
            }
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

fn attributes(item: &Item) -> Option<&[syn::Attribute]> {
    Some(match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return None,
    })
}

fn leaf_names(tree: &UseTree, leaves: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => leaf_names(&path.tree, leaves),
        UseTree::Name(name) => leaves.push(name.ident.to_string()),
        UseTree::Rename(name) => leaves.push(name.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaf_names(tree, leaves)),
        UseTree::Glob(_) => {}
    }
}

/// The tokens behind `::`.
fn after_colons(tokens: &[TokenTree]) -> Option<&[TokenTree]> {
    match tokens {
        [TokenTree::Punct(first), TokenTree::Punct(second), rest @ ..]
            if first.as_char() == ':' && second.as_char() == ':' =>
        {
            Some(rest)
        }
        _ => None,
    }
}

fn follows_colon(tokens: &[TokenTree]) -> bool {
    matches!(tokens.last(), Some(TokenTree::Punct(sign)) if sign.as_char() == ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGE: (&str, &str) = ("io/a/Cargo.toml", "[package]\nname = \"a\"\n");

    fn found(files: &[(&str, &str)], known: &[(&str, &[&str])]) -> Vec<String> {
        let files: Vec<(&str, &str)> = [PACKAGE].into_iter().chain(files.iter().copied()).collect();
        check_against(&Tree::made_up(&files), known).into_iter().map(|found| found.to_string()).collect()
    }

    #[test]
    fn a_circle_is_told_with_each_of_its_imports() {
        let root = ("io/a/src/lib.rs", "mod one; mod two; mod three; mod apart;");
        let files = [
            root,
            ("io/a/src/one.rs", "\nuse crate::two::Two;"),
            ("io/a/src/two/mod.rs", "mod deep;"),
            ("io/a/src/two/deep.rs", "fn f() { println!(\"{}\", super::super::three::g()) }"),
            ("io/a/src/three.rs", "use super::{apart, one};"),
            ("io/a/src/apart.rs", "use crate::apart::Own;"),
        ];
        let told = found(&files, &[]);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("io/a/src/one.rs:2: "), "{}", told[0]);
        for part in [
            "one → two (io/a/src/one.rs:2)",
            "two → three (io/a/src/two/deep.rs:1)",
            "three → one (io/a/src/three.rs:1)",
            "the whole circle: one, three, two",
        ] {
            assert!(told[0].contains(part), "{part}: {}", told[0]);
        }
    }

    #[test]
    fn imports_that_go_one_way_and_those_of_tests_are_fine() {
        let files = [
            ("io/a/src/lib.rs", "pub mod one; mod two; #[cfg(test)] mod tests;"),
            ("io/a/src/one.rs", "use crate::two::{self, Two}; #[cfg(test)] mod tests;"),
            ("io/a/src/one/tests.rs", "use crate::one::One;"),
            (
                "io/a/src/two.rs",
                "pub(crate) struct Two; impl Two { #[cfg(test)] fn f() { crate::one::g() } }
                #[cfg(test)] mod testing; #[cfg(test)] mod tests { use crate::one::One; }",
            ),
            ("io/a/src/two/testing.rs", "use crate::one::One;"),
            ("io/a/src/tests.rs", "use crate::{one, two};"),
        ];
        assert_eq!(found(&files, &[]), [] as [&str; 0]);
    }

    #[test]
    fn a_name_that_the_root_has_from_a_module_leads_to_that_module() {
        let files = [
            ("io/a/src/lib.rs", "mod one; mod two; pub use one::{look, Other as Renamed}; use one as first;"),
            ("io/a/src/one.rs", "use crate::two::Two;"),
        ];
        for name in ["look", "Renamed", "first::deep"] {
            let two = format!("fn f() {{ crate::{name}() }}");
            let found = found(&[&files[..], &[("io/a/src/two.rs", &two)]].concat(), &[]);
            assert!(found[0].contains("two → one"), "{name}");
        }
    }

    #[test]
    fn a_known_circle_is_allowed_as_it_stands_and_neither_larger_nor_smaller() {
        let files = [
            ("io/a/src/lib.rs", "mod one; mod two; mod three;"),
            ("io/a/src/one.rs", "use crate::two::Two;"),
            ("io/a/src/two.rs", "use crate::one::One;"),
            ("io/a/src/three.rs", "use crate::one::One;"),
        ];
        assert_eq!(found(&files, &[("io/a", &["one", "two"])]), [] as [&str; 0]);
        assert_eq!(found(&files, &[("io/b", &["one", "two"])]).len(), 1);
        let too_large = found(&files, &[("io/a", &["one", "two", "three"])]);
        assert_eq!(too_large.len(), 2, "{too_large:?}");
        assert!(too_large[1].contains("not there as listed: one, three, two"), "{}", too_large[1]);
    }
}
