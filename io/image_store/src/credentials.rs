//! Names and passwords at registries, as `docker login`, `podman login` and `skopeo login` write
//! them down.

use crate::error::{Error, Result, While};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Largest file of credentials, in bytes: some thousand registries.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// How Docker's own registry is called in such files.
const DOCKER: [&str; 4] =
    ["docker.io", "index.docker.io", "https://index.docker.io/v1/", "registry-1.docker.io"];

/// A file of credentials.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    path: PathBuf,
    file: Format,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Format {
    auths: BTreeMap<String, Entry>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entry")
    }
}

/// The credentials for one registry.
#[derive(PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing: it is asked without a name.
    Nothing,
    /// The value of a header `Authorization`.
    Basic(String),
    /// Something that is not used here, and why.
    Unusable(String),
}

impl Credentials {
    /// Reads the file of the one who runs this: `$REGISTRY_AUTH_FILE`, else `config.json` in
    /// `$DOCKER_CONFIG` or `~/.docker`.
    ///
    /// # Errors
    /// A file that can't be read or understood. That there is none is no error.
    pub fn of_user() -> Result<Self> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let docker = || variable("DOCKER_CONFIG").or_else(|| Some(variable("HOME")?.join(".docker")));
        match variable("REGISTRY_AUTH_FILE").or_else(|| Some(docker()?.join("config.json"))) {
            Some(path) => Self::read(&path),
            None => Ok(Self::default()),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`Credentials::of_user`].
    pub fn read(path: &Path) -> Result<Self> {
        let shown = || format!("read {}", path.display());
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error).doing(shown),
        };
        let refused = |why: String| Error::Credentials { path: path.to_owned(), why };
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).doing(shown)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(refused(format!("the file has more than {MAX_FILE_BYTES} bytes")));
        }
        // The parser's words may repeat a secret; the place is enough.
        let file = serde_json::from_slice(&bytes).map_err(|error| {
            refused(format!("it is no such file (line {}, column {})", error.line(), error.column()))
        })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Returns the credentials for a registry.
    pub(crate) fn of(&self, host: &str) -> Result<Known> {
        let names: &[&str] = if DOCKER.contains(&host) { &DOCKER } else { &[] };
        let names = || names.iter().copied().chain([host]);
        let is_host = |key: &str| names().any(|name| name == key || bare(key) == name);
        if let Some((_, entry)) =
            self.file.auths.iter().find(|(key, entry)| is_host(key) && !entry.is_empty())
        {
            return entry.known().map_err(|why| Error::Credentials {
                path: self.path.clone(),
                why: format!("{host}: {why}"),
            });
        }
        let helper = self.file.cred_helpers.iter().find(|(key, _)| is_host(key)).map(|(_, helper)| helper);
        let stored = self.file.auths.keys().any(|key| is_host(key));
        let helper = helper.or(self.file.creds_store.as_ref().filter(|_| stored));
        Ok(helper.map_or(Known::Nothing, |helper| {
            Known::Unusable(format!(
                "the credentials are with the helper {:?}, and helpers are not run here: name a file with `auths` in $REGISTRY_AUTH_FILE",
                crate::error::said(helper)
            ))
        }))
    }
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.auth.as_deref().unwrap_or_default().is_empty()
            && self.username.is_none()
            && self.identitytoken.is_none()
    }

    fn known(&self) -> std::result::Result<Known, String> {
        if self.identitytoken.as_deref().is_some_and(|token| !token.is_empty()) {
            return Ok(Known::Unusable(
                "the file has an identity token, which is not used here: log in with a password or an access token".into(),
            ));
        }
        let pair = match (self.auth.as_deref(), &self.username, &self.password) {
            (Some(auth), ..) if !auth.is_empty() => {
                STANDARD.decode(auth.trim()).map_err(|_| "`auth` is no base64".to_owned())?
            }
            (_, Some(name), Some(password)) => format!("{name}:{password}").into_bytes(),
            _ => return Err("there is neither `auth` nor `username` and `password`".into()),
        };
        let is_pair = pair.contains(&b':') && !pair.iter().any(u8::is_ascii_control);
        if is_pair {
            Ok(Known::Basic(format!("Basic {}", STANDARD.encode(pair))))
        } else {
            Err("`auth` is no NAME:PASSWORD".into())
        }
    }
}

/// A key as old versions wrote it, without scheme and path.
fn bare(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    key.split('/').next().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Credentials> {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("config.json");
        std::fs::write(&path, text).expect("write");
        Credentials::read(&path)
    }

    #[test]
    fn each_form_of_the_file_is_understood() {
        let auth = STANDARD.encode("me:secret");
        let header = || Known::Basic(format!("Basic {auth}"));
        let text = format!(
            r#"{{"auths": {{"r.example:5000": {{"auth": "{auth}"}}, "https://old.example/v1/": {{"auth": "{auth}"}},
                "https://index.docker.io/v1/": {{"username": "me", "password": "secret"}}, "stored.example": {{}},
                "token.example": {{"identitytoken": "x"}}, "bad.example": {{"auth": "%%%"}}}},
                "credsStore": "desktop", "credHelpers": {{"cloud.example": "cloud"}}, "other": 1}}"#
        );
        let credentials = read(&text).expect("read");
        let of = |host: &str| credentials.of(host);
        for host in ["r.example:5000", "old.example", "docker.io", "registry-1.docker.io"] {
            assert!(of(host).expect(host) == header(), "{host}");
        }
        assert!(of("r.example").expect("another port") == Known::Nothing);
        for (host, said) in
            [("stored.example", "desktop"), ("cloud.example", "cloud"), ("token.example", "identity token")]
        {
            let Known::Unusable(why) = of(host).expect(host) else { panic!("{host}") };
            assert!(why.contains(said), "{why}");
        }
        assert!(matches!(of("bad.example"), Err(Error::Credentials { .. })));
    }

    #[test]
    fn a_broken_file_is_refused_without_repeating_it_and_none_is_as_good_as_an_empty_one() {
        let error = read(r#"{"auths": {"h": {"auth": secret}}}"#).expect_err("it was read").to_string();
        assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
        assert!(
            Credentials::read(Path::new("/no/such")).expect("none").of("h").expect("h") == Known::Nothing
        );
        assert!(!format!("{:?}", read(r#"{"auths":{"h":{"auth":"c2VjcmV0"}}}"#)).contains("c2VjcmV0"));
    }
}
