//! In each guest: starts jobs as processes of their own, passes on what they say, and kills them
//! when told to.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use channel::{ReceiveError, Sender};
use rustix::process::{Pid, Signal, kill_process};

use crate::Failure;
use crate::link::{NAME, News, Order};

/// Does what dom0 says until it says no more.
pub fn run() -> Result<(), Failure> {
    let (sender, mut receiver) = xen::open(0, NAME, None)?.open()?;
    let sender = Arc::new(Mutex::new(sender));
    let mut jobs = HashMap::new();
    let mut message = Vec::new();
    loop {
        message.clear();
        match receiver.receive(&mut message, None) {
            Ok(_) => {}
            Err(ReceiveError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        match serde_json::from_slice(&message)? {
            Order::Start { id, arguments } => {
                let mut child = start(&arguments)?;
                jobs.insert(id, Pid::from_child(&child));
                let sender = Arc::clone(&sender);
                std::thread::spawn(move || {
                    let output = child.stdout.take();
                    for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()).flatten()
                    {
                        tell(&sender, &News::Line { id, line });
                    }
                    let well = child.wait().is_ok_and(|status| status.success());
                    tell(&sender, &News::Ended { id, well });
                });
            }
            Order::Kill { id } => {
                if let Some(&job) = jobs.get(&id) {
                    // It may have ended already.
                    let _ended = kill_process(job, Signal::KILL);
                }
            }
        }
    }
}

/// Starts a job of this program.
pub fn start(arguments: &[String]) -> std::io::Result<Child> {
    let mut command = match arguments.split_first() {
        Some((first, others)) if first == "vchan" => {
            let mut peer = Command::new("/usr/bin/vchan_peer");
            peer.args(others);
            peer
        }
        _ => {
            let mut job = Command::new("/proc/self/exe");
            job.arg("job").args(arguments);
            job
        }
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

fn tell(sender: &Mutex<Sender>, news: &News) {
    let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
    let said = serde_json::to_vec(news).map(|message| sender.send(&message, None));
    if !matches!(said, Ok(Ok(()))) {
        eprintln!("agent: {news:?} was not told: {said:?}");
    }
}
