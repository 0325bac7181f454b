//! The files of the page, which is told that this program computes for it.

#[cfg(feature = "web")]
pub use crate::cli::web::respond_native as respond;

/// Says that the page is missing: programs may still use the API.
#[cfg(not(feature = "web"))]
pub fn respond(_: &str, _: &axum::http::HeaderMap) -> axum::response::Response {
    use axum::response::IntoResponse;
    super::problem::Problem::missing(crate::cli::web::NOT_BUILT).into_response()
}
