//! One cluster: machines with daemons, the registry as they see it, what befalls them, and what
//! must never be. A world is handed round in all of it.

pub mod client;
pub mod coordination;
pub mod daemon;
pub mod links;
pub mod machine;
pub mod pair;
mod run;
pub mod trouble;
pub mod world;

pub use run::{Ended, run};
