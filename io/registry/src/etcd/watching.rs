//! Watching keys of etcd: goes on, after an endpoint is lost, where it was; ends where etcd has
//! forgotten what comes next.

use super::Shared;
use crate::watch::{Feed, Watchers};
use crate::{Change, RegistryError, Watch};
use etcd_client::{Event, EventType, WatchOptions};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause before another endpoint is tried, if one did not do.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an endpoint may take to begin with it.
const TIMEOUT: Duration = Duration::from_millis(1_600);
/// How often a watch that hears nothing sees whether it is still wanted.
const LOOK_AROUND: Duration = Duration::from_secs(5);

enum Ended {
    /// The endpoint is of no use; the next one may be.
    Lost,
    /// Changes were lost, or nobody listens any more.
    Over,
}

pub(crate) fn watch(
    shared: &Arc<Shared>,
    prefix: String,
    revision: impl FnOnce() -> Result<i64, RegistryError>,
) -> Result<Watch, RegistryError> {
    let next = revision()? + 1;
    let (feed, watch) = Watchers::feed();
    if let Some(runtime) = &shared.runtime {
        runtime.spawn(follow(Arc::downgrade(shared), prefix, next, feed));
    }
    Ok(watch)
}

async fn follow(shared: Weak<Shared>, prefix: String, mut next: i64, feed: Feed) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let index = strong.current();
        let ended = follow_at(&strong, index, &prefix, &mut next, &feed).await;
        if matches!(ended, Ended::Over) || feed.is_over() {
            return;
        }
        if strong.current() == index {
            strong.leave(index);
        }
        drop(strong);
        // tidy(sleep): nobody tells when an endpoint is back.
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow_at(shared: &Arc<Shared>, index: usize, prefix: &str, next: &mut i64, feed: &Feed) -> Ended {
    let mut moved = shared.moved();
    moved.mark_unchanged();
    let cut = shared.prefix.len();
    let begin = async {
        let client = shared.client(index).await.ok()?;
        let mut client = client.watch_client().max_decoding_message_size(super::MAX_ANSWER_BYTES);
        let options = WatchOptions::new().with_prefix().with_start_revision(*next);
        client.watch(prefix, Some(options)).await.ok()
    };
    let Ok(Some(mut stream)) = tokio::time::timeout(TIMEOUT, begin).await else { return Ended::Lost };
    loop {
        let answer = tokio::select! {
            answer = stream.message() => answer,
            // A call found out that this endpoint is of no use; the stream may never know.
            _ = moved.changed() => return if shared.current() == index { continue } else { lost_or_over(feed) },
            // tidy(sleep): nobody tells when its reader has gone.
            () = tokio::time::sleep(LOOK_AROUND) => {
                if feed.is_over() {
                    return Ended::Over;
                }
                continue;
            }
        };
        let Ok(Some(answer)) = answer else { return lost_or_over(feed) };
        if answer.compact_revision() > 0 {
            return Ended::Over;
        }
        if answer.canceled() {
            return lost_or_over(feed);
        }
        for event in answer.events() {
            let Some(change) = change(event, cut) else { continue };
            *next = (*next).max(i64::try_from(change.revision).unwrap_or(i64::MAX - 1) + 1);
            if !feed.tell(change) {
                return Ended::Over;
            }
        }
    }
}

fn lost_or_over(feed: &Feed) -> Ended {
    if feed.is_over() { Ended::Over } else { Ended::Lost }
}

fn change(event: &Event, cut: usize) -> Option<Change> {
    let found = event.kv()?;
    let key = String::from_utf8_lossy(found.key().get(cut..)?).into_owned();
    let value = match event.event_type() {
        EventType::Put => Some(found.value().to_vec()),
        EventType::Delete => None,
    };
    Some(Change { key, revision: super::positive(found.mod_revision()), value })
}
