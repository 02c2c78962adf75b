//! The bytes that another party sees: layouts, codecs, versions. No I/O.
