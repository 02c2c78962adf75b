//! The common parts of the fuzz targets: a script out of the fuzzer's bytes, and the places where
//! it is played.

pub mod corpus;
pub mod hostile;
pub mod script;
pub mod stage;
pub mod watch;

/// The entry of a target, which takes the fuzzer's bytes: a program of libFuzzer with the feature
/// `fuzzing`, else a function `run`.
#[macro_export]
macro_rules! target {
    (|$bytes:ident: &[u8]| $body:block) => {
        #[cfg(feature = "fuzzing")]
        $crate::libfuzzer_sys::fuzz_target!(|$bytes: &[u8]| $body);

        /// Plays one input.
        #[cfg(not(feature = "fuzzing"))]
        pub fn run($bytes: &[u8]) $body
    };
}

#[cfg(feature = "fuzzing")]
pub use libfuzzer_sys;
