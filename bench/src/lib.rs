//! The core that every bench shares, and the scenarios.
