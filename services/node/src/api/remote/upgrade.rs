//! From a request of HTTP/1.1 to bytes in both directions, as its `Upgrade` has it.

use crate::membership::Stream;
use admin::{Code, MAX_BODY_BYTES, Problem};
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::Response;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::time::Duration;

/// How long whoever asked may take to change over, once it was told to.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A request to change over to another protocol.
pub(crate) struct Asked {
    pub(crate) body: Bytes,
    protocol: &'static str,
    upgrade: OnUpgrade,
}

/// Reads it.
///
/// # Errors
/// [`Code::BadRequest`]: it asks for something else, or too much.
pub(crate) async fn asked(mut request: Request, protocol: &'static str) -> Result<Asked, Problem> {
    let bad = |why: String| {
        Problem::new(Code::BadRequest, why)
            .help(format!("ask with `Connection: upgrade` and `Upgrade: {protocol}`"))
    };
    let wanted = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if wanted != Some(protocol) {
        return Err(bad(format!(
            "this speaks {protocol}, and {:?} was asked for",
            wanted.unwrap_or("nothing else")
        )));
    }
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let upgrade = upgrade.ok_or_else(|| bad("this connection can't be changed over".into()))?;
    let body = axum::body::to_bytes(request.into_body(), MAX_BODY_BYTES).await;
    Ok(Asked { body: body.map_err(|error| bad(error.to_string()))?, protocol, upgrade })
}

impl Asked {
    /// The answer that tells to change over.
    pub(crate) fn switched(&self) -> Response {
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, header::HeaderValue::from_static(self.protocol));
        answer
    }

    /// The bytes, once the answer has told to change over.
    pub(crate) async fn stream(self) -> Result<Box<dyn Stream>, String> {
        match tokio::time::timeout(TIMEOUT, self.upgrade).await {
            Ok(Ok(upgraded)) => Ok(Box::new(TokioIo::new(upgraded))),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it does not change over".into()),
        }
    }
}

/// Passes on whatever comes, in both directions, until both have ended.
pub(crate) async fn bridge(near: Asked, mut far: Box<dyn Stream>) {
    let mut near = match near.stream().await {
        Ok(near) => near,
        Err(why) => return tracing::info!(why, "whoever wanted something of another node is gone"),
    };
    if let Err(error) = tokio::io::copy_bidirectional(&mut near, &mut far).await {
        tracing::debug!(%error, "what was passed on to another node was cut off");
    }
}
