//! One domain by hand: `restart`, `stop`, `start`, `kill`.

use super::{Domains, Teller, Wish, ready};
use admin::{Act, Code, Problem, Progress};
use std::sync::Arc;
use std::time::Instant;

/// Does it, and says how it goes.
pub(crate) async fn act(node: Arc<Domains>, (dc, name): (String, String), act: Act, teller: Teller) {
    let last = match try_act(&node, (&dc, &name), act, &teller).await {
        Ok(summary) => Progress::Done { summary, changed: true },
        Err(error) => Progress::Failed { error, rolled_back: None },
    };
    teller.tell(last).await;
}

/// Does it, and says what was done.
///
/// # Errors
/// The domain is not known here, or does not do as it is told.
pub(crate) async fn try_act(
    node: &Arc<Domains>,
    (dc, name): (&str, &str),
    act: Act,
    teller: &Teller,
) -> Result<String, Problem> {
    let failed =
        |why: String| Problem::new(Code::Failed, format!("could not {} {dc}/{name}: {why}", act.verb()));
    let begun = Instant::now();
    // A signal changes nothing that is desired: what follows is as if the program had had it from
    // anybody else.
    if let Act::Kill { signal } = act {
        supervised(node, dc, name)?.signal(signal).await.map_err(failed)?;
        return Ok(format!("{dc}/{name} was sent signal {signal}"));
    }
    let wish = Wish { what: format!("`{}` of {dc}/{name}", act.verb()), gives_way: false, ticket: None };
    let _turn = node.changes.begin(dc, wish, teller).await?;
    let supervised = supervised(node, dc, name)?;
    let runs = supervised.view().state.runs();
    let done = match act {
        Act::Stop { at_once } => supervised.halt(at_once).await,
        Act::Start if runs => return Ok(format!("nothing to do: {dc}/{name} runs")),
        Act::Start => supervised.begin().await,
        Act::Restart | Act::Kill { .. } => supervised.begin_again().await,
    };
    done.map_err(failed)?;
    if matches!(act, Act::Start | Act::Restart) {
        ready::wait(node, &supervised).await.map_err(failed)?;
    }
    Ok(format!("{dc}/{name} {} in {:.1} s", act.past(), begun.elapsed().as_secs_f64()))
}

fn supervised(node: &Domains, dc: &str, name: &str) -> Result<Arc<super::supervisor::Supervised>, Problem> {
    node.supervised(dc, name).ok_or_else(|| {
        Problem::new(Code::NotRunning, format!("nobody has started {dc}/{name} yet"))
            .help("`tombolo up` starts it")
    })
}
