use super::{Made, architecture, descriptor, entry, image, image_for, layout};
use crate::{Collected, Error, Image, Progress, Store, import, reference};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

struct Bed {
    folder: tempfile::TempDir,
    store: Store,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let store = Store::new(folder.path());
        Self { folder, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn import(&self, path: &Path, name: Option<&str>) -> crate::Result<Vec<Image>> {
        let name = name.map(|name| reference(name).expect("a name"));
        import(&self.store, path, name.as_ref(), &mut |_| {})
    }

    /// Imports a layout of this image under this name.
    fn add(&self, made: &Made, name: &str) -> Image {
        let at = self.path("added");
        layout(&at, &[made], &json!([entry(made, None)]));
        let images = self.import(&at, Some(name)).expect("import");
        fs::remove_dir_all(&at).expect("remove");
        images.into_iter().next().expect("one")
    }

    fn find(&self, name: &str) -> Option<Image> {
        self.store.find(&reference(name).expect("a name")).expect("find")
    }

    fn blob(&self, digest: &str) -> PathBuf {
        self.store.folder().join("blobs/sha256").join(&digest["sha256:".len()..])
    }

    fn collect(&self) -> Collected {
        self.store.collect(&BTreeSet::new()).expect("collect")
    }
}

#[test]
fn an_empty_store_is_read_without_being_made() {
    let bed = Bed::new();
    assert_eq!(bed.store.list().expect("list"), []);
    assert_eq!(bed.find("alpine:3.20"), None);
    assert_eq!(bed.collect(), Collected::default());
    assert!(matches!(bed.store.meant("alpine:3.20"), Err(Error::Unknown(_))));
    assert!(!bed.store.folder().exists());
}

#[test]
fn an_image_is_found_by_its_name_in_each_form_and_by_its_digests() {
    let bed = Bed::new();
    let added = bed.add(&image("one"), "alpine:3.20");
    assert_eq!(added.names, ["docker.io/library/alpine:3.20"]);
    for name in ["alpine:3.20", "docker.io/alpine:3.20", "docker.io/library/alpine:3.20"] {
        assert_eq!(bed.find(name).as_ref(), Some(&added), "{name}");
    }
    assert_eq!(bed.find(&format!("other@{}", added.digest)).as_ref(), Some(&added));
    let digits = &added.digest["sha256:".len()..][..8];
    assert_eq!(bed.store.meant(digits).expect("meant"), added);
    assert!(bed.store.meant(&digits[..5]).is_err(), "five digits are too few");
    let (manifest, configuration) = bed.store.documents(&added).expect("documents");
    assert_eq!(manifest["layers"][0]["digest"].as_str(), Some(image("one").layer.as_str()));
    assert_eq!(configuration["config"]["Cmd"][0], "/bin/true");
}

#[test]
fn a_name_goes_to_the_last_image_that_gets_it_and_what_lost_it_goes_when_nobody_has_it() {
    let bed = Bed::new();
    let (one, two) = (image("one"), image("two"));
    let first = bed.add(&one, "app:1");
    let second = bed.add(&two, "app:1");
    assert_eq!(bed.find("app:1").expect("there").digest, second.digest);
    let used = BTreeSet::from([first.digest.clone()]);
    assert_eq!(bed.store.collect(&used).expect("collect").images, 0, "somebody has it");
    assert!(bed.blob(&one.layer).exists());
    let collected = bed.collect();
    assert_eq!((collected.images, collected.files), (1, 3));
    assert!(!bed.blob(&one.layer).exists() && bed.blob(&two.layer).exists());
}

#[test]
fn an_image_goes_with_its_last_name_or_by_its_digest_with_all() {
    let bed = Bed::new();
    let made = image("one");
    bed.add(&made, "app:1");
    let added = bed.add(&made, "app:2");
    assert_eq!(added.names.len(), 2);
    assert_eq!(bed.store.forget(&added, "app:1").expect("forget"), ["docker.io/library/app:1"]);
    bed.collect();
    assert!(bed.blob(&made.layer).exists());
    let left = bed.find("app:2").expect("there");
    assert_eq!(bed.store.forget(&left, &left.digest).expect("forget").len(), 1);
    bed.collect();
    assert!(!bed.blob(&made.layer).exists());
    assert_eq!(bed.store.list().expect("list"), []);
}

#[test]
fn what_a_killed_pull_left_is_used_by_nobody_and_collected() {
    let bed = Bed::new();
    let made = image("one");
    bed.add(&made, "app:1");
    let (half, orphan) =
        (bed.store.folder().join("partial/abc"), bed.blob(&format!("sha256:{}", "0".repeat(64))));
    fs::write(&half, "half").expect("half");
    fs::write(&orphan, "orphan").expect("orphan");
    let collected = bed.collect();
    assert_eq!((collected.files, collected.bytes), (2, 10));
    assert!(!half.exists() && !orphan.exists() && bed.blob(&made.layer).exists());
}

#[test]
fn nothing_is_collected_while_somebody_adds() {
    let bed = Bed::new();
    let adding = bed.store.adding().expect("adding");
    assert!(matches!(bed.store.collect(&BTreeSet::new()), Err(Error::Busy)));
    drop(adding);
    bed.collect();
}

#[test]
fn damaged_content_is_made_whole_by_getting_the_image_again() {
    let bed = Bed::new();
    let made = image("one");
    let added = bed.add(&made, "app:1");
    fs::write(bed.blob(&made.layer), "damaged").expect("damage");
    fs::write(bed.blob(&added.digest), "damaged").expect("damage");
    assert!(matches!(bed.store.documents(&added), Err(Error::Digest { .. })));
    bed.add(&made, "app:1");
    assert_eq!(fs::read(bed.blob(&made.layer)).expect("layer"), made.blobs[&made.layer]);
    assert!(bed.store.documents(&added).is_ok());
}

#[test]
fn two_that_add_the_same_at_once_both_succeed() {
    let bed = Bed::new();
    let made = image(&"x".repeat(1 << 20));
    let at = bed.path("layout");
    layout(&at, &[&made], &json!([entry(&made, None)]));
    std::thread::scope(|scope| {
        let import = |number: usize| bed.import(&at, Some(&format!("app:{number}"))).expect("import");
        let all: Vec<_> = (0..6).map(|number| scope.spawn(move || import(number))).collect();
        all.into_iter().for_each(|one| drop(one.join().expect("it ends")));
    });
    assert_eq!(bed.store.list().expect("list")[0].names.len(), 6);
    assert_eq!(fs::read_dir(bed.store.folder().join("partial")).expect("partial").count(), 0);
}

#[test]
fn a_layout_names_its_images_or_is_named() {
    let bed = Bed::new();
    let (one, two) = (image("one"), image("two"));
    let at = bed.path("layout");
    layout(&at, &[&one, &two], &json!([entry(&one, Some("example.org/app:1")), entry(&two, Some("app:2"))]));
    let names: Vec<_> =
        bed.import(&at, None).expect("import").into_iter().flat_map(|image| image.names).collect();
    assert_eq!(names, ["example.org/app:1", "docker.io/library/app:2"]);
    assert!(matches!(bed.import(&at, Some("x:1")), Err(Error::Several(2))));
    layout(&at, &[&one], &json!([entry(&one, Some("latest"))]));
    assert!(matches!(bed.import(&at, None), Err(Error::Nameless)), "`latest` of what?");
    let named = bed.import(&at, Some("x:1")).expect("import").remove(0);
    assert!(named.names.contains(&"docker.io/library/x:1".to_owned()), "{named:?}");
}

#[test]
fn of_several_platforms_the_one_of_this_machine_is_taken() {
    let bed = Bed::new();
    let (ours, other) = (image("ours"), image_for("other", "s390x"));
    let of = |made: &Made, architecture: &str| {
        let mut entry = entry(made, None);
        entry["platform"] = json!({ "os": "linux", "architecture": architecture });
        entry
    };
    let at = bed.path("layout");
    layout(&at, &[&ours, &other], &json!([of(&other, "s390x"), of(&ours, architecture())]));
    let added = bed.import(&at, Some("app:1")).expect("import").remove(0);
    assert_eq!(added.digest, crate::document::digest_of(&ours.manifest));
    let source = added.source_digest.clone().expect("the index has a digest, too");
    assert_ne!(source, added.digest);
    assert_eq!(bed.find(&format!("app@{source}")), Some(added), "it is found by the digest of the index");
    assert!(!bed.blob(&other.layer).exists());
    layout(&at, &[&other], &json!([of(&other, "s390x")]));
    assert!(matches!(bed.import(&at, Some("app:2")), Err(Error::Platform { .. })));
    // An index that does not say it does not help: the configuration says it.
    layout(&at, &[&other], &json!([entry(&other, None)]));
    assert!(matches!(bed.import(&at, Some("app:2")), Err(Error::Platform { .. })));
}

#[test]
fn what_docker_save_wrote_is_taken_with_its_names() {
    let bed = Bed::new();
    let made = image("one");
    let list = json!([{ "Config": "c.json", "RepoTags": ["app:1", "example.org/app:1"], "Layers": ["a/layer.tar", "b/layer.tar"] }]);
    let mut builder = tar::Builder::new(Vec::new());
    let mut append = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, name, bytes).expect("append");
    };
    append("manifest.json", list.to_string().as_bytes());
    append("c.json", &made.blobs[&made.config]);
    append("a/layer.tar", &made.blobs[&made.layer]);
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    builder.append_link(&mut link, "b/layer.tar", "../a/layer.tar").expect("append");
    let archive = bed.path("saved.tar");
    fs::write(&archive, builder.into_inner().expect("tar")).expect("write");
    let mut last = Progress { done: 0, of: 0 };
    let images = import(&bed.store, &archive, None, &mut |progress| last = progress).expect("import");
    assert_eq!(images[0].names.len(), 2);
    assert_eq!((last.done, last.of > 0), (last.of, true));
    let (manifest, _) = bed.store.documents(&images[0]).expect("documents");
    assert_eq!(manifest["layers"].as_array().map(Vec::len), Some(2));
    assert_eq!(manifest["layers"][0]["digest"].as_str(), Some(made.layer.as_str()));
    // The same again is the same image, so what is pinned stays.
    assert_eq!(bed.import(&archive, None).expect("again")[0].digest, images[0].digest);
}

#[test]
fn each_archive_that_is_none_gets_its_message_and_leaves_nothing() {
    let bed = Bed::new();
    let made = image("one");
    let at = bed.path("layout");
    let mut long = entry(&made, None);
    long["size"] = (5 * 1024 * 1024).into();
    let mut missing = image("missing");
    missing.blobs.remove(&missing.layer.clone());
    let mut forged = image("forged");
    let layer = forged.layer.clone();
    forged.blobs.insert(layer.clone(), b"forged".to_vec());
    let mut same_length = image("same");
    let length = same_length.blobs[&same_length.layer].len();
    same_length.blobs.insert(same_length.layer.clone(), vec![0; length]);
    let cases: Vec<(&str, Vec<&Made>, serde_json::Value)> = vec![
        ("lists no image", vec![], json!([])),
        ("is missing", vec![&missing], json!([entry(&missing, None)])),
        ("its descriptor says", vec![&forged], json!([entry(&forged, None)])),
        ("damaged or forged", vec![&same_length], json!([entry(&same_length, None)])),
        ("too big", vec![&made], json!([long])),
        ("is missing", vec![], json!([descriptor("application/vnd.oci.image.manifest.v1+json", b"none")])),
    ];
    for (said, images, entries) in cases {
        layout(&at, &images, &entries);
        let error = bed.import(&at, Some("app:1")).expect_err(said).to_string();
        assert!(error.contains(said), "{said}: {error}");
        fs::remove_dir_all(&at).expect("remove");
        assert_eq!(bed.find("app:1"), None, "{said}");
    }
    bed.collect();
    assert_eq!(fs::read_dir(bed.store.folder().join("blobs/sha256")).expect("blobs").count(), 0);
    for (name, bytes, said) in [
        ("text", &b"no tar at all, and longer than nothing"[..], "holds no image"),
        ("gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0][..], "compressed as a whole"),
    ] {
        fs::write(bed.path(name), bytes).expect("write");
        let error = bed.import(&bed.path(name), Some("app:1")).expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
    }
    fs::create_dir(bed.path("empty")).expect("empty");
    assert!(matches!(bed.import(&bed.path("empty"), None), Err(Error::NotAnImage { .. })));
    assert!(bed.import(Path::new("/no/such"), None).is_err());
}
