//! What is checked, in the order in which it is.

use crate::controller::{Checks, Domains, toolstack};

/// All of it. The guests are destroyed by the last ones.
pub fn all(checks: &mut Checks, domains: &Domains) {
    let Domains { dom0, one, two } = domains;
    let of = |place: &crate::place::Place| place.domain.to_string();
    let (zero, first, second) = (of(dom0), of(one), of(two));
    for (name, offerer, opener) in [
        ("between_two_guests", (one, &first), (two, &second)),
        ("from_dom0_to_a_guest", (dom0, &zero), (one, &first)),
        ("from_a_guest_to_dom0", (two, &second), (dom0, &zero)),
        ("within_one_guest", (one, &first), (one, &first)),
    ] {
        checks.check(name, || {
            let echo = offerer.0.started(&["echo", "offer", opener.1, name], "there")?;
            opener.0.run(&["talk", "open", offerer.1, name])?;
            echo.end().map(drop)
        });
    }
    checks.check("the_opener_comes_first", || {
        let talk = two.started(&["talk", "open", &first, "early"], "looking")?;
        let echo = one.start(&["echo", "offer", &second, "early"])?;
        talk.end()?;
        echo.end().map(drop)
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
