//! The last failure of this thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

/// Longest text, in bytes: longer ones are cut.
const TEXT_BYTES_MAX: usize = 1024;
/// The sentence for a thread that is ending, for which nothing can be kept.
const NOTHING_KEPT: &CStr = c"this thread is ending, so what went wrong was not kept";

thread_local! {
    static TEXT: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// `tombolo_error_text`: the sentence of the call that failed last in this thread, valid until the
/// next one fails. Empty where none has.
#[must_use]
pub fn error_text() -> *const c_char {
    let text = TEXT.try_with(|text| text.borrow().as_deref().unwrap_or(c"").as_ptr());
    text.unwrap_or(NOTHING_KEPT.as_ptr())
}

/// Keeps a sentence for [`error_text`].
pub(super) fn keep(text: &str) {
    let cut = text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or(text);
    // A NUL would end the text early; none of ours has one, but a name that is quoted might.
    let clean: String = cut.chars().map(|letter| if letter == '\0' { ' ' } else { letter }).collect();
    let kept = CString::new(clean).ok();
    // A thread that is ending has nowhere to keep it.
    let _ending = TEXT.try_with(|text| *text.borrow_mut() = kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        // SAFETY: a C string, kept until this thread keeps the next one.
        unsafe { CStr::from_ptr(error_text()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn each_thread_has_its_own_text() {
        assert_eq!(text(), "");
        keep("this one");
        std::thread::spawn(|| assert_eq!(text(), "")).join().unwrap();
        assert_eq!(text(), "this one");
    }

    #[test]
    fn long_and_odd_texts_are_mended() {
        keep(&"é".repeat(TEXT_BYTES_MAX));
        assert_eq!(text().len(), TEXT_BYTES_MAX);
        keep("a\0b");
        assert_eq!(text(), "a b");
    }
}
