//! The checks, in their order.

use crate::Failure;
use crate::controller::{Checks, Domains, tool, toolstack};
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
    for (name, near, far) in [
        // The opener leads: it can look at the region beside the end.
        ("the_suite_between_guests", (two, &second, "open"), (one, &first, "offer")),
        ("the_suite_with_dom0", (one, &first, "offer"), (dom0, &zero, "open")),
    ] {
        checks.check(name, || {
            let leads = near.0.start(&["suite-near", near.2, far.1, name])?;
            let answers = far.0.start(&["suite-far", far.2, near.1, name])?;
            both(leads, answers)
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
    checks.check("a_dead_offer_is_waited_out", || {
        let dead = one.started(&["hold", "offer", &second, "stale"], "there")?;
        dead.kill();
        dead.gone()?;
        let talk = two.start(&["talk", "open", &first, "stale"])?;
        let echo = one.start(&["echo", "offer", &second, "stale"])?;
        both(talk, echo)
    });
    checks.check("nothing_is_left_behind", || {
        let offers = one.start(&["many", "offer", &second, "many"])?;
        let opens = two.start(&["many", "open", &first, "many"])?;
        both(offers, opens)?;
        for (domain, half) in [(&first, "offer"), (&second, "open")] {
            let peers = tool("xenstore-list", &[&format!("/local/domain/{domain}/data/tombolo/{half}")])?;
            for peer in peers.lines() {
                let left =
                    tool("xenstore-list", &[&format!("/local/domain/{domain}/data/tombolo/{half}/{peer}")])?;
                // The one entry of each agent's own channel, and of those who were killed.
                let left: Vec<&str> = left.lines().filter(|name| !["jobs", "stale"].contains(name)).collect();
                if !left.is_empty() {
                    return Err(format!("domain {domain} has left {left:?}").into());
                }
            }
        }
        Ok(())
    });
    for (name, offers, opens) in [
        ("an_opener_that_never_unmaps", "many-closed", "hoard"),
        ("channels_of_all_sizes_one_after_the_other", "many-sizes", "many-sizes"),
    ] {
        checks.check(name, || {
            let opens = two.start(&[opens, "open", &first, name])?;
            both(one.start(&[offers, "offer", &second, name])?, opens)
        });
    }
    checks.check("an_opener_that_never_lets_go", || {
        let keeps = two.start(&["cling", "open", &first, "cling"])?;
        let ended = one.start(&["shed", "offer", &second, "cling"])?.end();
        keeps.kill();
        ended.map(drop)
    });
    checks
        .check("offers_that_nobody_opens", || one.run(&["unopened", "offer", &second, "unopened"]).map(drop));
    checks.check("an_idle_channel_costs_nothing", || {
        let offers = one.start(&["idle", "offer", &second, "idle"])?;
        both(offers, two.start(&["idle", "open", &first, "idle"])?)
    });
    checks.check("a_peer_that_rings_all_the_time", || {
        let _floods = one.started(&["flood", "offer", &second, "flood"], "there")?;
        two.run(&["stand-flood", "open", &first, "flood"]).map(drop)
    });
    for (name, lies, stands) in
        [("an_offerer_that_scribbles", "offer", "open"), ("an_opener_that_scribbles", "open", "offer")]
    {
        checks.check(name, || {
            let lies = one.start(&["scribble", lies, &second, name])?;
            both(two.start(&["stand-scribbles", stands, &first, name])?, lies)
        });
    }
    checks.check("offers_that_are_none", || {
        for (text, why) in
            [("", "six numbers"), ("1 2 3 4 5", "six numbers"), ("2 1 2 3 4 5", "of version 2")]
        {
            publish("text", text, &first)?;
            refused(one.start(&["hold", "open", "0", "text"])?, why)?;
        }
        for (kind, why) in [
            ("magic", "magic"),
            ("version", "version"),
            ("pages", "number of pages"),
            ("references", "bind and map"),
        ] {
            let mut lies = dom0.start(&["bad-directory", kind, &first, "directory"])?;
            publish("directory", &lies.line()?, &first)?;
            refused(one.start(&["hold", "open", "0", "directory"])?, why)?;
        }
        Ok(())
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
        (Ok(lines), Ok(_)) => {
            lines.iter().for_each(|line| println!("  {line}"));
            Ok(())
        }
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

/// Writes an offer of dom0's to a domain, whatever it says.
fn publish(name: &str, text: &str, opener: &str) -> Result<(), Failure> {
    let path = format!("/local/domain/0/data/tombolo/offer/{opener}/{name}");
    tool("xenstore-write", &[&path, text])?;
    tool("xenstore-chmod", &[&path, "n0", &format!("r{opener}")]).map(drop)
}
