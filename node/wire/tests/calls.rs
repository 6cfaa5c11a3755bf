//! What a caller learns from a call, over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use bytes::Bytes;
use futures::{StreamExt, stream};
use segmentry_state::NodeId;
use segmentry_wire::{CallError, Client, ClusterCell, Identity, Peer, RemoteError, Routes, Server, Token};
use std::{net::TcpListener, sync::Arc, time::Duration};
use tokio::{runtime::Handle, sync::Notify};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const DEADLINE: Duration = Duration::from_secs(10);

fn identity(id: u64, cluster: Option<Uuid>) -> Identity {
    Identity {
        node_id: NodeId(id),
        name: format!("n-{id}"),
        boot_id: Uuid::new_v4(),
        token: Token::new("secret\n"),
        cluster_uuid: ClusterCell::new(cluster),
    }
}

struct Running {
    identity: Identity,
    address: String,
    stop: CancellationToken,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Running {
    fn peer(&self) -> Peer {
        Peer {
            address: self.address.clone(),
            node_id: Some(self.identity.node_id),
            boot_id: Some(self.identity.boot_id),
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.served.await.unwrap().unwrap();
    }
}

fn serve(identity: Identity, routes: Routes) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stop = CancellationToken::new();
    let server = Server::new(identity.clone(), routes, axum::Router::new());
    let served = tokio::spawn(server.serve(listener, Handle::current(), Handle::current(), stop.clone()));
    Running {
        identity,
        address,
        stop,
        served,
    }
}

fn client(identity: Identity) -> Client {
    Client::new(identity, Handle::current()).unwrap()
}

fn echo() -> Routes {
    Routes::new()
        .json(
            "/_data/test/add",
            |caller, (left, right): (u32, u32)| async move {
                assert_eq!(caller.node_id, NodeId(7));
                left.checked_add(right).ok_or_else(|| {
                    RemoteError::new(422, "overflow", format!("{left} and {right} are too much"))
                })
            },
        )
        .bytes("/_data/test/echo", |_, body: Bytes| async move { Ok(body) })
        .stream("/_data/test/count", |_, (to, fail): (u32, bool)| async move {
            let numbers = stream::iter(0..to).map(|n| Ok(Bytes::from(n.to_string())));
            let end = stream::iter(fail.then(|| Err(RemoteError::internal("no more"))));
            Ok(numbers.chain(end))
        })
}

#[tokio::test]
async fn json_bytes_and_streams_arrive_as_they_were_sent() {
    let cluster = Some(Uuid::new_v4());
    let server = serve(identity(1, cluster), echo());
    let client = client(identity(7, cluster));
    let sum: u32 = client
        .call(&server.peer(), "/_data/test/add", &(2, 3), DEADLINE)
        .await
        .unwrap();
    assert_eq!(sum, 5);
    let body: Vec<u8> = (0..3_000_000_u32)
        .map(|n| u8::try_from(n % 251).unwrap())
        .collect();
    let back = client
        .call_bytes(
            &server.peer(),
            "/_data/test/echo",
            Bytes::from(body.clone()),
            DEADLINE,
        )
        .await
        .unwrap();
    assert_eq!(back, body);
    let empty = client
        .call_bytes(&server.peer(), "/_data/test/echo", Bytes::new(), DEADLINE)
        .await
        .unwrap();
    assert!(empty.is_empty());
    let chunks = client
        .stream(&server.peer(), "/_data/test/count", &(4, false), DEADLINE)
        .await
        .unwrap();
    let all: Vec<u8> = chunks.map(|chunk| chunk.unwrap().to_vec()).concat().await;
    assert_eq!(all, b"0123");
    server.stop().await;
}

#[tokio::test]
async fn an_error_of_a_handler_comes_back_with_its_type_reason_and_status() {
    let cluster = Some(Uuid::new_v4());
    let server = serve(identity(1, cluster), echo());
    let client = client(identity(7, cluster));
    let error = client
        .call::<_, u32>(&server.peer(), "/_data/test/add", &(u32::MAX, 1), DEADLINE)
        .await
        .unwrap_err();
    let CallError::Remote(remote) = &error else {
        panic!("{error:?}")
    };
    assert_eq!((remote.status, remote.kind.as_str()), (422, "overflow"));
    assert!(!error.nothing_done());
    let missing = client
        .call::<_, u32>(&server.peer(), "/_data/test/none", &(), DEADLINE)
        .await
        .unwrap_err();
    assert!(
        matches!(missing, CallError::Remote(RemoteError { status: 404, .. })),
        "{missing:?}"
    );
    let unreadable = client
        .call::<_, u32>(&server.peer(), "/_data/test/add", &"text", DEADLINE)
        .await
        .unwrap_err();
    assert!(
        matches!(unreadable, CallError::Remote(RemoteError { status: 400, .. })),
        "{unreadable:?}"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_an_error_and_not_as_if_complete() {
    let cluster = Some(Uuid::new_v4());
    let server = serve(identity(1, cluster), echo());
    let client = client(identity(7, cluster));
    let peer = server.peer();
    let outcome = match client
        .stream(&peer, "/_data/test/count", &(3, true), DEADLINE)
        .await
    {
        Ok(chunks) => chunks.collect::<Vec<_>>().await.pop().unwrap(),
        // The error came before the head of the answer was on its way.
        Err(error) => Err(error),
    };
    assert!(matches!(outcome, Err(CallError::Silent { .. })), "{outcome:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_wrong_token_is_refused() {
    let cluster = Some(Uuid::new_v4());
    let server = serve(identity(1, cluster), echo());
    for token in ["other!", "secre", "secret2", ""] {
        let client = client(Identity {
            token: Token::new(token),
            ..identity(7, cluster)
        });
        let error = client.ping(&server.peer(), DEADLINE).await.unwrap_err();
        assert!(matches!(error, CallError::Unauthorised(_)), "{token}: {error:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn another_cluster_is_refused_and_a_node_without_one_reaches_metadata_only() {
    let server = serve(identity(1, Some(Uuid::new_v4())), echo());
    let foreign = client(identity(7, Some(Uuid::new_v4())));
    let error = foreign.ping(&server.peer(), DEADLINE).await.unwrap_err();
    assert!(matches!(error, CallError::Foreign(_)), "{error:?}");
    let empty = client(identity(7, None));
    assert_eq!(
        empty.ping(&server.peer(), DEADLINE).await.unwrap().node_id,
        NodeId(1)
    );
    let error = empty
        .call::<_, u32>(&server.peer(), "/_data/test/add", &(1, 1), DEADLINE)
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Foreign(_)), "{error:?}");
    empty
        .identity()
        .cluster_uuid
        .set(server.identity.cluster_uuid.get());
    let sum: u32 = empty
        .call(&server.peer(), "/_data/test/add", &(1, 1), DEADLINE)
        .await
        .unwrap();
    assert_eq!(sum, 2);
    server.stop().await;
}

#[tokio::test]
async fn a_call_for_another_process_or_node_names_who_answered() {
    let cluster = Some(Uuid::new_v4());
    let server = serve(identity(1, cluster), echo());
    let client = client(identity(7, cluster));
    let old_boot = Peer {
        boot_id: Some(Uuid::new_v4()),
        ..server.peer()
    };
    let other_node = Peer {
        node_id: Some(NodeId(2)),
        boot_id: None,
        ..server.peer()
    };
    for peer in [old_boot, other_node] {
        let error = client
            .call::<_, u32>(&peer, "/_data/test/add", &(1, 1), DEADLINE)
            .await
            .unwrap_err();
        assert_eq!(error, CallError::NewBoot(server.identity.boot_id));
        assert!(error.nothing_done() && error.process_gone());
    }
    let pong = client.ping(&Peer::at(&server.address), DEADLINE).await.unwrap();
    assert_eq!(
        (pong.boot_id, pong.name.as_str()),
        (server.identity.boot_id, "n-1")
    );
    server.stop().await;
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_refuses_also_after_calls_that_worked() {
    let cluster = Some(Uuid::new_v4());
    let server = serve(identity(1, cluster), echo());
    let client = client(identity(7, cluster));
    let peer = server.peer();
    client.ping(&peer, DEADLINE).await.unwrap();
    server.stop().await;
    let error = client.ping(&peer, DEADLINE).await.unwrap_err();
    assert!(matches!(error, CallError::Refused(_)), "{error:?}");
    assert!(error.nothing_done() && error.process_gone());
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_unreachable_and_not_gone() {
    let client = client(identity(7, None));
    let error = client
        .ping(&Peer::at("no-such-host.invalid:1"), DEADLINE)
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
    assert!(error.nothing_done() && !error.process_gone());
}

#[tokio::test]
async fn no_answer_within_the_deadline_is_silence_and_the_handler_still_ends() {
    let cluster = Some(Uuid::new_v4());
    let (begun, release, ended) = (
        Arc::new(Notify::new()),
        Arc::new(Notify::new()),
        Arc::new(Notify::new()),
    );
    let (begin, wait, end) = (Arc::clone(&begun), Arc::clone(&release), Arc::clone(&ended));
    let routes = Routes::new().json("/_data/test/slow", move |_, (): ()| {
        let (begin, wait, end) = (Arc::clone(&begin), Arc::clone(&wait), Arc::clone(&end));
        async move {
            begin.notify_one();
            wait.notified().await;
            end.notify_one();
            Ok(1_u32)
        }
    });
    let server = serve(identity(1, cluster), routes);
    let client = client(identity(7, cluster));
    let error = client
        .call::<_, u32>(
            &server.peer(),
            "/_data/test/slow",
            &(),
            Duration::from_millis(200),
        )
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Silent { .. }), "{error:?}");
    assert!(!error.nothing_done() && !error.process_gone());
    tokio::time::timeout(DEADLINE, begun.notified()).await.unwrap();
    release.notify_one();
    tokio::time::timeout(DEADLINE, ended.notified()).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_listener_that_accepts_and_closes_is_silence() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let closing = tokio::spawn(async move {
        use tokio::io::AsyncReadExt;
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 64];
        let _ = stream.read(&mut buffer).await.unwrap();
    });
    let client = client(identity(7, None));
    let error = client.ping(&Peer::at(address), DEADLINE).await.unwrap_err();
    assert!(matches!(error, CallError::Silent { .. }), "{error:?}");
    closing.await.unwrap();
}

#[test]
fn metadata_calls_are_answered_while_the_data_runtime_is_busy() {
    let metadata = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let data = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let cluster = Some(Uuid::new_v4());
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let (busy, is_busy) = std::sync::mpsc::channel::<()>();
    // The only thread of the data runtime is blocked, as a long computation would block it.
    data.spawn(async move {
        busy.send(()).unwrap();
        held.recv().unwrap_err();
    });
    is_busy.recv().unwrap();
    let own = identity(1, cluster);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stop = CancellationToken::new();
    let served = metadata.spawn(Server::new(own, echo(), axum::Router::new()).serve(
        listener,
        metadata.handle().clone(),
        data.handle().clone(),
        stop.clone(),
    ));
    let outside = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    outside.block_on(async {
        let client = Client::new(identity(7, cluster), metadata.handle().clone()).unwrap();
        client.ping(&Peer::at(&address), DEADLINE).await.unwrap();
        let error = client
            .call::<_, u32>(
                &Peer::at(&address),
                "/_data/test/add",
                &(1, 1),
                Duration::from_millis(300),
            )
            .await
            .unwrap_err();
        assert!(matches!(error, CallError::Silent { .. }), "{error:?}");
    });
    drop(hold);
    stop.cancel();
    outside.block_on(served).unwrap().unwrap();
}

#[tokio::test]
async fn a_member_is_dialled_where_its_hello_came_from_although_its_name_does_not_resolve() {
    let cluster = Some(Uuid::new_v4());
    let routes = Routes::new().json(
        "/_meta/where",
        |caller, (): ()| async move { Ok(caller.ip.unwrap()) },
    );
    let server = serve(identity(1, cluster), routes);
    let client = client(identity(7, cluster));
    let from: std::net::IpAddr = client
        .call(&server.peer(), "/_meta/where", &(), DEADLINE)
        .await
        .unwrap();
    assert!(from.is_loopback(), "{from}");
    let port = server.address.rsplit_once(':').unwrap().1;
    let named = Peer {
        address: format!("no-such-host.invalid:{port}"),
        ..server.peer()
    };
    client.ping(&named, DEADLINE).await.unwrap_err();
    client.learn(&named.address, from);
    client.ping(&named, DEADLINE).await.unwrap();
    // Nobody listens there any more: the resolver is asked again, and knows nothing.
    server.stop().await;
    let error = client.ping(&named, DEADLINE).await.unwrap_err();
    assert!(matches!(error, CallError::Refused(_)), "{error:?}");
    let error = client.ping(&named, DEADLINE).await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
}
