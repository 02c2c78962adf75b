//! OCI image layouts for tests, made of a folder by tar and sha256sum, as other tools make them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes the image layout `image` and the archive `image.tar` with one image, `latest`, of `tree`:
/// each is in `folder`. Its containers have `flavour` in `$FLAVOUR`.
///
/// # Panics
/// Where bash, tar or gzip fail.
pub fn layout(folder: &Path, flavour: &str) -> PathBuf {
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
    folder.join("image")
}

/// Runs a line of bash in `folder`, which must not fail; its output.
///
/// # Panics
/// Where it fails.
pub fn script(folder: &Path, line: &str) -> String {
    let output = Command::new("bash")
        .current_dir(folder)
        .args(["-euo", "pipefail", "-c", line])
        .output()
        .expect("bash");
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
