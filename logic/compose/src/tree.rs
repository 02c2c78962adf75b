//! YAML as a tree that knows its lines, with anchors and merge keys resolved. Of a file that would
//! grow by its own aliases, no more is made than has a bound.

use saphyr_parser::{Event, Parser, ScalarStyle};
use std::collections::HashMap;

/// Largest file, in bytes: a thousand services.
const MAX_BYTES: usize = 1024 * 1024;
/// Most values, those that aliases repeat included.
const MAX_NODES: usize = 100_000;
/// Deepest nesting; Compose files have some ten levels.
const MAX_DEPTH: usize = 64;
/// The key whose mappings are merged into the one that has it.
const MERGE: &str = "<<";

/// A value and where it begins.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub line: usize,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Nothing,
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: String,
    pub line: usize,
    pub node: Node,
}

/// Why a file is no YAML that is taken: the line, and what is wrong.
pub(crate) type Broken = (usize, String);

/// A collection that has not ended.
enum Open {
    List(usize, usize, Vec<Node>),
    Map(usize, usize, Vec<Entry>, Option<(String, usize)>),
}

/// Reads one document.
pub(crate) fn read(text: &str) -> Result<Node, Broken> {
    if text.len() > MAX_BYTES {
        return Err((1, format!("the file has more than {MAX_BYTES} bytes")));
    }
    let mut reader = Reader::default();
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| (error.marker().line(), format!("this is no YAML: {}", error.info())))?;
        reader.take(event, span.start.line())?;
    }
    reader.root.ok_or_else(|| (1, "the file is empty".to_owned()))
}

#[derive(Default)]
struct Reader {
    open: Vec<Open>,
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    root: Option<Node>,
}

impl Reader {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), Broken> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let is_nothing = style == ScalarStyle::Plain && matches!(text.as_ref(), "" | "~" | "null");
                let value = if is_nothing { Value::Nothing } else { Value::Text(text.into_owned()) };
                self.close(Node { line, value }, anchor)
            }
            Event::SequenceStart(anchor, _) => self.begin(Open::List(line, anchor, Vec::new()), line),
            Event::MappingStart(anchor, _) => self.begin(Open::Map(line, anchor, Vec::new(), None), line),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List(line, anchor, items)) => {
                    self.close(Node { line, value: Value::List(items) }, anchor)
                }
                Some(Open::Map(line, anchor, entries, _)) => {
                    let entries = self.merged(entries)?;
                    self.close(Node { line, value: Value::Map(entries) }, anchor)
                }
                None => Ok(()),
            },
            Event::Alias(anchor) => {
                let Some((node, size)) = self.anchors.get(&anchor).cloned() else {
                    return Err((line, "an alias can't stand for what it is a part of".into()));
                };
                self.count(size, line)?;
                self.close(node, 0)
            }
            Event::DocumentStart(_) if self.root.is_some() => {
                Err((line, "a second document begins here".into()))
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, open: Open, line: usize) -> Result<(), Broken> {
        if self.open.len() >= MAX_DEPTH {
            return Err((line, format!("this is more than {MAX_DEPTH} levels deep")));
        }
        self.open.push(open);
        Ok(())
    }

    fn count(&mut self, nodes: usize, line: usize) -> Result<(), Broken> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            return Err((line, format!("the file has more than {MAX_NODES} values, aliases included")));
        }
        Ok(())
    }

    fn close(&mut self, node: Node, anchor: usize) -> Result<(), Broken> {
        self.count(1, node.line)?;
        if anchor != 0 {
            let size = size(&node);
            self.anchors.insert(anchor, (node.clone(), size));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List(_, _, items)) => items.push(node),
            Some(Open::Map(_, _, entries, waiting)) => match (waiting.take(), node.value) {
                (Some((key, line)), value) => {
                    if key != MERGE && entries.iter().any(|entry| entry.key == key) {
                        return Err((line, format!("`{key}` is there twice")));
                    }
                    entries.push(Entry { key, line, node: Node { line: node.line, value } });
                }
                (None, Value::Text(key)) => *waiting = Some((key, node.line)),
                (None, _) => return Err((node.line, "a key has to be a text".into())),
            },
        }
        Ok(())
    }

    /// Entries with those of merge keys behind; what is there itself wins.
    fn merged(&mut self, entries: Vec<Entry>) -> Result<Vec<Entry>, Broken> {
        let (merges, mut own): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.key == MERGE);
        for merge in merges {
            let sources = match merge.node.value {
                Value::Map(entries) => vec![entries],
                Value::List(items) => {
                    let maps = items.into_iter().filter_map(|item| match item.value {
                        Value::Map(entries) => Some(entries),
                        _ => None,
                    });
                    maps.collect()
                }
                _ => return Err((merge.line, "`<<` takes a mapping".into())),
            };
            for entry in sources.into_iter().flatten() {
                if !own.iter().any(|there| there.key == entry.key) {
                    own.push(entry);
                }
            }
        }
        Ok(own)
    }
}

fn size(node: &Node) -> usize {
    1 + match &node.value {
        Value::Nothing | Value::Text(_) => 0,
        Value::List(items) => items.iter().map(size).sum(),
        Value::Map(entries) => entries.iter().map(|entry| size(&entry.node)).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        read(text).expect_err(text).1
    }

    #[test]
    fn what_would_grow_without_a_bound_is_refused() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let before = format!("*a{}, ", level - 1).repeat(10);
            bomb += &format!("a{level}: &a{level} [{}]\n", before.trim_end_matches(", "));
        }
        assert!(refusal(&bomb).contains("aliases included"));
        assert!(refusal(&format!("{}{}", "[".repeat(100), "]".repeat(100))).contains("levels deep"));
        assert!(refusal(&"x".repeat(MAX_BYTES + 1)).contains("bytes"));
        assert!(refusal("a: &a [*a]").contains("a part of"));
        assert!(refusal("a: 1\na: 2").contains("twice"));
        assert!(refusal("a: 1\n---\nb: 2").contains("second document"));
        assert!(refusal("[a]: 1").contains("has to be a text"));
        assert!(refusal("").contains("empty"));
        assert!(refusal("a: [").contains("no YAML"));
    }

    #[test]
    fn merge_keys_fill_in_what_is_not_there() {
        let node = read("base: &b { x: 1, y: 2 }\nown:\n  <<: *b\n  x: 3\n").expect("YAML");
        let Value::Map(entries) = node.value else { panic!("a mapping") };
        let Value::Map(own) = &entries[1].node.value else { panic!("a mapping") };
        let texts: Vec<_> =
            own.iter().map(|entry| (entry.key.as_str(), format!("{:?}", entry.node.value))).collect();
        assert_eq!(texts, [("x", "Text(\"3\")".to_owned()), ("y", "Text(\"2\")".to_owned())]);
        assert_eq!(own[0].line, 4);
    }
}
