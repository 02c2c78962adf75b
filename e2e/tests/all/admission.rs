//! Admission before anything stops: a file that can't come up is refused at its line, and a domain
//! that runs is the same process as before.

use crate::roots;
use e2e::Node;

/// A container of an image that counts its own lives in its writable layer.
fn file(node: &Node, image: &str, more: &str) -> String {
    let image = image.replace("IMAGE", &node.folder().join("image").display().to_string());
    format!(
        "name = \"shop\"\n\n[domain.web]\nkind = \"container\"\nwritable = true\nroot = {{ {image} }}\n{more}\n"
    )
}

/// The number of the first process of `web`, and what is in its layer.
fn life(node: &Node) -> (u64, String) {
    let rows = node.json(&["ps"]);
    let pid = rows[0]["pid"].as_u64().expect("it runs");
    (pid, node.ok(&["exec", "web", "--", "/bin/cat", "/kept"]))
}

#[test]
fn what_an_image_a_root_or_the_host_lacks_is_said_before_anything_stops() {
    let Some(node) = Node::start() else { return };
    roots::image(node.folder());
    let sleeps = "command = [\"sleep\", \"1000000\"]";
    node.up_ok(&file(&node, "image = \"IMAGE\"", sleeps));
    node.ok(&["exec", "web", "--", "/bin/sh", "-c", "echo first > /kept"]);
    let before = life(&node);
    let mounts = "command = [\"sleep\", \"9\"]\nmounts = [{ source = \"/etc/passwd\", target = \"/bin\" }]";
    for (image, more, place, says) in [
        ("image = \"IMAGE\", tag = \"v2\"", sleeps, ":6:", "no image tagged \"v2\" in it; there is latest"),
        ("image = \"IMAGE\"", "user = \"ghost\"", ":7:8", "\"ghost\" is not in the domain's /etc/passwd"),
        ("image = \"IMAGE\"", "user = \"root:ghosts\"", ":7:8", "group \"ghosts\" is not in"),
        ("image = \"IMAGE\"", "command = [\"nosuch\"]", ":7:12", "there is no program \"nosuch\""),
        ("image = \"IMAGE\"", "command = [\"/bin\"]", ":7:12", "it is a directory"),
        ("image = \"IMAGE\"", "command = [\"/etc/passwd\"]", ":7:12", "of mode 0644"),
        (
            "image = \"IMAGE\"",
            "ready = { command = [\"nosuch\"] }",
            ":7:22",
            "there is no program \"nosuch\"",
        ),
        ("image = \"IMAGE\"", mounts, ":8:", "the one is a directory and the other a file"),
    ] {
        let run = node.up(&file(&node, image, more));
        assert_eq!(run.code, 1, "{more}: {run:?}");
        let at = format!("topology.toml{place}");
        assert!(run.err.contains(says) && run.err.contains(&at), "{image} {more}: {}{}", run.out, run.err);
        // Where it can look, it says the same without starting anything.
        let check = node.run(&["check", &node.folder().join("topology.toml").to_string_lossy()]);
        assert!(check.code == 1 && check.err.contains(says), "{image} {more}: {check:?}");
        assert_eq!(life(&node), before, "{more}: the domain is another than before");
    }
    // A tag that there is, and the same program by its path: that is a restart.
    let run =
        node.up(&file(&node, "image = \"IMAGE\", tag = \"latest\"", "command = [\"/bin/sleep\", \"9999\"]"));
    assert_eq!(run.code, 0, "{run:?}");
    assert_ne!(node.json(&["ps"])[0]["pid"].as_u64(), Some(before.0));
}

#[test]
fn a_port_that_a_stranger_holds_is_refused_before_the_former_life_ends() {
    let Some(node) = Node::start() else { return };
    let file = |ready: &str, life: &str| {
        format!(
            "name = \"shop\"\n[domain.late]\nkind = \"process\"\ncommand = [\"sleep\", \"infinity\"]\n\
             environment = {{ LIFE = \"{life}\" }}\n{ready}\n"
        )
    };
    node.up_ok(&file("", "1"));
    let pid = |node: &Node| node.json(&["ps"])[0]["pid"].as_u64().expect("it runs");
    let before = pid(&node);
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = stranger.local_addr().expect("its address");
    let run = node.up(&file(&format!("ready = {{ tcp = \"{address}\" }}"), "2"));
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.err.contains(&format!("pid {}", std::process::id())), "{}", run.err);
    assert_eq!(pid(&node), before, "it was ended for a start that could not be");
}
