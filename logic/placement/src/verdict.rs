//! The duty of one node towards one domain, by what the registry says.

use crate::{Cluster, Refusal, Standing, Want};

/// The registry's record of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// The node that it was given to: survives that node.
    pub placed: Option<String>,
    /// The node that holds the claim: gone with that node's lease.
    pub claimed: Option<String>,
}

/// The verdict of a node on a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is claimed here: run it.
    Run,
    /// It is claimed here, and nobody or another node has it by its place, because somebody died in
    /// between: place it here, before it runs. A node that is cut off loses the claim and not the
    /// place, by which nobody else starts what goes on there.
    PlaceHere,
    /// Claim it, and then run it; `moved`: from this node, which is lost or gone.
    Claim {
        /// Where it was.
        from: Option<String>,
    },
    /// It is claimed here and has to go to this node: end it, give it to that node, and let go of
    /// the claim.
    Move {
        /// The node that has it next.
        to: String,
    },
    /// It is another node's.
    Leave,
    /// It is nobody's, and fits nowhere; or it stays here although it should not, because it fits
    /// nowhere else.
    Stuck(Refusal),
    /// Its node is lost, and it may not run elsewhere.
    Wait {
        /// For whom.
        node: String,
    },
}

/// The verdict of the node `me` on a domain. `cluster` has booked whatever is placed, but for this
/// domain.
#[must_use]
pub fn judge(me: &str, cluster: &Cluster, want: &Want, assigned: &Assigned) -> Verdict {
    if let Some(claimed) = &assigned.claimed {
        if claimed != me {
            return Verdict::Leave;
        }
        let verdict = held(me, cluster, want);
        let stays = matches!(verdict, Verdict::Run | Verdict::Stuck(_));
        let is_placed_here = assigned.placed.as_deref() == Some(me);
        return if stays && !is_placed_here { Verdict::PlaceHere } else { verdict };
    }
    let Some(placed) = &assigned.placed else { return fresh(me, cluster, want, None) };
    let Some(node) = cluster.node(placed) else {
        // A node that was removed does not come back.
        return fresh(me, cluster, want, Some(placed));
    };
    let named_elsewhere = matches!(&want.wish, crate::Wish::Named(name) if name != placed);
    match node.standing {
        // Whoever has it is on the way to claim it; it alone says that it does not.
        Standing::Ready | Standing::Drained if placed == me => {
            if named_elsewhere {
                fresh_or_here(me, cluster, want)
            } else {
                Verdict::Claim { from: None }
            }
        }
        Standing::Ready | Standing::Drained => Verdict::Leave,
        // Otherwise it may still run there: who is not to run elsewhere is not ended where it is
        // cut off.
        Standing::Lost if want.elsewhere => fresh(me, cluster, want, Some(placed)),
        Standing::Lost => Verdict::Wait { node: placed.clone() },
    }
}

/// A domain that is claimed here stays, unless it has to go and there is somewhere to go.
fn held(me: &str, cluster: &Cluster, want: &Want) -> Verdict {
    let must_go = cluster.node(me).is_some_and(|node| {
        // Room comes and goes: nothing that runs is moved for it.
        let lost = |lack: &crate::Lack| matches!(lack, crate::Lack::Lost);
        // A domain that names a node stays there while that is drained: nobody else may have it.
        let pinned = |lack: &crate::Lack| {
            matches!(lack, crate::Lack::Drained)
                && matches!(&want.wish, crate::Wish::Named(name) if name == me)
        };
        Cluster::faults(node, want).iter().any(|lack| !lost(lack) && !pinned(lack))
    });
    if !must_go {
        return Verdict::Run;
    }
    match cluster.choose(want, |name| name != me) {
        Ok(to) => Verdict::Move { to },
        // This node, too, has a reason why it should not be here.
        Err(refusal) => Verdict::Stuck(cluster.choose(want, |_| true).err().unwrap_or(refusal)),
    }
}

/// It is given to this node, which has not claimed it: claim it to be able to move it on.
fn fresh_or_here(me: &str, cluster: &Cluster, want: &Want) -> Verdict {
    match cluster.choose(want, |name| name != me) {
        Ok(to) => Verdict::Move { to },
        Err(refusal) => Verdict::Stuck(refusal),
    }
}

fn fresh(me: &str, cluster: &Cluster, want: &Want, from: Option<&String>) -> Verdict {
    match cluster.choose_even_without(want, |_| true) {
        Ok(node) if node == me => Verdict::Claim { from: from.cloned() },
        Ok(_) => Verdict::Leave,
        Err(refusal) => Verdict::Stuck(refusal),
    }
}
