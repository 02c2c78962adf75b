//! The paths about volumes.

use super::{Shared, parsed};
use admin::Problem;
use admin::volume::{ChangeVolume, CreateVolume, VolumeRow};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};

pub(super) async fn all(State(node): Shared) -> Result<Json<Vec<VolumeRow>>, Problem> {
    node.volumes.rows().await.map(Json)
}

pub(super) async fn show(State(node): Shared, Path(name): Path<String>) -> Result<Json<VolumeRow>, Problem> {
    node.volumes.show(&name).await.map(Json)
}

pub(super) async fn create(State(node): Shared, body: Bytes) -> Result<Json<VolumeRow>, Problem> {
    let request: CreateVolume = parsed(&body)?;
    node.volumes.create(request).await.map(Json)
}

/// Null where there is no volume any more.
pub(super) async fn change(State(node): Shared, body: Bytes) -> Result<Json<Option<VolumeRow>>, Problem> {
    let request: ChangeVolume = parsed(&body)?;
    node.volumes.change(request).await.map(Json)
}
