#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use super::*;

struct Bed {
    objects: FileObjects,
    folder: tempfile::TempDir,
    said: Arc<Mutex<Vec<String>>>,
}

fn open(folder: tempfile::TempDir) -> Bed {
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let list = said.clone();
    let say = move |work: &Work, note: &Note| list.lock().unwrap().push(format!("{work}: {}", note.message));
    let objects = FileObjects::open(folder.path().join("cluster.json"), say).unwrap();
    Bed {
        objects,
        folder,
        said,
    }
}

fn bed() -> Bed {
    open(tempfile::tempdir().unwrap())
}

fn declared(indices: &[&str]) -> Declared {
    let cluster = "{apiVersion: segmentry.io/v1alpha1, kind: IndexCluster, metadata: {name: c, namespace: n}, spec: {nodeSets: [{name: s, replicas: 3, storage: {size: 1Gi}}]}}";
    let index = |spec: &&str| {
        serde_saphyr::from_str(&format!("{{apiVersion: segmentry.io/v1alpha1, kind: Index, metadata: {{name: i, namespace: n}}, spec: {{clusterRef: {{name: c}}, {spec}}}}}")).unwrap()
    };
    Declared {
        clusters: vec![serde_saphyr::from_str(cluster).unwrap()],
        indices: indices.iter().map(index).collect(),
    }
}

fn key(name: &str) -> Key {
    Key {
        namespace: "n".to_owned(),
        name: name.to_owned(),
    }
}

impl Bed {
    async fn index(&self) -> Index {
        self.objects.get_index(&key("i")).await.unwrap().expect("there")
    }
}

#[tokio::test]
async fn uid_generation_and_status_outlive_the_process_and_the_epoch_rises() {
    let first = bed();
    assert_eq!(
        first.objects.declare(&declared(&["shards: 3"])).unwrap(),
        Declaration::default()
    );
    let mut index = first.index().await;
    assert_eq!(index.metadata.generation, Some(1));
    let ready = conditions::Verdict::new(conditions::READY, true, conditions::reason::AS_DECLARED, "");
    let status = index.status.get_or_insert_default();
    status.index_uuid = Some("u".to_owned());
    status.conditions = conditions::merge(&[], &conditions::INDEX_TYPES, &[ready], 1, Timestamp::now());
    first.objects.write_index_status(&index).await.unwrap();
    let (epoch, Bed { folder, objects, .. }) = (first.objects.epoch(), first);
    drop(objects);

    let second = open(folder);
    assert!(second.objects.epoch() > epoch);
    second.objects.declare(&declared(&["shards: 3"])).unwrap();
    let again = second.index().await;
    assert_eq!(again.uid(), index.uid());
    assert_eq!(again.metadata.generation, Some(1));
    let status = again.status.unwrap();
    assert_eq!(status.index_uuid.as_deref(), Some("u"));
    // what the first process saw is not what this one saw
    assert_eq!(
        (
            status.conditions[0].type_.as_str(),
            status.conditions[0].status.as_str()
        ),
        ("Ready", "Unknown")
    );
}

#[tokio::test]
async fn a_status_on_what_has_changed_since_is_a_conflict() {
    let bed = bed();
    bed.objects.declare(&declared(&["replicas: 1"])).unwrap();
    let read = bed.index().await;
    bed.objects.declare(&declared(&["replicas: 2"])).unwrap();
    let outcome = bed.objects.write_index_status(&read).await;
    assert!(matches!(outcome, Err(ObjectsError::Conflict(_))), "{outcome:?}");
    let now = bed.index().await;
    assert_eq!((now.metadata.generation, now.spec.replicas), (Some(2), Some(2)));
    bed.objects.write_index_status(&now).await.unwrap();
}

#[tokio::test]
async fn a_change_that_the_schema_forbids_keeps_the_old_spec_and_says_so() {
    let bed = bed();
    bed.objects.declare(&declared(&["shards: 3"])).unwrap();
    let outcome = bed
        .objects
        .declare(&declared(&["shards: 4, replicas: 2"]))
        .unwrap();
    assert_eq!(outcome.refused.len(), 1);
    assert!(
        outcome.refused[0].starts_with("Index i: `shards` must not change"),
        "{outcome:?}"
    );
    let index = bed.index().await;
    assert_eq!(
        (index.spec.shards, index.spec.replicas, index.metadata.generation),
        (3, None, Some(1))
    );
}

#[tokio::test]
async fn a_finalizer_holds_an_object_back_until_it_is_removed() {
    let bed = bed();
    bed.objects.declare(&declared(&["shards: 1"])).unwrap();
    bed.objects.set_finalizer(&bed.index().await, true).await.unwrap();
    bed.objects.declare(&declared(&[])).unwrap();
    let going = bed.index().await;
    assert!(going.metadata.deletion_timestamp.is_some());
    // declared again while it goes: waits, and is another object afterwards
    let outcome = bed.objects.declare(&declared(&["shards: 2"])).unwrap();
    assert_eq!(outcome.waiting, [Work::Index(key("i"))]);
    bed.objects.set_finalizer(&going, false).await.unwrap();
    assert!(bed.objects.get_index(&key("i")).await.unwrap().is_none());
    bed.objects.declare(&declared(&["shards: 2"])).unwrap();
    let new = bed.index().await;
    assert_ne!(new.uid(), going.uid());
    assert_eq!(new.spec.shards, 2);
}

#[tokio::test]
async fn an_object_without_a_finalizer_goes_at_once() {
    let bed = bed();
    bed.objects.declare(&declared(&["shards: 1"])).unwrap();
    bed.objects.declare(&Declared::default()).unwrap();
    assert!(bed.objects.get_index(&key("i")).await.unwrap().is_none());
    assert!(bed.objects.list_clusters("n").await.unwrap().is_empty());
}

#[tokio::test]
async fn changes_begin_with_what_exists_and_leave_status_writes_out() {
    let bed = bed();
    bed.objects.declare(&declared(&["replicas: 1"])).unwrap();
    let mut changes = bed.objects.changes();
    assert_eq!(changes.next().await, Some(Work::Cluster(key("c"))));
    assert_eq!(changes.next().await, Some(Work::Index(key("i"))));
    bed.objects.write_index_status(&bed.index().await).await.unwrap();
    bed.objects.declare(&declared(&["replicas: 1"])).unwrap();
    bed.objects
        .declare(&Declared {
            clusters: vec![],
            ..declared(&["replicas: 1"])
        })
        .unwrap();
    assert_eq!(changes.next().await, Some(Work::Cluster(key("c"))));
}

#[tokio::test]
async fn an_event_is_said_once_until_its_words_change() {
    let bed = bed();
    let work = Work::Cluster(key("c"));
    for text in ["a", "a", "b"] {
        bed.objects
            .event(&work, "u", &Note::warning("R", "A", text))
            .await;
    }
    assert_eq!(
        *bed.said.lock().unwrap(),
        ["IndexCluster n/c: a", "IndexCluster n/c: b"]
    );
}

#[test]
fn a_damaged_state_file_is_an_error_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.json");
    std::fs::write(&path, "{").unwrap();
    assert!(matches!(
        FileObjects::open(path.clone(), |_, _| {}),
        Err(ObjectsError::Refused(_))
    ));
    assert_eq!(std::fs::read(&path).unwrap(), b"{");
}
