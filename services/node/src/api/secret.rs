//! The paths about secrets.

use super::{Shared, parsed};
use crate::api::node::Node;
use admin::secret::{SecretRemoveRequest, SecretRow, SecretSetRequest};
use admin::{Code, Problem, Said};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;

/// All of them, and who reads them; no values.
pub(super) async fn all(State(node): Shared) -> Result<Json<Vec<SecretRow>>, Problem> {
    let mut rows = node.secrets.rows().await?;
    for row in &mut rows {
        row.domains = readers(&node, &row.dc, &row.secret);
    }
    Ok(Json(rows))
}

pub(super) async fn set(State(node): Shared, body: Bytes) -> Result<Json<SecretRow>, Problem> {
    let SecretSetRequest { dc, secret, value } = parsed(&body)?;
    let mut row = node.secrets.set(&dc, &secret, value).await?;
    row.domains = readers(&node, &dc, &secret);
    Ok(Json(row))
}

pub(super) async fn remove(State(node): Shared, body: Bytes) -> Result<Json<Said>, Problem> {
    let SecretRemoveRequest { dc, secret } = parsed(&body)?;
    let readers = readers(&node, &dc, &secret);
    if !readers.is_empty() {
        let message = format!("{dc}/{secret} is read by {}, and the file with it is up", readers.join(", "));
        return Err(Problem::new(Code::Refused, message)
            .help("take it out of the file, or end what is up: `tombolo down`"));
    }
    node.secrets.remove(&dc, &secret).await?;
    Ok(Json(Said { said: format!("{dc}/{secret} is removed") }))
}

/// The domains that read a secret, by the files that are up.
fn readers(node: &Node, dc: &str, secret: &str) -> Vec<String> {
    let Some(topology) = node.domains.topology(dc) else { return Vec::new() };
    let reads = topology.domains.iter().filter(|domain| domain.secrets.iter().any(|name| name == secret));
    reads.map(|domain| domain.name.as_str().to_owned()).collect()
}
