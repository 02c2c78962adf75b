//! Waiting until a domain is ready, as its topology defines that.

use super::Domains;
use super::listener::{Holder, holder};
use super::supervisor::{State, Supervised};
use crate::base::blocking;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use topology::Ready;

/// Pause between two attempts at what has no event to wait for: a port that is not open yet, a
/// command that says no.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits until the domain is ready, fails for good, or its time is over.
pub(crate) async fn wait(node: &Arc<Domains>, supervised: &Supervised) -> Result<(), String> {
    // Nobody wants it to be.
    if supervised.view().state == State::Stopped {
        return Ok(());
    }
    let domain = supervised.domain();
    let limit = Duration::from_millis(domain.ready_timeout_ms);
    let stranger = Mutex::new(String::new());
    let ready = async {
        // What is known of the incarnation before, such as that its server had registered, tells
        // nothing of one that is to come.
        if domain.machine.is_none() {
            runs(supervised).await?;
        }
        match &domain.ready {
            Ready::Started if domain.machine.is_some() => boots(node, supervised).await,
            Ready::Started => Ok(()),
            Ready::Registered => registered(node, supervised).await,
            Ready::Tcp(address) => {
                listens(node, supervised, *address, &stranger).await;
                Ok(())
            }
            Ready::Command(words) => {
                succeeds(node, supervised, words).await;
                Ok(())
            }
        }
    };
    tokio::select! {
        ready = tokio::time::timeout(limit, ready) => ready.unwrap_or_else(|_| {
            let stranger = stranger.lock().unwrap_or_else(PoisonError::into_inner);
            Err(format!("it was not ready within {:.1} s{stranger}{}", limit.as_secs_f64(), last_words(supervised)))
        }),
        why = failed(supervised) => Err(why),
    }
}

fn last_words(supervised: &Supervised) -> String {
    let name = &supervised.name;
    let ended = supervised.views().borrow().last_exit.as_ref().map(super::exit_text);
    let ended = ended.map_or_else(String::new, |exit| format!("; it ended meanwhile ({exit})"));
    let why = supervised.views().borrow().why.as_ref().map(|why| format!("; {why}"));
    let ended = ended + &why.unwrap_or_default();
    format!("{ended}; `tombolo logs {name}` shows what it said, `timeout` in its `ready` gives it longer")
}

/// Comes back when the domain has failed for good.
async fn failed(supervised: &Supervised) -> String {
    let mut views = supervised.views();
    loop {
        {
            let view = views.borrow_and_update();
            let bad_end = view.state == State::Ended
                && view.last_exit.as_ref().is_some_and(|exit| exit.shell_code() != 0);
            if view.state == State::Stopped {
                return "somebody stopped it before it was ready".into();
            }
            if view.state == State::Failed || bad_end {
                let exit = view.last_exit.as_ref().map(super::exit_text);
                let parts: Vec<String> = exit.into_iter().chain(view.why.clone()).collect();
                return format!("it ended before it was ready: {}", parts.join("; "));
            }
        }
        if views.changed().await.is_err() {
            return "its supervisor ended".into();
        }
    }
}

/// Comes back when the program runs, or has run and is done.
async fn runs(supervised: &Supervised) -> Result<(), String> {
    let mut views = supervised.views();
    let there = views.wait_for(|view| matches!(view.state, State::Running | State::Ended)).await;
    there.map(drop).map_err(|_| "its supervisor ended".into())
}

/// Comes back when the guest's command runs. A machine that ends before that is not waited for
/// again: how it ended is what there is to say.
async fn boots(node: &Domains, supervised: &Supervised) -> Result<(), String> {
    let booted = node.broker.machine_where(&supervised.dc, &supervised.name, |machine| {
        machine.is_some_and(|machine| machine.started.is_some())
    });
    let mut views = supervised.views();
    let ended = views.wait_for(|view| matches!(view.state, State::Ended | State::Waiting | State::Failed));
    tokio::select! {
        biased;
        () = booted => Ok(()),
        ended = ended => {
            let Ok(view) = ended else { return Err("its supervisor ended".into()) };
            match &view.last_exit {
                // A command may be done before anybody has looked.
                Some(exit) if exit.shell_code() == 0 => Ok(()),
                Some(exit) => Err(format!("it ended before it was ready: {}", super::exit_text(exit))),
                None => Err(view.why.clone().unwrap_or_else(|| "it ended before it was ready".into())),
            }
        }
    }
}

async fn registered(node: &Domains, supervised: &Supervised) -> Result<(), String> {
    let mut changes = node.broker.changes();
    while !node.broker.all_served(&supervised.dc, &supervised.name) {
        if changes.changed().await.is_err() {
            return Err("the daemon ends".into());
        }
    }
    Ok(())
}

/// Comes back when a process of the domain accepts connections at `address`. Another process that
/// does so there is left in `stranger`.
async fn listens(
    node: &Arc<Domains>,
    supervised: &Supervised,
    address: SocketAddr,
    stranger: &Mutex<String>,
) {
    loop {
        let attempt = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::TcpStream::connect(address));
        if matches!(attempt.await, Ok(Ok(_))) {
            let (node, dc, name) = (Arc::clone(node), supervised.dc.clone(), supervised.name.clone());
            let look = move || domain::pids_of(&node.layout, &dc, &name).map(|ours| holder(address, &ours));
            match blocking(look).await {
                // What can't be found out is no reason to wait.
                Ok(Ok(Holder::Ours | Holder::Unknown) | Err(_)) | Err(_) => return,
                Ok(Ok(Holder::Stranger(pid, program))) => {
                    *stranger.lock().unwrap_or_else(PoisonError::into_inner) = format!(
                        ", because {program} (pid {pid}), which is not of this domain, holds {address}"
                    );
                }
            }
        }
        // tidy(sleep): nothing tells when a stranger's port opens or a command's mind changes.
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn succeeds(node: &Arc<Domains>, supervised: &Supervised, words: &[String]) {
    loop {
        if super::incarnation::command_succeeds(node, &supervised.dc, &supervised.name, words).await {
            return;
        }
        // tidy(sleep): nothing tells when a stranger's port opens or a command's mind changes.
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}
