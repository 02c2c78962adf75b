use super::{Made, image};
use crate::document::digest_of;
use crate::{Access, Credentials, Error, Image, Store, pull, reference};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A request as tests look at it: its path with the query, and its header `Authorization`.
type Asked = (String, Option<String>);
/// Status, headers, and how the body is written.
type Answer = (u16, Vec<(&'static str, String)>, Body);
type Body = Box<dyn FnOnce(&mut TcpStream) + Send>;

/// A registry that answers as it is told, on loopback.
struct Registry {
    address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Registry {
    fn start(answer: impl Fn(&str, Option<&str>) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address").to_string();
        let (asked, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
        let heard = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (heard, answer) = (Arc::clone(&heard), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream, &heard, &*answer));
            }
        });
        Self { address, asked }
    }

    /// One that has an image, with some of its answers changed.
    fn with(made: Made, change: impl Fn(&str) -> Option<Answer> + Send + Sync + 'static) -> Self {
        Self::start(move |path, _| change(path).unwrap_or_else(|| honest(&made, path)))
    }

    fn pull(&self, access: &Access) -> (tempfile::TempDir, crate::Result<Image>) {
        let folder = tempfile::tempdir().expect("folder");
        let reference = reference(&format!("{}/app:1", self.address)).expect("a reference");
        let pulled = pull(&Store::new(folder.path()), &reference, access, &mut |_| {});
        (folder, pulled)
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("asked").clone()
    }
}

fn serve(
    stream: TcpStream,
    heard: &Mutex<Vec<Asked>>,
    answer: &(dyn Fn(&str, Option<&str>) -> Answer + Sync),
) {
    let mut stream = stream;
    let mut reader = BufReader::new(stream.try_clone().expect("clone"));
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or_default() == 0 {
        return;
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut authorization = None;
    loop {
        line.clear();
        if reader.read_line(&mut line).unwrap_or_default() == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("authorization")
        {
            authorization = Some(value.trim().to_owned());
        }
    }
    let (status, headers, body) = answer(&path, authorization.as_deref());
    heard.lock().expect("heard").push((path, authorization));
    let mut head = format!("HTTP/1.1 {status} Answer\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    // Who is refused hangs up.
    if stream.write_all(format!("{head}\r\n").as_bytes()).is_ok() {
        body(&mut stream);
    }
}

fn whole(bytes: Vec<u8>) -> Answer {
    let length = ("Content-Length", bytes.len().to_string());
    (200, vec![length], Box::new(move |stream| drop(stream.write_all(&bytes))))
}

fn status(status: u16, headers: Vec<(&'static str, String)>) -> Answer {
    let mut headers = headers;
    headers.push(("Content-Length", "0".into()));
    (status, headers, Box::new(|_| {}))
}

/// A body without an end or a length.
fn endless() -> Answer {
    (200, Vec::new(), Box::new(|stream| while stream.write_all(&[b' '; 4096]).is_ok() {}))
}

fn honest(made: &Made, path: &str) -> Answer {
    if path == "/v2/app/manifests/1" {
        return whole(made.manifest.clone());
    }
    let digest = path.rsplit('/').next().unwrap_or_default();
    made.blobs.get(digest).map_or_else(|| status(404, Vec::new()), |bytes| whole(bytes.clone()))
}

#[test]
fn an_image_is_pulled_and_the_second_time_only_its_manifest_is_asked_for() {
    let registry = Registry::with(image("one"), |_| None);
    let (folder, pulled) = registry.pull(&Access::default());
    let pulled = pulled.expect("pull");
    assert_eq!(pulled.names, [format!("{}/app:1", registry.address)]);
    assert_eq!(pulled.digest, digest_of(&image("one").manifest));
    let before = registry.asked().len();
    let reference = reference(&pulled.names[0]).expect("a reference");
    pull(&Store::new(folder.path()), &reference, &Access::default(), &mut |_| {}).expect("again");
    let asked: Vec<_> = registry.asked()[before..].iter().map(|(path, _)| path.clone()).collect();
    assert!(!asked.iter().any(|path| path.contains(&image("one").layer)), "{asked:?}");
}

#[test]
fn each_hostile_answer_is_refused_and_leaves_no_image() {
    let made = || image("one");
    let (layer, config) = (made().layer, made().config);
    let of = |digest: &str| format!("/v2/app/blobs/{digest}");
    let (layer, config) = (of(&layer), of(&config));
    let manifest = "/v2/app/manifests/1".to_owned();
    let length = made().blobs[&made().layer].len();
    type Change = Box<dyn Fn() -> Answer + Send + Sync>;
    let bomb = json!({ "schemaVersion": 2, "config": { "mediaType": "application/vnd.oci.image.config.v1+json",
        "digest": digest_of(b""), "size": 1 }, "layers": vec![json!({ "mediaType":
        "application/vnd.oci.image.layer.v1.tar", "digest": digest_of(b""), "size": 1_u64 << 40 })] });
    let cases: Vec<(&str, &String, Change)> = vec![
        ("the manifest is too big", &manifest, Box::new(endless)),
        ("the image is too big", &manifest, Box::new(move || whole(bomb.to_string().into_bytes()))),
        ("malformed", &manifest, Box::new(|| whole(b"{".to_vec()))),
        ("malformed", &manifest, Box::new(|| whole(vec![b'['; 100_000]))),
        (
            "should be",
            &manifest,
            Box::new(|| {
                let mut answer = whole(image("two").manifest);
                answer.1.push(("Docker-Content-Digest", digest_of(b"another")));
                answer
            }),
        ),
        ("too big", &config, Box::new(endless)),
        ("damaged or forged", &config, Box::new(|| whole(b"{}".to_vec()))),
        ("more than the", &layer, Box::new(endless)),
        ("damaged or forged", &layer, Box::new(move || whole(vec![7; length]))),
        ("its descriptor says", &layer, Box::new(|| whole(b"short".to_vec()))),
        (
            "broke off",
            &layer,
            Box::new(|| (200, vec![("Content-Length", "100000".into())], Box::new(|_| {}))),
        ),
        ("has no app", &manifest, Box::new(|| status(404, Vec::new()))),
        ("more than 5 times", &layer, Box::new(|| status(302, vec![("Location", "/v2/app/loop".into())]))),
        ("sends us on to no address", &layer, Box::new(|| status(302, Vec::new()))),
        (
            "is not encrypted",
            &layer,
            Box::new(|| status(302, vec![("Location", "http://192.0.2.1/layer".into())])),
        ),
        (
            "names the address",
            &layer,
            Box::new(|| status(302, vec![("Location", "ftp://192.0.2.1/layer".into())])),
        ),
        ("too many requests", &manifest, Box::new(|| status(429, Vec::new()))),
        ("500", &manifest, Box::new(|| status(500, Vec::new()))),
        (
            "not known here",
            &manifest,
            Box::new(|| status(401, vec![("WWW-Authenticate", "Negotiate".into())])),
        ),
    ];
    for (said, at, change) in cases {
        let at = at.clone();
        let registry = Registry::with(made(), move |path| match path {
            "/v2/app/loop" => Some(status(302, vec![("Location", "/v2/app/loop".into())])),
            path => (path == at).then(&change),
        });
        let (folder, pulled) = registry.pull(&Access::default());
        let error = pulled.expect_err(said).to_string();
        assert!(error.contains(said), "{said}: {error}");
        assert_eq!(Store::new(folder.path()).list().expect("list"), [], "{said}");
        let partial = folder.path().join("store/partial");
        let left = std::fs::read_dir(partial).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{said}");
    }
}

#[test]
fn a_transfer_that_breaks_off_is_begun_again_and_what_was_complete_is_kept() {
    let made = image("one");
    let (layer, tries) = (format!("/v2/app/blobs/{}", made.layer), AtomicUsize::new(0));
    let registry = Registry::with(made, move |path| {
        let breaks = path == layer && tries.fetch_add(1, Ordering::Relaxed) == 0;
        breaks.then(|| -> Answer { (200, vec![("Content-Length", "100000".into())], Box::new(|_| {})) })
    });
    registry.pull(&Access::default()).1.expect("the second try");
}

#[test]
fn a_digest_in_the_reference_is_what_the_manifest_must_have() {
    let made = image("one");
    let digest = digest_of(&made.manifest);
    let pulls = |made: Made, change: fn() -> Option<Answer>| {
        let registry =
            Registry::with(made, move |path| if path.contains("manifests") { change() } else { None });
        let folder = tempfile::tempdir().expect("folder");
        let reference = reference(&format!("{}/app@{digest}", registry.address)).expect("a reference");
        pull(&Store::new(folder.path()), &reference, &Access::default(), &mut |_| {})
    };
    assert!(pulls(image("one"), || None).is_ok());
    let error = pulls(made, || Some(whole(image("two").manifest))).expect_err("another");
    assert!(matches!(error, Error::Digest { .. }), "{error}");
}

fn credentials(host: &str) -> Access {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("config.json");
    let file = json!({ "auths": { host: { "username": "me", "password": "secret" } } });
    std::fs::write(&path, file.to_string()).expect("write");
    Access { credentials: Credentials::read(&path).expect("read"), insecure: false }
}

#[test]
fn who_one_is_is_told_to_those_who_ask_and_to_no_storage() {
    let made = image("one");
    let storage = {
        let blobs: BTreeMap<_, _> = made.blobs.clone();
        Registry::start(move |path, _| {
            let digest = path.rsplit('/').next().unwrap_or_default();
            blobs.get(digest).map_or_else(|| status(404, Vec::new()), |bytes| whole(bytes.clone()))
        })
    };
    let tokens = Registry::start(|_, authorization| match authorization {
        Some(basic) if basic.starts_with("Basic ") => whole(br#"{"token":"t0ken"}"#.to_vec()),
        _ => status(401, Vec::new()),
    });
    let (at_storage, realm) = (storage.address.clone(), format!("http://{}/token", tokens.address));
    let registry = Registry::start(move |path, authorization| match authorization {
        Some("Bearer t0ken") if path.contains("manifests") => honest(&made, path),
        Some("Bearer t0ken") => {
            let digest = path.rsplit('/').next().unwrap_or_default();
            status(307, vec![("Location", format!("http://{at_storage}/{digest}"))])
        }
        _ => status(
            401,
            vec![
                ("WWW-Authenticate", "Basic".into()),
                ("WWW-Authenticate", format!("Bearer realm=\"{realm}\",service=\"it\"")),
            ],
        ),
    });
    let (_folder, refused) = registry.pull(&Access::default());
    let error = refused.expect_err("nobody");
    assert!(
        matches!(error, Error::Denied { .. }) && error.help().is_some_and(|help| help.contains("login")),
        "{error}"
    );
    registry.pull(&credentials(&registry.address)).1.expect("pull");
    let (asked, _) = tokens.asked().pop().expect("it was asked");
    assert!(asked.contains("service=it") && asked.contains("app%3Apull"), "{asked}");
    assert!(storage.asked().iter().all(|(_, authorization)| authorization.is_none()));
    assert!(
        !registry
            .asked()
            .iter()
            .any(|(_, shown)| shown.as_deref().is_some_and(|shown| shown.starts_with("Basic")))
    );
}

#[test]
fn a_server_of_tokens_in_clear_elsewhere_is_told_nothing() {
    let challenge =
        || status(401, vec![("WWW-Authenticate", "Bearer realm=\"http://192.0.2.1/token\"".into())]);
    let registry = Registry::start(move |_, _| challenge());
    let (_folder, refused) = registry.pull(&credentials(&registry.address));
    assert!(matches!(refused, Err(Error::Plain { .. })), "{refused:?}");
}

#[test]
fn references_are_those_that_others_understand() {
    assert_eq!(reference("alpine").expect("a name").whole(), "docker.io/library/alpine:latest");
    assert_eq!(crate::familiar("docker.io/library/alpine:3.20"), "alpine:3.20");
    assert_eq!(crate::familiar("docker.io/me/app:1"), "me/app:1");
    assert_eq!(crate::familiar("example.org/app:1"), "example.org/app:1");
    for text in
        ["", "a b", "Upper:1", "x@sha256:12", "x:1\u{1b}[2J", &format!("x@sha512:{}", "a".repeat(128))]
    {
        let error = reference(text).expect_err(text);
        assert!(error.help().is_some() && !error.to_string().contains('\u{1b}'), "{error}");
    }
}
