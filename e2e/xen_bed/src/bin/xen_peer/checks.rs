//! What is checked, in the order in which it is.

use crate::Failure;
use crate::controller::{Checks, Domains, toolstack};
use crate::place::Job;

/// All of it. The guests are destroyed by the last ones.
pub fn all(checks: &mut Checks, domains: &Domains) {
    let Domains { dom0, one, two } = domains;
    let of = |place: &crate::place::Place| place.domain.to_string();
    let (zero, first, second) = (of(dom0), of(one), of(two));
    for (name, offerer, opener) in [
        ("between_two_guests", (one, &first), (two, &second)),
        ("from_dom0_to_a_guest", (dom0, &zero), (one, &first)),
        ("from_a_guest_to_dom0", (two, &second), (dom0, &zero)),
    ] {
        checks.check(name, || {
            let echo = offerer.0.started(&["echo", "offer", opener.1, name], "there")?;
            both(opener.0.start(&["talk", "open", offerer.1, name])?, echo)
        });
    }
    checks.check("no_domain_is_its_own_peer", || {
        for (place, own) in [(dom0, &zero), (one, &first)] {
            for how in ["offer", "open"] {
                refused(place.start(&["hold", how, own, "self"])?, "is this one")?;
            }
        }
        Ok(())
    });
    checks.check("the_opener_comes_first", || {
        let talk = two.started(&["talk", "open", &first, "early"], "looking")?;
        let echo = one.start(&["echo", "offer", &second, "early"])?;
        both(talk, echo)
    });
    checks.check("an_offerer_that_is_killed", || {
        let offerer = one.started(&["hold", "offer", &second, "killed-1"], "there")?;
        let mut waits = two.started(&["wait", "open", &first, "killed-1"], "looking")?;
        waits.says("there")?;
        offerer.kill();
        waits.says("closed")
    });
    checks.check("an_opener_that_is_killed", || {
        let mut waits = one.started(&["wait", "offer", &second, "killed-2"], "there")?;
        let mut opener = two.started(&["hold", "open", &first, "killed-2"], "looking")?;
        opener.says("there")?;
        opener.kill();
        waits.says("closed")
    });
    checks.check("a_guest_that_is_destroyed", || {
        let mut near = dom0.started(&["wait", "offer", &second, "near"], "there")?;
        let mut far = one.started(&["wait", "open", &second, "far"], "looking")?;
        let mut opens = two.started(&["hold", "open", "0", "near"], "looking")?;
        opens.says("there")?;
        let _offers = two.started(&["hold", "offer", &first, "far"], "there")?;
        far.says("there")?;
        toolstack(&["destroy", "two"])?;
        near.says("closed")?;
        far.says("closed")
    });
}

/// Both must end well; one that does not often explains the other.
fn both(one: Job, other: Job) -> Result<(), Failure> {
    match (one.end(), other.end()) {
        (Ok(_), Ok(_)) => Ok(()),
        (Err(failure), Ok(_)) | (Ok(_), Err(failure)) => Err(failure),
        (Err(failure), Err(other)) => Err(format!("{failure}; and {other}").into()),
    }
}

/// It must fail, and say this.
fn refused(job: Job, why: &str) -> Result<(), Failure> {
    match job.end() {
        Ok(lines) => Err(format!("it went well: {}", lines.join("; ")).into()),
        Err(failure) if failure.to_string().contains(why) => Ok(()),
        Err(failure) => Err(format!("{failure}, without {why:?}").into()),
    }
}
