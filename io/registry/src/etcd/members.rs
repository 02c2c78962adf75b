//! The members of an etcd, and a copy of all that it holds.

use super::calls::Answered;
use super::said::{EtcdError, Trouble};
use super::{DEADLINE, Etcd, Shared};
use crate::RegistryError;
use etcd_client::{Error, MemberAddOptions};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long a copy may take in all: 2 GiB, the most that etcd holds where nobody says otherwise,
/// from a slow disk.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// Pieces of a copy (32 KiB each, 4 MiB at the most) that wait for being written.
const PIECES_UNDER_WAY: usize = 16;

/// A member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdMember {
    /// Its number, which no other has or had.
    pub id: u64,
    /// Its name; empty: it has not come yet.
    pub name: String,
    /// Where members reach it.
    pub peer_urls: Vec<String>,
    /// Where clients do; empty: it has not come yet.
    pub client_urls: Vec<String>,
    /// Whether it only learns what the others hold, and has no vote.
    pub is_learner: bool,
}

impl EtcdMember {
    /// Whether it counts for a majority.
    #[must_use]
    pub fn votes(&self) -> bool {
        !self.is_learner
    }
}

fn said_of(error: &Error, words: &str) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains(words))
}

impl Etcd {
    /// All members, as the one that is asked knows them.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`].
    pub fn members(&self) -> Result<Vec<EtcdMember>, RegistryError> {
        self.call(false, |mut client| async move {
            let answer = client.member_list().await?;
            let members = answer.members().iter().map(|member| EtcdMember {
                id: member.id(),
                name: member.name().to_owned(),
                peer_urls: member.peer_urls().to_vec(),
                client_urls: member.client_urls().to_vec(),
                is_learner: member.is_learner(),
            });
            Ok(Answered { header: None, value: members.collect() })
        })
    }

    /// Adds a member that only learns, until it is promoted. Returns its number.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`]: [`Trouble::Members`] where another one learns already, or a member is down.
    pub fn add_learner(&self, peer_url: &str) -> Result<u64, RegistryError> {
        let added = self.call(true, |mut client| {
            let url = peer_url.to_owned();
            async move {
                let options = MemberAddOptions::new().with_is_learner();
                let value = match client.member_add([url], Some(options)).await {
                    Ok(answer) => answer.member().map(etcd_client::Member::id),
                    // An earlier attempt, whose answer was lost.
                    Err(error) if said_of(&error, "Peer URLs already exists") => None,
                    Err(error) => return Err(error),
                };
                Ok(Answered { header: None, value })
            }
        })?;
        if let Some(id) = added {
            return Ok(id);
        }
        let there = self.members()?.into_iter().find(|member| member.peer_urls == [peer_url]);
        there.map(|member| member.id).ok_or_else(|| {
            let endpoints = self.settings().endpoints;
            let said = format!("{peer_url} is a member's, among others");
            EtcdError::new(Trouble::Members, &endpoints, said).into()
        })
    }

    /// Gives a member that learned a vote.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`]: [`Trouble::Members`] where it has not learned enough yet.
    pub fn promote(&self, id: u64) -> Result<(), RegistryError> {
        self.call(true, |mut client| async move {
            match client.member_promote(id).await {
                Ok(_) => {}
                // An earlier attempt, whose answer was lost.
                Err(error)
                    if said_of(&error, "can only promote a learner member")
                        && !said_of(&error, "in sync") => {}
                Err(error) => return Err(error),
            }
            Ok(Answered { header: None, value: () })
        })
    }

    /// Takes a member away for good; one that is not there is no error.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`]: [`Trouble::Members`] where too few would be left that are up.
    pub fn remove_member(&self, id: u64) -> Result<(), RegistryError> {
        self.call(true, |mut client| async move {
            match client.member_remove(id).await {
                Ok(_) => {}
                Err(error) if said_of(&error, "member not found") => {}
                Err(error) => return Err(error),
            }
            Ok(Answered { header: None, value: () })
        })
    }

    /// The number of the member that leads; 0: none does.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`].
    pub fn leader(&self) -> Result<u64, RegistryError> {
        self.call(false, |mut client| async move {
            Ok(Answered { header: None, value: client.status().await?.leader() })
        })
    }

    /// Writes a copy of all that etcd holds, at one moment, as etcd's own tools read it; its last
    /// 32 bytes are the SHA-256 of what is before. Returns its length. The caller waits for `out`;
    /// other requests to etcd do not.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`], also where `out` does not take it.
    pub fn snapshot(&self, out: &mut impl io::Write) -> Result<u64, RegistryError> {
        let endpoints = self.settings().endpoints;
        let failed = |said: String| EtcdError::new(Trouble::Other, &endpoints, said);
        let (say, mut pieces) = tokio::sync::mpsc::channel(PIECES_UNDER_WAY);
        let shared = Arc::clone(&self.shared);
        let Some(runtime) = &self.shared.runtime else { return Err(failed("it is closed".into()).into()) };
        runtime.spawn(async move {
            let sent = tokio::time::timeout(SNAPSHOT_TIMEOUT, send(&shared, &say)).await;
            let why = match sent {
                Ok(Ok(())) => return,
                Ok(Err(why)) => why,
                Err(_) => "the copy takes too long".to_owned(),
            };
            // Nobody waits for it any more.
            let _gone = say.send(Err(why)).await;
        });
        let mut length = 0_u64;
        while let Some(piece) = pieces.blocking_recv() {
            let piece = piece.map_err(failed)?;
            out.write_all(&piece).map_err(|error| failed(format!("the copy can't be written: {error}")))?;
            length += piece.len() as u64;
        }
        out.flush().map_err(|error| failed(format!("the copy can't be written: {error}")))?;
        Ok(length)
    }
}

type Piece = Result<Vec<u8>, String>;

async fn send(shared: &Shared, say: &tokio::sync::mpsc::Sender<Piece>) -> Result<(), String> {
    let connected = tokio::time::timeout(DEADLINE, shared.client(shared.current())).await;
    let mut client = connected.map_err(|_| "no connection comes about".to_owned())?.map_err(text)?;
    let mut stream = client.snapshot().await.map_err(text)?;
    while let Some(piece) = stream.message().await.map_err(text)? {
        if say.send(Ok(piece.blob().to_vec())).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn text(error: Error) -> String {
    error.to_string()
}
