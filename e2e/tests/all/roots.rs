//! Foreign roots: a directory with nothing but busybox, and an OCI image layout, as folder and as
//! archive. What is in them is static, knows nothing of Tombolo, and resolves all the same.

use e2e::oci::script;
use e2e::{NameServer, Node, topology};
use std::path::{Path, PathBuf};

/// A file tree with busybox and the folders that a program expects.
pub(crate) fn tree(folder: &Path) -> PathBuf {
    let line = "mkdir -p tree/bin tree/etc tree/tmp; cp $(command -v busybox) tree/bin/busybox; \
                for i in sh sleep cat nslookup echo ls; do ln -sf busybox tree/bin/$i; done; \
                echo root:x:0:0::/:/bin/sh > tree/etc/passwd";
    script(folder, line);
    folder.join("tree")
}

fn with_root(port: u16, root: &str) -> String {
    topology(port, &["web"], "", "").replace(
        "[domain.web]\nkind = \"container\"\nroot = \"host\"",
        &format!("[domain.web]\nkind = \"container\"\nroot = {root}"),
    )
}

fn assert_resolves(node: &Node) {
    let stub = node.ok(&["exec", "web", "--", "/bin/nslookup", "host3.tombolo.example"]);
    assert!(stub.contains("192.0.2.3"), "{stub}");
    let line = "exec 3<>/srv/dns/query; echo A host3.tombolo.example >&3; cat <&3";
    let files = node.ok(&["exec", "web", "--", "/bin/sh", "-c", line]);
    assert!(files.contains("192.0.2.3"), "{files}");
}

#[test]
fn a_directory_with_nothing_but_busybox() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    let root = tree(node.folder());
    node.up_ok(&with_root(server.port, &format!("{{ directory = \"{}\" }}", root.display())));
    assert_resolves(&node);
}

/// An image layout `image` with one image, `latest`, of busybox; and the same as an archive,
/// `image.tar`.
pub(crate) fn image(folder: &Path) {
    image_of_flavour(folder, "from-the-image");
}

/// The same, whose containers have another word in `$FLAVOUR`.
pub(crate) fn image_of_flavour(folder: &Path, flavour: &str) {
    tree(folder);
    e2e::oci::layout(folder, flavour);
}

#[test]
fn an_oci_image_layout_as_folder_and_as_archive() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    image(node.folder());
    for layout in ["image", "image.tar"] {
        let root = format!("{{ image = \"{}\" }}", node.folder().join(layout).display());
        let text = with_root(server.port, &root).replacen("command = [\"sleep\", \"infinity\"]\n", "", 1);
        node.up_ok(&text);
        assert_resolves(&node);
        let flavour = node.ok(&["exec", "web", "--", "/bin/sh", "-c", "echo $FLAVOUR"]);
        assert_eq!(flavour, "from-the-image\n");
    }
}
