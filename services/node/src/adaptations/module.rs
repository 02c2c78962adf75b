//! A selector that is a WebAssembly module (`docs/spec/selector.md`). It has nothing of the node
//! but the bytes of a question, and no more time than its fuel.

use super::program::{Question, Wish};
use adaptation::Amounts;
use modules::{Module, Verdict};
use std::path::Path;

/// The word for an amount that does not move, or is to stay.
const ABSENT: u64 = u64::MAX;
/// Words of a question: its sample and figure, and four times three amounts.
const QUESTION_WORDS: usize = 14;
/// Bytes of an answer: three amounts.
const ANSWER_BYTES: usize = 24;

/// An installed module.
#[derive(Debug)]
pub(super) struct Judge {
    module: Module,
    answer: Vec<u8>,
}

impl Judge {
    /// Installs the module in this file. May take a second for a hostile one.
    ///
    /// # Errors
    /// Why it is none, in words that follow the file's name.
    pub(super) fn of(path: &Path) -> Result<Self, String> {
        let bytes = crate::base::module_bytes(path)?;
        let module = Module::install(&bytes).map_err(|error| error.to_string())?;
        if !module.transforms() {
            return Err("a selector exports `transform`; this one exports `filter`".to_owned());
        }
        Ok(Self { module, answer: Vec::new() })
    }

    /// Asks it about a sample.
    ///
    /// # Errors
    /// Why it must not be asked again.
    pub(super) fn ask(&mut self, question: &Question) -> Result<Wish, String> {
        let asked = bytes_of(question);
        match self.module.judge(&asked, &mut self.answer).map_err(|failure| failure.to_string())? {
            Verdict::Replaced => wish_of(question.sample, &self.answer),
            Verdict::Drop | Verdict::Pass => Ok(Wish::nothing(question.sample)),
        }
    }
}

fn bytes_of(question: &Question) -> Vec<u8> {
    let amounts = |amounts: &Amounts| {
        [amounts.cpu_ns.unwrap_or(ABSENT), amounts.network_bits.unwrap_or(ABSENT), amounts.level.into()]
    };
    let Question { sample, figure_thousandths, has, file, least, most } = question;
    let mut words = Vec::with_capacity(QUESTION_WORDS);
    words.extend([*sample, *figure_thousandths]);
    [has, file, least, most].into_iter().for_each(|of| words.extend(amounts(of)));
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn wish_of(sample: u64, answer: &[u8]) -> Result<Wish, String> {
    if answer.len() != ANSWER_BYTES {
        return Err(format!("it answers with {} bytes, and not with {ANSWER_BYTES}", answer.len()));
    }
    let word = |at: usize| {
        let bytes = answer.get(8 * at..8 * at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_le_bytes).filter(|word| *word != ABSENT)
    };
    let level = word(2).map(|level| u32::try_from(level).unwrap_or(u32::MAX));
    Ok(Wish { cpu_ns: word(0), network_bits: word(1), level, ..Wish::nothing(sample) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(body: &str) -> Result<Judge, String> {
        let text = format!(
            "(module (memory (export \"memory\") 1) (func (export \"buffer\") (param i32) (result i32) i32.const 1024) \
             {body})"
        );
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("choose.wasm");
        std::fs::write(&path, wat::parse_str(text).expect("a module")).expect("written");
        Judge::of(&path)
    }

    fn transform(body: &str) -> String {
        format!("(func (export \"transform\") (param i32 i32) (result i64) {body})")
    }

    fn question() -> Question {
        let amounts = |cpu_ns: u64, level: u32| Amounts { cpu_ns: Some(cpu_ns), network_bits: None, level };
        Question {
            sample: 7,
            figure_thousandths: 5_000,
            has: amounts(8, 1),
            file: amounts(6, 0),
            least: amounts(4, 0),
            most: amounts(12, 2),
        }
    }

    #[test]
    fn a_question_is_words_and_so_is_an_answer() {
        let bytes = bytes_of(&question());
        let words: Vec<u64> =
            bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect();
        assert_eq!(words, [7, 5_000, 8, ABSENT, 1, 6, ABSENT, 0, 4, ABSENT, 0, 12, ABSENT, 2]);
        // Its `most` is what it wants.
        let mut most = judge(&transform("(i64.or (i64.shl (i64.const 1112) (i64.const 32)) (i64.const 24))"))
            .expect("one");
        let wish = most.ask(&question()).expect("an answer");
        assert_eq!(wish, Wish { cpu_ns: Some(12), level: Some(2), ..Wish::nothing(7) });
        let mut nothing = judge(&transform("(i64.const 0)")).expect("one");
        assert_eq!(nothing.ask(&question()), Ok(Wish::nothing(7)));
    }

    #[test]
    fn what_is_no_selector_or_fails_is_told() {
        let filter = "(func (export \"filter\") (param i32 i32) (result i32) (i32.const 1))";
        assert!(judge(filter).is_err_and(|why| why.contains("a selector exports `transform`")));
        assert!(Judge::of(Path::new("/nowhere")).is_err());
        let fails = |body: &str| {
            let mut judge = judge(&transform(body)).expect("it is a module");
            judge.ask(&question()).expect_err("it fails")
        };
        assert!(fails("(loop (br 0)) (i64.const 0)").contains("fuel"));
        assert!(fails("unreachable").contains("trapped"));
        assert!(fails("(i64.const 5)").contains("5 bytes, and not with 24"));
        assert!(fails("(i64.const -1)").contains("outside of its memory"));
    }
}
