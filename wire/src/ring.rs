//! Layout of a channel region.
