#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::*;
use proptest::prelude::*;
use serde_json::json;

fn create(json: &Value) -> Result<IndexSettings, SettingError> {
    IndexSettings::create(json, &ClusterSettings::default())
}

fn change(key: &str, value: Option<&str>) -> BTreeMap<String, Option<String>> {
    BTreeMap::from([(key.to_owned(), value.map(str::to_owned))])
}

#[test]
fn every_written_form_of_a_create_call_gives_the_same_settings() {
    let forms = [
        json!({"number_of_shards": 3, "refresh_interval": "-1", "translog.durability": "ASYNC"}),
        json!({"index": {"number_of_shards": "3", "refresh_interval": -1, "translog": {"durability": "async"}}}),
        json!({"index.number_of_shards": 3, "index": {"refresh_interval": "-1"}, "index.translog.durability": "async"}),
    ];
    for form in forms {
        let settings = create(&form).unwrap();
        assert_eq!(settings.number_of_shards, 3);
        assert_eq!(settings.refresh_interval_ms, None);
        assert_eq!(settings.durability, Durability::Async);
        assert_eq!(settings.explicit["index.translog.durability"], "async");
        assert_eq!(settings.explicit["index.number_of_replicas"], "1");
        assert_eq!(settings.explicit["index.replication.type"], "DOCUMENT");
    }
}

#[test]
fn cluster_defaults_are_fixed_at_creation_and_a_named_value_wins() {
    let cluster = ClusterSettings {
        replication_strategy: ReplicationType::Segment,
        translog_durability: Some(Durability::Async),
        ..ClusterSettings::default()
    };
    let settings = IndexSettings::create(&Value::Null, &cluster).unwrap();
    assert_eq!(
        (settings.replication_type, settings.durability),
        (ReplicationType::Segment, Durability::Async)
    );
    assert_eq!(settings.explicit["index.translog.durability"], "async");
    let named = IndexSettings::create(
        &json!({"replication.type": "DOCUMENT", "translog.durability": "request"}),
        &cluster,
    )
    .unwrap();
    assert_eq!(
        (named.replication_type, named.durability),
        (ReplicationType::Document, Durability::Request)
    );
}

#[test]
fn unknown_private_and_unsupported_settings_are_refused_by_name() {
    assert_eq!(
        create(&json!({"foo": 1})).unwrap_err().0,
        "unknown setting [index.foo] please check that any required plugins are installed, or check the breaking changes \
         documentation for removed settings"
    );
    for key in [
        "index.codec",
        "index.routing.allocation.enable",
        "index.translog.retention.size",
        "index.max_ngram_diff",
        "index.analysis.analyzer.x",
    ] {
        assert_eq!(
            create(&json!({key: "x"})).unwrap_err().0,
            format!("setting [{key}] is not supported by Segmentry yet")
        );
        assert!(
            create(&json!({key: null})).is_err(),
            "a reset of {key} is no way around"
        );
    }
    assert_eq!(
        create(&json!({"uuid": "x"})).unwrap_err().0,
        "private index setting [index.uuid] can not be set explicitly"
    );
}

#[test]
fn bounds_are_kept_with_opensearchs_texts() {
    let table = [
        (
            "index.number_of_shards",
            "0",
            "Failed to parse value [0] for setting [index.number_of_shards] must be >= 1",
        ),
        (
            "index.number_of_shards",
            "1025",
            "Failed to parse value [1025] for setting [index.number_of_shards] must be <= 1024",
        ),
        (
            "index.number_of_replicas",
            "-1",
            "Failed to parse value [-1] for setting [index.number_of_replicas] must be >= 0",
        ),
        (
            "index.number_of_replicas",
            "x",
            "Failed to parse value [x] for setting [index.number_of_replicas]",
        ),
        (
            "index.translog.sync_interval",
            "99ms",
            "failed to parse value [99ms] for setting [index.translog.sync_interval], must be >= [100ms]",
        ),
        (
            "index.translog.flush_threshold_size",
            "1b",
            "failed to parse value [1b] for setting [index.translog.flush_threshold_size], must be >= [56b]",
        ),
        (
            "index.translog.durability",
            "maybe",
            "failed to parse value [maybe] for setting [index.translog.durability], must be [request] or [async]",
        ),
        (
            "index.replication.type",
            "x",
            "Could not parse ReplicationStrategy for [x]",
        ),
        (
            "index.max_result_window",
            "0",
            "Failed to parse value [0] for setting [index.max_result_window] must be >= 1",
        ),
    ];
    for (key, value, text) in table {
        assert_eq!(create(&json!({key: value})).unwrap_err().0, text);
    }
}

#[test]
fn fixed_settings_cannot_be_updated_on_a_live_index() {
    let settings = create(&Value::Null).unwrap();
    for (key, value) in [
        ("index.number_of_shards", Some("2")),
        ("index.replication.type", Some("SEGMENT")),
        ("index.number_of_shards", None),
    ] {
        assert_eq!(
            settings.update("i/u", &change(key, value)).unwrap_err().0,
            format!("Can't update non dynamic settings [[{key}]] for open indices [[i/u]]")
        );
    }
}

#[test]
fn a_reset_gives_the_default_back_and_leaves_the_explicit_list() {
    let set = create(&json!({"refresh_interval": "30s", "number_of_replicas": 2})).unwrap();
    let reset = set
        .update("i/u", &change("index.refresh_interval", None))
        .unwrap();
    assert_eq!(reset.refresh_interval_ms, Some(1_000));
    assert!(!reset.explicit.contains_key("index.refresh_interval"));
    let all = set.update("i/u", &change("index.*", None)).unwrap();
    assert_eq!(all.number_of_replicas, 1);
    assert_eq!(all.explicit["index.number_of_replicas"], "1");
    assert!(set.update("i/u", &change("index.*", Some("1"))).is_err());
}

#[test]
fn a_refused_update_names_the_bad_key_and_a_good_one_changes_only_itself() {
    let settings = create(&json!({"number_of_shards": 2})).unwrap();
    let next = settings
        .update("i/u", &change("index.translog.sync_interval", Some("2s")))
        .unwrap();
    assert_eq!(
        next,
        IndexSettings {
            sync_interval_ms: 2_000,
            explicit: next.explicit.clone(),
            ..settings.clone()
        }
    );
    assert!(
        settings
            .update("i/u", &change("index.foo", Some("1")))
            .unwrap_err()
            .0
            .starts_with("unknown setting [index.foo]")
    );
}

#[test]
fn every_default_is_read_back_to_the_same_value() {
    let defaults = IndexSettings::default();
    let mut read = IndexSettings::default();
    for (key, value) in defaults.effective() {
        read.set(&key, &value).unwrap();
    }
    read.explicit.clear();
    assert_eq!(read, defaults);
    assert_eq!(
        defaults.effective().len(),
        SETTINGS.len(),
        "each supported setting is rendered"
    );
}

#[test]
fn an_older_record_without_new_fields_is_read() {
    let read: IndexSettings = serde_json::from_value(json!({"number_of_shards": 4})).unwrap();
    assert_eq!(read.number_of_shards, 4);
    assert_eq!(read.delayed_timeout_ms, 60_000);
}

proptest! {
    #[test]
    fn no_value_makes_the_parser_fail_in_another_way_than_a_refusal(key in 0..SETTINGS.len(), value in "\\PC{0,12}") {
        let key = SETTINGS[key].key;
        if let Ok(settings) = create(&json!({key: value})) {
            prop_assert!(settings.number_of_shards >= 1 && settings.number_of_shards <= MAX_SHARDS);
            prop_assert!(settings.number_of_replicas <= MAX_REPLICAS);
            prop_assert!(settings.sync_interval_ms >= MIN_SYNC_INTERVAL_MS);
            prop_assert!(settings.flush_threshold_bytes >= MIN_TRANSLOG_THRESHOLD);
        }
    }
}
