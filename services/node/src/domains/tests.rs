//! The room as others meet it: through what it is handed, and what it says.

use super::testing::{MadeUp, file, room, topology};
use super::{Desired, Domains, LoadError, Teller, adopt, change};
use crate::base::RegistryDebug;
use admin::{Code, DownRequest, Progress, UpRequest};
use registry::{Expected, Memory, Registry};
use std::sync::Arc;
use tokio::sync::mpsc;

fn desired(names: &[&str]) -> Arc<Desired> {
    Arc::new(Desired::new(file(names), "shop.toml".into(), "/".into(), topology(names)))
}

/// The last that a change tells.
async fn last(lines: &mut mpsc::Receiver<Progress>) -> Progress {
    let mut last = None;
    while let Some(line) = lines.recv().await {
        last = Some(line);
    }
    last.expect("a change tells how it ended")
}

#[tokio::test]
async fn a_file_that_can_not_be_promised_touches_nothing() {
    let registry = Arc::new(Memory::default());
    let book = Arc::new(MadeUp::without_room_for("robot"));
    let (domains, _folder) = room(Arc::clone(&registry) as Arc<dyn RegistryDebug>, Arc::clone(&book) as _);
    let request = UpRequest {
        text: file(&["robot", "web"]),
        file: "shop.toml".into(),
        base: "/".into(),
        ticket: None,
        replace: false,
        dry_run: false,
    };
    let (teller, mut lines) = mpsc::channel(64);
    change::up(Arc::clone(&domains), request, Teller::new(teller)).await;
    match last(&mut lines).await {
        Progress::Failed { error, rolled_back: None } => assert_eq!(error.code, Code::NotAdmitted),
        other => panic!("it was begun: {other:?}"),
    }
    assert_eq!(book.asked(), ["begin shop: robot web"]);
    assert!(domains.dcs().is_empty() && domains.all_supervised().is_empty());
    assert!(registry.list("").expect("a list").is_empty());
}

#[tokio::test]
async fn what_is_removed_is_first_no_longer_wanted_and_its_promise_is_given_back_last() {
    let registry = Arc::new(Memory::default());
    let book = Arc::new(MadeUp::default());
    let (domains, _folder) = room(Arc::clone(&registry) as Arc<dyn RegistryDebug>, Arc::clone(&book) as _);
    domains.set_desired("shop", Some(desired(&["robot"]))).await.expect("written");
    let (teller, mut lines) = mpsc::channel(64);
    change::down(Arc::clone(&domains), DownRequest::default(), Teller::new(teller)).await;
    let done = last(&mut lines).await;
    assert!(matches!(done, Progress::Done { changed: true, .. }), "{done:?}");
    assert_eq!(book.asked(), ["begin shop: ", "settle shop"]);
    assert!(domains.dcs().is_empty());
    assert!(registry.list("").expect("a list").is_empty());
}

#[tokio::test]
async fn what_is_desired_is_there_for_the_next_daemon_and_what_is_garbled_stops_it() {
    let registry = Arc::new(Memory::default());
    let next = || room(Arc::clone(&registry) as Arc<dyn RegistryDebug>, Arc::new(MadeUp::default()));
    let (domains, _folder) = next();
    domains.load(0).expect("there is nothing yet");
    domains.set_desired("shop", Some(desired(&["robot"]))).await.expect("written");
    let (domains, _folder) = next();
    domains.load(0).expect("what the one before wrote is understood");
    assert!(domains.is_in_a_file("shop/robot") && !domains.is_in_a_file("shop/web"));
    assert_eq!(domains.known("shop").expect("it is desired").desired.text, file(&["robot"]));
    registry.put("desired/lab", b"{}", Expected::Anything).expect("written");
    // To go on without it would be to end its domains.
    let (domains, _folder) = next();
    let error = domains.load(0).expect_err("it is garbled");
    assert!(matches!(&error, LoadError::Desired { key, .. } if key == "desired/lab"), "{error}");
}

#[tokio::test]
async fn only_what_may_go_on_here_is_promised_again_and_one_that_is_refused_takes_none_along() {
    async fn entered(domains: &Arc<Domains>, book: &MadeUp) -> Vec<String> {
        adopt::promises(domains, |_, domain| domain.name.as_str() != "elsewhere").await;
        book.asked()
    }
    let registry = Arc::new(Memory::default());
    let book = Arc::new(MadeUp::default());
    let (domains, _folder) = room(Arc::clone(&registry) as Arc<dyn RegistryDebug>, Arc::clone(&book) as _);
    domains.set_desired("shop", Some(desired(&["robot", "elsewhere", "web"]))).await.expect("written");
    assert_eq!(entered(&domains, &book).await, ["begin shop: robot web", "settle shop"]);
    let book = Arc::new(MadeUp::without_room_for("robot"));
    let (domains, _folder) = room(registry, Arc::clone(&book) as _);
    domains.load(0).expect("what the one before wrote is understood");
    assert_eq!(
        entered(&domains, &book).await,
        ["begin shop: robot web", "enter shop/robot", "enter shop/web"]
    );
}
