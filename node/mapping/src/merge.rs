//! One mapping grown by another. Append-only: no field goes, moves, or changes its type.

use crate::{Field, Mapping, MappingError};

impl Mapping {
    /// This mapping with the fields and root parameters of `update` added.
    ///
    /// The same mapping (and version) comes back if nothing is new; else its version has grown by one. `total_fields_limit` is
    /// `index.mapping.total_fields.limit`.
    ///
    /// Errors: `illegal_argument_exception` where a type, a fixed parameter, or the kind (object or leaf) of a path differs.
    pub fn merge(&self, update: &Self, total_fields_limit: u64) -> Result<Self, MappingError> {
        let mut grown = self.clone();
        if update.dynamic_written() {
            grown.dynamic = update.dynamic;
            grown.dynamic_explicit = true;
        }
        if update.date_detection.is_some() {
            grown.date_detection = update.date_detection;
        }
        for object in &update.objects {
            if self.field(object).is_some() {
                return Err(kind_differs(object));
            }
            if !grown.is_object(object) {
                grown.objects.push(object.clone());
            }
        }
        for field in &update.fields {
            if self.is_object(&field.name) {
                return Err(kind_differs(&field.name));
            }
            match grown.fields.iter_mut().find(|known| known.name == field.name) {
                Some(known) => update_field(known, field)?,
                None => grown.fields.push(field.clone()),
            }
        }
        if grown == *self {
            return Ok(grown);
        }
        // A change that adds no field passes even where the limit was lowered below what is there.
        if grown.total_fields() > self.total_fields() {
            grown.check_limit(total_fields_limit)?;
        }
        grown.version += 1;
        Ok(grown)
    }

    /// Refuses more fields than `index.mapping.total_fields.limit`.
    pub fn check_limit(&self, total_fields_limit: u64) -> Result<(), MappingError> {
        if self.total_fields() as u64 > total_fields_limit {
            return Err(MappingError::illegal(format!(
                "Limit of total fields [{total_fields_limit}] has been exceeded"
            )));
        }
        Ok(())
    }
}

fn kind_differs(path: &str) -> MappingError {
    MappingError::illegal(format!(
        "can't merge a non object mapping [{path}] with an object mapping"
    ))
}

fn update_field(known: &mut Field, update: &Field) -> Result<(), MappingError> {
    // Destructured, so that a new parameter has to be decided about here.
    let Field {
        name,
        kind,
        parent,
        indexed,
        doc_values,
        analyzer,
        ignore_above,
        format,
        explicit,
    } = update;
    if known.kind != *kind {
        return Err(MappingError::illegal(format!(
            "mapper [{name}] cannot be changed from type [{}] to type [{}]",
            known.kind.name(),
            kind.name()
        )));
    }
    if known.parent != *parent {
        return Err(kind_differs(name));
    }
    let fixed = |parameter: &str, old: String, new: String| {
        if old == new {
            return Ok(());
        }
        Err(MappingError::illegal(format!(
            "Mapper for [{name}] conflicts with existing mapper:\n\tCannot update parameter [{parameter}] from [{old}] to [{new}]"
        )))
    };
    fixed("index", known.indexed.to_string(), indexed.to_string())?;
    fixed("doc_values", known.doc_values.to_string(), doc_values.to_string())?;
    let analyzer_name = |name: &Option<String>| name.as_deref().unwrap_or("standard").to_owned();
    fixed(
        "analyzer",
        analyzer_name(&known.analyzer),
        analyzer_name(analyzer),
    )?;
    let format_name = |format: &Option<String>| {
        format
            .as_deref()
            .unwrap_or(crate::date::DEFAULT_FORMAT)
            .to_owned()
    };
    fixed("format", format_name(&known.format), format_name(format))?;
    // Counts for values that come later only.
    known.ignore_above = *ignore_above;
    known.explicit.clone_from(explicit);
    Ok(())
}
