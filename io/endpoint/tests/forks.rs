//! A fork inherits an endpoint: whatever the child tries, its parent goes on as if there were no
//! child.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod pairs;

use endpoint::{Content, Failed, From, Gone, Receive, Request, Rights, Send};
use pairs::{address, soon, two};

#[test]
fn a_child_is_refused_by_name_and_harms_nothing() {
    let (mut one, mut other) = two();
    one.send_buffered(address(2), 1, b"before", None).unwrap();
    let mut into = Vec::new();
    let refused = sys::fork::in_child(|| {
        let asked = {
            let mut request = Request::new(address(1), 1, 1);
            other.step_request(&mut request, b"", &mut Vec::new(), false)
        };
        let all = [
            matches!(other.receive(&From::Any, &mut Vec::new(), soon()), Err(Failed::Forked)),
            matches!(other.try_receive(&From::Any, &mut Vec::new()), Err(Failed::Forked)),
            matches!(one.send(address(2), 2, b"", soon()), Err(Failed::Forked)),
            matches!(one.send_buffered(address(2), 2, b"", soon()), Err(Failed::Forked)),
            matches!(one.send_receive(address(2), 2, b"", &mut Vec::new(), 0, soon()), Err(Failed::Forked)),
            matches!(one.notify(address(2), 1), Err(Failed::Forked)),
            matches!(one.flush(), Err(Failed::Forked)),
            matches!(one.prepare(&From::Any), Err(Failed::Forked)),
            matches!(one.set_rights(address(2), Rights::NONE), Err(Failed::Forked)),
            matches!(one.part(address(2), Gone::Dead), Err(Failed::Forked)),
            matches!(one.step_send(&mut Send::buffered(address(2), 1), b"", false), Err(Failed::Forked)),
            matches!(
                one.step_receive(&mut Receive::new(From::Any), &mut Vec::new(), false),
                Err(Failed::Forked)
            ),
            matches!(asked, Err(Failed::Forked)),
        ];
        all.iter().all(|refused| *refused)
    });
    assert!(refused.unwrap());
    let received = other.receive(&From::Any, &mut into, soon()).unwrap();
    assert_eq!((received.content, into.as_slice()), (Content::Message { tag: 1 }, &b"before"[..]));
    one.notify(address(2), 4).unwrap();
    assert_eq!(other.receive(&From::Any, &mut into, soon()).unwrap().content, Content::Notices(4));
    // What the child drops stays open here.
    let mut pair = Some((one, other));
    let dropped = sys::fork::in_child(|| {
        drop(pair.take());
        true
    });
    assert!(dropped.unwrap());
    let (mut one, mut other) = pair.unwrap();
    one.send_buffered(address(2), 5, b"", None).unwrap();
    let received = other.receive(&From::Any, &mut into, soon()).unwrap();
    assert_eq!(received.content, Content::Message { tag: 5 });
    assert!(one.peers().all(|peer| peer.alive));
}
