//! The paths about adaptations.

use super::{Shared, parsed};
use crate::base::BOOK;
use admin::adaptation::{AdaptationRow, SetAdaptation};
use admin::{Code, Problem};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use std::sync::Arc;

pub(super) async fn all(State(node): Shared) -> Result<Json<Vec<AdaptationRow>>, Problem> {
    let adaptations = Arc::clone(&node.adaptations);
    let rows = BOOK.run(move || adaptations.rows()).await;
    rows.map(Json).map_err(|why| Problem::new(Code::Failed, why))
}

pub(super) async fn show(
    State(node): Shared,
    Path(name): Path<String>,
) -> Result<Json<AdaptationRow>, Problem> {
    let adaptations = Arc::clone(&node.adaptations);
    let row = BOOK.run(move || adaptations.row(&name)).await;
    row.map_err(|why| Problem::new(Code::Failed, why))?.map(Json)
}

pub(super) async fn set(State(node): Shared, body: Bytes) -> Result<Json<AdaptationRow>, Problem> {
    let request: SetAdaptation = parsed(&body)?;
    let adaptations = Arc::clone(&node.adaptations);
    let set = BOOK.run(move || adaptations.set(&request)).await;
    set.map_err(|why| Problem::new(Code::Failed, why))?.map(Json)
}
