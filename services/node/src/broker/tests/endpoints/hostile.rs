//! Members that say what they should not.

use super::*;

#[test]
fn another_container_has_other_names_addresses_and_numbers() {
    let broker = shop();
    broker.set_topology(
        "lab",
        Some(topology(&FILE.replace("\"shop\"", "\"lab\"").replace("[endpoint.motor]", "[endpoint.engine]"))),
    );
    let (_planner, planner_at) = bound(&broker, "planner", "planner");
    let of_lab =
        Identity { dc: "lab".into(), domain: "camera".into(), role: Role::Program, pid: 9, main: false };
    let mut spy = broker.join(of_lab).unwrap();
    let spy_at = bind(&broker, &mut spy, "camera");
    assert_ne!(spy_at.slot, planner_at.slot);
    for request in [to_name(spy_at, "planner"), to_address(spy_at, planner_at)] {
        refused(&ask(&broker, &mut spy, request), Errno::NOTCONN);
    }
    let other = ask(&broker, &mut spy, to_name(spy_at, "motor"));
    refused(&other, Errno::NOENT);
    assert!(!message(&other).contains("engine"), "{other:?}");
    refused(&ask(&broker, &mut spy, unbind(planner_at)), Errno::BADF);
}

#[test]
fn one_that_does_not_read_is_introduced_to_no_more_and_stays() {
    let many = "[ipc]\nendpoints = 2000\nanonymous_per_domain = 1000\n";
    let broker = shop_with(&format!("{FILE}{many}"), no_channel, Kept::default());
    let (planner, planner_at) = bound(&broker, "planner", "planner");
    let mut desk = program(&broker, "desk");
    let mut reached = 0;
    for _ in 0..400 {
        let at = bind(&broker, &mut desk, "");
        match ask(&broker, &mut desk, to_name(at, "planner")) {
            Reply::Introduced { .. } => reached += 1,
            other => {
                refused(&other, Errno::AGAIN);
                break;
            }
        }
    }
    assert_eq!(reached, MAX_WAITING_PACKETS - KEPT_PACKETS);
    // All of them end: it is told of nothing that it could not hold, and it is there still.
    broker.leave(desk.0);
    assert_eq!(planner.1.len(), reached);
    let inner = broker.lock();
    assert!(inner.endpoints.table("shop").is_bound(planner_at));
}

#[test]
fn a_slot_whose_generations_are_used_up_is_given_up() {
    let broker = shop();
    let (planner, before) = bound(&broker, "planner", "planner");
    broker.leave(planner.0);
    broker.lock().endpoints.exhaust("shop", before.slot);
    let (_planner, after) = bound(&broker, "planner", "planner");
    assert_ne!(after.slot, before.slot);
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    refused(&ask(&broker, &mut camera, to_address(camera_at, before)), Errno::NOTCONN);
    assert_eq!(introduced(ask(&broker, &mut camera, to_name(camera_at, "planner"))).address, after);
}
