//! Growth of the schema: an index whose fields came one by one against one that had them all from the start.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::case_sensitive_file_extension_comparisons,
    reason = "tests"
)]

mod common;

use common::{Copy, config, count_text, dir, ids, scores};
use segmentry_engine::{Engine, schema::Located};
use segmentry_mapping::Mapping;
use segmentry_vfs::RealFs;
use serde_json::{Value, json};
use std::sync::Arc;

/// Documents in which more and more fields appear.
fn documents() -> Vec<(String, Value)> {
    let words = ["alpha", "beta", "gamma", "delta"];
    (0_usize..300)
        .map(|number| {
            let text = |salt: usize| {
                (0..=(number * 7 + salt) % 9)
                    .map(|at| words[(number + at * salt) % 4])
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            let mut source = json!({"first": text(1), "n": number});
            if number >= 60 {
                source["second"] = text(2).into();
                source["flag"] = (number % 2 == 0).into();
            }
            if number >= 140 && number % 3 != 0 {
                source["third"] = text(3).into();
                source["at"] = format!("2020-01-{:02}", 1 + number % 28).into();
                source["ratio"] = (number as f64 / 8.0).into();
            }
            (format!("{number:03}"), source)
        })
        .collect()
}

fn build(copy: &mut Copy, refresh_each: usize) {
    for (number, (id, source)) in documents().iter().enumerate() {
        copy.index(id, source);
        if number % 5 == 4 {
            copy.delete(&format!("{:03}", number - 4));
        }
        if number % 11 == 10 {
            copy.index(&format!("{:03}", number - 3), source);
        }
        if number % refresh_each == refresh_each - 1 {
            copy.refresh();
        }
    }
    copy.refresh();
}

fn compare(grown: &Engine, whole: &Engine) {
    assert_eq!(ids(grown), ids(whole));
    for field in ["first", "second", "third"] {
        for word in ["alpha", "beta", "gamma", "delta", "nothing"] {
            assert_eq!(
                count_text(grown, field, word),
                count_text(whole, field, word),
                "{field}:{word}"
            );
            let (left, right) = (scores(grown, field, word), scores(whole, field, word));
            assert_eq!(left, right, "{field}:{word}");
        }
    }
    for field in ["n", "flag", "at", "ratio", "second.keyword"] {
        assert_eq!(column(grown, field), column(whole, field), "{field}");
    }
}

/// (id, has a value, value as text) of every document.
fn column(engine: &Engine, path: &str) -> Vec<(String, String)> {
    use tantivy::schema::Value as _;
    let view = engine.view();
    let name = segmentry_engine::schema::tantivy_name(path);
    let mut out = Vec::new();
    for segment in view.searcher().segment_readers() {
        let store = segment.get_store_reader(1).unwrap();
        let fast = segment.fast_fields();
        let numbers = fast.column_opt::<i64>(&name).unwrap();
        let floats = fast.column_opt::<f64>(&name).unwrap();
        let flags = fast.column_opt::<bool>(&name).unwrap();
        let texts = fast.str(&name).unwrap();
        for doc in segment.doc_ids_alive() {
            let document: tantivy::TantivyDocument = store.get(doc).unwrap();
            let id = document
                .get_first(view.fields().id)
                .unwrap()
                .as_str()
                .unwrap()
                .to_owned();
            let text = texts.as_ref().map(|column| {
                column
                    .term_ords(doc)
                    .map(|ord| {
                        let mut text = String::new();
                        column.ord_to_str(ord, &mut text).unwrap();
                        text
                    })
                    .collect::<Vec<_>>()
            });
            out.push((
                id,
                format!(
                    "{:?} {:?} {:?} {:?}",
                    numbers.as_ref().and_then(|column| column.first(doc)),
                    floats.as_ref().and_then(|column| column.first(doc)),
                    flags.as_ref().and_then(|column| column.first(doc)),
                    text.filter(|text| !text.is_empty())
                ),
            ));
        }
    }
    out.sort();
    out
}

/// An engine whose schema had every field before the first document.
fn whole(path: &std::path::Path) -> Copy {
    let mut whole = Copy::in_dir(path);
    let (_, last) = documents().pop().unwrap();
    let mut all = Vec::new();
    for source in [last, json!({"third": "x y", "at": "2020-01-01", "ratio": 1.5})] {
        let document = whole.parse(&source);
        all.push((document, Arc::clone(&whole.mapping)));
    }
    whole
        .engine
        .ensure_fields(all.iter().map(|(document, mapping)| (document, mapping)))
        .unwrap();
    whole
}

#[test]
fn an_index_that_grew_equals_one_that_had_the_whole_schema() {
    let (_a, grown_path) = dir();
    let (_b, whole_path) = dir();
    let mut grown = Copy::in_dir(&grown_path);
    build(&mut grown, 25);
    let mut whole = whole(&whole_path);
    build(&mut whole, 25);
    assert!(grown.engine.stats().segments.len() > 1);

    // Statistics of scores count deleted documents until a merge, and merges come when they like: settle both first.
    for copy in [&grown, &whole] {
        copy.engine.force_merge().unwrap();
        copy.refresh();
        assert_eq!(copy.engine.stats().segments.len(), 1);
        assert_eq!(copy.engine.stats().deleted, 0);
    }
    compare(&grown.engine, &whole.engine);

    // After a restart the merged segment has its norms by itself.
    grown.engine.flush().unwrap();
    let mapping = Arc::clone(&grown.mapping);
    drop(grown);
    let mut config = config(Arc::new(RealFs), &grown_path);
    config.mapping = mapping;
    compare(&Engine::open(config).unwrap(), &whole.engine);
}

#[test]
fn old_segments_answer_for_new_fields_before_any_merge_and_after_a_restart() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    copy.index("old", &json!({"a": "word"}));
    copy.refresh();
    copy.index("new", &json!({"a": "word", "b": "word word", "n": 1}));
    copy.refresh();
    assert_eq!(copy.engine.stats().segments.len(), 2);
    let check = |engine: &Engine| {
        assert_eq!(count_text(engine, "a", "word"), Some(2));
        assert_eq!(count_text(engine, "b", "word"), Some(1));
        let found = scores(engine, "b", "word");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "new");
        // An old segment has a norm of zero for every document.
        let view = engine.view();
        let field = view.fields().get("b").unwrap();
        for segment in view.searcher().segment_readers() {
            let norms = segment.get_fieldnorms_reader(field).unwrap();
            assert_eq!(norms.num_docs(), segment.max_doc());
        }
    };
    check(&copy.engine);
    copy.engine.flush().unwrap();
    let mapping = Arc::clone(&copy.mapping);
    drop(copy);
    let mut config = config(Arc::new(RealFs), &path);
    config.mapping = mapping;
    let engine = Engine::open(config).unwrap();
    check(&engine);
    engine.open_writer(2).unwrap();
    engine.force_merge().unwrap();
    engine.refresh(&engine.commit_info()).unwrap();
    assert_eq!(engine.stats().segments.len(), 1);
    check(&engine);
}

#[test]
fn a_view_from_before_the_growth_stays_as_it_was() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    copy.index("1", &json!({"a": "word"}));
    copy.refresh();
    let before = copy.engine.view();
    copy.index("2", &json!({"a": "word", "b": "word"}));
    assert_eq!(copy.ids(), ["1"], "growth commits, but makes nothing visible");
    copy.refresh();
    assert_eq!(before.searcher().num_docs(), 1);
    assert_eq!(before.fields().get("b"), None);
    assert_eq!(copy.ids(), ["1", "2"]);
}

#[test]
fn a_mapped_field_that_no_document_has_is_not_materialised_and_matches_nothing() {
    let (_temp, path) = dir();
    let mapping = Mapping::from_json(
        &json!({"properties": {"a": {"type": "text"}, "b": {"type": "text"}, "off": {"type": "long", "doc_values": false}}}),
        1_000,
    )
    .unwrap();
    let mut config = config(Arc::new(RealFs), &path);
    config.mapping = Arc::new(mapping);
    let mut copy = Copy::create(config);
    copy.index("1", &json!({"a": "word", "off": 7}));
    copy.refresh();
    let view = copy.engine.view();
    assert!(matches!(view.locate("a"), Located::Field(..)));
    assert!(matches!(view.locate("b"), Located::Unmaterialised(field) if field.name == "b"));
    assert!(
        matches!(view.locate("off"), Located::Unmaterialised(_)),
        "neither indexed nor a column: only in the source"
    );
    assert_eq!(view.locate("c"), Located::Unmapped);
    assert_eq!(count_text(&copy.engine, "b", "word"), None);
    assert_eq!(
        view.searcher().schema().num_fields(),
        segmentry_engine::schema::base_schema().num_fields() + 1
    );
}

#[test]
fn one_reopening_serves_a_whole_queue() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    let queue: Vec<_> = (0..50)
        .map(|number| {
            let document = copy.parse(&json!({format!("f{number}"): number}));
            (document, Arc::clone(&copy.mapping))
        })
        .collect();
    let before = copy.engine.meta_versions().0;
    copy.engine
        .ensure_fields(queue.iter().map(|(document, mapping)| (document, mapping)))
        .unwrap();
    assert_eq!(copy.engine.meta_versions().0, before + 1, "one publication");
    copy.engine
        .ensure_fields(queue.iter().map(|(document, mapping)| (document, mapping)))
        .unwrap();
    assert_eq!(
        copy.engine.meta_versions().0,
        before + 1,
        "and none when nothing is missing"
    );
    copy.index("1", &json!({"f7": 1}));
    copy.refresh();
    assert!(matches!(copy.engine.view().locate("f49"), Located::Field(..)));
}

#[test]
fn fields_without_a_column_are_named_in_field_names() {
    use tantivy::{collector::Count, query::TermQuery, schema::IndexRecordOption};
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    copy.index("1", &json!({"t": ["a", "b"], "n": 1}));
    copy.index("2", &json!({"n": 2}));
    copy.refresh();
    let view = copy.engine.view();
    let count = |path: &str| {
        let term = tantivy::Term::from_field_text(view.fields().field_names, path);
        view.searcher()
            .search(&TermQuery::new(term, IndexRecordOption::Basic), &Count)
            .unwrap()
    };
    assert_eq!((count("t"), count("t.keyword"), count("n")), (1, 0, 0));
}

#[test]
fn numbers_are_columns_only_unless_the_mapping_asks_for_an_index() {
    let (_temp, path) = dir();
    let mapping = Mapping::from_json(
        &json!({"properties": {"plain": {"type": "long"}, "indexed": {"type": "date", "index": true}}}),
        1_000,
    )
    .unwrap();
    let mut config = config(Arc::new(RealFs), &path);
    config.mapping = Arc::new(mapping);
    let mut copy = Copy::create(config);
    copy.index("1", &json!({"plain": 1, "indexed": "9999-12-31"}));
    copy.refresh();
    let view = copy.engine.view();
    let entry = |path: &str| {
        view.searcher()
            .schema()
            .get_field_entry(view.fields().get(path).unwrap())
            .clone()
    };
    assert!(entry("plain").is_fast() && !entry("plain").is_indexed());
    assert!(
        entry("indexed").is_fast() && entry("indexed").is_indexed() && !entry("indexed").has_fieldnorms()
    );
    let column = view
        .searcher()
        .segment_reader(0)
        .fast_fields()
        .i64("f:indexed")
        .unwrap();
    assert_eq!(column.first(0), Some(253_402_214_400_000));
}
