//! Request bodies: bounded, gunzipped where they say so.

use crate::text;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use segmentry_coordinator::ApiError;
use std::io::Read;

/// `http.max_content_length`, bytes: of the body as sent, and again of what it unpacks to.
pub const MAX_BODY_BYTES: usize = 100 << 20;

/// Reads a whole body.
///
/// # Errors
/// 413 over [`MAX_BODY_BYTES`]; 400 for a body that breaks off, or an encoding that is not supported.
pub async fn read(headers: &HeaderMap, body: axum::body::Body) -> Result<Bytes, ApiError> {
    let announced = text(headers, header::CONTENT_LENGTH.as_str()).and_then(|len| len.parse::<u64>().ok());
    if announced.is_some_and(|len| len > MAX_BODY_BYTES as u64) {
        return Err(too_large());
    }
    let bytes = match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => return Err(too_large()),
        Err(error) => {
            return Err(ApiError::new(
                400,
                "parse_exception",
                format!("request body broke off: {error}"),
            ));
        }
    };
    match text(headers, header::CONTENT_ENCODING.as_str()).map(str::trim) {
        None | Some("" | "identity") => Ok(bytes),
        Some("gzip" | "x-gzip") => {
            // Unpacking is computation: it does not run where other requests wait.
            tokio::task::spawn_blocking(move || gunzip(&bytes))
                .await
                .map_err(|error| {
                    ApiError::new(
                        500,
                        "internal_error",
                        format!("unpacking ended abnormally: {error}"),
                    )
                })?
        }
        Some(other) => Err(ApiError::new(
            415,
            "media_type_header_exception",
            format!("Content-Encoding [{other}] is not supported"),
        )),
    }
}

fn gunzip(bytes: &[u8]) -> Result<Bytes, ApiError> {
    let mut out = Vec::with_capacity(bytes.len().saturating_mul(4).min(MAX_BODY_BYTES));
    let bound = u64::try_from(MAX_BODY_BYTES).unwrap_or(u64::MAX) + 1;
    MultiGzDecoder::new(bytes)
        .take(bound)
        .read_to_end(&mut out)
        .map_err(|error| {
            ApiError::new(
                400,
                "parse_exception",
                format!("request body is not gzip: {error}"),
            )
        })?;
    if out.len() > MAX_BODY_BYTES {
        return Err(too_large());
    }
    Ok(Bytes::from(out))
}

fn too_large() -> ApiError {
    ApiError::new(
        413,
        "content_too_large_exception",
        format!("request body is larger than {MAX_BODY_BYTES} bytes"),
    )
}
