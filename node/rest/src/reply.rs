//! Answers: JSON (compact unless `pretty`), text, OpenSearch's error body, `filter_path`, HEAD, gzip.

use crate::{filter, params::Params};
use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use segmentry_coordinator::{ApiError, ShardFailure};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io::Write;

/// Answers shorter than this are not worth compressing, in bytes.
const GZIP_FROM: usize = 256;

/// What a handler answers.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Body.
    pub body: Content,
    /// Further headers.
    pub headers: Vec<(header::HeaderName, HeaderValue)>,
}

/// A body.
#[derive(Debug)]
pub enum Content {
    /// Compact JSON.
    Json(Vec<u8>),
    /// Plain text.
    Text(String),
}

impl Reply {
    /// Status 200 with JSON.
    ///
    /// # Errors
    /// Where the value cannot be encoded.
    pub fn json<T: Serialize>(value: &T) -> Result<Self, ApiError> {
        Self::with_status(200, value)
    }

    /// JSON with a status.
    ///
    /// # Errors
    /// Where the value cannot be encoded.
    pub fn with_status<T: Serialize>(status: u16, value: &T) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(value).map_err(|error| {
            ApiError::new(
                500,
                "internal_error",
                format!("answer cannot be encoded: {error}"),
            )
        })?;
        Ok(Self {
            status,
            body: Content::Json(body),
            headers: Vec::new(),
        })
    }

    /// Status 200 with text.
    pub fn text(text: String) -> Self {
        Self {
            status: 200,
            body: Content::Text(text),
            headers: Vec::new(),
        }
    }

    /// An error as OpenSearch writes it.
    pub fn error(error: &ApiError) -> Self {
        let status = if (400..=599).contains(&error.status) {
            error.status
        } else {
            500
        };
        let body = json!({"error": error_body(error), "status": status});
        let mut headers = Vec::new();
        if status == 503 || status == 429 {
            headers.push((header::RETRY_AFTER, HeaderValue::from_static("1")));
        }
        Self {
            status,
            body: Content::Json(body.to_string().into_bytes()),
            headers,
        }
    }

    /// The HTTP response for a request of `method` with `headers` and `params`.
    pub fn into_response(self, method: &Method, headers: &HeaderMap, params: &Params) -> Response {
        let (mut bytes, content_type) = match self.body {
            Content::Json(bytes) => (shape(bytes, params), "application/json; charset=UTF-8"),
            Content::Text(text) => (text.into_bytes(), "text/plain; charset=UTF-8"),
        };
        let mut response = Response::builder()
            .status(StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
            .header(header::CONTENT_TYPE, content_type);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        if bytes.len() >= GZIP_FROM && accepts_gzip(headers) {
            let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
            if encoder.write_all(&bytes).is_ok()
                && let Ok(compressed) = encoder.finish()
            {
                bytes = compressed;
                response = response
                    .header(header::CONTENT_ENCODING, "gzip")
                    .header(header::VARY, "accept-encoding");
            }
        }
        response = response.header(header::CONTENT_LENGTH, bytes.len());
        let body = if method == Method::HEAD {
            Body::empty()
        } else {
            Body::from(bytes)
        };
        response
            .body(body)
            .unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
    }
}

/// `pretty` and `filter_path` over compact JSON; without them the bytes are answered as they are.
fn shape(bytes: Vec<u8>, params: &Params) -> Vec<u8> {
    let pretty = params.bool("pretty", false).unwrap_or(false);
    let paths = params.get("filter_path").filter(|paths| !paths.is_empty());
    if !pretty && paths.is_none() {
        return bytes;
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(&bytes) else {
        return bytes;
    };
    if let Some(paths) = paths {
        value = filter::apply(value, paths);
    }
    if !pretty {
        return value.to_string().into_bytes();
    }
    let mut out = serde_json::to_vec_pretty(&value).unwrap_or(bytes);
    out.push(b'\n');
    out
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
            matches!(name.trim(), "gzip" | "*") && !matches!(weight.trim(), "q=0" | "q=0.0")
        })
}

/// The object below `error`, also of a bulk item: type, reason, and what it is about.
pub fn error_object(error: &ApiError) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("type".into(), json!(error.kind));
    out.insert("reason".into(), json!(error.reason));
    if let Some(index) = &error.index {
        out.insert("index".into(), json!(index));
    }
    if let Some(shard) = error.shard {
        out.insert("shard".into(), json!(shard.to_string()));
    }
    if let Some(uuid) = &error.index_uuid {
        out.insert("index_uuid".into(), json!(uuid));
    }
    if let Some((kind, reason)) = error.caused_by.as_deref() {
        out.insert("caused_by".into(), json!({"type": kind, "reason": reason}));
    }
    out
}

/// A shard's failure, as `_shards.failures` and `failed_shards` list it.
pub fn failure_object(failure: &ShardFailure) -> Value {
    json!({
        "shard": failure.shard,
        "index": failure.index,
        "node": failure.node,
        "reason": error_object(&failure.error),
    })
}

fn error_body(error: &ApiError) -> Map<String, Value> {
    let mut out = Map::new();
    let mut own = error_object(error);
    if error.failures.is_empty() {
        let mut cause = own.clone();
        cause.remove("caused_by");
        out.insert("root_cause".into(), json!([cause]));
        out.append(&mut own);
        return out;
    }
    let mut causes: Vec<Map<String, Value>> = Vec::new();
    for failure in &error.failures {
        let cause = error_object(&failure.error);
        if !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    out.insert("root_cause".into(), json!(causes));
    out.append(&mut own);
    out.insert("phase".into(), json!("query"));
    out.insert("grouped".into(), json!(true));
    let failed: Vec<Value> = error.failures.iter().map(failure_object).collect();
    out.insert("failed_shards".into(), json!(failed));
    out
}
