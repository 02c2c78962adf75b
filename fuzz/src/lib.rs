//! What the fuzz targets share: a script out of the fuzzer's bytes, and the places where it is played.

pub mod liar;
pub mod script;
pub mod stage;
pub mod watch;
