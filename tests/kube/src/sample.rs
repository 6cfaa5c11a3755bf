//! A small program for the bed's own tests: what a pod runs before there is a product to run.
//!
//! Answers `GET /ready` (503 while `<data>/unready` exists), `GET /started` (its starts, counted in `<data>/starts`), and
//! `GET /resolve/<name>` (addresses, as its resolver sees them). Ends with code 0 on SIGTERM.

use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

/// Serves until SIGTERM.
pub async fn run(listen: &str, data: &Path) -> Result<()> {
    let starts = data.join("starts");
    let before: u32 = fs::read_to_string(&starts)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    fs::write(&starts, (before + 1).to_string())?;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("listen on {listen}"))?;
    let mut terminated = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = terminated.recv() => return Ok(()),
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                if let Err(error) = answer(stream, data).await {
                    eprintln!("request: {error:#}");
                }
            }
        }
    }
}

async fn answer(mut stream: TcpStream, data: &Path) -> Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < 8192 {
        if stream.read_buf(&mut request).await? == 0 {
            break;
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, body) = if path == "/ready" {
        if data.join("unready").exists() {
            (503, String::new())
        } else {
            (200, String::new())
        }
    } else if path == "/started" {
        (200, fs::read_to_string(data.join("starts"))?)
    } else if let Some(name) = path.strip_prefix("/resolve/") {
        match tokio::net::lookup_host((name, 0)).await {
            Ok(found) => (
                200,
                found.fold(String::new(), |mut text, address| {
                    // Writing to a String cannot fail.
                    let _ = writeln!(text, "{}", address.ip());
                    text
                }),
            ),
            Err(error) => (404, error.to_string()),
        }
    } else {
        (404, String::new())
    };
    let head = format!(
        "HTTP/1.1 {status} -\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await?;
    Ok(stream.shutdown().await?)
}
