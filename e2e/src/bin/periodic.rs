//! Real periodic work: `periodic FILE [NAME=BUDGET_US/PERIOD_US/DEADLINE_US/COUNT ...] [spin]`.
//! Each NAME is a thread of that name that begins with every period, computes for BUDGET_US of its
//! own processor time, and sleeps until the next; `spin` is one more that never rests. Periods
//! count from the first that a thread begins in a class of real time: until then nobody has found
//! it. When all that are counted are done, FILE has for each how often it was late, and the process
//! ends.

use std::fmt::Write as _;
use std::sync::atomic::AtomicU32;
use std::thread::{Builder, JoinHandle};

struct Work {
    name: String,
    numbers: [u64; 4],
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().expect("FILE");
    let (mut threads, mut spins) = (Vec::<JoinHandle<String>>::new(), false);
    for word in arguments {
        match word.split_once('=') {
            None => spins |= word == "spin",
            Some((name, numbers)) => {
                let numbers: Vec<u64> =
                    numbers.split('/').map(|word| word.parse().expect("a number")).collect();
                let numbers = numbers.try_into().expect("BUDGET_US/PERIOD_US/DEADLINE_US/COUNT");
                let work = Work { name: name.to_owned(), numbers };
                threads
                    .push(Builder::new().name(name.to_owned()).spawn(move || run(&work)).expect("a thread"));
            }
        }
    }
    if spins {
        let spin = || {
            loop {
                std::hint::spin_loop();
            }
        };
        Builder::new().name("spin".to_owned()).spawn(spin).expect("a thread");
    }
    let mut said = String::new();
    for thread in threads {
        let _ = writeln!(said, "{}", thread.join().expect("it ended"));
    }
    // As a whole, or not at all.
    let part = format!("{file}.part");
    std::fs::write(&part, said).expect("FILE can be written");
    std::fs::rename(part, file).expect("FILE can be made");
}

fn run(work: &Work) -> String {
    let [budget_us, period_us, deadline_us, count] = work.numbers;
    let nobody = AtomicU32::new(0);
    let mut begun_ns = sys::clock::clock_ns();
    let (mut late, mut worst_ns, mut number) = (0, 0, 0);
    let mut found = false;
    while number < count {
        let mut release_ns = begun_ns + number * period_us * 1_000;
        while sys::clock::clock_ns() < release_ns {
            sys::schedule::sleep_until(&nobody, 0, release_ns);
        }
        if !found && number > 0 {
            found = is_real_time();
            release_ns = sys::clock::clock_ns();
            (begun_ns, late, worst_ns, number) = (release_ns, 0, 0, 0);
        }
        let until_ns = sys::clock::thread_ns() + budget_us * 1_000;
        while sys::clock::thread_ns() < until_ns {
            std::hint::spin_loop();
        }
        let took_ns = sys::clock::clock_ns() - release_ns;
        worst_ns = worst_ns.max(took_ns);
        late += u64::from(took_ns > deadline_us * 1_000);
        number += 1;
    }
    format!("{} {count} {late} {}", work.name, worst_ns / 1_000)
}

/// Whether somebody gave the calling thread a class of real time.
fn is_real_time() -> bool {
    use sys::schedule::Class::{Deadline, Fifo, RoundRobin};
    matches!(sys::schedule::class(0), Ok(Deadline { .. } | Fifo { .. } | RoundRobin { .. }))
}
