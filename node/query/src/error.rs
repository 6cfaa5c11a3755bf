//! Refusals of a request, in OpenSearch's words.

use serde::{Deserialize, Serialize};

/// OpenSearch's error type. All of them are the client's fault; see [`QueryErrorKind::status`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryErrorKind {
    /// The body is not a search body.
    ParsingException,
    /// An object of the body has a field that it cannot have.
    XContentParseException,
    /// A value is not one that is accepted here, or a known part of the API that is not supported.
    IllegalArgumentException,
    /// The query does not fit the mapping of the index.
    QueryShardException,
    /// A text is not a date, or not date math.
    ParseException,
    /// A text is not a number.
    NumberFormatException,
    /// More clauses than are allowed.
    TooManyClauses,
    /// More buckets than are allowed.
    TooManyBucketsException,
    /// The request would need more memory than one request may have.
    CircuitBreakingException,
}

impl QueryErrorKind {
    /// `type` of the error body.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ParsingException => "parsing_exception",
            Self::XContentParseException => "x_content_parse_exception",
            Self::IllegalArgumentException => "illegal_argument_exception",
            Self::QueryShardException => "query_shard_exception",
            Self::ParseException => "parse_exception",
            Self::NumberFormatException => "number_format_exception",
            Self::TooManyClauses => "too_many_clauses",
            Self::TooManyBucketsException => "too_many_buckets_exception",
            Self::CircuitBreakingException => "circuit_breaking_exception",
        }
    }

    /// HTTP status of the answer.
    pub const fn status(self) -> u16 {
        match self {
            Self::TooManyBucketsException => 503,
            Self::CircuitBreakingException => 429,
            _ => 400,
        }
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {reason}", kind.name())]
pub struct QueryError {
    /// OpenSearch's type.
    pub kind: QueryErrorKind,
    /// OpenSearch's text where it has one.
    pub reason: String,
}

impl QueryError {
    /// An error of a kind.
    pub fn new(kind: QueryErrorKind, reason: impl Into<String>) -> Self {
        Self {
            kind,
            reason: reason.into(),
        }
    }

    /// `parsing_exception`.
    pub fn parsing(reason: impl Into<String>) -> Self {
        Self::new(QueryErrorKind::ParsingException, reason)
    }

    /// `illegal_argument_exception`.
    pub fn illegal(reason: impl Into<String>) -> Self {
        Self::new(QueryErrorKind::IllegalArgumentException, reason)
    }

    /// `query_shard_exception`.
    pub fn shard(reason: impl Into<String>) -> Self {
        Self::new(QueryErrorKind::QueryShardException, reason)
    }

    /// A part of OpenSearch's API that is known and not supported here.
    pub fn unsupported(what: impl std::fmt::Display) -> Self {
        Self::illegal(format!("{what} is not supported"))
    }

    /// HTTP status of the answer.
    pub const fn status(&self) -> u16 {
        self.kind.status()
    }
}
