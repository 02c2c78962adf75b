//! A refusal as the daemon's answer in HTTP.

use crate::{Code, Problem};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = match self.code {
            Code::BadRequest => StatusCode::BAD_REQUEST,
            Code::NotAdmitted => StatusCode::UNPROCESSABLE_ENTITY,
            Code::UnknownDc
            | Code::UnknownDomain
            | Code::UnknownService
            | Code::UnknownEndpoint
            | Code::UnknownNode
            | Code::UnknownLink
            | Code::UnknownReservation
            | Code::UnknownAdaptation
            | Code::UnknownSecret
            | Code::UnknownVolume
            | Code::UnknownPath => StatusCode::NOT_FOUND,
            Code::Ambiguous | Code::NotRunning | Code::NoCluster | Code::Taken | Code::Cancelled => {
                StatusCode::CONFLICT
            }
            Code::Refused => StatusCode::FORBIDDEN,
            Code::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Code::Ending => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, Json(self)).into_response()
    }
}
