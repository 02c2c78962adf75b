//! Foreign roots: a directory with nothing but busybox, and an OCI image layout, as folder and as archive. What is in them
//! is static, knows nothing of Tombolo, and resolves all the same.

use e2e::{NameServer, Node, topology};
use std::path::{Path, PathBuf};
use std::process::Command;

fn script(folder: &Path, line: &str) -> String {
    let output = Command::new("bash")
        .current_dir(folder)
        .args(["-euo", "pipefail", "-c", line])
        .output()
        .expect("bash");
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

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

/// An image layout `image` with one image, `latest`, of busybox; and the same as an archive, `image.tar`.
pub(crate) fn image(folder: &Path) {
    image_of_flavour(folder, "from-the-image");
}

/// The same, whose containers have another word in `$FLAVOUR`.
pub(crate) fn image_of_flavour(folder: &Path, flavour: &str) {
    tree(folder);
    let line = r#"
        blob() { local d=$(sha256sum < "$1" | cut -d' ' -f1); mv "$1" image/blobs/sha256/$d; echo $d; }
        mkdir -p image/blobs/sha256
        tar --owner=0 --group=0 -C tree -cf layer.tar . ; diff=$(sha256sum < layer.tar | cut -d' ' -f1)
        gzip -n layer.tar; size=$(stat -c %s layer.tar.gz); layer=$(blob layer.tar.gz)
        printf '{"architecture":"amd64","os":"linux","config":{"Env":["FLAVOUR=from-the-image"],"Cmd":["/bin/sleep","1000000"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' $diff > config
        csize=$(stat -c %s config); config=$(blob config)
        printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:%s","size":%s}]}' $config $csize $layer $size > manifest
        msize=$(stat -c %s manifest); manifest=$(blob manifest)
        printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"annotations":{"org.opencontainers.image.ref.name":"latest"}}]}' $manifest $msize > image/index.json
        printf '{"imageLayoutVersion":"1.0.0"}' > image/oci-layout
        tar -C image -cf image.tar ."#;
    script(folder, &line.replace("from-the-image", flavour));
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
