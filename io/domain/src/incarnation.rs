//! The daemon's order to the monitor, the init helper and `exec`: the specification with everything
//! resolved, on disk.

use crate::error::{Context, Error, Result};
use crate::layout::{DomainPaths, Layout};
use crate::root::ImageRoot;
use crate::spec::DomainSpec;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// `spec.json`: readable by root alone, since an environment may hold secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Incarnation {
    pub layout: Layout,
    pub spec: DomainSpec,
    pub image: Option<ImageRoot>,
}

impl Incarnation {
    pub fn write(&self, paths: &DomainPaths) -> Result<()> {
        crate::status::write_json(&paths.spec(), self)
    }

    /// Reads the one of a domain below `run_dir`.
    pub fn read(run_dir: &Path, dc: &str, name: &str) -> Result<(Self, DomainPaths)> {
        crate::layout::DomainId::new(dc, name)?;
        let path = run_dir.join("dc").join(dc).join(name).join("spec.json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NotRunning(format!("{dc}/{name}")));
            }
            Err(e) => return Err(e).at("read", path),
        };
        let incarnation: Self =
            serde_json::from_slice(&text).map_err(|e| Error::Damaged { path, message: e.to_string() })?;
        let paths = incarnation.layout.domain(dc, name)?;
        Ok((incarnation, paths))
    }
}
