//! Refusals, with the types, texts and status that an OpenSearch client knows.

use std::fmt;

/// Kind of a refusal, by OpenSearch's `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// `mapper_parsing_exception`.
    MapperParsing,
    /// `illegal_argument_exception`.
    IllegalArgument,
    /// `strict_dynamic_mapping_exception`.
    StrictDynamicMapping,
    /// `action_request_validation_exception`.
    RequestValidation,
}

impl ErrorKind {
    /// OpenSearch's `type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MapperParsing => "mapper_parsing_exception",
            Self::IllegalArgument => "illegal_argument_exception",
            Self::StrictDynamicMapping => "strict_dynamic_mapping_exception",
            Self::RequestValidation => "action_request_validation_exception",
        }
    }
}

/// `caused_by` of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// OpenSearch's `type`.
    pub kind: &'static str,
    /// Text.
    pub reason: String,
}

impl Cause {
    /// An `illegal_argument_exception`.
    pub fn illegal_argument(reason: impl Into<String>) -> Self {
        Self {
            kind: "illegal_argument_exception",
            reason: reason.into(),
        }
    }
}

/// A mapping or a document that was refused. The status is always 400.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingError {
    /// Type.
    pub kind: ErrorKind,
    /// Text.
    pub reason: String,
    /// What it was caused by, as OpenSearch nests it.
    pub caused_by: Option<Cause>,
}

impl MappingError {
    /// HTTP status of every refusal here.
    pub const STATUS: u16 = 400;

    /// A `mapper_parsing_exception`.
    pub fn parsing(reason: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::MapperParsing,
            reason: reason.into(),
            caused_by: None,
        }
    }

    /// An `illegal_argument_exception`.
    pub fn illegal(reason: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::IllegalArgument,
            reason: reason.into(),
            caused_by: None,
        }
    }

    /// The same with a cause.
    #[must_use]
    pub fn because(mut self, cause: Cause) -> Self {
        self.caused_by = Some(cause);
        self
    }
}

impl fmt::Display for MappingError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.reason)?;
        if let Some(cause) = &self.caused_by {
            write!(out, ": {}", cause.reason)?;
        }
        Ok(())
    }
}

impl std::error::Error for MappingError {}
