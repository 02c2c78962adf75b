//! A cluster of nodes with disks, a network and a registry, of which every step is a choice: all of
//! them at small sizes, and thousands of runs from seeds at larger ones.

mod choices;
mod explore;
mod simulate;
mod world;
